"""Compare two logs record by record: offsets, timestamps, keys, values, headers.

Both logs are read as consumers see them (`visible_log`), and walked side by side:

* where both stand at the beginning of a batch, and the two batches hold the same offsets and the same bytes of records
  (after decompression where the codecs differ), all their records are equal;
* everywhere else record is held against record, until both stand at the beginning of a batch again.

A record that only one side has is a difference, with two exceptions: where the other log starts later, nothing can be
said, and that is noted; where the other topic is compacted, it may have been superseded there (`superseded`).

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from kmirror.cluster.batch import BATCH_OVERHEAD, LOG_APPEND_TIME, CorruptBatchError
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, require
from kmirror.cluster.metadata import TopicPartition
from kmirror.cluster.records import Record, decompress
from kmirror.engine.difference import Difference, Kind, PartitionComparison, retention_note, summary_of, what_differs
from kmirror.engine.superseded import Superseded
from kmirror.engine.visible_log import Batch, UnsupportedFormatError, VisibleLog

#: How many keys may wait for a later record before the log is searched for them: some 40 MB.
_MOST_WAITING = 100_000
_TELL_BYTES = 4 << 20
_BEYOND = 1 << 63


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


def compare_partition(
    source: ClusterClient,
    destination: ClusterClient,
    source_partition: TopicPartition,
    destination_partition: TopicPartition,
    start: int | None = None,
    end: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PartitionComparison:
    """Compare two partitions from offset `start` up to `end`.

    Without `start`: from where both logs have begun. Without `end`: the whole destination, of which the source must
    have everything. Both clients must be used by nobody else meanwhile. `progress` is told how many bytes were compared
    since it was last told.

    Raises:
        UnreachableError: one of the clusters does not answer.
        BrokerError: one of them refuses.
    """
    notes: tuple[str, ...] = ()
    if end is None:
        # before anything is asked of the source, which must be ahead
        end = _offset(destination, destination_partition, LATEST, log_end=True)
    if start is None:
        ours, theirs = (
            _offset(destination, destination_partition, EARLIEST),
            _offset(source, source_partition, EARLIEST),
        )
        start = max(ours, theirs)
        if ours != theirs:
            notes = (retention_note(theirs, ours),)
    if start >= end:
        return PartitionComparison(start, start, 0, 0, notes=notes)
    with ThreadPoolExecutor(2, "read-ahead") as executor:
        one = VisibleLog(source, source_partition, start, end, executor)
        other = VisibleLog(destination, destination_partition, start, end, executor)
        found = compare_logs(one, other, start, end, progress)
    return replace(found, notes=notes + found.notes)


def _offset(client: ClusterClient, partition: TopicPartition, which: int, *, log_end: bool = False) -> int:
    answer = client.list_offsets({partition: which}, log_end=log_end)[partition]
    require(answer.error_code, f"looking up the offsets of {partition}")
    return answer.offset or 0


def compare_logs(
    source: Log, destination: Log, start: int, end: int, progress: Callable[[int], None] | None = None
) -> PartitionComparison:
    """Compare what two logs hold from `start` to `end`."""
    return _Comparison(source, destination, start, end, progress).run()


def same_batch(one: Batch, other: Batch) -> bool:
    """Tell whether two sound batches hold the same records at the same offsets. False may also mean: look closer."""
    a, b = one.header, other.header
    if (
        a.base_offset != b.base_offset
        or a.record_count != b.record_count
        or a.base_timestamp != b.base_timestamp
        or a.max_timestamp != b.max_timestamp
        or (a.attributes ^ b.attributes) & LOG_APPEND_TIME
    ):
        return False
    mine, theirs = _records_section(one), _records_section(other)
    if a.compression_type == b.compression_type and mine == theirs:
        return True
    try:
        # memoryviews would be compared item by item, bytes are compared at once
        return bytes(decompress(memoryview(mine), a.compression_type)) == bytes(
            decompress(memoryview(theirs), b.compression_type)
        )
    except ValueError:
        return False


def _records_section(batch: Batch) -> bytes:
    start = batch.header.position
    return bytes(batch.data[start + BATCH_OVERHEAD : start + batch.header.size_in_bytes])


class _Side:
    """One log and how far the walk has come in it: before a whole batch, on a record, on a broken batch, at its end."""

    def __init__(self, name: str, log: Log, other: Log, start: int, end: int) -> None:
        self.name = name
        self.log = log
        self.missing = Superseded(log, other)
        #: Records that the other log has and this one no longer reaches back to.
        self.below_floor = 0
        self.size_in_bytes = 0
        self.record: Record | None = None
        self.corrupt: CorruptBatchError | None = None
        self._start = start
        self._end = end
        self._batches = log.batches()
        self._batch: Batch | None = None
        self._records: Iterator[Record] | None = None

    @property
    def fresh(self) -> Batch | None:
        """The batch it stands before, if all its offsets lie in the range."""
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
        """The offset of the record or of the broken batch it stands on; beyond all offsets at the end."""
        if self.corrupt is not None:
            return max(self.corrupt.offset, self._first)
        return _BEYOND if self.record is None else self.record.offset

    def next_batch(self) -> None:
        """Go before the next batch."""
        self._records = None
        try:
            self._batch = next(self._batches, None)
        except CorruptBatchError as error:
            self._batch, self.corrupt = None, error if error.offset < self._end else None
            return
        if self._batch is None:
            return
        if self._batch.header.base_offset >= self._end:
            self._batch = None
        elif self._batch.header.base_offset >= self._start:
            self.size_in_bytes += self._batch.header.size_in_bytes

    def stand_on_record(self) -> None:
        """Go on to the next record, unless it stands on one."""
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
            self._batch, self._records, self.corrupt = None, None, error
            return
        if record is None:
            self.next_batch()
        elif record.offset >= self._end:
            self._batch = self._records = None
        elif record.offset >= self._first:
            self.record = record


class _Comparison:
    """One walk along two logs."""

    def __init__(
        self, source: Log, destination: Log, start: int, end: int, progress: Callable[[int], None] | None
    ) -> None:
        self._start = start
        self._end = end
        self._progress = progress
        self._told = 0
        self._position = start
        self._records = 0
        self._obstacle: str | None = None
        self._source = _Side("source", source, destination, start, end)
        self._destination = _Side("destination", destination, source, start, end)

    def run(self) -> PartitionComparison:
        """Walk to the end or to the first difference."""
        difference = None
        try:
            difference = self._walk()
            earlier = self._unexplained()
            if earlier and (difference is None or earlier.offset < difference.offset):
                difference = earlier
        except UnsupportedFormatError as error:
            self._obstacle = f"{error}: {error.hint}"
        if difference is None and self._obstacle is None:
            self._obstacle = self._hidden_tail()
        self._tell(1)
        return PartitionComparison(
            self._start,
            self._end,
            self._records,
            self._source.size_in_bytes,
            difference,
            None if difference else self._obstacle,
            tuple(self._notes(difference)),
        )

    def _walk(self) -> Difference | None:
        one, other = self._source, self._destination
        one.next_batch()
        other.next_batch()
        while self._obstacle is None:
            self._tell(_TELL_BYTES)
            waiting = len(one.missing) + len(other.missing)
            if waiting > _MOST_WAITING and (difference := self._unexplained()):
                return difference
            if not waiting and (ours := one.fresh) and (theirs := other.fresh) and same_batch(ours, theirs):
                self._records += ours.header.record_count
                one.next_batch()
                other.next_batch()
                continue
            one.stand_on_record()
            other.stand_on_record()
            if one.offset == other.offset == _BEYOND:
                return None
            if difference := self._step():
                return difference
        return None

    def _step(self) -> Difference | None:
        """Compare what stands at the lower of the two offsets, and go on behind it."""
        one, other = self._source, self._destination
        offset = min(one.offset, other.offset)
        here = [side for side in (one, other) if side.offset == offset]
        for side in here:
            if side.corrupt is not None:
                what = f"the batch that the {side.name} stores at offset {side.corrupt.offset} is corrupt"
                return self._difference(offset, Kind.CORRUPT, f"{what}: {side.corrupt.detail}")
        records = [side.record for side in here if side.record is not None]
        if len(records) == 2:
            differs = what_differs(*records)
            difference = self._difference(offset, Kind.CONTENT, differs) if differs else None
            self._records += 1
        elif here == [one]:
            difference = self._alone(records[0], other, Kind.MISSING, Kind.MISSING_TAIL)
        else:
            difference = self._alone(records[0], one, Kind.EXTRA, Kind.EXTRA_TAIL)
        if difference is None:
            for side, record in zip(here, records, strict=True):
                side.missing.seen(record)
                side.leave_record()
            self._position = offset + 1
        return difference

    def _alone(self, record: Record, other: _Side, inside: Kind, tail: Kind) -> Difference | None:
        """Judge a record that is not on the `other` side."""
        ended_at = other.log.ended_at
        if record.offset < other.log.floor:
            other.below_floor += 1
            return None
        if ended_at is not None and record.offset >= ended_at:
            if other is self._destination and (hidden := self._hidden_tail()):
                self._obstacle = hidden
                return None
            return self._difference(record.offset, tail, f"the {other.name} {_end_of(other.log)}")
        if other.missing.excuses(record):
            return None
        return self._difference(record.offset, inside, f"the {other.name} has no record at this offset")

    def _unexplained(self) -> Difference | None:
        """Search for the later records that are still waited for; return the first missing record without one."""
        found = []
        for side, kind in ((self._destination, Kind.MISSING), (self._source, Kind.EXTRA)):
            record = side.missing.unexplained(self._position, self._end)
            if record is not None:
                what = f"the {side.name} has no record at this offset, and no later one of its key"
                ends = (record, None) if kind is Kind.MISSING else (None, record)
                found.append(Difference(record.offset, kind, what, *ends))
        return min(found, key=lambda difference: difference.offset, default=None)

    def _difference(self, offset: int, kind: Kind, what: str) -> Difference:
        summaries = [
            summary_of(side.record) if side.record and side.record.offset == offset else None
            for side in (self._source, self._destination)
        ]
        return Difference(offset, kind, what, *summaries)

    def _hidden_tail(self) -> str | None:
        log = self._destination.log
        if log.ended_at is None or log.log_end_offset is None or log.log_end_offset <= log.ended_at:
            return None
        return (
            f"the destination shows consumers nothing from offset {log.ended_at} to its end {log.log_end_offset}: "
            "a transaction is open there, or too few replicas are in sync"
        )

    def _notes(self, difference: Difference | None) -> Iterator[str]:
        for side, other in ((self._source, self._destination), (self._destination, self._source)):
            if side.below_floor:
                yield (
                    f"{side.below_floor} records below offset {side.log.floor} were not compared: "
                    f"the {side.name}'s log has come to start there"
                )
            if side.missing.count and difference is None:
                yield (
                    f"{side.missing.count} records of the {other.name} are missing in the {side.name}, "
                    "superseded by later ones of their keys"
                )

    def _tell(self, least: int) -> None:
        done = self._source.size_in_bytes
        if self._progress is not None and done - self._told >= least:
            self._progress(done - self._told)
            self._told = done


def _end_of(log: Log) -> str:
    if log.log_end_offset is not None and log.ended_at is not None and log.log_end_offset > log.ended_at:
        return f"is not committed beyond offset {log.ended_at}: a transaction is open there"
    return f"ends at offset {log.ended_at}"
