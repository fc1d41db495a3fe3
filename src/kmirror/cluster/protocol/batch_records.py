"""Read and write the records inside a batch.

Each record is ``length varint | attributes i8 | timestamp delta varint | offset delta varint | key | value | headers``
(zig-zag varints, −1 length for null), the whole section compressed by the batch's codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import cramjam
from crc32c import crc32c

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    HEADER,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatchError,
    OversizedBatchError,
)
from kmirror.cluster.protocol.wire import int64, read_varint, varint

#: The largest record section that is decompressed: a batch of a few KB may expand to gigabytes. No record that brokers
#: accept by default is a hundredth of this.
MAX_SECTION_BYTES = 256 << 20
#: An empty header takes two bytes in a batch, and a hundred times as much in memory.
_MOST_HEADERS = 1_000_000
#: Brokers accept header names that are not UTF-8; their bytes survive a round trip this way.
_ANY_BYTES = "surrogateescape"
#: Sections rarely expand more than this; if one does, decompression is tried again with more room.
_USUAL_RATIO = 8
_LEAST_ROOM = 64 << 10
_MORE_ROOM = 8
#: cramjam's message when the output buffer is too small.
_NO_ROOM = "failed to write whole buffer"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16
#: The first and last bytes of a frame of the Java client: version 1, independent blocks of up to 64 KB, no checksums.
_LZ4_START = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_END = bytes(4)
_LZ4_BLOCK_BYTES = 64 << 10
#: A block's length, with this bit set if its bytes are stored uncompressed.
_LZ4_BLOCK_LENGTH = struct.Struct("<I")
_LZ4_STORED = 1 << 31
#: The size of a frame of one block without the block's bytes.
_LZ4_OVERHEAD = len(_LZ4_START) + _LZ4_BLOCK_LENGTH.size + len(_LZ4_END)


@dataclass(frozen=True, slots=True)
class Record:
    """One record as an application sees it. `timestamp` in epoch milliseconds; null keys and values are None."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class SectionTooLargeError(ValueError):
    """A compressed record section that would expand beyond the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)

    def __str__(self) -> str:
        return f"its records take more than {self.args[0] >> 20} MB when they are decompressed"


def decompress(data: memoryview, compression_type: str, limit: int = MAX_SECTION_BYTES) -> memoryview:
    """Decompress a record section, up to `limit` bytes. Snappy is read raw and in Java's (xerial) framing.

    Raises:
        SectionTooLargeError: it expands beyond `limit`.
        ValueError: an unknown codec, or bytes that are not of this codec.
    """
    try:
        match compression_type:
            case "none":
                return data
            case "gzip":
                return _in_room(cramjam.gzip.decompress_into, data, limit)
            case "snappy":
                return memoryview(_snappy(data, limit))
            case "lz4":
                return _lz4(data, limit)
            case "zstd":
                return _in_room(cramjam.zstd.decompress_into, data, limit)
            case _:
                raise ValueError(f"unknown compression {compression_type}")
    except (cramjam.DecompressionError, struct.error) as error:
        raise ValueError(str(error)) from None


def _in_room(decompress_into: Callable[[memoryview, bytearray], int], data: memoryview, limit: int) -> memoryview:
    """Decompress into a buffer that grows as needed, never beyond `limit`."""
    size = min(limit, max(_LEAST_ROOM, len(data) * _USUAL_RATIO))
    while True:
        room = bytearray(size)
        try:
            filled = memoryview(room)[: decompress_into(data, room)]
            return memoryview(bytes(filled)) if 2 * len(filled) < size else filled.toreadonly()
        except cramjam.DecompressionError as error:
            if str(error) != _NO_ROOM:
                raise
        if size == limit:
            raise SectionTooLargeError(limit)
        size = min(limit, size * _MORE_ROOM)


def compress(data: bytes, compression_type: str) -> bytes:
    """Compress a record section, in the framing that Kafka's Java client reads."""
    match compression_type:
        case "none":
            return data
        case "gzip":
            return bytes(cramjam.gzip.compress(data))
        case "snappy":
            block = bytes(cramjam.snappy.compress_raw(data))
            return _XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block
        case "lz4":
            return _lz4_frame(data)
        case "zstd":
            return bytes(cramjam.zstd.compress(data))
        case _:
            raise ValueError(f"unknown compression {compression_type}")


def _lz4(data: memoryview, limit: int) -> memoryview:
    """Decompress lz4; a frame of one block, as the Java client writes it, in a third of the general time."""
    if len(data) > _LZ4_OVERHEAD and data[: len(_LZ4_START)] == _LZ4_START and data[-4:] == _LZ4_END:
        (length,) = _LZ4_BLOCK_LENGTH.unpack_from(data, len(_LZ4_START))
        if length & ~_LZ4_STORED == len(data) - _LZ4_OVERHEAD:
            block = data[_LZ4_OVERHEAD - len(_LZ4_END) : -len(_LZ4_END)]
            if length & _LZ4_STORED:
                return block
            room = bytearray(_LZ4_BLOCK_BYTES)
            return memoryview(bytes(memoryview(room)[: cramjam.lz4.decompress_block_into(block, room)]))
    return _in_room(cramjam.lz4.decompress_into, data, limit)


