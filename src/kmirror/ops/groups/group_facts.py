"""Read the groups of both clusters and plan their offsets with `sync.group_changes`. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.groups.cluster_groups import NON_EMPTY_GROUP, UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION, ClusterGroups
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.group_offsets import GroupKind, ListedGroup
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.errors import HISTORY_REASONS, Reason
from kmirror.ops.base.context import naming_cluster, require_same_cluster
from kmirror.settings.table import Settings
from kmirror.state.group_records import GroupReason
from kmirror.state.records import (
    PENDING_ADD,
    PENDING_REBUILD,
    PENDING_STOP,
    DesiredState,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
)
from kmirror.state.snapshot import State
from kmirror.sync.group_changes import (
    Bounds,
    GroupPlan,
    GroupView,
    MirroredTopics,
    differing_partitions,
    kept_offsets,
    kept_rows,
    plan_group,
    with_kept,
)

_ILLEGAL_GENERATION = 22
_REASONS = {
    UNKNOWN_MEMBER_ID: GroupReason.HAS_MEMBERS,
    NON_EMPTY_GROUP: GroupReason.HAS_MEMBERS,
    _ILLEGAL_GENERATION: GroupReason.HAS_MEMBERS,
    Code.TOPIC_AUTHORIZATION_FAILED: GroupReason.NOT_AUTHORIZED,
    Code.GROUP_AUTHORIZATION_FAILED: GroupReason.NOT_AUTHORIZED,
    Code.CLUSTER_AUTHORIZATION_FAILED: GroupReason.NOT_AUTHORIZED,
    UNSUPPORTED_VERSION: GroupReason.SHARE_GROUPS_UNSUPPORTED,
    Code.UNKNOWN_TOPIC_OR_PARTITION: GroupReason.UNKNOWN_NOW,
    Code.LEADER_NOT_AVAILABLE: GroupReason.UNKNOWN_NOW,
    Code.REQUEST_TIMED_OUT: GroupReason.UNKNOWN_NOW,
    Code.BROKER_NOT_AVAILABLE: GroupReason.UNKNOWN_NOW,
    Code.COORDINATOR_LOAD_IN_PROGRESS: GroupReason.UNKNOWN_NOW,
    Code.COORDINATOR_NOT_AVAILABLE: GroupReason.UNKNOWN_NOW,
    Code.NOT_COORDINATOR: GroupReason.UNKNOWN_NOW,
}
#: With these reasons of FAILED partitions a source offset means another record on the destination, or none.
_OTHER_RECORDS = HISTORY_REASONS | {Reason.SOURCE_TOPIC_DELETED}


@dataclass(frozen=True, slots=True)
class SourceGroups:
    """The groups of a source that have committed offsets for mirrored topics, and these topics.

    `unreadable` has the error for each group whose offsets could not be read.
    """

    groups: Mapping[str, GroupView]
    topics: MirroredTopics
    unreadable: Mapping[str, str] = field(default_factory=dict)


def reason_of(code: int) -> GroupReason:
    """Return what a broker's error code means for a group."""
    return _REASONS.get(code, GroupReason.REFUSED)


def mirrored_topics(state: State, mirror: str, chosen: Collection[str] | None = None) -> MirroredTopics:
    """Return the topics for which group offsets may be set: none that is stopped or being stopped.

    With `chosen`, only those destination topics, for the last sync before their stop: also if they are paused.
    """
    names: dict[str, str] = {}
    waiting: dict[str | TopicPartition, GroupReason] = {}
    for topic in state.topics(mirror):
        if topic.desired is DesiredState.STOPPED or (chosen is not None and topic.topic not in chosen):
            continue
        if chosen is None and topic.pending_operation == PENDING_STOP:
            continue
        names[topic.source_topic] = topic.topic
        if topic.pending_operation in (PENDING_ADD, PENDING_REBUILD):
            waiting[topic.topic] = GroupReason.NOT_ALIGNED
        elif topic.desired is DesiredState.PAUSED and chosen is None:
            waiting[topic.topic] = GroupReason.PAUSED_BY_OPERATOR
        known = {one.partition: one for one in state.partitions(mirror, topic.topic)}
        for partition in range(max(topic.partitions, len(known))):
            reason = _reason_to_wait(known.get(partition))
            if reason is not None:
                waiting[TopicPartition(topic.topic, partition)] = reason
    return MirroredTopics(names, waiting)


