"""`describe --groups`: each group's offset of each mirror partition, on both sides, and why it is left alone.

The rows are what the engine would plan now from both clusters. If the source does not answer, and for stopped topics,
they come from the stored records of synced groups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.columns import COUNT, DURATION, END, TEXT, TIME, Table, columns_of, one_of, showing, shown, table_row
from kmirror.errors import Reason
from kmirror.ops.base.context import Destination, naming_cluster, now_ms
from kmirror.ops.base.selection import select_stored_topics
from kmirror.ops.base.topic_results import GROUP_REASON
from kmirror.ops.groups.commit import reason_text
from kmirror.ops.groups.group_facts import SourceGroups, group_views, mirrored_topics, plan_groups, read_source_groups
from kmirror.ops.show.cluster_view import Prober
from kmirror.settings.durations import format_duration
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.state.group_records import GroupReason, GroupRecord, GroupsRecord
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.sync.group_changes import GroupPlan, MirroredTopics
from kmirror.words import one_line

_UNSYNCED = "kmirror never set it"


@table_row
class GroupRow:
    """One group's offset of one mirror partition; `group` and `topic` are the destination's names.

    `last_synced_offset` is what kmirror committed last, `last_sync_ms` when it last did so, or found it correct.
    """

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    # the last column alone may hold spaces
    group: str = shown(
        TEXT, "the group on the destination", "GROUP", of_row=lambda row: row.group.replace(" ", "\u00b7")
    )
    source_group: str = shown(TEXT, "the group on the source")
    kind: GroupKind = shown(one_of("group type", GroupKind), "what kind of group it is", key="type")
    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    partition: int = shown(COUNT, "the partition", "PARTITION")
    source_offset: int | None = shown(
        END.null_when("there is none, or the source does not answer"),
        "the offset committed on the source",
        "SOURCE-OFFSET",
    )
    destination_offset: int | None = shown(
        END.null_when("there is none"), "the offset committed on the destination", "DESTINATION-OFFSET"
    )
    last_synced_offset: int | None = shown(END.null_when(_UNSYNCED), "the offset that kmirror last set")
    last_sync_ms: int | None = shown(TIME.null_when(_UNSYNCED), "when kmirror last set it, or found it as it should be")
    last_sync_age_ms: int | None = shown(
        DURATION.null_when(_UNSYNCED),
        "how long ago that was",
        "LAST-SYNC",
        of_row=lambda row: None if row.last_sync_age_ms is None else format_duration(row.last_sync_age_ms),
    )
    reason: GroupReason | None = shown(GROUP_REASON.null_when("it is synced"), "why the offset is left alone", "REASON")
    #: The limit for which brokers refuse it.
    detail: str | None = None

    @property
    @showing(TEXT.null_when("it is synced"), "the same as a sentence")
    def message(self) -> str | None:
        """Why the offset is left alone, in a sentence."""
        return None if self.reason is None else reason_text(self.reason, self.detail)


def _notes(rows: Sequence[GroupRow]) -> list[str]:
    """Return a sentence for each reason why offsets are left alone."""
    messages: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.reason is not None:
            messages.setdefault((row.mirror, row.reason), one_line(row.message))
    return [f"{mirror}: {reason}: {message}" for (mirror, reason), message in messages.items()]


GROUPS: Table[GroupRow] = Table(
    columns_of(GroupRow),
    "MIRROR GROUP TOPIC PARTITION SOURCE-OFFSET DESTINATION-OFFSET LAST-SYNC REASON",
    none="no group has committed offsets of these topics at the source",
    notes=_notes,
)


def describe_groups(
    destination: Destination, mirror: str | None = None, topics: TopicSelector | None = None
) -> tuple[GroupRow, ...]:
    """Return the rows sorted by mirror, group, topic, partition; `topics` selects destination names.

    Works with the source down (it waits 3 s for it) and with no engine.

    Raises:
        RefusedError: no such mirror, or a plain name among `topics` is no topic of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    chosen = select_stored_topics(state, mirror, topics)
    mirrors = [one for one in state.mirrors if mirror in (None, one.name)]
    wanted = {one.name: {topic.topic for topic in chosen if topic.mirror == one.name} for one in mirrors}
    selected = {one.name: _selected(state, one.name, wanted[one.name]) for one in mirrors}
    asked = [one for one in mirrors if selected[one.name].names]
    with Prober(destination) as prober:
        prober.read((), [])  # starts the time that follow-up queries have
        found = prober.ask_sources([(one, partial(_source_groups, state, one, selected[one.name])) for one in asked])
    rows: list[GroupRow] = []
    for one in mirrors:
        rows += _rows(found.get(one.name), destination, state, one, wanted[one.name], selected[one.name])
    return tuple(sorted(rows, key=lambda row: (row.mirror, row.group, row.topic, row.partition)))


