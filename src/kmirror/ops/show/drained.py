"""`wait --for drained`: have consumers read all that the source holds?

A partition is drained for a group when its committed offset is the source's log end. That is the high watermark,
because consumers' isolation levels are unknown; while a transaction is open, a read_committed consumer cannot get
there. One above the log's end is not drained: records that were lost there, and others written since, are not read.
Transaction markers at the end do not count: consumers commit the offset after their last record. Committed
offsets are read before log ends, so that what is drained was so when the ends were read.

A group counts for the topics of which it has committed offsets. A named group without any, a topic that no group reads,
and anything unknown are never drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.groups.group_facts import log_bounds
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.state.records import TopicRecord
from kmirror.words import counted, visible

_REQUEST_S = 10.0
#: The most offsets to check for markers: more cannot all be markers.
_MOST_MARKERS = 100
#: More than these markers take.
_MARKER_BYTES = 1 << 14
_LOST = "wait longer; if it stays so, reset the group's offset at the source, or its consumers do"
NO_READER = "commits at the source are made by its consumers; leave the topic out with --topics if it has none"


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets that groups have committed at the source, by group; or why they are unknown.

    `missing` are names and patterns of `--groups` that match no group there that we may describe.
    """

    committed: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    #: True if groups were named: each of them must have read something.
    named: bool = False


@dataclass(frozen=True, slots=True)
class Ends:
    """Log starts and ends at the source, and by topic how many partitions it has; what is left out is unknown now.

    From `empty_from` on, a partition holds only transaction markers; known for some.
    """

    bounds: Mapping[TopicPartition, tuple[int, int]]
    counts: Mapping[str, int]
    empty_from: Mapping[TopicPartition, int] = field(default_factory=dict)


def read_committed_offsets(client: ClusterClient, settings: Settings, chosen: TopicSelector | None) -> GroupOffsets:
    """Read from the source what groups have committed: those `chosen`, or all that the mirror's filters take.

    Raises:
        UnreachableError: the source does not answer.
        BrokerError: it refuses to list its groups.
    """
    groups = ClusterGroups(client, _REQUEST_S)
    takes = settings.selects_group if chosen is None else chosen.matches
    listed = {n: one.kind for n, one in groups.listed().items() if one.kind is not GroupKind.OTHER and takes(n)}
    answers = groups.committed(listed)
    known = {
        name: {partition: one.offset for partition, one in answer.items()}
        for name, answer in answers.items()
        if not isinstance(answer, int)
    }
    unknown = {name: code_name(answer) for name, answer in answers.items() if isinstance(answer, int)}
    missing = () if chosen is None else tuple(chosen.unmatched(listed))
    return GroupOffsets(known, unknown, missing, chosen is not None)


def read_ends(client: ClusterClient, topics: Iterable[TopicRecord], offsets: GroupOffsets) -> Ends:
    """Read from the source where these topics start and end, and whether groups near an end have only markers left.

    Raises:
        UnreachableError: the source does not answer.
    """
    found = client.metadata([topic.source_topic for topic in topics], timeout=_REQUEST_S).topics
    counts = {name: len(topic.partitions) for name, topic in found.items() if not topic.error_code}
    partitions = [TopicPartition(name, p) for name, count in counts.items() for p in range(count)]
    bounds = log_bounds(client, partitions, timeout=_REQUEST_S)
    empty_from = {}
    for partition, (start, end) in bounds.items():
        committed = [max(start, one[partition]) for one in offsets.committed.values() if partition in one]
        near_end = sorted({offset for offset in committed if end - _MOST_MARKERS <= offset < end}, reverse=True)
        for offset in near_end:
            if not _holds_markers_only(client, partition, offset, end):
                break
            empty_from[partition] = offset
    return Ends(bounds, counts, empty_from)


