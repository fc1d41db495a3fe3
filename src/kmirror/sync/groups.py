"""Decide which offsets groups get at the destination. Pure: both clusters' views in, a plan out.

Logs are equal, so offsets are: a group's offset for a mirror topic is the one that it has for the source topic, brought
into [log start, log end] of the mirror topic. Rules for one partition, in this order:

1. The topic is not mirrored, or stopped: it is not looked at.
2. Something about the partition forbids it for now (paused, not aligned yet, FAILED, another topic): left alone.
3. The group has that offset already: nothing to do, unless kmirror has set it without what the group has written beside
   it, as after a rebuild. That is added: Kafka Streams keeps its times there.
4. The group has members at the destination, or is of another kind: left alone.
5. The offset there is none that kmirror has set: a local consumer's or an operator's, left alone.
6. Otherwise it is set, forward or, when the group was rewound at the source, backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.group_records import KEPT_OFFSETS, LASTING_REASONS, GroupReason, GroupRecord

#: Log start and log end of a partition, the latter exclusive.
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group as one cluster has it; `trouble` is why that is not known."""

    kind: GroupKind
    has_members: bool = False
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    trouble: GroupReason | None = None


@dataclass(frozen=True, slots=True)
class MirroredTopics:
    """The topics that are mirrored: destination names by source names, and partitions that are not to be touched now.

    A key of `waiting` is a destination topic, or one partition of it.
    """

    names: Mapping[str, str]
    waiting: Mapping[str | TopicPartition, GroupReason] = field(default_factory=dict)

    def destination_of(self, source: TopicPartition) -> TopicPartition | None:
        """Return the mirror partition of a source partition; None where its topic is not mirrored."""
        topic = self.names.get(source.topic)
        return None if topic is None else TopicPartition(topic, source.partition)

    def reason_to_wait(self, place: TopicPartition) -> GroupReason | None:
        """Return why a mirror partition is not to be touched now."""
        return self.waiting.get(place.topic) or self.waiting.get(place)


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """One partition of one group: its offset at the destination, the one to set, why it is left alone.

    `lacks_metadata`: the offset is right, but what the group has written beside it at the source is missing.
    """

    place: TopicPartition
    source_offset: int
    destination_offset: int | None
    target: Committed
    reason: GroupReason | None = None
    lacks_metadata: bool = False

    @property
    def is_change(self) -> bool:
        """Tell whether an offset is to be set."""
        return self.reason is None and (self.lacks_metadata or self.destination_offset != self.target.offset)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What is to be done for one group of the source; `record` is what was stored of it when this was planned."""

    group: str
    destination_group: str
    kind: GroupKind
    rows: tuple[OffsetPlan, ...]
    record: GroupRecord | None

    @property
    def changes(self) -> tuple[OffsetPlan, ...]:
        """The offsets to set."""
        return tuple(row for row in self.rows if row.is_change)

    @property
    def skipped(self) -> GroupReason | None:
        """Why the group is left alone until someone acts."""
        return next((row.reason for row in self.rows if row.reason in LASTING_REASONS), None)


def in_question(source: GroupView, destination: GroupView, topics: MirroredTopics) -> set[TopicPartition]:
    """Return the mirror partitions of which log start and end have to be known: where the two sides differ."""
    return {
        place
        for at, committed in source.committed.items()
        if (place := topics.destination_of(at)) is not None
        and topics.reason_to_wait(place) is None
        and destination.committed.get(place, Committed(-1)).offset != committed.offset
    }


def plan_group(
    group: str,
    destination_group: str,
    source: GroupView,
    destination: GroupView,
    topics: MirroredTopics,
    bounds: Mapping[TopicPartition, Bounds],
    record: GroupRecord | None,
) -> GroupPlan:
    """Return what is to be done for one group that has committed offsets of mirrored topics at the source."""
    rows = []
    for at, committed in sorted(source.committed.items()):
        place = topics.destination_of(at)
        if place is not None:
            found = destination.committed.get(place)
            ours = record.ours(*place) if record else ()
            row = OffsetPlan(place, committed.offset, found.offset if found else None, committed)
            if committed.metadata and found == Committed(committed.offset) and committed.offset in ours:
                row = replace(row, lacks_metadata=destination.kind is source.kind and not destination.has_members)
            rows.append(_decided(row, source, destination, topics.reason_to_wait(place), bounds.get(place), ours))
    return GroupPlan(group, destination_group, source.kind, tuple(rows), record)


def _decided(
    row: OffsetPlan,
    source: GroupView,
    destination: GroupView,
    waits: GroupReason | None,
    bounds: Bounds | None,
    ours: tuple[int, ...],
) -> OffsetPlan:
    if waits is not None:
        return replace(row, reason=waits)
    if source.trouble or destination.trouble:
        return replace(row, reason=source.trouble or destination.trouble)
    if bounds is None:
        is_equal = row.destination_offset == row.source_offset
        return row if is_equal else replace(row, reason=GroupReason.UNKNOWN_NOW)
    row = replace(row, target=row.target._replace(offset=clamped(row.source_offset, bounds)))
    if not row.is_change:
        return row
    if destination.kind is not source.kind:
        return replace(row, reason=GroupReason.OTHER_TYPE)
    if destination.has_members:
        return replace(row, reason=GroupReason.HAS_MEMBERS)
    if row.destination_offset is not None and row.destination_offset not in ours:
        return replace(row, reason=GroupReason.COMMITTED_HERE)
    return row


def clamped(offset: int, bounds: Bounds) -> int:
    """Return the offset, or the end of the log that is nearer to it."""
    start, end = bounds
    return min(max(offset, start), end)


def recorded(plan: GroupPlan, mirror: str, now_ms: int, refused: GroupReason | None = None) -> GroupRecord | None:
    """Return the record before the plan is carried out, equal to `plan.record` where nothing is new; None: none needed.

    The offset at the destination is kept beside the new one: a crash in between leaves neither wrong.
    `refused` is why the brokers refused it the last time.
    """
    before = plan.record
    skipped = plan.skipped or (refused if plan.changes else None)
    if before is None and not plan.changes and skipped is None:
        return None
    known = before or GroupRecord(mirror, plan.group, plan.destination_group, plan.kind.value, now_ms)
    offsets = {topic: dict(partitions) for topic, partitions in known.offsets.items()}
    for row in plan.rows:
        topic, partition = row.place
        ours = known.ours(topic, partition)
        if row.is_change:
            here = () if row.destination_offset is None else (row.destination_offset,)
            kept = tuple(dict.fromkeys((row.target.offset, *here, *ours)))[:KEPT_OFFSETS]
            offsets.setdefault(topic, {})[partition] = kept
        elif ours and row.destination_offset == ours[0]:
            # it has arrived: what was there before no longer counts
            offsets[topic][partition] = ours[:1]
    record = replace(
        known, destination_group=plan.destination_group, kind=plan.kind.value, offsets=offsets, skipped=skipped
    )
    return record if record == before else replace(record, time_ms=now_ms)


def without_others(plan: GroupPlan, allowed: MirroredTopics) -> GroupPlan:
    """Return the plan without what must not be touched any more: topics that were stopped meanwhile, for instance."""
    names = set(allowed.names.values())
    rows = tuple(
        row if row.reason is not None else replace(row, reason=allowed.reason_to_wait(row.place))
        for row in plan.rows
        if row.place.topic in names
    )
    return replace(plan, rows=rows)
