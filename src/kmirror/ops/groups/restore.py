"""Offsets of groups for a topic that is deleted and created again: read before, put back after.

Groups that kmirror syncs get what they have at the source now: that is what the new log will hold. To others, whose
offsets meant records that are in the archive, the new log's start is the only place that is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import UnreachableError
from kmirror.ops.context import Destination
from kmirror.ops.groups.commit import carry_out, sentence
from kmirror.ops.groups.facts import reason_of
from kmirror.ops.results import Outcome
from kmirror.settings.table import stored_settings
from kmirror.state.group_records import GroupRecord
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.sync.groups import Bounds, GroupPlan, MirroredTopics, OffsetPlan, clamped

#: By group, then by partition.
OffsetsByGroup = Mapping[str, Mapping[int, int]]


def committed_on(client: ClusterClient, topic: str) -> dict[str, dict[int, int]]:
    """Return what every group that we may see has committed for a topic.

    Raises:
        UnreachableError: the cluster does not answer, or does not tell of a group.
        BrokerError: it refuses to list its groups.
    """
    groups = ClusterGroups(client)
    kinds = {name: one.kind for name, one in groups.listed().items() if one.kind is not GroupKind.OTHER}
    found: dict[str, dict[int, int]] = {}
    for group, answer in sorted(groups.committed(kinds).items()):
        if isinstance(answer, int):
            raise UnreachableError(
                f"committed offsets of group {group} are unknown: {sentence(reason_of(answer))} (error {answer})",
                "grant DESCRIBE on the group",
            )
        if offsets := {at.partition: one.offset for at, one in answer.items() if at.topic == topic}:
            found[group] = offsets
    return found


def put_back(
    destination: Destination,
    source: ClusterClient,
    mirror: MirrorRecord,
    topic: TopicRecord,
    before: OffsetsByGroup,
    bounds: Mapping[int, Bounds],
) -> tuple[dict[str, dict[int, int]], dict[str, str]]:
    """Set offsets for groups that had committed some before; `bounds` are the source's log starts and ends.

    Returns what they were to get, by group and partition, and why that failed, by group.

    Raises:
        UnreachableError: a cluster does not answer.
    """
    here, state = ClusterGroups(destination.client), destination.state()
    kinds = {name: one.kind for name, one in here.listed().items()}
    synced = _synced(state, mirror, topic)
    present = _present(source, synced, topic)
    wanted: dict[str, dict[int, int]] = {}
    failed: dict[str, str] = {}
    plans: list[GroupPlan] = []
    for group, offsets in before.items():
        record = synced.get(group)
        if record is None or not all(offset in record.ours(topic.topic, p) for p, offset in offsets.items()):
            wanted[group] = {p: bounds[p][0] for p in offsets if p in bounds}
            kind = kinds.get(group, GroupKind.CONSUMER)
            _set(here, group, kind, topic.topic, wanted[group], failed)
    for group, record in synced.items():
        if group in wanted:
            continue
        known = present.get(record.group, {})
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
            wanted[group] = {row.place.partition: row.target.offset for row in rows}
            plans.append(GroupPlan(record.group, group, GroupKind(record.kind), rows, record))
    allowed = MirroredTopics({topic.source_topic: topic.topic})
    for result in carry_out(destination, here, mirror.name, plans, lambda _: allowed, {}, may_note=False).results:
        if result.result is not Outcome.DONE:
            failed[result.group] = result.reason or result.result
    return wanted, failed


def _set(
    here: ClusterGroups, group: str, kind: GroupKind, topic: str, offsets: Mapping[int, int], failed: dict[str, str]
) -> None:
    if not offsets:
        return
    wanted = {TopicPartition(topic, p): Committed(offset) for p, offset in offsets.items()}
    codes = [code for code in here.commit(group, kind, wanted).values() if code]
    if codes:
        failed[group] = f"{reason_of(codes[0])} (error {codes[0]})"


def _synced(state: State, mirror: MirrorRecord, topic: TopicRecord) -> dict[str, GroupRecord]:
    """Return what is remembered of groups of which kmirror has set offsets for the topic, by destination group."""
    if not stored_settings(mirror.settings).sync_group_offsets_enabled:
        return {}
    return {record.destination_group: record for record in state.groups(mirror.name) if topic.topic in record.offsets}


def _present(
    source: ClusterClient, synced: Mapping[str, GroupRecord], topic: TopicRecord
) -> dict[str, dict[int, Committed]]:
    """Return what these groups have committed at the source, by source group and partition."""
    answers = ClusterGroups(source).committed({one.group: GroupKind(one.kind) for one in synced.values()})
    found: dict[str, dict[int, Committed]] = {}
    for group, answer in answers.items():
        if isinstance(answer, int):
            raise UnreachableError(
                f"committed offsets of group {group} on the source are unknown (error {answer})", "kmirror retries it"
            )
        found[group] = {at.partition: one for at, one in answer.items() if at.topic == topic.source_topic}
    return found
