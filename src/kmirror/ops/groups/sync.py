"""Sync group offsets from the source to the destination: while an engine runs, and once more before a stop.

After a stop without the source, synced offsets are clamped to the log instead.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.control.journal import Level
from kmirror.engine.control.side_jobs import JobEvent, JobView
from kmirror.errors import KmirrorError, UnreachableError
from kmirror.ops.context import Destination, require_mirror, source_client
from kmirror.ops.groups.commit import carry_out, reason_text
from kmirror.ops.groups.facts import (
    SourceGroups,
    group_views,
    log_bounds,
    mirrored_topics,
    plan_groups,
    read_source_groups,
)
from kmirror.ops.results import GroupResult, Outcome
from kmirror.settings.table import Settings, stored_settings
from kmirror.state.client import Deadline
from kmirror.state.group_records import LASTING_REASONS, GroupReason, GroupRecord
from kmirror.state.snapshot import State
from kmirror.sync.groups import GroupPlan, GroupView, MirroredTopics, OffsetPlan, clamped
from kmirror.words import visible

#: How long the last sync continues while offsets on the source move.
FINAL_SYNC_S = 30.0
#: The attempt number for `ClusterClient.pause`: a third of a second, for records in flight.
_ATTEMPT = 2
#: A broker that has just become a group's coordinator may return older offsets than were committed, until its followers
#: have fetched once more. Offsets that seem to go back are read again after this time.
_COORDINATOR_SECONDS = 0.5
#: How many groups an event names.
_NAMED = 20


class GroupSyncJob:
    """Sync a mirror's groups repeatedly; see `engine.control.side_jobs.SideJob`."""

    name = "group offsets"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str]) -> None:
        self._mirror = mirror
        self._properties = dict(destination_properties)
        self._stack = ExitStack()
        self._clients: tuple[Mapping[str, str], Destination, ClusterGroups, ClusterGroups] | None = None
        self._refused: dict[str, GroupReason] = {}
        self._unreadable: Mapping[str, str] = {}

    def interval_s(self, settings: Settings) -> float:
        """Return the time between two syncs, in seconds."""
        return float(settings.sync_group_offsets_interval_seconds)

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Sync once. Raises KmirrorError or OutcomeUnknown; the next run does what was not done."""
        if not view.settings.sync_group_offsets_enabled:
            return ()
        try:
            return self._run(view)
        except KmirrorError:
            self.close()
            raise

    def _run(self, view: JobView) -> list[JobEvent]:
        destination, source, here = self._open(view.mirror.source)
        state = destination.state()
        record = require_mirror(state, self._mirror)
        settings = stored_settings(record.settings)
        found = read_source_groups(source, state, record, settings, mirrored_topics(state, self._mirror), whole=False)
        plans = plan_groups(found, here, state, self._mirror, settings)
        carried = carry_out(
            destination, here, self._mirror, plans, lambda now: mirrored_topics(now, self._mirror), self._refused
        )
        events = _skip_events(self._mirror, carried.newly_skipped)
        if found.unreadable and found.unreadable != self._unreadable:
            events.append(JobEvent(f"group offsets of {self._mirror}: {_unreadable(found)}", level=Level.WARNING))
        self._unreadable = found.unreadable
        return events

    def close(self) -> None:
        """Close the connections."""
        self._clients = None
        self._stack.close()

    def _open(self, source: Mapping[str, str]) -> tuple[Destination, ClusterGroups, ClusterGroups]:
        if self._clients is not None and self._clients[0] != source:
            self.close()
        if self._clients is None:
            destination = self._stack.enter_context(Destination.open(self._properties))
            client = self._stack.enter_context(ClusterClient(client_config(source)))
            self._clients = (dict(source), destination, ClusterGroups(client), ClusterGroups(destination.client))
        return self._clients[1:]


def final_sync(
    destination: Destination, mirror: str, topics: Collection[str], *, timeout_s: float = FINAL_SYNC_S
) -> tuple[GroupResult, ...]:
    """Sync the groups of destination topics that are about to stop, until nothing is left to do; one row per partition.

    Waits for records that a group has read and the destination lacks, up to `timeout_s` seconds.

    DONE: the offset was set. NOOP: it was right already. REFUSED: it is skipped until an operator removes the reason.
    FAILED: its partition is FAILED. TIMED_OUT: offsets still move, or a broker did not answer. Topics that are stopped
    already are ignored. Without group sync there are no rows.

    Raises:
        RefusedError: no such mirror, or another cluster answers at the source.
        UnreachableError: a cluster does not answer, or does not return a group's offsets.
    """
    deadline = Deadline(timeout_s)
    first: dict[tuple[str, TopicPartition], int | None] = {}
    set_here: set[tuple[str, TopicPartition]] = set()
    refused: dict[str, GroupReason] = {}
    is_confirmed = False
    with source_client(require_mirror(destination.state(), mirror).source) as client:
        source, here = ClusterGroups(client), ClusterGroups(destination.client)
        while True:
            state = destination.state()
            record = require_mirror(state, mirror)
            settings = stored_settings(record.settings)
            if not settings.sync_group_offsets_enabled:
                return ()
            found = read_source_groups(source, state, record, settings, mirrored_topics(state, mirror, topics))
            _require_readable(found)
            plans = plan_groups(found, here, state, mirror, settings, whole=True)
            for plan in plans:
                for row in plan.rows:
                    first.setdefault((plan.destination_group, row.topic_partition), row.destination_offset)
            pending = [plan for plan in plans if plan.changes and plan.group not in refused]
            is_coming = _is_coming(source, found.topics, plans)
            if not is_confirmed and (_rewinds(pending) or _has_lost_groups(state, mirror, settings, found)):
                is_confirmed = True
                time.sleep(_COORDINATOR_SECONDS)
                continue
            if deadline.passed or not (pending or is_coming):
                break
            if is_coming:
                client.pause(_ATTEMPT)
            carried = carry_out(
                destination, here, mirror, pending, lambda now: mirrored_topics(now, mirror, topics), refused
            )
            set_here |= {
                (one.group, TopicPartition(one.topic, one.partition))
                for one in carried.results
                if one.result is Outcome.DONE
            }
    rows = []
    for plan in plans:
        for row in plan.rows:
            key = (plan.destination_group, row.topic_partition)
            outcome, reason = _outcome(row, refused.get(plan.group), was_set=key in set_here)
            rows.append(
                GroupResult(
                    plan.destination_group, *row.topic_partition, first.get(key), row.target.offset, outcome, reason
                )
            )
    return tuple(rows)


def _rewinds(plans: Iterable[GroupPlan]) -> bool:
    return any(
        row.destination_offset is not None and row.target.offset < row.destination_offset
        for plan in plans
        for row in plan.changes
    )


def _has_lost_groups(state: State, mirror: str, settings: Settings, found: SourceGroups) -> bool:
    """Return True if a group that was synced has no offsets at the source any more."""
    names = set(found.topics.names.values())
    return any(
        record.group not in found.groups
        and not names.isdisjoint(record.offsets)
        and settings.selects_group(record.group)
        for record in state.groups(mirror)
    )


def _is_coming(source: ClusterGroups, topics: MirroredTopics, plans: Iterable[GroupPlan]) -> bool:
    """Return whether the destination lacks records that groups have read and the source still has."""
    sources = {name: source_name for source_name, name in topics.names.items()}
    behind = [
        (TopicPartition(sources[row.topic_partition.topic], row.topic_partition.partition), row)
        for plan in plans
        for row in plan.rows
        if row.reason is None and row.target.offset < row.source_offset
    ]
    bounds = log_bounds(source.client, {at for at, _ in behind})
    return any(min(row.source_offset, bounds[at][1]) > row.target.offset for at, row in behind if at in bounds)


def clamp_groups(
    destination: Destination, mirror: str, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> tuple[GroupResult, ...]:
    """Clamp the offsets that kmirror has set to [log start, log end] of destination partitions; needs no source.

    Changes only offsets that no one else has changed. Returns what was set (DONE) and what could not be (REFUSED or
    FAILED, with the reason); nothing for offsets within the log.

    Raises:
        RefusedError: a newer kmirror wrote records of this mirror.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    records = [
        record
        for record in state.groups(mirror)
        if any(TopicPartition(t, p) in ranges for t, partitions in record.offsets.items() for p in partitions)
    ]
    here = ClusterGroups(destination.client)
    found = group_views(here, {record.destination_group: GroupKind(record.kind) for record in records})
    results: list[GroupResult] = []
    plans = []
    for record in records:
        view = found[record.destination_group]
        if view.trouble is not None:
            results += _unknown(record, ranges, view.trouble)
        elif rows := _out_of_range(record, view, ranges):
            plans.append(GroupPlan(record.group, record.destination_group, GroupKind(record.kind), rows, record))
    everywhere = MirroredTopics({partition.topic: partition.topic for partition in ranges})
    carried = carry_out(destination, here, mirror, plans, lambda _: everywhere, {}, may_note=False)
    left_alone = [
        GroupResult(
            plan.destination_group,
            *row.topic_partition,
            row.destination_offset,
            row.target.offset,
            Outcome.REFUSED,
            row.reason,
        )
        for plan in plans
        for row in plan.rows
        if row.reason is not None
    ]
    return (*results, *left_alone, *carried.results)


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


