"""Count the records that consumers see in logs: cut into ranges, counted in parallel.

This module runs in workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.engine.bulk.ranges import cut_offsets, group_by_size, task_bytes
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.compare.visible_log import VisibleLog
from kmirror.errors import UnreachableError
from kmirror.work import Add, Meter, unwatched


class RecordCount(NamedTuple):
    """How many records consumers see in a range, and how many of them from a mark on."""

    records: int = 0
    from_mark: int = 0


@dataclass(frozen=True, slots=True)
class RangeToCount:
    """A range to count; `mark` is None without a mark; `bytes_per_offset` is an estimate."""

    topic_partition: TopicPartition
    low: int
    high: int
    mark: int | None
    bytes_per_offset: float

    @property
    def estimated_bytes(self) -> float:
        """The estimated size."""
        return self.bytes_per_offset * max(0, self.high - self.low)


@dataclass(frozen=True, slots=True)
class CountWorkUnit:
    """What one task counts, and how it connects to the cluster."""

    cluster: ClusterAccess
    ranges: tuple[RangeToCount, ...]


def count_records(
    runner: Runner, cluster: ClusterAccess, wanted: Iterable[RangeToCount], meter: Meter
) -> dict[TopicPartition, RecordCount]:
    """Count in parallel; `meter` counts the offsets.

    Raises:
        UnreachableError, BrokerError: a log cannot be read.
        CorruptBatchError, UnsupportedFormatError: a batch cannot be read.
    """
    known = [one for one in wanted if one.low < one.high]
    totals: Counter[TopicPartition] = Counter()
    from_mark: Counter[TopicPartition] = Counter()
    tasks = [Task(unit, sum(one.high - one.low for one in unit.ranges)) for unit in _work_units(known, runner, cluster)]
    with closing(runner.run("count", count_work_unit, tasks, meter)) as answers:
        for answer in answers:
            for partition, counted in answer:
                totals[partition] += counted.records
                from_mark[partition] += counted.from_mark
    return {
        one.topic_partition: RecordCount(totals[one.topic_partition], from_mark[one.topic_partition]) for one in known
    }


def _work_units(known: list[RangeToCount], runner: Runner, cluster: ClusterAccess) -> Iterator[CountWorkUnit]:
    most = task_bytes(sum(one.estimated_bytes for one in known), runner.slots)
    sized = (
        (part := replace(one, low=low, high=high), part.estimated_bytes)
        for one in known
        for low, high in cut_offsets(one.low, one.high, round(one.estimated_bytes / most))
    )
    return (CountWorkUnit(cluster, ranges) for ranges in group_by_size(sized, most))


def count_work_unit(unit: CountWorkUnit, progress: Add = unwatched) -> list[tuple[TopicPartition, RecordCount]]:
    """Count the ranges of a work unit: the body of one task. `progress` takes the number of newly read offsets."""
    with ClusterClient(unit.cluster.config()) as client, ThreadPoolExecutor(1, "read-ahead") as executor:
        return [
            (
                one.topic_partition,
                _count(VisibleLog(client, one.topic_partition, one.low, one.high, executor), one, progress),
            )
            for one in unit.ranges
        ]


def _count(log: VisibleLog, wanted: RangeToCount, progress: Add) -> RecordCount:
    low, high = wanted.low, wanted.high
    mark = high if wanted.mark is None else wanted.mark
    records = from_mark = 0
    reached = low
    for batch in log.batches():
        header = batch.header
        is_inside = low <= header.base_offset and header.next_offset <= high
        if is_inside and not header.base_offset < mark < header.next_offset:
            records += header.record_count
            from_mark += header.record_count if header.base_offset >= mark else 0
        else:
            offsets = [record.offset for record in batch.records() if low <= record.offset < high]
            records += len(offsets)
            from_mark += sum(offset >= mark for offset in offsets)
        before, reached = reached, max(reached, min(high, header.next_offset))
        progress(reached - before)
    if log.ended_at is not None and log.ended_at < high:
        raise UnreachableError(
            f"{wanted.topic_partition} cannot be read up to offset {high}", "are all its replicas in sync?"
        )
    progress(high - reached)
    return RecordCount(records, from_mark)
