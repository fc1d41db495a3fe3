"""Decide which offsets to commit for groups at the destination. Pure: both clusters' views in, a plan out.

Offsets are the same on both clusters: a group's offset for a mirror topic is its offset for the source topic, clamped
to [log start, log end] of the mirror topic. Rules for one partition, in this order:

1. The topic is not mirrored, or stopped: ignored.
2. The partition is not ready (paused, not aligned yet, FAILED, another topic): left alone.
3. The group has that offset already: nothing to do, unless kmirror committed it without the group's commit metadata, as
   after a rebuild. The metadata is then added: Kafka Streams keeps its times there.
4. The group has members at the destination, or is of another kind: left alone.
5. The offset there was not committed by kmirror: a local consumer's or an operator's, left alone.
6. Otherwise it is committed, forward or, if the group was rewound at the source, backward.

Brokers delete what a group without members committed long ago, and a synced group has none. So what kmirror committed
is kept (`kept_rows`): committed again in time, and put back from the stored record once it has vanished. Only what the
source does not have any more is not kept (`absent`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.group_records import KEPT_OFFSETS, LASTING_REASONS, GroupReason, GroupRecord

#: Reasons for which brokers name more: a limit or an error.
WITH_DETAIL = (GroupReason.REFUSED, GroupReason.METADATA_REFUSED)
#: Log start and log end of a partition, the latter exclusive.
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group on one cluster; `trouble` is why that is unknown."""

    kind: GroupKind
    has_members: bool = False
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    trouble: GroupReason | None = None


