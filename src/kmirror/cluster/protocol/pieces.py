"""Split one stored batch into pieces to append, so that a copy shows the same records at the same offsets.

A batch that brokers accept has records at consecutive offsets, and is neither a marker nor part of a transaction.
Stored batches may differ:

* compaction removes records, or all of them, and leaves the offsets they had (`record_count` below
  `last_offset_delta + 1`);
* markers, and records of aborted transactions, are never shown but take offsets;
* with LogAppendTime all records have the batch's maximum timestamp, whatever they store themselves;
* a batch with tombstones to be removed has its delete horizon instead of the base timestamp (KIP-534);
* records may be of an older message format.

So a batch becomes `Run`s, batches that brokers accept, and `Hole`s, offsets to be filled with something invisible. A
dense batch is changed only in its header, in place. Otherwise records are cut out of their section and joined again,
with other offset deltas; keys, values, headers and visible timestamps keep their bytes, nothing is decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    CONTROL,
    CRC_POSITION,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    PREFIX,
    CorruptBatchError,
    OversizedBatchError,
    UnsupportedFormatError,
    crc_of,
    set_producer,
)
from kmirror.cluster.protocol.batch_records import SectionTooLargeError, compress, decompress, field
from kmirror.cluster.protocol.old_format import read_messages
from kmirror.cluster.protocol.wire import int64, read_varint, varint
from kmirror.errors import Reason
from kmirror.words import counted

#: Safety factor for the size of a part: not all records of a batch compress equally well.
_CAUTION = 0.9
#: Number of records split at once: a batch may have millions, and each takes far more memory than its bytes.
_ROWS_AT_ONCE = 100_000
#: A record's attributes, and a timestamp equal to the base timestamp.
_NO_DELTA = b"\x00\x00"
_NO_HEADERS = b"\x00"
_NO_PRODUCER = (-1, -1, -1)
#: Offsets have 63 bits, and each has one after it.
_OFFSETS = (1 << 63) - 1
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Run:
    """A dense batch of format 2 in writable memory: correct CRC, not transactional, CreateTime, the codec it had.

    `data` begins with `base_offset`; `batch.set_producer` sets its producer fields.
    """

    base_offset: int
    next_offset: int
    max_timestamp: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets at which consumers are shown nothing."""

    base_offset: int
    next_offset: int


class _Row(NamedTuple):
    """One record: its bytes before the offset delta, and after it."""

    offset: int
    timestamp: int
    head: bytes
    tail: bytes


class _Style(NamedTuple):
    """What the parts of one batch have in common."""

    codec: str
    base_timestamp: int
    leader_epoch: int


