"""Sync group offsets from the source to the destination: while an engine runs, and once more before a stop."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.driver.side_jobs import JobEvent, JobView
from kmirror.engine.status.journal import Level
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, TimedOutError, UnreachableError
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms, require_mirror, source_client
from kmirror.ops.base.destination_job import JobDestination
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups.commit import FRESH_S, CommitResult, Refusals, carry_out, reason_text
from kmirror.ops.groups.expiry import Absences, GroupPartition, Renewals, is_forgotten
from kmirror.ops.groups.group_facts import (
    SourceGroups,
    group_views,
    log_bounds,
    mirrored_topics,
    plan_groups,
    read_source_groups,
    reason_of,
)
from kmirror.settings.parsing import stored_settings
from kmirror.settings.table import Settings
from kmirror.state.group_records import LASTING_REASONS, GroupReason, GroupRecord
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline, boottime
from kmirror.sync.group_changes import GroupPlan, GroupView, MirroredTopics, OffsetPlan, kept_offsets, marked_absent
from kmirror.words import counted, listed, visible

#: How long the last sync continues while offsets on the source move.
FINAL_SYNC_S = 30.0
#: The attempt number for `ClusterClient.pause`: a third of a second, for records in flight.
_ATTEMPT = 2
#: A broker that has just become a group's coordinator may return older offsets than were committed, until its followers
#: have fetched once more. Offsets that seem to go back are read again after this time.
_COORDINATOR_SECONDS = 0.5
#: How often to look for groups that both clusters have forgotten.
_FORGET_EVERY_S = 3600.0
#: How many groups an event names.
_NAMED = 20


class GroupSyncJob:
    """Sync a mirror's groups repeatedly; see `engine.driver.side_jobs.SideJob`."""

    name = "group offsets"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        self._mirror = mirror
        self._properties = dict(destination_properties)
        self._cluster_id = cluster_id
        self._stack = ExitStack()
        self._here: tuple[Destination, ClusterGroups] | None = None
        self._source: tuple[Mapping[str, str], ClusterGroups] | None = None
        self._refusals = Refusals()
        self._renewals = Renewals()
        self._absences = Absences()
        self._forgets_at = 0.0

    def interval_s(self, settings: Settings) -> float:
        """Return the time between two syncs, in seconds."""
        return float(settings.sync_group_offsets_interval_seconds)

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.sync_group_offsets_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Sync once. Raises KmirrorError or OutcomeUnknown; the next run does what was not done.

        Groups that cannot be read at the source do not keep the others from being synced, but the run has failed; so
        it has if not all were committed in time.
        """
        if not view.settings.sync_group_offsets_enabled:
            return
        try:
            found, events, undone = self._run(view)
        except KmirrorError:
            self.close()
            raise
        yield from events
        _require_readable(found)
        if undone:
            what = f"offsets of {counted(len(undone), 'group')} were not committed in time"
            raise TimedOutError(f"{what}: {listed(undone, 3)}", "the next sync begins with them")

    def _run(self, view: JobView) -> tuple[SourceGroups, list[JobEvent], list[str]]:
        if self._source is not None and self._source[0] != view.mirror.source:
            self.close()
        destination, _ = self._open_here()
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            self._renewals.read(destination.client, boottime())
        state = destination.state()
        record = require_mirror(state, self._mirror)
        settings, topics = stored_settings(record.settings), mirrored_topics(state, self._mirror)
        try:
            source = self._open_source(view.mirror)
            found = read_source_groups(source, state, record, settings, topics, whole=False)
        except (KmirrorError, OutcomeUnknown):
            self._commit(SourceGroups({}, topics), state, settings, may_note=False)
            raise
        carried = self._commit(found, state, settings, may_note=True)
        events = _skip_events(self._mirror, carried.newly_skipped)
        events += self._drop(found, state, settings)
        if found.groups and boottime() >= self._forgets_at:
            self._forgets_at = boottime() + _FORGET_EVERY_S
            self._forget(found, state, settings)
        return found, events, carried.undone

    def _commit(self, found: SourceGroups, state: State, settings: Settings, *, may_note: bool) -> CommitResult:
        """Commit what follows from the source, and what would expire at the destination or has vanished there."""
        began, (destination, here) = boottime(), self._open_here()
        is_due = partial(self._renewals.is_due, now=began)
        longest = self._refusals.longest_metadata
        plans = plan_groups(found, here, state, self._mirror, settings, is_due=is_due, longest_metadata=longest)
        carried = carry_out(
            destination,
            here,
            self._mirror,
            plans,
            lambda now: mirrored_topics(now, self._mirror),
            self._refusals,
            may_note=may_note,
            noted=state.groups_checked(self._mirror),
            unreadable=found.unreadable,
            seconds=FRESH_S,
        )
        undone = {one.group for one in carried.results if one.result is not Outcome.DONE}
        renewed = {
            plan.destination_group
            for plan in plans
            if plan.changes and (is_due(plan.destination_group) or len(plan.changes) == len(plan.rows))
        }
        self._renewals.note(renewed - undone, {plan.destination_group for plan in plans}, began)
        return carried

    def _drop(self, found: SourceGroups, state: State, settings: Settings) -> list[JobEvent]:
        """Delete what the source does not have any more, if it was seen to have it; no longer keep the rest of it.

        Nothing is dropped if the source has no offset at all: it may have lost them.
        """
        present, absent = _present_and_absent(found, state, self._mirror, settings)
        dropped = self._absences.dropped(present, absent, boottime()) if present else {}
        by_group: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        marked: list[GroupRecord] = []

        def decide(now: State) -> Changes:
            by_group.clear()
            marked.clear()
            allowed = set(mirrored_topics(now, self._mirror).names.values())
            for group, at in dropped:
                then, record = state.group(self._mirror, group), now.group(self._mirror, group)
                if then and record and at.topic in allowed and record.ours(*at) == then.ours(*at):
                    by_group[group].append(at)
            for group, partitions in by_group.items():
                if record := now.group(self._mirror, group):
                    marked.append(marked_absent(record, partitions, now_ms()))
            return Changes(tuple(marked))

        if not dropped:
            return []
        destination, here = self._open_here()
        change(destination, self._mirror, decide)
        self._absences.forget((group, at) for group, partitions in by_group.items() for at in partitions)
        events = []
        views = group_views(here, {one.destination_group: GroupKind(one.kind) for one in marked})
        by_name: defaultdict[str, list[GroupRecord]] = defaultdict(list)
        now = destination.state()
        for known in (known for mirror in now.mirrors for known in now.groups(mirror.name)):
            by_name[known.destination_group].append(known)
        for record in marked:
            view = views[record.destination_group]
            ours = [
                at
                for at in by_group[record.group]
                if dropped[record.group, at]
                and (one := view.committed.get(at)) is not None
                and one.offset in record.ours(*at)
            ]
            if ours and view.kind is GroupKind.CONSUMER and not _is_used(view, by_name[record.destination_group]):
                codes = here.delete_offsets(record.destination_group, ours)
                events.append(_drop_event(self._mirror, record.destination_group, codes))
        return events

    def _forget(self, found: SourceGroups, state: State, settings: Settings) -> None:
        """Delete the records of groups of which no cluster has an offset any more: many names are used only once."""
        at, known = now_ms(), found.groups.keys() | found.unreadable.keys()
        gone = [
            one
            for one in state.groups(self._mirror)
            if one.group not in known and settings.selects_group(one.group) and is_forgotten(one, at)
        ]
        if not gone:
            return
        destination, here = self._open_here()
        views = group_views(here, {one.destination_group: GroupKind(one.kind) for one in gone})
        empty = {name for name, view in views.items() if not (view.committed or view.has_members or view.trouble)}

        def decide(now: State) -> Changes:
            left = [one for one in gone if one.destination_group in empty and now.group(self._mirror, one.group) == one]
            return Changes((), tuple(one.key for one in left))

        if empty:
            change(destination, self._mirror, decide)

    def close(self) -> None:
        """Close the connections."""
        self._here = self._source = None
        self._refusals.longest_metadata = None  # brokers that were restarted may have another limit
        self._stack.close()

    def _open_here(self) -> tuple[Destination, ClusterGroups]:
        if self._here is None:
            opened = self._stack.enter_context(JobDestination.open(self._properties, cluster_id=self._cluster_id))
            self._here = (opened, ClusterGroups(opened.client))
        return self._here

    def _open_source(self, mirror: MirrorRecord) -> ClusterGroups:
        if self._source is None:
            config = client_config(mirror.source).expecting(mirror.source_cluster_id)
            client = self._stack.enter_context(ClusterClient(config))
            self._source = (mirror.source, ClusterGroups(client))
        return self._source[1]


def _present_and_absent(
    found: SourceGroups, state: State, mirror: str, settings: Settings
) -> tuple[dict[str, frozenset[TopicPartition]], set[GroupPartition]]:
    """Return which of the recorded offsets the source has, and which it lacks, by group and destination partition."""
    present: dict[str, frozenset[TopicPartition]] = {}
    absent: set[GroupPartition] = set()
    for record in state.groups(mirror):
        if record.group in found.unreadable or not settings.selects_group(record.group):
            continue
        view = found.groups.get(record.group)
        there = {found.topics.destination_of(at) for at in view.committed} if view is not None else set()
        known = [at for at, _ in kept_offsets(record, found.topics) if found.topics.reason_to_wait(at) is None]
        if has := frozenset(at for at in known if at in there):
            present[record.group] = has
        absent |= {(record.group, at) for at in known if at not in there}
    return present, absent


def _is_used(view: GroupView, records: Collection[GroupRecord]) -> bool:
    """Return whether others use a group at the destination, or did; `records` are those of all mirrors."""
    if view.has_members or any(one.skipped in (GroupReason.HAS_MEMBERS, GroupReason.COMMITTED_HERE) for one in records):
        return True
    # idle partitions have the offsets that kmirror committed, but belong to the group as the others do
    return any(
        not any(committed.offset in one.ours(*at) for one in records) for at, committed in view.committed.items()
    )


def _drop_event(mirror: str, group: str, codes: Mapping[TopicPartition, int]) -> JobEvent:
    failed = [code for code in codes.values() if code]
    what = f"the source has no offsets of {visible(group)} for {counted(len(codes), 'partition')} any more"
    details = {"groups": [group], "count": len(codes)}
    if not failed:
        return JobEvent(f"{what}: {mirror} deleted them here", "groups", "DROPPED", details)
    why = f"{reason_text(reason_of(failed[0]))} (error {failed[0]})"
    if failed[0] == Code.GROUP_AUTHORIZATION_FAILED:
        why = "missing right: DELETE on the group"
    note = f"{what}: {mirror} could not delete them here, so they expire later: {why}"
    return JobEvent(note, "groups", "NOT_DROPPED", details, Level.WARNING)


def final_sync(
    destination: Destination,
    mirror: str,
    topics: Collection[str],
    *,
    timeout_s: float = FINAL_SYNC_S,
    dry_run: bool = False,
) -> tuple[GroupResult, ...]:
    """Sync the groups of destination topics that are about to stop, until nothing is left to do; one row per partition.

    Waits for records that a group has read and the destination lacks, up to `timeout_s` seconds. With `dry_run` only
    plans, without waiting.

    DONE: the offset was set; with `dry_run`, would be. NOOP: it was right already. REFUSED: it is skipped until an
    operator removes the reason. FAILED: its partition is FAILED. TIMED_OUT: offsets still move, or a broker did not
    answer. Topics that are stopped already are ignored. Without group sync there are no rows.

    Raises:
        RefusedError: no such mirror, or another cluster answers at the source.
        UnreachableError: a cluster does not answer, or does not return a group's offsets.
    """
    deadline = Deadline(timeout_s)
    first: dict[tuple[str, TopicPartition], int | None] = {}
    set_here: set[tuple[str, TopicPartition]] = set()
    refusals = Refusals()
    is_confirmed = False
    record = require_mirror(destination.state(), mirror)
    with source_client(record.source, record.source_cluster_id) as client:
        source, here = ClusterGroups(client), ClusterGroups(destination.client)
        while True:
            state = destination.state()
            record = require_mirror(state, mirror)
            settings = stored_settings(record.settings)
            if not settings.sync_group_offsets_enabled:
                return ()
            found = read_source_groups(source, state, record, settings, mirrored_topics(state, mirror, topics))
            _require_readable(found)
            longest = refusals.longest_metadata
            plans = plan_groups(found, here, state, mirror, settings, whole=True, longest_metadata=longest)
            for plan in plans:
                for row in plan.rows:
                    first.setdefault((plan.destination_group, row.topic_partition), row.destination_offset)
            pending = [plan for plan in plans if plan.changes and not refusals.is_lasting(plan.group)]
            is_coming = not dry_run and _is_coming(source, found.topics, plans)
            if not is_confirmed and (_rewinds(pending) or _has_lost_groups(state, mirror, settings, found)):
                is_confirmed = True
                time.sleep(_COORDINATOR_SECONDS)
                continue
            if dry_run or deadline.passed or not (pending or is_coming):
                break
            if is_coming:
                client.pause(_ATTEMPT)
            carried = carry_out(
                destination,
                here,
                mirror,
                pending,
                lambda now: mirrored_topics(now, mirror, topics),
                refusals,
                noted=state.groups_checked(mirror),
                seconds=FRESH_S,
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
            refused = refusals.reasons.get(plan.group) if refusals.is_lasting(plan.group) else None
            outcome, reason = _outcome(row, refused, was_set=key in set_here, dry_run=dry_run)
            offsets = first.get(key), row.target.offset
            text = refusals.text(plan.group, reason)
            rows.append(GroupResult(plan.destination_group, *row.topic_partition, *offsets, outcome, reason, text))
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


def _require_readable(found: SourceGroups) -> None:
    if not found.unreadable:
        return
    group, error = next(iter(found.unreadable.items()))
    more = f", and of {len(found.unreadable) - 1} more" if len(found.unreadable) > 1 else ""
    raise UnreachableError(
        f"committed offsets of group {visible(group)} on the source are unknown: {error}{more}",
        "grant DESCRIBE on the group there, or exclude it with groups.exclude",
    )


def _outcome(
    row: OffsetPlan, refused: GroupReason | None, *, was_set: bool, dry_run: bool
) -> tuple[Outcome, GroupReason | None]:
    if row.reason in LASTING_REASONS:
        return Outcome.REFUSED, row.reason
    if row.reason is GroupReason.UNKNOWN_NOW:
        return Outcome.TIMED_OUT, row.reason
    if row.reason is not None:
        return Outcome.FAILED, row.reason
    if row.is_change and not dry_run:
        return (Outcome.TIMED_OUT, None) if refused is None else (Outcome.REFUSED, refused)
    outcome = Outcome.DONE if was_set or row.is_change else Outcome.NOOP
    return outcome, GroupReason.METADATA_REFUSED if row.is_bare else None


def _skip_events(mirror: str, newly_skipped: Sequence[GroupRecord]) -> list[JobEvent]:
    """Return one event for each reason: many groups may be concerned at once."""
    by_reason: defaultdict[tuple[GroupReason, str | None], list[str]] = defaultdict(list)
    for record in newly_skipped:
        if record.skipped is not None:
            by_reason[record.skipped, record.detail].append(record.destination_group)
    events = []
    for (reason, detail), groups in by_reason.items():
        names = listed(sorted(groups), 3)
        is_bare = reason is GroupReason.METADATA_REFUSED
        what = (
            f"offsets of {names} are synced by {mirror}"
            if is_bare
            else f"offsets of {names} are not synced by {mirror}"
        )
        events.append(
            JobEvent(
                f"{what}: {reason_text(reason, detail)}",
                "groups",
                "METADATA_REFUSED" if is_bare else "SKIPPED",
                {"reason": reason, "groups": sorted(groups)[:_NAMED], "count": len(groups)},
                Level.WARNING,
            )
        )
    return events