@dataclass(frozen=True, slots=True)
class MirroredTopics:
    """The mirrored topics: destination names by source names, and partitions whose offsets must not change now.

    A key of `waiting` is a destination topic, or one partition of it.
    """

    names: Mapping[str, str]
    waiting: Mapping[str | TopicPartition, GroupReason] = field(default_factory=dict)

    def destination_of(self, source: TopicPartition) -> TopicPartition | None:
        """Return the mirror partition of a source partition; None if its topic is not mirrored."""
        topic = self.names.get(source.topic)
        return None if topic is None else TopicPartition(topic, source.partition)

    def reason_to_wait(self, partition: TopicPartition) -> GroupReason | None:
        """Return why offsets of a mirror partition must not change now."""
        return self.waiting.get(partition.topic) or self.waiting.get(partition)


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """One partition of one group: its offset at the destination, the one to commit, why it is left alone.

    `again`: the offset is right, but is committed once more, with the source's metadata or so that it does not expire.
    `keeps`: it is the destination's own last offset, whatever the source has now. `is_bare`: the destination refuses
    the source's commit metadata, so that it is committed without.
    """

    topic_partition: TopicPartition
    source_offset: int
    destination_offset: int | None
    target: Committed
    reason: GroupReason | None = None
    again: bool = False
    keeps: bool = False
    is_bare: bool = False

    @property
    def is_change(self) -> bool:
        """Return whether an offset is to be committed."""
        return self.reason is None and (self.again or self.destination_offset != self.target.offset)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan for one group of the source; `record` is its stored record when this was planned.

    `knows_source` is false if the source said nothing about the group: its offsets are kept only.
    """

    group: str
    destination_group: str
    kind: GroupKind
    rows: tuple[OffsetPlan, ...]
    record: GroupRecord | None
    knows_source: bool = True

    @property
    def changes(self) -> tuple[OffsetPlan, ...]:
        """The offsets to commit."""
        return tuple(row for row in self.rows if row.is_change)

    @property
    def returned(self) -> frozenset[TopicPartition]:
        """The partitions for which the source has an offset again."""
        absent = self.record.absent if self.record else {}
        rows = (row.topic_partition for row in self.rows if not row.keeps)
        return frozenset(at for at in rows if at.partition in absent.get(at.topic, ())) if absent else frozenset()

    @property
    def skipped(self) -> GroupReason | None:
        """Why the group is left alone, or loses its commit metadata, until an operator acts."""
        if reason := next((row.reason for row in self.rows if row.reason in LASTING_REASONS), None):
            return reason
        is_bare = any(row.is_bare and row.reason is None for row in self.rows)
        return GroupReason.METADATA_REFUSED if is_bare else None

    def skipped_with(self, refused: GroupReason | None) -> GroupReason | None:
        """Return the same, where brokers `refused` the last commit; what is stored stays if the source said nothing."""
        if self.skipped is not None or (refused is not None and self.changes):
            return self.skipped or refused
        return self.record.skipped if self.record and not self.knows_source else None


def differing_partitions(source: GroupView, destination: GroupView, topics: MirroredTopics) -> set[TopicPartition]:
    """Return the mirror partitions where the two sides differ: their log start and end must be known."""
    return {
        partition
        for at, committed in source.committed.items()
        if (partition := topics.destination_of(at)) is not None
        and topics.reason_to_wait(partition) is None
        and destination.committed.get(partition, Committed(-1)).offset != committed.offset
    }


def plan_group(
    group: str,
    destination_group: str,
    source: GroupView,
    destination: GroupView,
    topics: MirroredTopics,
    bounds: Mapping[TopicPartition, Bounds],
    record: GroupRecord | None,
    *,
    is_due: bool = False,
    longest_metadata: int | None = None,
) -> GroupPlan:
    """Return the plan for one group with committed offsets of mirrored topics at the source.

    With `is_due` also those of kmirror's offsets that are right are committed again. Commit metadata of more characters
    than `longest_metadata` is left out.
    """
    rows = []
    for at, committed in sorted(source.committed.items()):
        partition = topics.destination_of(at)
        if partition is not None:
            found = destination.committed.get(partition)
            ours = record.ours(*partition) if record else ()
            is_bare = longest_metadata is not None and metadata_length(committed.metadata) > longest_metadata
            wanted = Committed(committed.offset) if is_bare else committed
            row = OffsetPlan(partition, committed.offset, found.offset if found else None, wanted, is_bare=is_bare)
            row = _decided(row, source, destination, topics.reason_to_wait(partition), bounds.get(partition), ours)
            if found and row.reason is None and found.offset == row.target.offset and found.offset in ours:
                lacks_metadata = bool(wanted.metadata) and found == Committed(committed.offset)
                is_idle = destination.kind is source.kind and not destination.has_members
                row = replace(row, again=is_idle and (is_due or lacks_metadata))
            rows.append(row)
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


def metadata_length(metadata: str) -> int:
    """Return the length of commit metadata as brokers measure it: in UTF-16 units."""
    return len(metadata.encode("utf-16-le")) // 2


def kept_rows(
    record: GroupRecord,
    destination: GroupView,
    topics: MirroredTopics,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    is_due: bool,
) -> tuple[OffsetPlan, ...]:
    """Return the offsets that kmirror has committed and that are to be committed again, whatever the source has now.

    Those that have vanished from the destination, with the last one stored; with `is_due` those that are there, too.
    None of a group with members, and none that someone else has committed.
    """
    if destination.trouble or destination.has_members or destination.kind.value != record.kind:
        return ()
    rows = []
    for at, ours in kept_offsets(record, topics):
        found = destination.committed.get(at)
        if found is None:
            if at in bounds:
                target = Committed(clamped(ours[0], bounds[at]))
                rows.append(OffsetPlan(at, ours[0], None, target, keeps=True))
        elif is_due and found.offset in ours:
            rows.append(OffsetPlan(at, found.offset, found.offset, found, again=True, keeps=True))
    return tuple(rows)


def kept_offsets(record: GroupRecord, topics: MirroredTopics) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
    """Yield what kmirror has committed for these topics, newest first, without what the source does not have."""
    names = set(topics.names.values())
    for topic, partitions in record.offsets.items():
        absent = record.absent.get(topic, ())
        for partition, ours in partitions.items():
            at = TopicPartition(topic, partition)
            if topic in names and ours and partition not in absent and not _is_another_log(topics, at):
                yield at, ours


def _is_another_log(topics: MirroredTopics, partition: TopicPartition) -> bool:
    """Return whether offsets committed before may mean other records of the mirror topic now."""
    return topics.reason_to_wait(partition) is GroupReason.NOT_ALIGNED


def with_kept(plan: GroupPlan, kept: Iterable[OffsetPlan]) -> GroupPlan:
    """Return a plan that also keeps these offsets, except those for which it follows the source."""
    by_partition = {row.topic_partition: row for row in kept}
    for row in plan.rows:
        if row.reason is None or row.reason in LASTING_REASONS:
            by_partition.pop(row.topic_partition, None)
    rows = {row.topic_partition: row for row in plan.rows} | by_partition
    return replace(plan, rows=tuple(rows[at] for at in sorted(rows))) if by_partition else plan


def clamped(offset: int, bounds: Bounds) -> int:
    """Return the offset, clamped to the log."""
    start, end = bounds
    return min(max(offset, start), end)


def recorded(
    plan: GroupPlan, mirror: str, now_ms: int, refused: GroupReason | None = None, detail: str | None = None
) -> GroupRecord | None:
    """Return the record to store before carrying out the plan; `plan.record` if nothing is new; None: none needed.

    It keeps the offset at the destination besides the new one, so that a crash in between leaves neither wrong.
    `refused` is why the brokers refused the last commit, `detail` the limit.
    """
    before = plan.record
    skipped = plan.skipped_with(refused)
    if before is None and not plan.changes and skipped is None:
        return None
    known = before or GroupRecord(mirror, plan.group, plan.destination_group, plan.kind.value, now_ms)
    offsets = {topic: dict(partitions) for topic, partitions in known.offsets.items()}
    for row in plan.rows:
        topic, partition = row.topic_partition
        ours = known.ours(topic, partition)
        if row.is_change:
            here = () if row.destination_offset is None else (row.destination_offset,)
            kept = tuple(dict.fromkeys((row.target.offset, *here, *ours)))[:KEPT_OFFSETS]
            offsets.setdefault(topic, {})[partition] = kept
        elif ours and row.destination_offset == ours[0]:
            # committed: the offsets before it no longer count
            offsets[topic][partition] = ours[:1]
    returned = plan.returned
    absent = {
        topic: left
        for topic, partitions in known.absent.items()
        if (left := tuple(p for p in partitions if TopicPartition(topic, p) not in returned))
    }
    record = replace(
        known,
        destination_group=plan.destination_group,
        kind=plan.kind.value,
        offsets=offsets,
        skipped=skipped,
        absent=absent,
        detail=(detail or known.detail) if skipped in WITH_DETAIL else None,
    )
    return record if record == before else replace(record, time_ms=now_ms)


def restricted(plan: GroupPlan, allowed: MirroredTopics) -> GroupPlan:
    """Return the plan without topics that were stopped meanwhile, and with new reasons to wait."""
    names = set(allowed.names.values())
    rows = tuple(
        row
        if row.reason is not None or (row.keeps and not _is_another_log(allowed, row.topic_partition))
        else replace(row, reason=allowed.reason_to_wait(row.topic_partition))
        for row in plan.rows
        if row.topic_partition.topic in names
    )
    return replace(plan, rows=rows)


def is_overtaken(plan: GroupPlan, now: GroupRecord | None) -> bool:
    """Return whether something else is stored `now` for an offset to commit than when this was planned."""
    return any(_known(plan.record, row.topic_partition) != _known(now, row.topic_partition) for row in plan.changes)


def _known(record: GroupRecord | None, partition: TopicPartition) -> tuple[tuple[int, ...], bool]:
    if record is None:
        return (), False
    return record.ours(*partition), partition.partition in record.absent.get(partition.topic, ())


def marked_absent(record: GroupRecord, partitions: Collection[TopicPartition], now_ms: int) -> GroupRecord:
    """Return the record, noting that the source does not have these offsets: they are not kept any more."""
    absent = {topic: set(known) for topic, known in record.absent.items()}
    for at in partitions:
        if record.ours(*at):
            absent.setdefault(at.topic, set()).add(at.partition)
    noted = {topic: tuple(sorted(known)) for topic, known in sorted(absent.items())}
    return record if noted == record.absent else replace(record, absent=noted, time_ms=now_ms)