def pieces(batch: memoryview, *, start: int, visible: bool = True, max_bytes: int) -> list[Run | Hole]:
    """Cover the offsets from `start` to the end of `batch`, one whole stored batch of any format, without a gap.

    `start` may be before the batch (the offsets between are a hole), or inside (records below it are left out).
    `visible` is False for batches that applications are never shown: markers, and batches of aborted transactions.
    A run takes at most `max_bytes`, unless a single record is larger.
    If `batch` is writable it may be changed, and its memory used for a run.

    Raises:
        CorruptBatchError: a checksum is wrong, or the content cannot be read.
        OversizedBatchError: it has to be split, and is too large for that.
        UnsupportedFormatError: a message format or codec that cannot be copied.
    """
    if len(batch) <= MAGIC_POSITION:
        raise CorruptBatchError(start, "it ends in the middle of its header")
    magic = batch[MAGIC_POSITION]
    if magic < 2:
        return _old_pieces(batch, start, visible, max_bytes)
    if magic > 2:
        base_offset, _ = PREFIX.unpack_from(batch)
        raise _unsupported(base_offset, f"message format {magic}")
    if len(batch) < BATCH_OVERHEAD:
        raise CorruptBatchError(start, "it ends in the middle of its header")
    (base, length, leader_epoch, _, crc, attributes, last_delta, base_timestamp, max_timestamp, *_, count) = (
        HEADER.unpack_from(batch)
    )
    if LOG_OVERHEAD + length != len(batch):
        raise CorruptBatchError(base, f"its length field says {length}, it has {len(batch) - LOG_OVERHEAD} bytes")
    if crc_of(batch) != crc:
        raise CorruptBatchError(base, f"its checksum is {crc_of(batch):08x}, its header says {crc:08x}")
    if last_delta < 0 or not 0 <= count <= last_delta + 1:
        raise CorruptBatchError(base, f"it has {counted(count, 'record')} at {counted(last_delta + 1, 'offset')}")
    next_offset = _next_offset(base, last_delta)
    if attributes & CONTROL and last_delta:
        raise CorruptBatchError(base, f"it is a marker that takes {counted(last_delta + 1, 'offset')}")
    if start >= next_offset:
        return []
    if not visible or attributes & CONTROL or count == 0:
        return [Hole(start, next_offset)]
    codec = attributes & COMPRESSION_MASK
    if codec >= len(COMPRESSION_TYPES):
        raise _unsupported(base, f"the unknown compression type {codec}")
    log_append_time = attributes & LOG_APPEND_TIME
    if start <= base and count == last_delta + 1 and not log_append_time and len(batch) <= max_bytes:
        run = Run(base, next_offset, max_timestamp, _plain(batch, base, codec))
        return [Hole(start, base), run] if start < base else [run]
    style = _Style(COMPRESSION_TYPES[codec], max_timestamp if log_append_time else base_timestamp, leader_epoch)
    try:
        body = bytes(decompress(batch[BATCH_OVERHEAD:], style.codec))
        rows = _rows(body, base, last_delta, count, style.base_timestamp)
        if log_append_time:
            rows = (row._replace(timestamp=max_timestamp, head=_NO_DELTA) for row in rows)
        return _cover(rows, start, next_offset, style, max_bytes)
    except SectionTooLargeError as error:
        raise OversizedBatchError(base, str(error)) from None
    except (ValueError, IndexError) as error:
        raise CorruptBatchError(base, str(error) or "it ends too early") from None


def _next_offset(base_offset: int, last_delta: int) -> int:
    """Return the offset after a batch, or after an old message. Raises CorruptBatchError for impossible offsets."""
    if not 0 <= base_offset < _OFFSETS - last_delta:
        raise CorruptBatchError(base_offset, "no log has such an offset")
    return base_offset + last_delta + 1


def _unsupported(offset: int, what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the batch at offset {offset} has {what}",
        "kmirror knows the formats and codecs of Kafka 4; a newer kmirror may know more",
        Reason.UNSUPPORTED_MESSAGE_FORMAT,
    )


def _plain(batch: memoryview, base_offset: int, attributes: int) -> memoryview:
    """Set a dense batch's attributes and remove its producer, in place if it is writable."""
    data = memoryview(bytearray(batch)) if batch.readonly else batch
    struct.pack_into(">h", data, ATTRIBUTES_POSITION, attributes)
    set_producer(data, *_NO_PRODUCER)
    struct.pack_into(">q", data, 0, base_offset)
    return data


def _rows(body: bytes, base: int, last_delta: int, count: int, base_timestamp: int) -> Iterator[_Row]:
    """Split a record section into its records. Raises ValueError, IndexError."""
    position, size, previous = 0, len(body), -1
    for _ in range(count):
        length, position = read_varint(body, position)
        end = position + length
        if length < 0 or end > size:
            raise ValueError("a record is longer than the batch")
        begin = position
        timestamp_delta, middle = read_varint(body, begin + 1)
        offset_delta, position = read_varint(body, middle)
        if position > end:
            raise ValueError("a record's length does not fit its content")
        if not previous < offset_delta <= last_delta:
            raise ValueError(f"a record has the offset delta {offset_delta} after {previous}, of at most {last_delta}")
        timestamp = int64(base_timestamp + timestamp_delta)
        yield _Row(base + offset_delta, timestamp, body[begin:middle], body[position:end])
        position, previous = end, offset_delta
    if position != size:
        raise ValueError("bytes are left after the last record")


