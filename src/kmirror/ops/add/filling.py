"""Estimate what has to be filled before the records of new mirror topics are copied, to warn of it.

Log starts are known exactly. How many offsets inside a log hold no record that applications are shown is estimated from
samples: each shows how many offsets its batch takes, how many records it has, whether its transaction was aborted, and
how long the gap before it is.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import BatchHeader, CorruptBatchError
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.add.add_plan import TopicPlan
from kmirror.ops.groups.group_facts import log_bounds
from kmirror.settings.durations import format_duration
from kmirror.words import byte_count, counted, listed, visible

#: As measured: filler below a log's start, which is deleted again, and markers.
_FILLER_BYTES, _FILLER_PER_SECOND = 0.7, 9_000_000
_MARKER_BYTES, _MARKERS_PER_SECOND = 78, 16_000
#: What takes a second is not worth a warning, but what takes ten is.
_MANY_BELOW_START = 10 * _FILLER_PER_SECOND
_MANY_HOLES = 10 * _MARKERS_PER_SECOND
_SAMPLES = 16
#: No more partitions than these are sampled: compacted ones first, then the longest.
_MOST_SAMPLED = 16
_PATIENCE_S = 3.0


def filling_warnings(source: ClusterClient, plans: Iterable[TopicPlan]) -> list[str]:
    """Return a warning for each topic before whose records much has to be filled, and one that names what is unknown.

    Short logs, and long ones that are neither sampled nor compacted, are taken to have no gaps.
    """
    new = {
        TopicPartition(plan.source_topic, index): plan
        for plan in plans
        for index in range(plan.partitions)
        if index not in plan.begun
    }
    try:
        bounds = log_bounds(source, new, timeout=_PATIENCE_S)
    except (KmirrorError, OutcomeUnknown):
        return _unknown(list(new))
    ranges = {
        partition: (new[partition].first_offsets.get(partition.partition, start), end)
        for partition, (start, end) in bounds.items()
    }
    compacted = {one for one in ranges if "compact" in new[one].settings.now.get("cleanup.policy", "")}
    holes, unread = _sampled(source, ranges, compacted)
    unread += [partition for partition in new if partition not in ranges]
    return [*_below_starts(ranges), *_of_holes(holes, compacted), *_unknown(sorted(unread))]


def _below_starts(ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[str]:
    for topic in dict.fromkeys(partition.topic for partition in ranges):
        begins = [begin for partition, (begin, _) in ranges.items() if partition.topic == topic]
        if (count := sum(begins)) >= _MANY_BELOW_START:
            yield (
                f"{visible(topic)} begins at offset {max(begins):,}: {counted(count, 'offset')} below are filled and "
                f"deleted again before its first record is copied, for a while about "
                f"{byte_count(count * _FILLER_BYTES)} at the destination, in {_about(count / _FILLER_PER_SECOND)}"
            )


def _sampled(
    source: ClusterClient, ranges: Mapping[TopicPartition, tuple[int, int]], compacted: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return about how many offsets of partitions hold no record; and which may have many, but were not read."""
    long = [partition for partition, (begin, end) in ranges.items() if end - begin >= _MANY_HOLES]
    long.sort(key=lambda partition: (partition not in compacted, ranges[partition][0] - ranges[partition][1]))
    sampled, others = long[:_MOST_SAMPLED], long[_MOST_SAMPLED:]
    if not sampled:
        return {}, []
    # over a long path one after the other would take long
    with ThreadPoolExecutor(len(sampled), "kmirror-samples") as threads:
        counts = threads.map(lambda partition: _sample(source.config, partition, *ranges[partition]), sampled)
        found = dict(zip(sampled, counts, strict=True))
    unread = [partition for partition, count in found.items() if count is None]
    unread += [partition for partition in others if partition in compacted]
    return {partition: count for partition, count in found.items() if count is not None}, unread


def _of_holes(holes: Mapping[TopicPartition, int], compacted: Collection[TopicPartition]) -> Iterator[str]:
    for topic in dict.fromkeys(partition.topic for partition in holes):
        of_topic = {partition: count for partition, count in holes.items() if partition.topic == topic}
        if (count := sum(of_topic.values())) >= _MANY_HOLES:
            is_compacted = any(partition in compacted for partition in of_topic)
            kind = "is compacted" if is_compacted else "has transactions"
            kept = " until its cleaner removes them" if is_compacted else ""
            yield (
                f"{visible(topic)} {kind}: by samples of {counted(len(of_topic), 'partition')}, about "
                f"{counted(_rounded(count), 'offset')} hold no record; they are filled with markers, about "
                f"{byte_count(count * _MARKER_BYTES)} at the destination{kept}, in "
                f"{_about(count / _MARKERS_PER_SECOND)}, longer without the right to write markers"
            )


def _unknown(partitions: Sequence[TopicPartition]) -> list[str]:
    if not partitions:
        return []
    names = listed([str(partition) for partition in partitions])
    return [f"how many offsets have to be filled is unknown where the source could not be read: {names}"]


def _sample(config: ClientConfig, partition: TopicPartition, begin: int, end: int) -> int | None:
    """Return about how many offsets from `begin` to `end` hold no record; None if less than half could be read."""
    step, count, covered = -(-(end - begin) // _SAMPLES), 0, 0
    deadline = time.monotonic() + _PATIENCE_S
    with ClusterClient(config) as client, suppress(KmirrorError, OutcomeUnknown, CorruptBatchError):
        reader = PartitionReader(client, partition, read_committed=True, patience_s=_PATIENCE_S)
        # every second one first: half of them are enough where each takes long
        for at in (*range(begin, end, 2 * step), *range(begin + step, end, 2 * step)):
            until = min(at + step, end)
            found = reader.read(at, max_bytes=1)
            if isinstance(found, Batches):
                count += holes_by_sample(found.headers, at, until, is_shown=_is_shown(found))
            elif isinstance(found, NoBatches):
                count += until - at
            if isinstance(found, Batches | NoBatches):
                covered += until - at
            if time.monotonic() > deadline:
                break
    return round(count * (end - begin) / covered) if 2 * covered >= end - begin else None


def _is_shown(found: Batches) -> bool:
    """Return whether applications are shown the records of the first batch."""
    first = found.headers[0]
    batch = found.data[first.position : first.position + first.size_in_bytes]
    return Isolation(found.aborted_transactions).kind(batch) is BatchKind.DATA


def holes_by_sample(headers: Sequence[BatchHeader], at: int, until: int, *, is_shown: bool = True) -> int:
    """Return about how many offsets from `at` to `until` hold no record, if all batches are like the first one.

    `is_shown`: applications see its records.
    """
    if not headers:
        return 0
    first = headers[0]
    gap = min(max(first.base_offset - at, 0), until - at)
    span = first.next_offset - first.base_offset
    records = max(first.record_count, 0) if is_shown and not first.is_control else 0
    return gap + round((until - at - gap) * (1 - min(records / span, 1.0))) if span > 0 else gap


def _rounded(count: int) -> int:
    """Return a count with two digits, as it is not known better."""
    digits = len(str(count)) - 2
    return round(count, -digits) if digits > 0 else count


def _about(seconds: float) -> str:
    return f"about {format_duration(max(round(seconds), 1) * 1000)}"
