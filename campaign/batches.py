"""Record batches as producers send them, encoded here: format 2 (KIP-98), and messages of formats 0 and 1 (KIP-32).

Uses nothing of kmirror, so that a fault of its encoder cannot hide in what it has to copy.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
from crc32c import crc32c

#: Codecs and their number in a batch's attributes.
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "snappy-raw": 2, "lz4": 3, "zstd": 4}
_TRANSACTIONAL = 0x10
#: How Java's clients frame snappy; librdkafka sends it raw.
_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10


class Made(NamedTuple):
    """A record to write; `timestamp` in epoch milliseconds."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def encode_batch(
    records: Sequence[Made],
    codec: str,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    *,
    is_transactional: bool = False,
) -> bytes:
    """Return one batch of format 2."""
    first = records[0].timestamp
    body = b"".join(_record(number, record, first) for number, record in enumerate(records))
    checked = struct.pack(
        ">hiqqqhii",
        CODECS[codec] | (_TRANSACTIONAL if is_transactional else 0),
        len(records) - 1,
        first,
        max(record.timestamp for record in records),
        producer_id,
        epoch,
        sequence,
        len(records),
    ) + _compress(body, codec)
    head = struct.pack(">ibI", -1, 2, crc32c(checked))
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def encode_messages(records: Sequence[Made], magic: int, codec: str, base_offset: int) -> bytes:
    """Return messages of format 0 or 1 as brokers stored them; compressed ones are wrapped in one."""
    if codec == "none":
        return b"".join(_message(magic, base_offset + n, 0, one) for n, one in enumerate(records))
    # offsets within a wrapper are relative in format 1 only
    first = base_offset if magic == 0 else 0
    inner = b"".join(_message(magic, first + n, 0, one) for n, one in enumerate(records))
    wrapper = Made(max(one.timestamp for one in records), None, _compress(inner, codec))
    return _message(magic, base_offset + len(records) - 1, CODECS[codec], wrapper)


def _record(number: int, record: Made, first_timestamp: int) -> bytes:
    parts = [b"\0", _varint(record.timestamp - first_timestamp), _varint(number)]
    parts += _field(record.key), _field(record.value), _varint(len(record.headers))
    for name, value in record.headers:
        parts += _field(name.encode()), _field(value)
    body = b"".join(parts)
    return _varint(len(body)) + body


def _field(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Write a signed number as Protocol Buffers do: zig-zag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _message(magic: int, offset: int, attributes: int, record: Made) -> bytes:
    stamp = struct.pack(">q", record.timestamp) if magic == 1 else b""
    checked = struct.pack(">bb", magic, attributes) + stamp + _sized(record.key) + _sized(record.value)
    return struct.pack(">qiI", offset, 4 + len(checked), zlib.crc32(checked)) + checked


def _sized(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def _compress(data: bytes, codec: str) -> bytes:
    match codec:
        case "gzip":
            return gzip.compress(data, 1, mtime=0)
        case "snappy":
            blocks = [data[start : start + _XERIAL_BLOCK] for start in range(0, len(data), _XERIAL_BLOCK)]
            return _XERIAL + b"".join(_sized(bytes(cramjam.snappy.compress_raw(block))) for block in blocks)
        case "snappy-raw":
            return bytes(cramjam.snappy.compress_raw(data))
        case "lz4":
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(data)
            return bytes(compressor.finish())
        case "zstd":
            return bytes(cramjam.zstd.compress(data))
        case _:
            return data
