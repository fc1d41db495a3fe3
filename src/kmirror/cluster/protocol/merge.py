"""Put neighbouring small batches into one: a request takes one batch of a partition, and brokers append one by one.

Records keep their offsets, timestamps, keys, values and headers. Their bodies are not decoded: only the varints of
length, timestamp delta and offset delta are written anew. Compressed batches are decompressed, put together and
compressed once, where that costs less than sending each by itself: not with gzip.

What is put together is plain and dense, without a break in the offsets, of one leader epoch and one codec, and has a
right checksum. Anything else ends a merged batch, and is left to who asked.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    COMPRESSION_TYPES,
    HEADER,
    LOG_OVERHEAD,
)
from kmirror.cluster.protocol.records import compress, decompress
from kmirror.cluster.protocol.varint import read_varint, varint

#: A batch with more records than this, or more bytes, costs less by itself: those of one that is compressed, which has
#: to be compressed again, and those of one that is not.
FEW_RECORDS = 20
FEW_BYTES = 8 << 10
FEW_PLAIN_RECORDS = 40
FEW_PLAIN_BYTES = 32 << 10
#: A merged batch takes so many bytes before it is compressed: larger ones are no faster.
MERGED_BYTES = 256 << 10

_NO_PRODUCER = (-1, -1, -1)
_NO_HEADER = bytes(BATCH_OVERHEAD)
#: Records' attributes, no timestamp delta, and each of the offset deltas that most records get.
_HEADS_MADE = 4096
_HEADS = tuple(b"\x00\x00" + varint(delta) for delta in range(_HEADS_MADE))
_MERGED_CODECS = frozenset(COMPRESSION_TYPES.index(codec) for codec in ("none", "snappy", "lz4", "zstd"))


class Merged(NamedTuple):
    """One batch made of several: its own to write to, without producer fields and checksum; set them by `guard`.

    It is made of so many `batches`, and `end` is where the first one lies that is not in it.
    """

    next_offset: int
    max_timestamp: int
    leader_epoch: int
    data: memoryview
    end: int
    batches: int


def is_small(record_count: int, length: int, attributes: int) -> bool:
    """Tell whether a batch with this header costs less when it is put together with others."""
    if attributes:
        return 0 < record_count <= FEW_RECORDS and length <= FEW_BYTES
    return 0 < record_count <= FEW_PLAIN_RECORDS and length <= FEW_PLAIN_BYTES


def merge(batches: memoryview, position: int, base_offset: int) -> Merged | None:
    """Put the batches from `position` on into one, the first of which begins with `base_offset`.

    None where no two of them can be; they are left as they are.
    """
    unpack, size = HEADER.unpack_from, len(batches)
    expected, first_timestamp, latest, raw_bytes, joined = base_offset, 0, -1, 0, 0
    kind = (0, 0)
    parts: list[bytes | memoryview] = []
    while size - position >= BATCH_OVERHEAD:
        (base, length, epoch, magic, crc, attributes, delta, timestamp, max_timestamp, _, _, _, count) = unpack(
            batches, position
        )
        end = position + LOG_OVERHEAD + length
        if (
            magic != 2
            or base != expected
            or count != delta + 1
            or not is_small(count, length, attributes)
            or length <= BATCH_OVERHEAD - LOG_OVERHEAD
            or end > size
            or attributes not in _MERGED_CODECS
            or (joined and kind != (epoch, attributes))
            or crc32c(batches[position + ATTRIBUTES_POSITION : end]) != crc
        ):
            break
        if not joined:
            kind, first_timestamp = (epoch, attributes), timestamp
        made: list[bytes | memoryview] = []
        try:
            if attributes:
                section = decompress(batches[position + BATCH_OVERHEAD : end], COMPRESSION_TYPES[attributes])
                raw = len(section)
                fits = _move(section, 0, raw, count, base - base_offset, timestamp - first_timestamp, made)
            else:
                raw = end - position
                begin = position + BATCH_OVERHEAD
                fits = _move(batches, begin, end, count, base - base_offset, timestamp - first_timestamp, made)
        except (ValueError, IndexError):
            break
        if not fits or (joined and raw_bytes + raw > MERGED_BYTES):
            break
        parts += made
        raw_bytes += raw
        latest = max(latest, max_timestamp)
        expected, position, joined = base + count, end, joined + 1
    if joined < 2:
        return None
    epoch, codec = kind
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
    made: list[bytes | memoryview],
) -> bool:
    """Add the records of a section with deltas for another batch; tell whether they fill it, one at each offset.

    `offset` is the first one's delta there, and `later` what timestamps are after that batch's base.
    """
    add = made.append
    for delta in range(count):
        # nearly always a length of one or two bytes, no timestamp delta, an offset delta of one byte
        byte = records[position]
        if byte < 0x80:
            doubled, begin = byte, position + 1
        elif (second := records[position + 1]) < 0x80:
            doubled, begin = byte & 0x7F | second << 7, position + 2
        else:
            length, begin = read_varint(records, position)
            doubled = length << 1
        following = begin + (doubled >> 1)
        if doubled & 1 or doubled < 8 or following > end or records[begin]:
            return False
        if records[begin + 1]:
            timestamp, middle = read_varint(records, begin + 1)
            timestamp += later
        else:
            timestamp, middle = later, begin + 2
        byte = records[middle]
        if byte < 0x80:
            found, tail = byte, middle + 1
        else:
            found, tail = read_varint(records, middle)
            found <<= 1
        if found != delta << 1 or tail > following:
            return False
        place = offset + delta
        head = _HEADS[place] if not timestamp and place < _HEADS_MADE else b"\x00" + varint(timestamp) + varint(place)
        add(varint(len(head) + following - tail) + head)
        add(records[tail:following])
        position = following
    return position == end
