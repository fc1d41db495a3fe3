"""Group offsets at a stop without the source: clamp them to the log, and put back what has vanished here.

With the source gone, the stored state is the only other copy of a group's offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups.commit import Refusals, carry_out, reason_text, refused_sentences
from kmirror.ops.groups.group_facts import group_views
from kmirror.settings.durations import format_duration
from kmirror.settings.parsing import stored_settings
from kmirror.state.group_records import GroupReason, GroupRecord
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.sync.group_changes import (
    GroupPlan,
    GroupView,
    MirroredTopics,
    OffsetPlan,
    clamped,
    kept_offsets,
    kept_rows,
)
from kmirror.words import at_time, counted, listed, visible

#: How many groups a warning names.
_NAMED = 20
#: A sync stores about once a minute that it has read all groups. One that is later than its interval and this is late.
_LATE_MS = 120_000


@dataclass(frozen=True, slots=True)
class GroupsAtStop:
    """What a stop without the source does for synced groups: one row for each offset that is set, or cannot be.

    `unsynced` are groups that were never synced and have committed nothing for the topics, and why.
    """

    results: tuple[GroupResult, ...]
    unsynced: tuple[tuple[str, str], ...] = ()

    def warnings(self, *, dry_run: bool = False) -> list[str]:
        """Return which groups had lost their offsets, which have none, and which could not be set, as sentences."""
        vanished = [row for row in self.results if row.from_offset is None]
        restored = {row.group for row in vanished if row.result is Outcome.DONE}
        without = {row.group: row.message or row.result.value for row in vanished if row.result is not Outcome.DONE}
        without |= dict(self.unsynced)
        sentences = []
        if restored:
            sentences.append(
                f"committed offsets of {counted(len(restored), 'group')} had vanished from the destination and "
                f"{'would be' if dry_run else 'were'} committed again as last synced: {_named(restored)}"
            )
        for text in sorted(set(without.values())):
            groups = {group for group, why in without.items() if why == text}
            sentences.append(
                f"{counted(len(groups), 'group')} without committed offsets on the destination, to start where "
                f"auto.offset.reset says: {_named(groups)} ({text})"
            )
        if unknown := {row.group for row in self.results if row.result is Outcome.FAILED}:
            what = f"offsets of {counted(len(unknown), 'group')} on the destination are unknown"
            sentences.append(f"{what}: {_named(unknown)}")
        if late := {row.group for row in self.results if row.result is Outcome.TIMED_OUT} - without.keys():
            what = (
                f"offsets of {counted(len(late), 'group')} on the destination are outside the log and could not be set"
            )
            sentences.append(f"{what} in time: {_named(late)}")
        return [*sentences, *refused_sentences(row for row in self.results if row.from_offset is not None)]


def clamp_groups(
    destination: Destination,
    mirror: str,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    put_back: bool = False,
    dry_run: bool = False,
) -> GroupsAtStop:
    """Clamp the offsets that kmirror has set to [log start, log end] of destination partitions; needs no source.

    With `put_back`, offsets of groups that the mirror still syncs are committed again as they are stored if they have
    vanished from the destination. Changes only offsets that no one else has changed. Returns what was set (DONE; with
    `dry_run`, would be) and what could not be (REFUSED or FAILED, with the reason; TIMED_OUT); nothing for offsets
    within the log.

    Raises:
        RefusedError: no such mirror, or a newer kmirror wrote records of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    settings = stored_settings(require_mirror(state, mirror).settings)
    everywhere = MirroredTopics({partition.topic: partition.topic for partition in ranges})
    records = {
        record.destination_group: record
        for record in state.groups(mirror)
        if record.skipped is not None or not everywhere.names.keys().isdisjoint(record.offsets)
    }
    here = ClusterGroups(destination.client)
    found = group_views(here, {name: GroupKind(record.kind) for name, record in records.items()})
    results: list[GroupResult] = []
    unsynced: list[tuple[str, str]] = []
    plans = []
    for name, record in records.items():
        view, ours = found[name], [at for at, _ in kept_offsets(record, everywhere) if at in ranges]
        is_here = any(at.topic in everywhere.names for at in view.committed)
        is_synced = settings.sync_group_offsets_enabled and settings.selects_group(record.group)
        if is_synced and not ours and record.skipped is not None and not view.trouble and not is_here:
            unsynced.append((name, reason_text(record.skipped, record.detail)))
        if view.trouble is not None:
            results += _unknown(record, ours, view.trouble)
            continue
        rows = list(_out_of_range(record, view, ranges))
        if put_back and is_synced:
            rows += _vanished(record, view, everywhere, ranges)
        if rows:
            plans.append(GroupPlan(record.group, name, GroupKind(record.kind), tuple(rows), record, knows_source=False))
    results += [_left_alone(plan, row) for plan in plans for row in plan.rows if row.reason is not None]
    if dry_run:
        results += [_set_to(plan, row) for plan in plans for row in plan.changes]
    else:
        results += carry_out(destination, here, mirror, plans, lambda _: everywhere, Refusals(), may_note=False).results
    return GroupsAtStop(tuple(results), tuple(unsynced))


