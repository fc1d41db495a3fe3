"""Stretches of stored logs for searches: batches, what they show, and holes. No I/O.

A search is a generator: it yields what to read (`Read`) and is sent what was read (`Sections`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatchError,
    OversizedBatchError,
    batch_headers,
    crc_of,
)
from kmirror.cluster.protocol.batch_records import Record, read_records
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.old_format import read_messages
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.errors import KmirrorError, Reason

Side = Literal["source", "destination"]

#: The most records of one batch that are kept.
_MOST_RECORDS = 1_000_000


class Read(NamedTuple):
    """The offset from which to read each log; None to skip it. A few kilobytes are enough."""

    destination: int | None
    source: int | None


class Section(NamedTuple):
    """The result of one read: at least one whole batch that ends after `offset`.

    Or none, and then it is proven that the log has none up to `nothing_until`. `data` may end in the middle of a batch.
    """

    offset: int
    data: memoryview
    aborted_transactions: Sequence[AbortedTransaction] = ()
    nothing_until: int | None = None


class Sections(NamedTuple):
    """The results of a `Read`."""

    destination: Section | None
    source: Section | None


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where two logs start and end. `source_end` is the last stable offset: no batches are shown from there on."""

    source_start: int
    source_end: int
    destination_start: int
    destination_end: int

    @property
    def shared_end(self) -> int:
        """The end of what both logs have."""
        return min(self.source_end, self.destination_end)


class DamagedLogError(KmirrorError):
    """A batch of one of the logs cannot be read."""

    def __init__(self, side: Side, offset: int, detail: str) -> None:
        super().__init__(f"the {side}'s batch at offset {offset} is corrupt: {detail}", None, Reason.CORRUPT_BATCH)
        self.args = (side, offset, detail)
        self.side: Side = side


class UnprovenError(KmirrorError):
    """A read proved nothing about one of the logs from an offset on."""

    def __init__(self, side: Side, offset: int) -> None:
        super().__init__(f"the {side} returned nothing that leads past offset {offset}", "try again")
        self.args = (side, offset)
        self.side: Side = side


class StoredBatch:
    """One valid stored batch, and what consumers see of it."""

    __slots__ = ("_records", "base_offset", "data", "header", "kind", "next_offset", "side")

    def __init__(self, side: Side, data: memoryview, header: BatchHeader, kind: BatchKind) -> None:
        self.side: Side = side
        self.data = data
        self.header = header
        self.kind = kind
        self._records: list[Record] | None = None
        self.next_offset = header.next_offset
        #: A message of an old format has the offset of its last record.
        self.base_offset = header.base_offset if header.magic == 2 else self.records()[0].offset

    @property
    def producer_id(self) -> int:
        return self.header.producer_id

    @property
    def shows_records(self) -> bool:
        return self.kind is BatchKind.DATA and self.header.record_count > 0

    @property
    def is_foreign(self) -> bool:
        """True when no mirror wrote it."""
        return self.producer_id < FIRST_OWN_PRODUCER_ID

    def records(self) -> list[Record]:
        """Return its records; they are read once."""
        if self._records is None:
            self._records = list(islice(self.iter_records(), _MOST_RECORDS + 1))
            if len(self._records) > _MOST_RECORDS:
                self._records = None
                raise OversizedBatchError(self.header.base_offset, f"it has more than {_MOST_RECORDS:,} records")
        return self._records

    def iter_records(self) -> Iterator[Record]:
        """Yield its records one by one; nothing is kept."""
        if self._records is not None:
            yield from self._records
            return
        try:
            if self.header.magic == 2:
                yield from read_records(self.data, self.header._replace(position=0))
            else:
                yield from (Record(*message) for message in read_messages(self.data)[1])
        except OversizedBatchError:
            raise
        except CorruptBatchError as error:
            raise DamagedLogError(self.side, error.offset, error.detail) from None

    def is_same_as(self, other: StoredBatch) -> bool:
        """Return True if it certainly shows the same records at the same offsets; False may also mean unknown."""
        a, b = self.header, other.header
        return (
            a.magic == b.magic == 2
            and a.base_offset == b.base_offset
            and a.record_count == b.record_count
            and a.base_timestamp == b.base_timestamp
            and a.max_timestamp == b.max_timestamp
            and (a.attributes ^ b.attributes) & ~TRANSACTIONAL == 0
            # comparing bytes is much faster than comparing memoryviews
            and bytes(self.data[BATCH_OVERHEAD:]) == bytes(other.data[BATCH_OVERHEAD:])
        )


class Stretch(NamedTuple):
    """Everything in one log from `low` to `high`: these batches, and holes between them."""

    low: int
    high: int
    batches: list[StoredBatch]


def stretch_of(side: Side, section: Section, end: int) -> Stretch:
    """Split one section into batches, up to offset `end`.

    Raises:
        DamagedLogError: a batch cannot be read.
        UnprovenError: the section says nothing about its offset.
    """
    isolation = Isolation(section.aborted_transactions)
    batches: list[StoredBatch] = []
    high = None if section.nothing_until is None else min(section.nothing_until, end)
    try:
        for header in batch_headers(section.data):
            if header.magic == 2 and header.base_offset >= end:
                high = end
                break
            data = section.data[header.position : header.position + header.size_in_bytes]
            if header.magic == 2 and (crc := crc_of(data)) != header.crc:
                detail = f"its checksum is {crc:08x}, its header says {header.crc:08x}"
                raise CorruptBatchError(header.base_offset, detail)
            kind = isolation.kind(data)
            if header.next_offset > section.offset:
                batches.append(StoredBatch(side, data, header, kind))
                high = header.next_offset
    except CorruptBatchError as error:
        raise DamagedLogError(side, error.offset, error.detail) from None
    if high is None or high <= section.offset:
        raise UnprovenError(side, section.offset)
    low = min(section.offset, batches[0].base_offset) if batches else section.offset
    return Stretch(low, high, batches)