def _lz4_frame(data: bytes) -> bytes:
    """Make a frame as the Java client does: at the fastest level, without lz4's checksums."""
    frame = [_LZ4_START]
    for position in range(0, len(data), _LZ4_BLOCK_BYTES):
        block = data[position : position + _LZ4_BLOCK_BYTES]
        shrunk = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(shrunk) < len(block):
            frame += (_LZ4_BLOCK_LENGTH.pack(len(shrunk)), shrunk)
        else:
            frame += (_LZ4_BLOCK_LENGTH.pack(len(block) | _LZ4_STORED), block)
    return b"".join((*frame, _LZ4_END))


def _snappy(data: memoryview, limit: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, limit, limit)
    out = bytearray()
    position = _XERIAL_HEADER
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if length < 0 or position + length > len(data):
            raise ValueError("a snappy block is longer than the batch")
        out += _snappy_block(data[position : position + length], limit - len(out), limit)
        position += length
    return bytes(out)


def _snappy_block(data: memoryview, room: int, limit: int) -> bytes:
    """Decompress one block, which begins with its decompressed size."""
    if cramjam.snappy.decompress_raw_len(data) > room:
        raise SectionTooLargeError(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _bytes(data: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(data):
        raise ValueError("a field is longer than the batch")
    return bytes(data[position:end]), end


def read_records(data: memoryview, header: BatchHeader, limit: int = MAX_SECTION_BYTES) -> Iterator[Record]:
    """Read the records of the batch at `header.position`; offsets and visible timestamps are absolute.

    Raises:
        OversizedBatchError: they take more than `limit` bytes.
        CorruptBatchError: the records cannot be read.
    """
    start = header.position
    section = data[start + BATCH_OVERHEAD : start + header.size_in_bytes]
    try:
        body = decompress(section, header.compression_type, limit)
        position = 0
        for _ in range(header.record_count):
            length, position = read_varint(body, position)
            end = position + length
            position += 1
            timestamp_delta, position = read_varint(body, position)
            offset_delta, position = read_varint(body, position)
            key, position = _bytes(body, position)
            value, position = _bytes(body, position)
            header_count, position = read_varint(body, position)
            if header_count < 0:
                raise ValueError("a record has a negative number of headers")
            if header_count > _MOST_HEADERS:
                raise OversizedBatchError(header.base_offset, f"a record has more than {_MOST_HEADERS:,} headers")
            headers = []
            for _ in range(header_count):
                name, position = _bytes(body, position)
                if name is None:
                    raise ValueError("a header has no name")
                content, position = _bytes(body, position)
                headers.append((name.decode(errors=_ANY_BYTES), content))
            if position != end:
                raise ValueError("a record's length does not fit its content")
            timestamp = (
                header.max_timestamp if header.is_log_append_time else int64(header.base_timestamp + timestamp_delta)
            )
            yield Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))
        if position != len(body):
            raise ValueError("bytes are left after the last record")
    except SectionTooLargeError as error:
        raise OversizedBatchError(header.base_offset, str(error)) from None
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptBatchError(header.base_offset, str(error) or "it ends too early") from None


def field(value: bytes | None) -> bytes:
    """Encode a key, a value, or a part of a header: its length, −1 for null, and its bytes."""
    return varint(-1) if value is None else varint(len(value)) + value


def make_batch(records: Iterable[Record], *, compression_type: str = "none", leader_epoch: int = -1) -> bytearray:
    """Make one batch of records whose offsets are consecutive, without producer fields.

    Raises:
        ValueError: no records, or offsets with gaps.
    """
    batch = list(records)
    if not batch or any(record.offset != batch[0].offset + i for i, record in enumerate(batch)):
        raise ValueError("a batch needs records at consecutive offsets")
    base_offset, base_timestamp = batch[0].offset, batch[0].timestamp
    body = bytearray()
    for delta, record in enumerate(batch):
        out = bytearray(1)
        out += varint(record.timestamp - base_timestamp) + varint(delta) + field(record.key) + field(record.value)
        out += varint(len(record.headers))
        for name, content in record.headers:
            out += field(name.encode(errors=_ANY_BYTES)) + field(content)
        body += varint(len(out)) + out
    section = compress(bytes(body), compression_type)
    attributes = COMPRESSION_TYPES.index(compression_type) & COMPRESSION_MASK
    made = bytearray(BATCH_OVERHEAD) + section
    max_timestamp = max(record.timestamp for record in batch)
    fields = (leader_epoch, 2, 0, attributes, len(batch) - 1, base_timestamp, max_timestamp, -1, -1, -1, len(batch))
    HEADER.pack_into(made, 0, base_offset, len(made) - LOG_OVERHEAD, *fields)
    crc = crc32c(memoryview(made)[ATTRIBUTES_POSITION:])
    HEADER.pack_into(made, 0, base_offset, len(made) - LOG_OVERHEAD, *fields[:2], crc, *fields[3:])
    return made