def _unknown(
    record: GroupRecord, ranges: Mapping[TopicPartition, tuple[int, int]], reason: GroupReason
) -> list[GroupResult]:
    return [
        GroupResult(record.destination_group, topic, p, offsets[0], None, Outcome.FAILED, reason)
        for topic, partitions in record.offsets.items()
        for p, offsets in partitions.items()
        if TopicPartition(topic, p) in ranges
    ]


def _require_readable(found: SourceGroups) -> None:
    if found.unreadable:
        raise UnreachableError(
            _unreadable(found), "grant DESCRIBE on the group there, or exclude it with groups.exclude"
        )


def _unreadable(found: SourceGroups) -> str:
    group, error = next(iter(found.unreadable.items()))
    more = f", and of {len(found.unreadable) - 1} more" if len(found.unreadable) > 1 else ""
    return f"committed offsets of group {visible(group)} on the source are unknown: {error}{more}"


def _outcome(row: OffsetPlan, refused: GroupReason | None, *, was_set: bool) -> tuple[Outcome, GroupReason | None]:
    if row.reason in LASTING_REASONS:
        return Outcome.REFUSED, row.reason
    if row.reason is GroupReason.UNKNOWN_NOW:
        return Outcome.TIMED_OUT, row.reason
    if row.reason is not None:
        return Outcome.FAILED, row.reason
    if row.is_change:
        return (Outcome.REFUSED, refused) if refused in LASTING_REASONS else (Outcome.TIMED_OUT, refused)
    return (Outcome.DONE if was_set else Outcome.NOOP), None


def _skip_events(mirror: str, newly_skipped: Sequence[tuple[str, GroupReason]]) -> list[JobEvent]:
    """Return one event for each reason: many groups may be concerned at once."""
    by_reason: defaultdict[GroupReason, list[str]] = defaultdict(list)
    for group, reason in newly_skipped:
        by_reason[reason].append(group)
    events = []
    for reason, groups in by_reason.items():
        more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
        events.append(
            JobEvent(
                f"offsets of {', '.join(map(visible, sorted(groups)[:3]))}{more} are not synced by {mirror}:"
                f" {reason_text(reason)}",
                "groups",
                "SKIPPED",
                {"reason": reason, "groups": sorted(groups)[:_NAMED], "count": len(groups)},
                Level.WARNING,
            )
        )
    return events
