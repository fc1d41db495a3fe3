"""Compare two logs record by record: offsets, timestamps, keys, values, headers.

Both logs are read as consumers see them (`visible_log`), in step:

* where both are at the beginning of a batch, and the two batches have the same offsets and the same bytes of records
  (after decompression if the codecs differ), all their records are equal;
* everywhere else they are compared record by record, until both are at the beginning of a batch again.

A record that only one side has is a difference, with two exceptions: if the other log starts later, this is only noted;
if the other topic is compacted, the record may have been removed there (`superseded`). Our filler at the destination is
always a difference. Offsets that show nothing are compared only at the end: a destination that continues after its
source's end differs, whatever is there.

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from kmirror.cluster.client import LATEST, ClusterClient, require
from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    LOG_APPEND_TIME,
    CorruptBatchError,
    OversizedBatchError,
    UnsupportedFormatError,
)
from kmirror.cluster.protocol.batch_records import Record, decompress
from kmirror.cluster.protocol.filler import FILLER_KEY
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.compare.difference import (
    Difference,
    DifferenceKind,
    PartitionComparison,
    summary_of,
    what_differs,
)
from kmirror.engine.compare.log_walk import AT_END, LogCursor
from kmirror.engine.compare.visible_log import Log, UnknownFormatError, VisibleBatch, VisibleLog
from kmirror.words import counted
from kmirror.work import Add, unwatched

#: How many keys may wait for a later record in memory, about 40 MB; more wait on disk.
_MOST_WAITING = 100_000
#: Progress of records that are compared one by one is reported after this many offsets.
_REPORT_OFFSETS = 1000
_FILLER = "the destination shows filler, which kmirror writes below the start of a log"


def compare_partition(
    source: ClusterClient,
    destination: ClusterClient,
    source_partition: TopicPartition,
    destination_partition: TopicPartition,
    start: int,
    end: int,
    progress: Add = unwatched,
) -> PartitionComparison:
    """Compare two partitions from offset `start` to `end`, which the source must have reached.

    Both clients must have no other user meanwhile. `progress` is called for each batch with the number of newly
    compared offsets.

    Raises:
        UnreachableError: one of the clusters does not respond.
        TimedOutError: a log ends early, and whether it was read from the newest leader is not certain.
        BrokerError: one of them refuses.
        UnsupportedFormatError: a batch has an unreadable format; nothing before it differs.
    """
    if start >= end:
        return PartitionComparison(start, start, 0, 0)
    with ThreadPoolExecutor(2, "read-ahead") as executor:
        one = VisibleLog(source, source_partition, start, end, executor)
        other = VisibleLog(destination, destination_partition, start, end, executor)
        found = compare_logs(one, other, start, end, progress)
        for log in (one, other) if found.obstacle is None else ():
            if log.ended_at is not None and log.ended_at < end:
                log.require_newest_leader()
        return found


def filler_at_start(destination: ClusterClient, partition: TopicPartition, start: int, end: int) -> Difference | None:
    """Return a difference if the first record that the destination shows from `start` to `end` is filler.

    Raises:
        UnreachableError: the cluster does not respond.
        BrokerError: it refuses.
    """
    with ThreadPoolExecutor(1, "read-ahead") as executor:
        log = VisibleLog(destination, partition, start, end, executor)
        try:
            with closing(log.scan(start, end)) as records:
                first = next(records, None)
        except (CorruptBatchError, UnsupportedFormatError):
            return None  # this is not part of the comparison
    if first is None or not _is_filler(first):
        return None
    return Difference(first.offset, DifferenceKind.FILLER, _FILLER, None, summary_of(first))


def _is_filler(record: Record) -> bool:
    return record.key == FILLER_KEY and record.value is None


def offset_of(client: ClusterClient, partition: TopicPartition, which: int) -> int:
    """Return the log start offset (EARLIEST) or log end offset (LATEST); raises UnreachableError, BrokerError."""
    answer = client.list_offsets({partition: which}, log_end=which == LATEST)[partition]
    require(answer.error_code, f"looking up the offsets of {partition}")
    return answer.offset or 0


def compare_logs(source: Log, destination: Log, start: int, end: int, progress: Add = unwatched) -> PartitionComparison:
    """Compare two logs from `start` to `end`; raises UnsupportedFormatError."""
    return _LogComparison(source, destination, start, end, progress).run()


def same_batch(one: VisibleBatch, other: VisibleBatch) -> bool:
    """Return True if two valid batches have the same records at the same offsets; False may also mean unknown."""
    a, b = one.header, other.header
    if (
        one.unwrapped is not None
        or other.unwrapped is not None
        or a.base_offset != b.base_offset
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
        # comparing bytes is much faster than comparing memoryviews
        return bytes(decompress(memoryview(mine), a.compression_type)) == bytes(
            decompress(memoryview(theirs), b.compression_type)
        )
    except ValueError:
        return False


def _records_section(batch: VisibleBatch) -> bytes:
    start = batch.header.position
    return bytes(batch.data[start + BATCH_OVERHEAD : start + batch.header.size_in_bytes])


class _LogComparison:
    """One comparison of two logs."""

    def __init__(self, source: Log, destination: Log, start: int, end: int, progress: Add) -> None:
        self._start = start
        self._end = end
        self._progress = progress
        self._reported = start
        self._position = start
        self._records = 0
        self._obstacle: str | None = None
        self._source = LogCursor("source", source, destination, start, end)
        self._destination = LogCursor("destination", destination, source, start, end)

    def run(self) -> PartitionComparison:
        """Compare up to the end or the first difference; raises UnsupportedFormatError."""
        with closing(self._source.missing), closing(self._destination.missing):
            return self._compared()

    def _compared(self) -> PartitionComparison:
        difference = self._earliest(self._walk())
        if difference is None and self._obstacle is None:
            self._obstacle = self._hidden_tail(self._destination) or self._hidden_tail(self._source)
        if difference is None and self._obstacle is None:
            difference = self._end_alone()
        if difference is None:
            self._report_progress(self._end)
        return PartitionComparison(
            self._start,
            self._end,
            self._records,
            self._source.size_in_bytes,
            difference,
            None if difference else self._obstacle,
            tuple(self._notes(difference)),
        )

    def _earliest(self, difference: Difference | None) -> Difference | None:
        """Return the difference found, or a missing record before it."""
        try:
            missing = self._unexplained()
        except (CorruptBatchError, UnsupportedFormatError):
            if difference is None:
                raise
            return difference
        return missing if missing and (difference is None or missing.offset < difference.offset) else difference

    def _walk(self) -> Difference | None:
        one, other = self._source, self._destination
        one.next_batch()
        other.next_batch()
        while self._obstacle is None:
            waiting = len(one.missing) + len(other.missing)
            if waiting > _MOST_WAITING:
                one.missing.spill()
                other.missing.spill()
                continue
            needs_records = waiting or one.missing.needs_every_record or other.missing.needs_every_record
            ours, theirs = one.whole_batch, other.whole_batch
            if not needs_records and ours and theirs and same_batch(ours, theirs):
                self._records += ours.header.record_count
                self._position = ours.header.next_offset
                self._report_progress(self._position)
                one.next_batch()
                other.next_batch()
                continue
            one.advance_to_record()
            other.advance_to_record()
            if one.offset == other.offset == AT_END:
                self._position = self._end
                return None
            if difference := self._step():
                return difference
        return None

    def _step(self) -> Difference | None:
        """Compare what is at the lower of the two offsets, and continue after it."""
        one, other = self._source, self._destination
        offset = min(one.offset, other.offset)
        here = [side for side in (one, other) if side.offset == offset]
        for side in here:
            match side.unreadable:
                case OversizedBatchError() as error:
                    raise UnknownFormatError(offset, f"on the {side.name} {error}", error.hint)
                case CorruptBatchError() as error:
                    what = f"the batch that the {side.name} stores at offset {error.offset} is corrupt: {error.detail}"
                    return self._difference(offset, DifferenceKind.CORRUPT, what)
                case UnknownFormatError() as error:
                    message = f"the {side.name} cannot be read from offset {offset} on: {error}"
                    raise UnknownFormatError(offset, message, error.hint)
        self._position = offset + 1
        if self._position - self._reported >= _REPORT_OFFSETS:
            self._report_progress(self._position)
        records = [side.record for side in here if side.record is not None]
        if len(records) == 2:
            difference = self._pair(*records)
            self._records += 1
        elif here == [one]:
            difference = self._alone(records[0], other, DifferenceKind.MISSING, DifferenceKind.MISSING_TAIL)
        else:
            difference = self._alone(records[0], one, DifferenceKind.EXTRA, DifferenceKind.EXTRA_TAIL)
        if difference is None:
            for side in here:
                side.next_record()
        return difference

    def _pair(self, source: Record, destination: Record) -> Difference | None:
        """Compare the records of both sides at one offset."""
        if source.key == destination.key:
            self._source.missing.seen(source)
            self._destination.missing.seen(destination)
        differs = what_differs(source, destination)
        if differs is None:
            return None
        if _is_filler(destination):
            return self._difference(source.offset, DifferenceKind.FILLER, _FILLER)
        return self._difference(source.offset, DifferenceKind.CONTENT, differs)

    def _alone(
        self, record: Record, other: LogCursor, inside: DifferenceKind, tail: DifferenceKind
    ) -> Difference | None:
        """Judge a record that is not on the `other` side."""
        side = self._source if other is self._destination else self._destination
        ended_at = other.log.ended_at
        if side is self._destination and _is_filler(record):
            return self._difference(record.offset, DifferenceKind.FILLER, _FILLER)
        if record.offset < other.log.floor:
            other.below_floor += 1
            side.missing.seen(record)
            return None
        if ended_at is not None and record.offset >= ended_at:
            if hidden := self._hidden_tail(other):
                self._obstacle = hidden
                return None
            return self._difference(record.offset, tail, f"the {other.name} {_end_of(other.log)}")
        if other.missing.excuses(record):
            side.missing.seen_alone(record, other.missing)
            return None
        return self._difference(record.offset, inside, f"the {other.name} has no record at this offset")

    def _unexplained(self) -> Difference | None:
        """Search for the later records that keys still wait for; return the first missing record without one."""
        found = []
        for side, other in ((self._destination, self._source), (self._source, self._destination)):
            missing = side.missing.unexplained(self._position, self._end)
            if missing is None:
                continue
            lacking, record = other if missing.in_other else side, missing.record
            what = f"the {lacking.name} has no record at this offset, and no later one of its key"
            if lacking is self._destination:
                found.append(Difference(record.offset, DifferenceKind.MISSING, what, record, None))
            else:
                found.append(Difference(record.offset, DifferenceKind.EXTRA, what, None, record))
        return min(found, key=lambda difference: difference.offset, default=None)

    def _difference(self, offset: int, kind: DifferenceKind, what: str) -> Difference:
        summaries = [
            summary_of(side.record) if side.record and side.record.offset == offset else None
            for side in (self._source, self._destination)
        ]
        return Difference(offset, kind, what, *summaries)

    def _hidden_tail(self, side: LogCursor) -> str | None:
        """Return why the last records of a log cannot be compared now; None if it hides none that could be equal.

        What is not committed at the source was never copied; what a new leader does not show yet may have been.
        """
        ended_at, log_end = side.log.ended_at, side.log.log_end_offset
        if ended_at is None or log_end is None or log_end <= ended_at:
            return None
        if side is self._source and (side.log.has_open_transaction or not ended_at < self._end <= log_end):
            return None
        return (
            f"the {side.name} shows consumers nothing from offset {ended_at} to its end {log_end}: "
            "a transaction is open there, or too few replicas are in sync or have it"
        )

    def _end_alone(self) -> Difference | None:
        """Return a difference if one log ends early and the other continues with offsets that show nothing."""
        for side, kind in ((self._destination, DifferenceKind.MISSING_TAIL), (self._source, DifferenceKind.EXTRA_TAIL)):
            ended_at = side.log.ended_at
            if ended_at is not None and ended_at < self._end:
                missing = f"offsets {ended_at} to {self._end - 1}, which show no records, are missing"
                return Difference(ended_at, kind, f"the {side.name} {_end_of(side.log)}; {missing}", None, None)
        return None

    def _notes(self, difference: Difference | None) -> Iterator[str]:
        for side, other in ((self._source, self._destination), (self._destination, self._source)):
            if side.below_floor:
                where = f"below offset {side.log.floor}"
                many = counted(side.below_floor, f"record {where} was", f"records {where} were")
                yield f"{many} not compared: the {side.name}'s log now starts there"
            if side.missing.count and difference is None:
                of = f"of the {other.name}"
                many = counted(side.missing.count, f"record {of} is", f"records {of} are")
                yield f"{many} missing in the {side.name}, removed by compaction"

    def _report_progress(self, reached: int) -> None:
        if reached > self._reported:
            self._progress(reached - self._reported)
            self._reported = reached


def _end_of(log: Log) -> str:
    if log.has_open_transaction:
        return f"is not committed after offset {log.ended_at}: a transaction is open there"
    if log.log_end_offset is not None and log.ended_at is not None and log.log_end_offset > log.ended_at:
        return f"shows nothing from offset {log.ended_at} on, and ends at offset {log.log_end_offset}"
    return f"ends at offset {log.ended_at}"