def _reason_to_wait(partition: PartitionRecord | None) -> GroupReason | None:
    if partition is None or not (partition.aligned or partition.begun):
        return GroupReason.NOT_ALIGNED
    if partition.state is PartitionState.FAILED and partition.reason in _OTHER_RECORDS:
        return GroupReason.PARTITION_FAILED
    return None


def read_source_groups(
    source: ClusterGroups,
    state: State,
    mirror: MirrorRecord,
    settings: Settings,
    topics: MirroredTopics,
    *,
    whole: bool = True,
) -> SourceGroups:
    """Return the committed offsets of the source's groups that the mirror's filters select.

    With `whole` false, groups that were never synced may be missing while their coordinator is moving or away.

    Raises:
        UnreachableError: the source does not answer.
        BrokerError: it refuses to list its groups.
        RefusedError: another cluster answers (SOURCE_CLUSTER_CHANGED).
    """
    if not topics.names:
        return SourceGroups({}, topics)
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        all_listed = source.listed(whole=whole)
        kinds = {name: group.kind for name, group in all_listed.items() if group.kind is not GroupKind.OTHER}
        # no broker lists a group while its coordinator moves: groups that were synced before are asked for by name
        known = {one.group: GroupKind(one.kind) for one in state.groups(mirror.name) if one.group not in all_listed}
        listed = {name: kind for name, kind in {**known, **kinds}.items() if settings.selects_group(name)}
        committed = source.committed(listed, topics.names)
        unreadable = {
            name: f"{code_name(answer)} ({answer})" for name, answer in committed.items() if isinstance(answer, int)
        }
        found = {
            name: GroupView(listed[name], committed=offsets)
            for name, answer in committed.items()
            if not isinstance(answer, int)
            and (offsets := {at: one for at, one in answer.items() if at.topic in topics.names})
        }
        asked = {at for view in found.values() for at in view.committed}
        recorded = {topic for record in state.groups(mirror.name) for topic in record.offsets}
        names = {at.topic for at in asked} | {source for source, name in topics.names.items() if name in recorded}
        if names:
            topics = _known_topics(source.client, state, mirror, topics, names)
            topics = _with_added_partitions(state, mirror.name, topics, asked)
    return SourceGroups(found, topics, unreadable)


def plan_groups(
    found: SourceGroups,
    here: ClusterGroups,
    state: State,
    mirror: str,
    settings: Settings,
    *,
    whole: bool = False,
    is_due: Callable[[str], bool] | None = None,
    longest_metadata: int | None = None,
) -> tuple[GroupPlan, ...]:
    """Return the plans for these groups; `whole` reads log bounds also for offsets that are equal.

    With `is_due`, also offsets are kept about which the source says nothing; it returns whether those of a destination
    group are to be committed again. Commit metadata of more characters than `longest_metadata` is left out.

    Raises:
        UnreachableError: the destination does not answer.
        BrokerError: it refuses to list its groups.
    """
    prefix, topics = settings.group_prefix, found.topics
    records = {record.group: record for record in state.groups(mirror)}
    kept = {name: one for name, one in records.items() if is_due and settings.selects_group(name)}
    kept = {name: one for name, one in kept.items() if next(kept_offsets(one, topics), None)}
    kinds = {name: GroupKind(one.kind) for name, one in kept.items()}
    kinds |= {name: view.kind for name, view in found.groups.items()}
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        there = group_views(here, {prefix + name: kind for name, kind in kinds.items()})
        asked: set[TopicPartition] = set()
        for name, view in found.groups.items():
            if whole:
                asked |= {partition for at in view.committed if (partition := topics.destination_of(at)) is not None}
            else:
                asked |= differing_partitions(view, there[prefix + name], topics)
        for name, record in kept.items():
            committed = there[prefix + name].committed
            asked |= {at for at, _ in kept_offsets(record, topics) if at not in committed}
        bounds = log_bounds(here.client, asked)
    plans = []
    for name, kind in sorted(kinds.items()):
        group, again = prefix + name, is_due is not None and kind is not GroupKind.SHARE and is_due(prefix + name)
        plan = GroupPlan(name, group, kind, (), records.get(name), knows_source=False)
        if name in found.groups:
            view = found.groups[name]
            plan = plan_group(
                name,
                group,
                view,
                there[group],
                topics,
                bounds,
                records.get(name),
                is_due=again,
                longest_metadata=longest_metadata,
            )
        if name in kept:
            plan = with_kept(plan, kept_rows(kept[name], there[group], topics, bounds, is_due=again))
        plans.append(plan)
    return tuple(plans)


