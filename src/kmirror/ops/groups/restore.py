"""Group offsets for a topic that is deleted and recreated: read before, restored after.

Groups that kmirror syncs get their current offsets on the source, whose log the new one will hold. The offsets of other
groups meant records that are in the archive now, so for them only the start of the new log is right.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.commands import option
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.base.context import Destination, naming_cluster, now_ms
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.groups.commit import Refusals, carry_out
from kmirror.ops.groups.group_facts import reason_of
from kmirror.settings.parsing import stored_settings
from kmirror.state.group_records import GroupReason, GroupRecord
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import Deadline
from kmirror.sync.group_changes import Bounds, GroupPlan, MirroredTopics, OffsetPlan, clamped, marked_absent
from kmirror.words import counted, visible

_PAUSE_S = 0.2

#: Committed offsets of one topic as they are stored, by group, then by partition.
OffsetsByGroup = Mapping[str, Mapping[int, int]]
CommittedOffsets = dict[str, dict[TopicPartition, Committed]]


def known_committed(groups: ClusterGroups, kinds: Mapping[str, GroupKind]) -> CommittedOffsets:
    """Return the committed offsets of these groups. Raises UnreachableError: those of one are not returned."""
    found: CommittedOffsets = {}
    for group, answer in sorted(groups.committed(kinds).items()):
        if isinstance(answer, int):
            is_refused = answer == Code.GROUP_AUTHORIZATION_FAILED
            raise UnreachableError(
                f"committed offsets of group {visible(group)} are unknown: {code_name(answer)} ({answer})",
                grant_line(groups.client.config, ("READ",), *option("--group", group)) if is_refused else None,
                Reason.NOT_AUTHORIZED if is_refused else None,
            )
        found[group] = answer
    return found


def committed_offsets(client: ClusterClient, topics: Collection[str]) -> CommittedOffsets:
    """Return what the groups visible to us have committed for these topics; groups without any are omitted.

    Raises:
        UnreachableError: the cluster does not answer, or does not return a group's offsets.
        BrokerError: it refuses to list its groups.
    """
    groups = ClusterGroups(client)
    kinds = {name: one.kind for name, one in groups.listed().items() if one.kind is not GroupKind.OTHER}
    found = {
        group: {at: one for at, one in offsets.items() if at.topic in topics}
        for group, offsets in known_committed(groups, kinds).items()
    }
    return {group: offsets for group, offsets in found.items() if offsets}


def committed_on(client: ClusterClient, topic: str) -> dict[str, dict[int, int]]:
    """Return the committed offsets of one topic, by group and partition; raises as `committed_offsets`."""
    found = committed_offsets(client, {topic})
    return {group: {at.partition: one.offset for at, one in offsets.items()} for group, offsets in found.items()}


def restore_offsets(
    destination: Destination,
    source: ClusterClient,
    mirror: MirrorRecord,
    topic: TopicRecord,
    before: OffsetsByGroup,
    bounds: Mapping[int, Bounds],
    deadline: Deadline,
) -> tuple[dict[str, dict[int, int]], dict[str, str]]:
    """Commit offsets for groups that had some before; `bounds` are the source's log starts and ends.

    Coordinators that do not know the new topic yet are asked again until the deadline.

    Returns the intended offsets by group and partition, and the failures by group that would be repeated.

    Raises:
        UnreachableError: a cluster does not answer.
        KmirrorError: some were not committed, and may be later.
    """
    here, state = ClusterGroups(destination.client), destination.state()
    kinds = {name: one.kind for name, one in here.listed(whole=False).items()}
    synced = _synced(state, mirror, topic)
    with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
        present = known_committed(ClusterGroups(source), {one.group: GroupKind(one.kind) for one in synced.values()})
    wanted: dict[str, dict[int, int]] = {}
    failed: dict[str, str] = {}
    late: dict[str, str] = {}
    plans: list[GroupPlan] = []
    for group, offsets in before.items():
        record = synced.get(group)
        if record is None or not all(offset in record.ours(topic.topic, p) for p, offset in offsets.items()):
            wanted[group] = {p: bounds[p][0] for p in offsets if p in bounds}
            kind = kinds.get(group, GroupKind.CONSUMER)
            targets = {TopicPartition(topic.topic, p): Committed(offset) for p, offset in wanted[group].items()}
            codes = commit_to_new(here, group, kind, targets, deadline) if targets else {}
            for code in filter(None, codes.values()):
                reason = reason_of(code)
                which = late if reason is GroupReason.UNKNOWN_NOW else failed
                which[group] = f"{reason} (error {code})"
    for group, record in synced.items():
        if group in wanted:
            continue
        known = {at.partition: one for at, one in present[record.group].items() if at.topic == topic.source_topic}
        chosen = {p: known.get(p, Committed(bounds[p][0])) for p in {*known, *before.get(group, {})} if p in bounds}
        rows = tuple(
            OffsetPlan(
                TopicPartition(topic.topic, p),
                committed.offset,
                None,
                committed._replace(offset=clamped(committed.offset, bounds[p])),
            )
            for p, committed in sorted(chosen.items())
        )
        if rows:
            wanted[group] = {row.topic_partition.partition: row.target.offset for row in rows}
            plans.append(GroupPlan(record.group, group, GroupKind(record.kind), rows, record))
    allowed = MirroredTopics({topic.source_topic: topic.topic})
    for result in carry_out(
        destination, here, mirror.name, plans, lambda _: allowed, Refusals(), may_note=False
    ).results:
        if result.result is not Outcome.DONE:
            which = late if result.result is Outcome.TIMED_OUT else failed
            which[result.group] = result.reason or result.result
    if late:
        group = min(late)
        more = f"; the same for {counted(len(late) - 1, 'more group')}" if len(late) > 1 else ""
        raise KmirrorError(
            f"offsets of {topic.topic} were not committed for group {visible(group)}: {late[group]}{more}",
            "kmirror tries it again",
        )
    return wanted, failed


def former_groups(
    state: State, mirror: str, topics: Collection[str], restored: OffsetsByGroup | None = None
) -> list[GroupRecord]:
    """Return records of groups that were synced for earlier topics of these names: what they had then is not kept.

    What was `restored` is kept; it is given by destination group.
    """
    changed = []
    for record in state.groups(mirror):
        new = (restored or {}).get(record.destination_group, {})
        offsets = [
            TopicPartition(topic, p)
            for topic in topics
            for p, ours in record.offsets.get(topic, {}).items()
            if ours[:1] != (new.get(p),)
        ]
        marked = marked_absent(record, offsets, now_ms())
        if marked != record:
            changed.append(marked)
    return changed


def commit_to_new(
    here: ClusterGroups, group: str, kind: GroupKind, offsets: Mapping[TopicPartition, Committed], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Commit offsets; return an error code for each. Waits until the coordinator knows a topic that is new."""
    codes = here.commit(group, kind, offsets)
    while not deadline.passed:
        early = {at: offsets[at] for at, code in codes.items() if code == Code.UNKNOWN_TOPIC_OR_PARTITION}
        if not early:
            break
        time.sleep(_PAUSE_S)
        codes |= here.commit(group, kind, early)
    return codes


def _synced(state: State, mirror: MirrorRecord, topic: TopicRecord) -> dict[str, GroupRecord]:
    """Return the stored records of synced groups for which kmirror has set offsets of it, by destination group."""
    settings = stored_settings(mirror.settings)
    return {
        record.destination_group: record
        for record in state.groups(mirror.name)
        if topic.topic in record.offsets
        and settings.sync_group_offsets_enabled
        and settings.selects_group(record.group)
    }
