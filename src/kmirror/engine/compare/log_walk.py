"""One of two logs that are compared, and the position of the comparison in it.

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Protocol

from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.records import Record
from kmirror.engine.compare.superseded import Superseded
from kmirror.engine.compare.visible_log import Batch, UnknownFormatError

#: The offset of a log that is at its end.
BEYOND = 1 << 63


class Log(Protocol):
    """What the comparison asks of a log; `VisibleLog` says what each means."""

    @property
    def floor(self) -> int: ...
    @property
    def ended_at(self) -> int | None: ...
    @property
    def log_end_offset(self) -> int | None: ...
    def batches(self) -> Iterator[Batch]: ...
    def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]: ...
    def is_compacted(self) -> bool: ...


class Side:
    """One log and how far the walk has come in it.

    That is before a whole batch, on a record, on a batch that cannot be read, or at the end.
    """

    def __init__(self, name: str, log: Log, other: Log, start: int, end: int) -> None:
        self.name = name
        self.log = log
        self.missing = Superseded(log, other)
        #: Records that the other log has and this one no longer reaches back to.
        self.below_floor = 0
        self.size_in_bytes = 0
        self.record: Record | None = None
        self.unreadable: CorruptBatchError | UnknownFormatError | None = None
        self._start = start
        self._end = end
        self._batches = log.batches()
        self._batch: Batch | None = None
        self._records: Iterator[Record] | None = None

    @property
    def fresh(self) -> Batch | None:
        """The batch it is before, if all its offsets are in the range."""
        batch = self._batch
        if batch is None or self._records is not None:
            return None
        inside = self._first <= batch.header.base_offset and batch.header.next_offset <= self._end
        return batch if inside else None

    @property
    def _first(self) -> int:
        """The first offset of interest; a batch may begin before it, also before the log does."""
        return max(self._start, self.log.floor)

    @property
    def offset(self) -> int:
        """The offset of the record or of the unreadable batch it is on; above all offsets at the end."""
        if self.unreadable is not None:
            return max(self.unreadable.offset, self._first)
        return BEYOND if self.record is None else self.record.offset

    def next_batch(self) -> None:
        """Go before the next batch."""
        self._records = None
        try:
            self._batch = next(self._batches, None)
        except (CorruptBatchError, UnknownFormatError) as error:
            self._batch, self.unreadable = None, error if error.offset < self._end else None
            return
        if self._batch is None:
            return
        if self._batch.header.base_offset >= self._end:
            self._batch = None
        elif self._batch.header.base_offset >= self._start:
            self.size_in_bytes += self._batch.header.size_in_bytes

    def stand_on_record(self) -> None:
        """Go to the next record, unless it is on one."""
        while self.record is None and self._batch is not None:
            if self._records is None:
                self._records = self._batch.records()
            self._next_of_batch(self._records)

    def leave_record(self) -> None:
        """Go to the next record of the batch, or before the next batch."""
        self.record = None
        while self.record is None and self._records is not None:
            self._next_of_batch(self._records)

    def _next_of_batch(self, records: Iterator[Record]) -> None:
        try:
            record = next(records, None)
        except CorruptBatchError as error:
            self._batch, self._records, self.unreadable = None, None, error
            return
        if record is None:
            self.next_batch()
        elif record.offset >= self._end:
            self._batch = self._records = None
        elif record.offset >= self._first:
            self.record = record
