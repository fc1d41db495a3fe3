"""A cursor in one of two logs that are compared.

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Iterator

from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.compare.superseded import Superseded
from kmirror.engine.compare.visible_log import Log, UnknownFormatError, VisibleBatch

#: The offset of a log that is at its end.
AT_END = 1 << 63


class LogCursor:
    """One log and the position in it: before a whole batch, on a record, on an unreadable batch, or at the end."""

    def __init__(self, name: str, log: Log, other: Log, start: int, end: int) -> None:
        self.name = name
        self.log = log
        self.missing = Superseded(log, other)
        #: Number of records of the other log that are below the start of this one.
        self.below_floor = 0
        self.size_in_bytes = 0
        self.record: Record | None = None
        self.unreadable: CorruptBatchError | UnknownFormatError | None = None
        self._start = start
        self._end = end
        self._batches = log.batches()
        self._batch: VisibleBatch | None = None
        self._records: Iterator[Record] | None = None

    @property
    def whole_batch(self) -> VisibleBatch | None:
        """The batch after the position, if all its offsets are in the range."""
        batch = self._batch
        if batch is None or self._records is not None:
            return None
        inside = self._first <= batch.header.base_offset and batch.header.next_offset <= self._end
        return batch if inside else None

    @property
    def _first(self) -> int:
        """The first offset to compare; a batch may begin before it, even below the log start."""
        return max(self._start, self.log.floor)

    @property
    def offset(self) -> int:
        """The offset of the current record or unreadable batch; AT_END at the end."""
        if self.unreadable is not None:
            return max(self.unreadable.offset, self._first)
        return AT_END if self.record is None else self.record.offset

    def next_batch(self) -> None:
        """Move before the next batch."""
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

    def advance_to_record(self) -> None:
        """Move to the next record, unless the position is on one."""
        while self.record is None and self._batch is not None:
            if self._records is None:
                self._records = self._batch.records()
            self._next_of_batch(self._records)

    def next_record(self) -> None:
        """Move to the next record of the batch, or before the next batch."""
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