def _selected(state: State, mirror: str, wanted: Collection[str]) -> MirroredTopics:
    topics = mirrored_topics(state, mirror)
    return MirroredTopics({source: name for source, name in topics.names.items() if name in wanted}, topics.waiting)


def _source_groups(
    state: State, mirror: MirrorRecord, selected: MirroredTopics, client: ClusterClient, seconds: float
) -> SourceGroups:
    settings = stored_settings(mirror.settings)
    return read_source_groups(ClusterGroups(client, seconds), state, mirror, settings, selected)


def _rows(
    found: SourceGroups | None,
    destination: Destination,
    state: State,
    mirror: MirrorRecord,
    wanted: Collection[str],
    selected: MirroredTopics,
) -> list[GroupRow]:
    settings, here = stored_settings(mirror.settings), ClusterGroups(destination.client)
    plans = plan_groups(found, here, state, mirror.name, settings) if found is not None else ()
    records = {record.group: record for record in state.groups(mirror.name)}
    stored = [record for record in records.values() if any(topic in wanted for topic in record.offsets)]
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        there = group_views(here, {record.destination_group: GroupKind(record.kind) for record in stored})
    clock = _Clock(now_ms(), state.groups_checked(mirror.name))
    rows: list[GroupRow] = []
    for plan in plans:
        rows += _planned(plan, mirror.name, records.get(plan.group), clock, settings)
    shown = {(row.source_group, row.topic, row.partition) for row in rows}
    for record in stored:
        committed = there[record.destination_group].committed
        for topic, partitions in record.offsets.items():
            for partition, offsets in partitions.items():
                if topic not in wanted or (record.group, topic, partition) in shown or not offsets:
                    continue
                found_here = committed.get(TopicPartition(topic, partition))
                if found_here is None and partition in record.absent.get(topic, ()):
                    continue  # dropped on both sides
                reason = record.skipped
                if topic not in selected.names.values():
                    reason = GroupReason.STOPPED
                elif found is None:
                    reason = reason or GroupReason.SOURCE_UNREACHABLE
                elif record.group in found.unreadable:
                    reason = reason or GroupReason.UNKNOWN_NOW
                here_offset = found_here.offset if found_here else None
                at = clock.last_sync(record, offsets[0], here_offset)
                rows.append(
                    GroupRow(
                        mirror=mirror.name,
                        group=record.destination_group,
                        source_group=record.group,
                        kind=GroupKind(record.kind),
                        topic=topic,
                        partition=partition,
                        source_offset=None,
                        destination_offset=here_offset,
                        last_synced_offset=offsets[0],
                        last_sync_ms=at,
                        last_sync_age_ms=clock.age(at),
                        reason=reason,
                        detail=record.detail if reason is record.skipped else None,
                    )
                )
    return rows


@dataclass(frozen=True, slots=True)
class _Clock:
    """The current time in epoch milliseconds, and when an engine last checked all groups but the unreadable ones."""

    now_ms: int
    checked: GroupsRecord | None

    def last_sync(self, record: GroupRecord | None, synced: int | None, found: int | None) -> int | None:
        """Return when the offset was last known to be correct."""
        if record is None or synced is None:
            return None
        checked = self.checked
        if checked is None or record.skipped is not None or synced != found or checked.may_lack(record.group):
            return record.time_ms
        return max(record.time_ms, checked.time_ms)

    def age(self, at_ms: int | None) -> int | None:
        """Return the age in milliseconds."""
        return None if at_ms is None else max(0, self.now_ms - at_ms)


def _planned(
    plan: GroupPlan, mirror: str, record: GroupRecord | None, clock: _Clock, settings: Settings
) -> Sequence[GroupRow]:
    rows = []
    for row in plan.rows:
        ours = record.ours(*row.topic_partition) if record else ()
        synced = ours[0] if ours else None
        at = clock.last_sync(record, synced, row.destination_offset)
        reason = row.reason
        if not settings.sync_group_offsets_enabled:
            reason = GroupReason.SYNC_DISABLED
        elif reason is None and row.is_change and record is not None:
            reason = record.skipped  # the brokers refused it
        rows.append(
            GroupRow(
                mirror=mirror,
                group=plan.destination_group,
                source_group=plan.group,
                kind=plan.kind,
                topic=row.topic_partition.topic,
                partition=row.topic_partition.partition,
                source_offset=row.source_offset,
                destination_offset=row.destination_offset,
                last_synced_offset=synced,
                last_sync_ms=at,
                last_sync_age_ms=clock.age(at),
                reason=reason,
                detail=record.detail if record is not None and reason is record.skipped else None,
            )
        )
    return rows
