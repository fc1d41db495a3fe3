"""The bytes of log segments as brokers write them, in every message format; encoded here, without code of kmirror.

Format 2 is KIP-98's record batch, with KIP-534's delete horizon; 0 and 1 (KIP-32) are messages, compressed ones wrapped
in a message whose value they are.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import cramjam
from crc32c import crc32c

COMMIT, ABORT = "COMMIT", "ABORT"
NO_TIMESTAMP = -1

#: Codecs and their number in a batch's attributes. librdkafka writes snappy without the framing of the Java clients.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "snappy-raw": 2, "lz4": 3, "zstd": 4}

_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10


class VisibleRecord(NamedTuple):
    """A record as applications see it; `timestamp` in epoch milliseconds, -1 where there is none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch of a log; in formats 0 and 1 what a producer sent together.

    `records` are the remaining ones, each with its producer's timestamp; a marker's record is its control record. A
    batch with `append_time` is stamped by the broker (LogAppendTime). `transaction` is the number of its transaction.
    """

    base_offset: int
    last_offset: int
    records: tuple[VisibleRecord, ...]
    max_timestamp: int
    magic: int = 2
    codec: str = "none"
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transaction: int | None = None
    marker: str | None = None
    append_time: int | None = None
    delete_horizon_ms: int | None = None

    @property
    def next_offset(self) -> int:
        """The offset after the last one that it takes."""
        return self.last_offset + 1

    @property
    def visible(self) -> tuple[VisibleRecord, ...]:
        """What a consumer of this batch sees."""
        if self.append_time is None:
            return self.records
        return tuple(record._replace(timestamp=self.append_time) for record in self.records)


def encode(batch: LogBatch, leader_epoch: int = 0) -> bytes:
    """Return a batch as it is stored."""
    return _encode_batch(batch, leader_epoch) if batch.magic == 2 else _encode_messages(batch)


def control_record(offset: int, timestamp: int, marker: str, coordinator_epoch: int) -> VisibleRecord:
    """Return the record of a transaction's end: its key says which (0 abort, 1 commit), its value by which epoch."""
    key, value = struct.pack(">hh", 0, marker == COMMIT), struct.pack(">hi", 0, coordinator_epoch)
    return VisibleRecord(offset, timestamp, key, value)


def compress(data: bytes, codec: str, *, is_format_0: bool = False) -> bytes:
    """Compress as clients do; in format 0 lz4 frames have a header checksum that is wrong (KAFKA-3160)."""
    match codec:
        case "gzip":
            return gzip.compress(data, mtime=0)
        case "snappy":
            blocks = [data[start : start + _XERIAL_BLOCK] for start in range(0, len(data), _XERIAL_BLOCK)]
            return _XERIAL + b"".join(_sized(bytes(cramjam.snappy.compress_raw(block))) for block in blocks)
        case "snappy-raw":
            return bytes(cramjam.snappy.compress_raw(data))
        case "lz4":
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(data)
            frame = bytes(compressor.finish())
            return _with_old_checksum(frame) if is_format_0 else frame
        case "zstd":
            return bytes(cramjam.zstd.compress(data))
        case _:
            return data


def _encode_batch(batch: LogBatch, leader_epoch: int) -> bytes:
    first_timestamp = batch.records[0].timestamp if batch.records else NO_TIMESTAMP
    base_timestamp = first_timestamp if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    body = b"".join(_record(record, batch.base_offset, base_timestamp) for record in batch.records)
    codec = batch.codec if batch.records else "none"  # the cleaner leaves the header of an empty batch without one
    attributes = (
        CODECS[codec]
        | (batch.append_time is not None) << 3
        | (batch.transaction is not None) << 4
        | (batch.marker is not None) << 5
        | (batch.delete_horizon_ms is not None) << 6
    )
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        batch.last_offset - batch.base_offset,
        base_timestamp,
        batch.max_timestamp if batch.append_time is None else batch.append_time,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    ) + compress(body, codec)
    head = struct.pack(">ibI", leader_epoch, 2, crc32c(checked))
    return struct.pack(">qi", batch.base_offset, len(head) + len(checked)) + head + checked


def _record(record: VisibleRecord, base_offset: int, base_timestamp: int) -> bytes:
    parts = [
        b"\0",
        _varint(record.timestamp - base_timestamp),
        _varint(record.offset - base_offset),
        _field(record.key),
        _field(record.value),
        _varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += _field(name.encode()), _field(value)
    body = b"".join(parts)
    return _varint(len(body)) + body


def _field(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


_ONE_BYTE = tuple(bytes((rest,)) for rest in range(0x80))


def _varint(value: int) -> bytes:
    """Write a signed number as Protocol Buffers do: zig-zag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _encode_messages(batch: LogBatch) -> bytes:
    stamped = (batch.append_time is not None) << 3
    if batch.codec == "none":
        return b"".join(
            _message(batch.magic, record.offset, stamped, record.timestamp, record.key, record.value)
            for record in batch.visible
        )
    base_offset = batch.records[0].offset if batch.magic == 1 else 0  # offsets within are relative in format 1 only
    inner = b"".join(
        _message(batch.magic, record.offset - base_offset, 0, record.timestamp, record.key, record.value)
        for record in batch.records
    )
    timestamp = max(record.timestamp for record in batch.records) if batch.append_time is None else batch.append_time
    value = compress(inner, batch.codec, is_format_0=batch.magic == 0)
    return _message(batch.magic, batch.records[-1].offset, CODECS[batch.codec] | stamped, timestamp, None, value)


def _message(magic: int, offset: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    stamp = struct.pack(">q", timestamp) if magic == 1 else b""
    checked = struct.pack(">bb", magic, attributes) + stamp + _sized(key) + _sized(value)
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _with_old_checksum(frame: bytes) -> bytes:
    """Give a frame the header checksum of old Java clients, which also covered the magic number."""
    head = frame[:6]
    return head + bytes([_xxh32_of_few_bytes(head) >> 8 & 0xFF]) + frame[7:]


def _xxh32_of_few_bytes(data: Sequence[int]) -> int:
    """Return XXH32 with seed 0 of less than 16 bytes."""
    first, second, third, fourth, fifth = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    value = (fifth + len(data)) & mask
    words = len(data) // 4 * 4
    for position in range(0, words, 4):
        word = int.from_bytes(bytes(data[position : position + 4]), "little")
        value = rotated((value + word * third) & mask, 17) * fourth & mask
    for byte in data[words:]:
        value = rotated((value + byte * fifth) & mask, 11) * first & mask
    value = (value ^ value >> 15) * second & mask
    value = (value ^ value >> 13) * third & mask
    return value ^ value >> 16
