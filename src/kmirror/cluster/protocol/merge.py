"""Merge adjacent small batches into one: a request takes one batch of a partition, and brokers append one by one.

Records keep their offsets, timestamps, keys, values and headers. Their bodies are not decoded: only the varints of
length, timestamp delta and offset delta are rewritten. Compressed batches are decompressed, joined and compressed once,
where that costs less than sending each by itself: not with gzip.

Only plain, dense batches are merged, without a gap between their offsets, of one leader epoch and one codec, each with
a correct checksum. Anything else ends a merged batch, and is left to the caller.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from kmirror.cluster.protocol.batch import ATTRIBUTES_POSITION, BATCH_OVERHEAD, COMPRESSION_TYPES, HEADER, LOG_OVERHEAD
from kmirror.cluster.protocol.batch_records import compress, decompress
from kmirror.cluster.protocol.wire import VARINTS, read_varint, varint

#: A batch with more records or bytes than this costs less by itself. The first two limits are for compressed batches,
#: which have to be compressed again, the others for plain ones.
FEW_RECORDS = 20
FEW_BYTES = 8 << 10
FEW_PLAIN_RECORDS = 40
FEW_PLAIN_BYTES = 32 << 10
#: The size in bytes of a merged batch before it is compressed: larger ones are no faster.
MERGED_BYTES = 256 << 10

_NO_PRODUCER = (-1, -1, -1)
_NO_HEADER = bytes(BATCH_OVERHEAD)
_MERGED_CODECS = frozenset(COMPRESSION_TYPES.index(codec) for codec in ("none", "snappy", "lz4", "zstd"))
#: A batch's length field if it had no records.
_NO_RECORDS = BATCH_OVERHEAD - LOG_OVERHEAD
#: A batch's header without producer fields, and the first bytes of its records.
_HEADER_AND_START = struct.Struct(">qiibIhiqq14xi5s")
#: How most records start: a length of two bytes, no attributes, no timestamp delta, and an offset delta of one byte
#: (in a batch of less than 64 records).
_START = struct.Struct(">HHB")
_START_BYTES = 5
_TWO_BYTES = range(1 << 6, 1 << 13)
#: By a batch's length: how its records start if it has a single usual one with a length of two bytes.
_SINGLES = {_NO_RECORDS + 2 + length: varint(length) + b"\0\0\0" for length in _TWO_BYTES}


class Merged(NamedTuple):
    """One batch made of several, in memory of its own; `set_producer` sets its producer fields and checksum.

    `batches` is how many were merged, `end` the position of the first one that was not.
    """

    next_offset: int
    max_timestamp: int
    leader_epoch: int
    data: memoryview
    end: int
    batches: int


def is_small(record_count: int, length: int, attributes: int) -> bool:
    """Return whether a batch with this header costs less when it is merged with others."""
    if attributes:
        return 0 < record_count <= FEW_RECORDS and length <= FEW_BYTES
    return 0 < record_count <= FEW_PLAIN_RECORDS and length <= FEW_PLAIN_BYTES


def merge(batches: memoryview, position: int, base_offset: int) -> Merged | None:
    """Merge the batches from `position` on, the first of which has this `base_offset`; None if no two can be merged.

    The batches themselves are not changed.
    """
    unpack, last = _HEADER_AND_START.unpack_from, len(batches) - BATCH_OVERHEAD - _START_BYTES
    if position > last:
        return None
    _, _, epoch, _, _, codec, _, first_timestamp, _, _, _ = unpack(batches, position)
    if codec not in _MERGED_CODECS:
        return None
    few, few_bytes = (FEW_RECORDS, FEW_BYTES) if codec else (FEW_PLAIN_RECORDS, FEW_PLAIN_BYTES)
    size = len(batches)
    expected, latest, raw_bytes, joined = base_offset, -1, 0, 0
    parts: list[bytes | memoryview] = []
    add = parts.append
    while position <= last:
        (base, length, its_epoch, magic, crc, attributes, delta, timestamp, max_timestamp, count, start) = unpack(
            batches, position
        )
        end = position + LOG_OVERHEAD + length
        if (
            base != expected
            or count != delta + 1
            or not 0 < count <= few
            or not _NO_RECORDS < length <= few_bytes
            or its_epoch != epoch
            or attributes != codec
            or magic != 2
            or end > size
            or crc32c(batches[position + ATTRIBUTES_POSITION : end]) != crc
        ):
            break
        offset, later, begin = base - base_offset, timestamp - first_timestamp, position + BATCH_OVERHEAD
        if not codec:
            if (raw_bytes := raw_bytes + end - position) > MERGED_BYTES and joined:
                break
            if count == 1 and start == _SINGLES.get(length):
                head = b"\0" + varint(later) + varint(offset)
                begin += _START_BYTES
                add(varint(len(head) + end - begin) + head)
                add(batches[begin:end])
            else:
                kept = len(parts)
                if not _move(batches, begin, end, count, offset, later, add):
                    del parts[kept:]
                    break
        else:
            kept = len(parts)
            try:
                section = decompress(batches[begin:end], COMPRESSION_TYPES[codec], MERGED_BYTES)
            except ValueError:
                break
            if (raw_bytes := raw_bytes + len(section)) > MERGED_BYTES and joined:
                break
            if not _move(section, 0, len(section), count, offset, later, add):
                del parts[kept:]
                break
        latest = max(latest, max_timestamp)
        expected, position, joined = base + count, end, joined + 1
    if joined < 2:
        return None
    if codec:
        parts = [compress(b"".join(parts), COMPRESSION_TYPES[codec])]
    data = bytearray().join((_NO_HEADER, *parts))
    count = expected - base_offset
    stamps = (first_timestamp, latest)
    length = len(data) - LOG_OVERHEAD
    HEADER.pack_into(data, 0, base_offset, length, epoch, 2, 0, codec, count - 1, *stamps, *_NO_PRODUCER, count)
    return Merged(expected, latest, epoch, memoryview(data), position, joined)


def _move(
    records: memoryview,
    position: int,
    end: int,
    count: int,
    offset: int,
    later: int,
    add: Callable[[bytes | memoryview], None],
) -> bool:
    """Add the records of a section with deltas for the merged batch; return whether there is one at each offset.

    `offset` is the first one's delta in the merged batch, `later` what to add to timestamp deltas there. Records too
    far in the merged batch are not moved.
    """
    unpack, same_time, numbers, most = _START.unpack_from, b"\0" + varint(later), VARINTS, len(VARINTS)
    section = bytes(records[position:end])  # many short slices of bytes are cheaper than those of a memoryview
    position, end = 0, end - position
    try:
        for delta in range(count):
            length, zeros, found = unpack(section, position)
            if not zeros and found == delta << 1 and length & 0x8180 == 0x8000:
                tail = position + _START_BYTES
                position += 2 + (length >> 9 & 0x3F | (length & 0x7F) << 6)
                head = same_time + numbers[offset + delta]
            elif zeros == delta << 1 and not length & 0x81FF:
                tail = position + _START_BYTES - 1
                position += 1 + (length >> 9)
                head = same_time + numbers[offset + delta]
            else:
                length, begin = read_varint(section, position)
                timestamp, middle = read_varint(section, begin + 1)
                found, tail = read_varint(section, middle)
                if found != delta or section[begin]:
                    return False
                position = begin + length
                head = b"\0" + varint(later + timestamp) + numbers[offset + delta]
            if not tail <= position <= end:
                return False
            size = len(head) + position - tail
            add((numbers[size] if size < most else varint(size)) + head)
            add(section[tail:position])
    except (ValueError, IndexError, struct.error):
        return False
    return position == end