def group_views(cluster: ClusterGroups, wanted: Mapping[str, GroupKind]) -> dict[str, GroupView]:
    """Return the state of groups on a cluster; a missing one is empty and of the wanted kind."""
    if not wanted:
        return {}
    # a group that is missing here has members only if its coordinator, which is asked for its offsets, says so
    listed = cluster.listed(whole=False, passes_silent=True)
    known = {name: listed.get(name, ListedGroup(name, kind, has_members=False)) for name, kind in wanted.items()}
    committed = cluster.committed({name: one.kind for name, one in known.items()})
    found = {}
    for name, one in known.items():
        answer = committed[name]
        if isinstance(answer, int):
            found[name] = GroupView(one.kind, one.has_members, trouble=reason_of(answer))
        else:
            found[name] = GroupView(one.kind, one.has_members, answer)
    return found


def log_bounds(
    client: ClusterClient,
    partitions: Collection[TopicPartition],
    metadata: ClusterMetadata | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, Bounds]:
    """Return log start and high watermark of partitions, without unknown ones; give `metadata` if it was just read."""
    if not partitions:
        return {}
    starts, ends = client.look_up_offsets(
        partitions, (Lookup(EARLIEST), Lookup(LATEST)), metadata=metadata, timeout=timeout
    )
    return {
        partition: (start, end)
        for partition in partitions
        if (start := starts[partition].offset) is not None and (end := ends[partition].offset) is not None
    }


def _known_topics(
    source: ClusterClient, state: State, mirror: MirrorRecord, topics: MirroredTopics, asked: Collection[str]
) -> MirroredTopics:
    """Return the topics, without those whose source topic was recreated: its offsets mean other records."""
    metadata = source.metadata(sorted(asked))
    require_same_cluster(mirror.source_cluster_id, metadata.cluster_id)
    waiting = dict(topics.waiting)
    for name in asked:
        destination = topics.names[name]
        record, found = state.topic(mirror.name, destination), metadata.topics.get(name)
        now = found.printed_topic_id if found is not None and not found.error_code else None
        if record is None or now is None:
            waiting.setdefault(destination, GroupReason.UNKNOWN_NOW)
        elif record.source_topic_id not in (None, now):
            waiting[destination] = GroupReason.SOURCE_TOPIC_RECREATED
    return MirroredTopics(topics.names, waiting)


def _with_added_partitions(
    state: State, mirror: str, topics: MirroredTopics, asked: Collection[TopicPartition]
) -> MirroredTopics:
    """Return the topics; offsets wait of partitions that the source has added and the mirror does not have yet."""
    waiting = dict(topics.waiting)
    for at in asked:
        here = TopicPartition(topics.names[at.topic], at.partition)
        record, partition = state.topic(mirror, here.topic), state.partition(mirror, *here)
        if record is not None and at.partition >= record.partitions and partition is None:
            waiting[here] = GroupReason.NOT_ALIGNED
    return MirroredTopics(topics.names, waiting)
