"""Compare an archive with the archived records, one by one, before these are deleted.

Both are read again, as consumers see them, independently of the copying. This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.batch import CorruptBatchError, UnsupportedFormatError
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.archive.archive_topic import (
    Origin,
    Range,
    checked_ranges,
    is_left_over_filler,
    is_only_filler,
    origin_of,
)
from kmirror.engine.compare.logs import offset_of
from kmirror.engine.compare.visible_log import VisibleLog
from kmirror.errors import RefusedError, UnreachableError
from kmirror.work import Add, unwatched


@dataclass(frozen=True, slots=True)
class ArchiveDifference:
    """The first record that is not archived unchanged; `offset` is its original one, None if unknown."""

    offset: int | None
    what: str

    def __str__(self) -> str:
        return self.what if self.offset is None else f"at offset {self.offset}, {self.what}"


@dataclass(frozen=True, slots=True)
class ArchiveComparison:
    """The result of comparing an archive. `records` were compared; `records` + `only_archived` are in the archive.

    `only_archived` counts records that the log has lost since they were archived: it now starts after them, or the
    topic was compacted.
    """

    records: int
    only_archived: int
    first_difference: ArchiveDifference | None = None

    @property
    def equal(self) -> bool:
        """True if the archive has every record, and nothing else."""
        return self.first_difference is None

    def __str__(self) -> str:
        return str(self.first_difference or "all records are equal")


def verify_archive_partition(
    reading: ClusterClient,
    reading_archive: ClusterClient,
    partition: TopicPartition,
    archive: TopicPartition,
    ranges: Sequence[Range],
    progress: Add = unwatched,
    archived: Range | None = None,
) -> ArchiveComparison:
    """Compare the records at offsets `ranges` of `partition` with everything in `archive`.

    With `archived`: with those at its own offsets `archived`. Both clients, of one cluster, must have no other user
    meanwhile. `progress` is called for each batch with the number of newly compared offsets.

    Raises:
        RefusedError: the log does not show all of the ranges to consumers.
        CorruptBatchError, UnsupportedFormatError: a batch of the partition cannot be read.
        UnreachableError, BrokerError: one of the two cannot be read.
    """
    with ThreadPoolExecutor(2, "read-ahead") as executor:
        if archived is None:
            archived = offset_of(reading_archive, archive, EARLIEST), offset_of(reading_archive, archive, LATEST)
        saved = _records_of_archive(reading_archive, archive, *archived, executor)
        return _ArchiveWalk(saved, checked_ranges(ranges), progress).run(reading, partition, executor)


class _DamagedArchiveError(Exception):
    """The archive cannot be read any further."""


def _records_of_archive(
    client: ClusterClient, archive: TopicPartition, start: int, end: int, executor: Executor
) -> Iterator[Record]:
    log = VisibleLog(client, archive, start, end, executor)
    try:
        for batch in log.batches():
            # a batch may begin before the range, and end after it
            records = (record for record in batch.records() if start <= record.offset < end)
            yield from map(_with_own_time, records) if batch.header.is_log_append_time else records
    except (CorruptBatchError, UnsupportedFormatError) as error:
        raise _DamagedArchiveError(str(error)) from None
    if log.ended_at is not None and log.ended_at < end:
        raise UnreachableError(f"{archive} cannot be read up to its end {end}", "are all its replicas in sync?")


def _with_own_time(archived: Record) -> Record:
    """Return an archived record with its original timestamp, which the broker has replaced."""
    found = origin_of(archived)
    return archived if found is None else replace(archived, timestamp=found[0].timestamp)


class _ArchiveWalk:
    """One comparison of a log with its archive."""

    def __init__(self, archived: Iterator[Record], ranges: Sequence[Range], progress: Add) -> None:
        self._archived = archived
        self._ranges = ranges
        self._progress = progress
        self._records = 0
        self._only_archived = 0
        self._last: int | None = None
        #: Offsets that the log has lost.
        self._lost: list[Range] = []
        #: The part of the log that is read.
        self._log: VisibleLog | None = None

    def run(self, client: ClusterClient, partition: TopicPartition, executor: Executor) -> ArchiveComparison:
        try:
            difference = self._walk(client, partition, executor)
        except _DamagedArchiveError as error:
            difference = ArchiveDifference(None, f"the archive cannot be read: {error}")
        return ArchiveComparison(self._records, self._only_archived, difference)

    def _walk(self, client: ClusterClient, partition: TopicPartition, executor: Executor) -> ArchiveDifference | None:
        for low, high in self._ranges:
            reached = low
            self._log = log = VisibleLog(client, partition, low, high, executor)
            for batch in log.batches():
                self._note_lost(low, log.floor)
                for record in () if is_only_filler(batch) else batch.records():
                    if not max(low, log.floor) <= record.offset < high or is_left_over_filler(batch, record):
                        continue
                    if difference := self._compare(record, batch.header.partition_leader_epoch):
                        return difference
                before, reached = reached, max(reached, min(high, batch.header.next_offset))
                self._progress(reached - before)
            self._note_lost(low, min(high, log.floor))
            if log.ended_at is not None and log.ended_at < high:
                raise RefusedError(
                    f"{partition} shows consumers nothing from offset {log.ended_at} on, but it should up to {high}",
                    "a transaction may be open there; try later",
                )
            self._progress(high - reached)
        extra = self._next_archived()
        if extra is None:
            return None
        origin = origin_of(extra)
        where = f"at offset {extra.offset} of the archive"
        return ArchiveDifference(origin[0].offset if origin else None, f"there is an extra record {where}")

    def _note_lost(self, low: int, floor: int) -> None:
        if low < floor and (low, floor) not in self._lost:
            self._lost.append((low, floor))

    def _next_archived(self, before: int | None = None) -> Record | None:
        """Return the next record of the archive that the log still has; its next one is at offset `before`."""
        for archived in self._archived:
            origin = origin_of(archived)
            offset = origin[0].offset if origin else -1
            in_order = self._last is None or offset > self._last
            is_lost = any(low <= offset < floor for low, floor in self._lost)
            if not in_order or not (is_lost or self._is_compacted_away(offset, before)):
                return archived
            self._only_archived += 1
            self._last = offset
        return None

    def _is_compacted_away(self, offset: int, before: int | None) -> bool:
        """Return True if the log has lost this record to its cleaner."""
        is_in_range = any(low <= offset < high for low, high in self._ranges) and (before is None or offset < before)
        return is_in_range and self._log is not None and self._log.is_compacted()

    def _compare(self, record: Record, leader_epoch: int) -> ArchiveDifference | None:
        archived = self._next_archived(record.offset)
        if archived is None:
            return ArchiveDifference(record.offset, "it is not in the archive, which ends before it")
        where = f"at offset {archived.offset} of the archive"
        found = origin_of(archived)
        if found is None:
            return ArchiveDifference(record.offset, f"the record {where} has no header with its original offset")
        origin, headers = found
        if origin.offset != record.offset:
            return ArchiveDifference(record.offset, f"the record {where} is that of offset {origin.offset}")
        parts = {
            "key": archived.key == record.key,
            "value": archived.value == record.value,
            "headers": headers == record.headers,
            "timestamp": archived.timestamp == record.timestamp,
            "added headers": origin == Origin(record.offset, leader_epoch, record.timestamp),
        }
        if not all(parts.values()):
            different = " and ".join(name for name, is_equal in parts.items() if not is_equal)
            return ArchiveDifference(record.offset, f"{different} of the record {where} differ")
        self._records += 1
        self._last = record.offset
        return None
