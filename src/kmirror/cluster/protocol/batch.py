"""Record batches of format version 2, read and changed in place, without copying their records.

The layout, big-endian (KIP-98), each position derived from the one before::

    base_offset i64 | batch_length i32 | partition_leader_epoch i32 | magic i8 | crc u32 |
    attributes i16 | last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 |
    producer_id i64 | producer_epoch i16 | base_sequence i32 | record_count i32 | records

`batch_length` counts from partition_leader_epoch on. The CRC (Castagnoli) covers attributes to the end, so a broker can
set base offset and leader epoch without touching it; the producer fields lie inside, so setting them means a new CRC.
Compaction leaves base_offset, last_offset_delta and the CRC's coverage as they were and lowers record_count: a batch
with `record_count != last_offset_delta + 1` has holes. A header with no records at all may stay behind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from kmirror.errors import KmirrorError, Reason

LOG_OVERHEAD = 12
BATCH_OVERHEAD = 61
MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
PRODUCER_POSITION = 43

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")

#: Sequence numbers count records modulo 2^31.
SEQUENCE_MASK = 0x7FFFFFFF

HEADER = struct.Struct(">qiibIhiqqqhii")
PREFIX = struct.Struct(">qi")
PRODUCER = struct.Struct(">qhi")
ATTRIBUTES = struct.Struct(">h")
CRC = struct.Struct(">I")
BASE_OFFSET = struct.Struct(">q")


class CorruptBatchError(KmirrorError):
    """Bytes that are not a whole, valid record batch; `offset` is where reading stopped."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(f"the batch at offset {offset} is corrupt: {detail}")
        self.args = (offset, detail)
        self.offset = offset
        self.detail = detail


class OversizedBatchError(CorruptBatchError):
    """A batch that takes more memory than allowed when it is decompressed; it may be valid."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(offset, detail)
        self.message = f"the batch at offset {offset} cannot be opened: {detail}"
        self.hint = "rewrite its records in smaller batches, or start the mirror after it"
        self.reason = Reason.UNSUPPORTED_MESSAGE_FORMAT


class UnsupportedFormatError(KmirrorError):
    """A batch of a message format or codec that cannot be copied or compared."""


class BatchHeader(NamedTuple):
    """The header of one batch: its fields by Kafka's names, and its position in the buffer it was read from."""

    position: int
    size_in_bytes: int
    base_offset: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def next_offset(self) -> int:
        """The offset after the last one this batch takes."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """True for a transaction marker."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True for a batch written inside a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """True when every record has the batch's maximum timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def has_holes(self) -> bool:
        """True when compaction removed records."""
        return self.record_count != self.last_offset_delta + 1

    @property
    def compression_type(self) -> str:
        """The codec's name as in `compression.type`."""
        code = self.attributes & COMPRESSION_MASK
        return COMPRESSION_TYPES[code] if code < len(COMPRESSION_TYPES) else f"unknown({code})"


def batch_headers(data: memoryview) -> Iterator[BatchHeader]:
    """Yield the headers of the whole batches in `data`; a batch cut off at the end is left out.

    Of old message formats (magic below 2) only offset, size and magic are set.

    Raises:
        CorruptBatchError: an impossible length.
    """
    position, end = 0, len(data)
    while end - position > MAGIC_POSITION:
        base_offset, length = PREFIX.unpack_from(data, position)
        size = LOG_OVERHEAD + length
        if length <= MAGIC_POSITION - LOG_OVERHEAD:
            raise CorruptBatchError(base_offset, f"its length field says {length}")
        if size > end - position:
            return
        magic = data[position + MAGIC_POSITION]
        if magic < 2:
            yield BatchHeader(position, size, base_offset, -1, magic, 0, 0, 0, -1, -1, -1, -1, -1, 1)
        elif size < BATCH_OVERHEAD:
            raise CorruptBatchError(base_offset, f"its length field says {length}, less than a header")
        else:
            (_, _, epoch, magic, crc, attributes, last_delta, base_timestamp, max_timestamp, *producer) = (
                HEADER.unpack_from(data, position)
            )
            producer_id, producer_epoch, base_sequence, count = producer
            yield BatchHeader(
                position,
                size,
                base_offset,
                epoch,
                magic,
                crc,
                attributes,
                last_delta,
                base_timestamp,
                max_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                count,
            )
        position += size


def crc_of(batch: memoryview) -> int:
    """Compute the checksum of one whole batch."""
    return int(crc32c(batch[ATTRIBUTES_POSITION:]))


def set_producer(batch: memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Make `batch` ready to append, in place: base offset 0, our producer fields, and the CRC that they require."""
    BASE_OFFSET.pack_into(batch, 0, 0)
    PRODUCER.pack_into(batch, PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    CRC.pack_into(batch, CRC_POSITION, crc32c(batch[ATTRIBUTES_POSITION:]))


def set_transactional(batch: memoryview) -> None:
    """Mark a batch as written in a transaction, in place; `set_producer` comes after it."""
    (attributes,) = ATTRIBUTES.unpack_from(batch, ATTRIBUTES_POSITION)
    ATTRIBUTES.pack_into(batch, ATTRIBUTES_POSITION, attributes | TRANSACTIONAL)