def _holds_markers_only(client: ClusterClient, partition: TopicPartition, offset: int, end: int) -> bool:
    """Return whether there are only markers from an offset up to the log's end; False if unknown."""
    try:
        found = PartitionReader(client, partition, patience_s=0).read_on(offset, max_bytes=_MARKER_BYTES)
    except (KmirrorError, OutcomeUnknown):
        return False
    rest = [header for header in found.headers if header.base_offset < end] if isinstance(found, Batches) else []
    return bool(rest) and rest[-1].next_offset >= end and all(header.is_control for header in rest)


def unread_topics(topics: Sequence[TopicRecord], offsets: GroupOffsets) -> list[str]:
    """Return the topics of which no group has committed an offset; none where groups were named, or are unknown."""
    if offsets.named or offsets.unknown:
        return []
    read = {partition.topic for committed in offsets.committed.values() for partition in committed}
    return [topic.topic for topic in topics if topic.source_topic not in read]


def judge_drained(topics: Sequence[TopicRecord], offsets: GroupOffsets, ends: Ends) -> list[TopicResult]:
    """Return a row for each drained topic, and one by group and partition for what is missing. Pure."""
    rows = [
        _row(None, None, f"no group {name} at the source, or we may not see it", "check its name, and DESCRIBE on it")
        for name in offsets.missing
    ]
    for group, why in offsets.unknown.items():
        rows.append(
            _row(None, None, f"what group {visible(group)} has committed is unknown: {why}", "wait longer", group)
        )
    names = {topic.source_topic for topic in topics}
    if offsets.named:
        for group, committed in offsets.committed.items():
            if not names & {partition.topic for partition in committed}:
                message = f"group {visible(group)} has committed nothing of these topics"
                rows.append(
                    _row(None, None, message, "is it the right group? its consumers may not have started", group)
                )
    for topic in topics:
        missing = _missing(topic, offsets, ends)
        if missing:
            rows += missing
        else:
            rows.append(TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} is drained"))
    return rows


def _missing(topic: TopicRecord, offsets: GroupOffsets, ends: Ends) -> list[TopicResult]:
    """Return what groups have not read of a topic, by partition."""
    readers = {
        group: committed
        for group, committed in sorted(offsets.committed.items())
        if any(partition.topic == topic.source_topic for partition in committed)
    }
    if not readers:
        which = "none of these groups" if offsets.named else "no group"
        return [_row(topic.topic, None, f"{which} has committed an offset of {topic.source_topic}", NO_READER)]
    if topic.source_topic not in ends.counts:
        why = f"how many partitions {topic.source_topic} has at the source is unknown"
        return [_row(topic.topic, None, why, "wait longer")]
    rows = []
    for p in range(max(topic.partitions, ends.counts[topic.source_topic])):
        partition = TopicPartition(topic.source_topic, p)
        bounds = ends.bounds.get(partition)
        if bounds is None:
            rows.append(_row(topic.topic, p, f"where {partition} ends at the source is unknown", "wait longer"))
            continue
        start, end = bounds
        for group, committed in readers.items():
            offset = committed.get(partition)
            if offset is not None and offset > end:
                message = (
                    f"group {visible(group)} has committed {offset:,} in {partition}, but the source ends at {end:,}"
                )
                rows.append(_row(topic.topic, p, f"{message}: it has lost records, or this end is old", _LOST, group))
                continue
            left = end - max(start, start if offset is None else offset)
            if left <= 0 or (offset is not None and offset >= ends.empty_from.get(partition, end)):
                continue
            position = "it has committed nothing" if offset is None else f"it has committed {offset:,}"
            rest = f"{counted(left, 'offset')} left in {partition}"
            message = f"group {visible(group)} has {rest}: {position}, the source ends at {end:,}"
            rows.append(_row(topic.topic, p, message, "wait longer; are its consumers running?", group, left))
    return rows


def _row(
    topic: str | None, partition: int | None, message: str, hint: str, group: str | None = None, left: int | None = None
) -> TopicResult:
    return TopicResult(topic, partition, Outcome.TIMED_OUT, message, hint=hint, group=group, offsets_left=left)