def _old_pieces(batch: memoryview, start: int, visible: bool, max_bytes: int) -> list[Run | Hole]:
    codec, messages = read_messages(batch)
    next_offset = _next_offset(PREFIX.unpack_from(batch)[0], 0)
    if start >= next_offset:
        return []
    if not visible:
        return [Hole(start, next_offset)]
    style = _Style(codec, messages[0].timestamp, -1)
    rows = (
        _Row(
            message.offset,
            message.timestamp,
            b"\x00" + varint(message.timestamp - style.base_timestamp),
            field(message.key) + field(message.value) + _NO_HEADERS,
        )
        for message in messages
    )
    return _cover(rows, start, next_offset, style, max_bytes)


def _cover(rows: Iterable[_Row], start: int, next_offset: int, style: _Style, max_bytes: int) -> list[Run | Hole]:
    covered: list[Run | Hole] = []
    position, coming = start, iter(rows)
    while some := list(islice(coming, _ROWS_AT_ONCE)):
        covered += _cover_part(some, position, style, max_bytes)
        position = max(position, some[-1].offset + 1)
    if position < next_offset:
        covered.append(Hole(position, next_offset))
    return covered


def _cover_part(rows: list[_Row], start: int, style: _Style, max_bytes: int) -> Iterator[Run | Hole]:
    position = start
    begin, last = 0, len(rows)
    while begin < last and rows[begin].offset < start:
        begin += 1
    while begin < last:
        first = rows[begin].offset
        end = begin + 1
        while end < last and rows[end].offset - first == end - begin:
            end += 1
        if first > position:
            yield Hole(position, first)
        yield from _runs(rows[begin:end], style, max_bytes)
        position = rows[end - 1].offset + 1
        begin = end


def _runs(rows: list[_Row], style: _Style, max_bytes: int) -> Iterator[Run]:
    """Make one batch of records at consecutive offsets, or several to keep within `max_bytes`."""
    run = _run(rows, style)
    made = len(run.data)
    if made <= max_bytes or len(rows) == 1:
        yield run
        return
    sizes = [len(row.head) + len(row.tail) for row in rows]
    room = sum(sizes) * (max_bytes - BATCH_OVERHEAD) / (made - BATCH_OVERHEAD) * _CAUTION
    begin, filled = 0, sizes[0]
    for index in range(1, len(rows)):
        if filled + sizes[index] > room:
            yield from _runs(rows[begin:index], style, max_bytes)
            begin, filled = index, 0
        filled += sizes[index]
    yield from _runs(rows[begin:], style, max_bytes)


def _run(rows: list[_Row], style: _Style) -> Run:
    first, count = rows[0].offset, len(rows)
    parts: list[bytes] = []
    for offset, _, head, tail in rows:
        delta = varint(offset - first)
        parts += (varint(len(head) + len(delta) + len(tail)), head, delta, tail)
    made = bytearray(BATCH_OVERHEAD)
    made += compress(b"".join(parts), style.codec)
    length, attributes = len(made) - LOG_OVERHEAD, COMPRESSION_TYPES.index(style.codec)
    max_timestamp = max(row.timestamp for row in rows)
    stamps = (style.base_timestamp, max_timestamp)
    HEADER.pack_into(
        made, 0, first, length, style.leader_epoch, 2, 0, attributes, count - 1, *stamps, *_NO_PRODUCER, count
    )
    data = memoryview(made)
    _CRC.pack_into(made, CRC_POSITION, crc_of(data))
    return Run(first, first + count, max_timestamp, data)