def age_note(state: State, mirror: MirrorRecord, source_seen_ms: int | None) -> str | None:
    """Return since when group offsets have not followed the source, which was last seen at a time; None if they have.

    Without a time, only if they were never read.
    """
    settings, checked = stored_settings(mirror.settings), state.groups_checked(mirror.name)
    if not settings.sync_group_offsets_enabled:
        return None
    if checked is None:
        return "group offsets were never read from the source: groups start where auto.offset.reset says"
    if source_seen_ms is None:
        return None
    late_ms = source_seen_ms - checked.time_ms
    if late_ms <= _LATE_MS + 1000 * settings.sync_group_offsets_interval_seconds:
        if not checked.unreadable:
            return None
        count = max(checked.unreadable_count, len(checked.unreadable))
        more = f" and {count - 1} more" if count > 1 else ""
        return (
            f"offsets of group {visible(checked.unreadable[0])}{more} could not be synced at "
            f"{at_time(checked.time_ms)}: what they have read since they were last synced, they read again"
        )
    return (
        f"group offsets were last read from the source at {at_time(checked.time_ms)}, "
        f"{format_duration(late_ms // 1000 * 1000)} before its ends were seen: what groups have read since, they read "
        "again"
    )


def _vanished(
    record: GroupRecord, view: GroupView, topics: MirroredTopics, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Iterable[OffsetPlan]:
    if not view.has_members and view.kind.value == record.kind:
        return kept_rows(record, view, topics, ranges, is_due=False)
    reason = GroupReason.HAS_MEMBERS if view.has_members else GroupReason.OTHER_TYPE
    return [
        OffsetPlan(at, ours[0], None, Committed(ours[0]), reason)
        for at, ours in kept_offsets(record, topics)
        if at in ranges and at not in view.committed
    ]


def _set_to(plan: GroupPlan, row: OffsetPlan) -> GroupResult:
    offsets = row.destination_offset, row.target.offset
    return GroupResult(plan.destination_group, *row.topic_partition, *offsets, Outcome.DONE)


def _left_alone(plan: GroupPlan, row: OffsetPlan) -> GroupResult:
    text = None if row.reason is None else reason_text(row.reason)
    return replace(_set_to(plan, row), result=Outcome.REFUSED, reason=row.reason, message=text)


def _named(groups: Collection[str]) -> str:
    return listed(sorted(groups), _NAMED)


def _out_of_range(
    record: GroupRecord, view: GroupView, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[OffsetPlan, ...]:
    rows = []
    for partition, committed in sorted(view.committed.items()):
        if partition not in ranges or committed.offset not in record.ours(*partition):
            continue
        target = committed._replace(offset=clamped(committed.offset, ranges[partition]))
        if target != committed:
            reason = GroupReason.HAS_MEMBERS if view.has_members else None
            rows.append(OffsetPlan(partition, committed.offset, committed.offset, target, reason))
    return tuple(rows)


def _unknown(record: GroupRecord, ours: Iterable[TopicPartition], reason: GroupReason) -> list[GroupResult]:
    return [
        GroupResult(
            record.destination_group, *at, record.ours(*at)[0], None, Outcome.FAILED, reason, reason_text(reason)
        )
        for at in ours
    ]
