"""Filler: records that take the offsets below a log's start until they are deleted; fast, and recognised for certain.

A log that starts at N > 0 is made by appending N offsets of filler and deleting them. Every record has the same key, so
that compacted topics accept it, and no value. 100,000 of them make a batch of some 70 KB. Consumers that read before
the trim see them, so none may read then.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache

import cramjam

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    CRC_POSITION,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    PREFIX,
    crc_of,
)
from kmirror.cluster.protocol.batch_records import compress
from kmirror.cluster.protocol.wire import varint

#: The most records in one batch of filler.
FILLER_RECORDS = 100_000
#: No application has a reason to write this key.
FILLER_KEY = b"kmirror.filler.5b1d0c7e8a"

_CODEC = "zstd"
#: A larger batch is not filler.
_LARGEST_BATCH = 128 << 10
_CRC = struct.Struct(">I")
#: The first deltas that take one more byte.
_WIDER = (64, 8192)
#: Record attributes, timestamp delta.
_HEAD = b"\x00\x00"
#: The key, no value, no headers.
_TAIL = varint(len(FILLER_KEY)) + FILLER_KEY + varint(-1) + b"\x00"
#: The size of a record with an offset delta of one byte, its length field of one byte included.
_SHORTEST = 1 + len(_HEAD) + 1 + len(_TAIL)


def filler_batch(count: int, timestamp_ms: int, *, base_offset: int = 0) -> bytearray:
    """Make a batch of `count` filler records (1 to FILLER_RECORDS), without producer fields."""
    if not 1 <= count <= FILLER_RECORDS:
        raise ValueError(f"a filler batch has 1 to {FILLER_RECORDS} records, not {count}")
    section = _full_section() if count == FILLER_RECORDS else compress(bytes(_records(count)), _CODEC)
    made = bytearray(BATCH_OVERHEAD) + section
    length, attributes = len(made) - LOG_OVERHEAD, COMPRESSION_TYPES.index(_CODEC)
    timestamps = (timestamp_ms, timestamp_ms)
    HEADER.pack_into(made, 0, base_offset, length, -1, 2, 0, attributes, count - 1, *timestamps, -1, -1, -1, count)
    _CRC.pack_into(made, CRC_POSITION, crc_of(memoryview(made)))
    return made


def is_filler(batch: memoryview) -> bool:
    """Return whether `batch`, one whole stored batch, is filler; every byte of its records is compared."""
    if not BATCH_OVERHEAD < len(batch) <= _LARGEST_BATCH or batch[MAGIC_POSITION] != 2:
        return False
    fields = HEADER.unpack_from(batch)
    attributes, last_offset_delta, count = fields[5], fields[6], fields[12]
    if attributes & COMPRESSION_MASK != COMPRESSION_TYPES.index(_CODEC) or not 1 <= count <= FILLER_RECORDS:
        return False
    if last_offset_delta != count - 1:
        return False
    return _are_records(bytes(batch[BATCH_OVERHEAD:]), count)


@lru_cache(maxsize=4)  # of many batches of filler all but the last have the same bytes
def _are_records(section: bytes, count: int) -> bool:
    expected = _records(count)
    records = bytearray(len(expected))  # an application's batch may expand to any size; this takes no more
    try:
        size = cramjam.zstd.decompress_into(section, records)
    except cramjam.DecompressionError:
        return False
    return bool(size == len(expected) and records == expected)


def begins_with_filler(records: memoryview) -> bool:
    """Return whether fetched records begin with filler: their topic is a mirror whose log start is not ready yet."""
    if len(records) <= BATCH_OVERHEAD:
        return False
    size = LOG_OVERHEAD + PREFIX.unpack_from(records)[1]
    return BATCH_OVERHEAD < size <= len(records) and is_filler(records[:size])


def _records(count: int) -> memoryview:
    """Return the record section of this many records: a larger batch begins with the records of a smaller one."""
    size = count * _SHORTEST + sum(max(0, count - first) for first in _WIDER)
    return memoryview(_all_records())[:size]


@cache
def _all_records() -> bytes:
    parts: list[bytes] = []
    for index in range(FILLER_RECORDS):
        delta = varint(index)
        parts += (varint(len(_HEAD) + len(delta) + len(_TAIL)), _HEAD, delta, _TAIL)
    return b"".join(parts)


@cache
def _full_section() -> bytes:
    return compress(bytes(_records(FILLER_RECORDS)), _CODEC)
