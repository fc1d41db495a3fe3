"""What a failback does about consumer groups of the old source.

A group that is consuming from a topic about to become a mirror again would lose its position: such groups are found and
named. The committed offsets of all other groups are recorded as kmirror's own, so that the group sync may replace them
with those at the new primary, and lowered to the fork: offsets after it will be other records. Brokers delete offsets
together with their topic: for recreated topics they are restored.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from kmirror.cluster.groups.cluster_groups import COORDINATOR_MOVED, GROUP_ID_NOT_FOUND, ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import BrokerError, TimedOutError, UnreachableError
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.results import GroupResult, Outcome
from kmirror.ops.groups.group_facts import reason_of
from kmirror.ops.groups.restore import CommittedOffsets, known_committed
from kmirror.settings.table import Settings
from kmirror.state.group_records import KEPT_OFFSETS, GroupRecord
from kmirror.state.librdkafka import Deadline, ask, client
from kmirror.state.snapshot import Changes, State
from kmirror.words import visible

_TIMEOUT_S = 30.0
_PAUSE_S = 0.2
#: How long to wait for groups that are assigning partitions: until then no member reports any.
_REBALANCE_S = 10.0
#: The states in which members have what they are assigned, or there are none.
_SETTLED = frozenset({"STABLE", "EMPTY", "DEAD"})

#: Committed offsets of one topic as they are stored, by group and partition.
StoredOffsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group, as its coordinator reports it; brokers do not report how long it has been silent."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group with members, and which of the topics it reads; `members` is empty if they are unknown."""

    group: str
    topics: tuple[str, ...]
    members: tuple[Member, ...] = ()


def live_groups(destination: Destination, topics: Collection[str]) -> list[LiveGroup]:
    """Return the groups with members that have committed offsets for these topics, or are assigned them.

    Raises TimedOutError: a group has been rebalancing all the time.
    Raises UnreachableError: the cluster does not answer, or refuses to describe a group.
    """
    groups = ClusterGroups(destination.client)
    listed = groups.listed()
    alive = {name: one.kind for name, one in listed.items() if one.has_members}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, offsets in known_committed(groups, {n: k for n, k in alive.items() if k is not GroupKind.OTHER}).items():
        found[name] |= {partition.topic for partition in offsets if partition.topic in topics}
    streams = groups.topics_of_streams([name for name in alive if listed[name].is_streams])
    known = {name: read for name, read in streams.items() if not isinstance(read, int) and read}
    described = _described(destination, [n for n, k in alive.items() if k is GroupKind.CONSUMER and n not in streams])
    for name, read in {**known, **{name: assigned for name, (_, assigned) in described.items()}}.items():
        found[name] |= read & set(topics)
    consumers = {name for name, kind in alive.items() if kind is GroupKind.CONSUMER}
    undescribed = {name for name in consumers - known.keys() if not found[name] and not described.get(name)}
    if undescribed:
        again = groups.listed()
        for name in sorted(undescribed):
            if name in again and again[name].has_members:
                raise UnreachableError(
                    f"which topics group {visible(name)} reads is unknown: it has members, but is not described",
                    "stop its consumers, and run the same command again",
                )
    return [
        LiveGroup(name, tuple(sorted(some)), described[name][0] if name in described else ())
        for name, some in sorted(found.items())
        if some
    ]


def committed_offsets(destination: Destination, topics: Collection[str]) -> CommittedOffsets:
    """Return what groups have committed for these topics; groups without any are omitted.

    Raises UnreachableError: the cluster does not answer, or refuses to describe a group.
    """
    groups = ClusterGroups(destination.client)
    kinds = {name: one.kind for name, one in groups.listed().items() if one.kind is not GroupKind.OTHER}
    found = {
        group: {partition: one for partition, one in offsets.items() if partition.topic in topics}
        for group, offsets in known_committed(groups, kinds).items()
    }
    return {group: offsets for group, offsets in found.items() if offsets}


def adopt_offsets(
    destination: Destination, mirror: str, settings: Settings, limits: Mapping[TopicPartition, int]
) -> list[GroupResult]:
    """Record what groups have committed for these partitions as kmirror's own, and lower offsets above `limits`.

    Raises UnreachableError: the cluster does not answer.
    """
    present = committed_offsets(destination, {partition.topic for partition in limits})
    wanted = {
        group: {
            partition: one._replace(offset=min(one.offset, limits[partition]))
            for partition, one in offsets.items()
            if partition in limits
        }
        for group, offsets in present.items()
    }
    return _set(destination, mirror, settings, present, wanted)


def restore_offsets(
    destination: Destination,
    mirror: str,
    settings: Settings,
    topic: str,
    before: StoredOffsets,
    limits: Mapping[TopicPartition, int],
) -> list[GroupResult]:
    """Commit again what groups had committed for a deleted topic, where nothing is committed yet.

    Raises UnreachableError: the cluster does not answer.
    """
    present = committed_offsets(destination, {topic})
    wanted: CommittedOffsets = {}
    for group, offsets in before.items():
        partitions = {TopicPartition(topic, p): offset for p, offset in offsets.items()}
        wanted[group] = {
            partition: Committed(min(offset, limits[partition]))
            for partition, offset in partitions.items()
            if partition in limits and partition not in present.get(group, {})
        }
    return _set(destination, mirror, settings, present, wanted)


def _set(
    destination: Destination, mirror: str, settings: Settings, present: CommittedOffsets, wanted: CommittedOffsets
) -> list[GroupResult]:
    if not any(wanted.values()):
        return []
    here = ClusterGroups(destination.client)
    kinds = {name: one.kind for name, one in here.listed(whole=False).items()}

    def decide(state: State) -> Changes:
        records = []
        for group, offsets in wanted.items():
            if offsets and settings.selects_group(group):
                kind = kinds.get(group, GroupKind.CONSUMER)
                before = state.group(mirror, group)
                known = before or GroupRecord(mirror, group, group, kind.value, now_ms())
                record = _with_ours(known, offsets, present.get(group, {}))
                if record != before:
                    records.append(replace(record, time_ms=now_ms()))
        return Changes(tuple(records))

    change(destination, mirror, decide)
    results = []
    for group, offsets in wanted.items():
        before = present.get(group, {})
        changes = {partition: one for partition, one in offsets.items() if before.get(partition) != one}
        codes = here.commit(group, kinds.get(group, GroupKind.CONSUMER), changes) if changes else {}
        for partition, one in sorted(changes.items()):
            was = before.get(partition)
            code = codes[partition]
            outcome = Outcome.FAILED if code else Outcome.DONE
            reason = reason_of(code) if code else None
            results.append(GroupResult(group, *partition, was.offset if was else None, one.offset, outcome, reason))
    return results


def _with_ours(
    record: GroupRecord, wanted: Mapping[TopicPartition, Committed], present: Mapping[TopicPartition, Committed]
) -> GroupRecord:
    offsets = {topic: dict(partitions) for topic, partitions in record.offsets.items()}
    for topic_partition, one in wanted.items():
        here = (present[topic_partition].offset,) if topic_partition in present else ()
        kept = tuple(dict.fromkeys((one.offset, *here, *record.ours(*topic_partition))))[:KEPT_OFFSETS]
        offsets.setdefault(topic_partition.topic, {})[topic_partition.partition] = kept
    return replace(record, offsets=offsets, skipped=None)


def _described(destination: Destination, groups: Collection[str]) -> dict[str, tuple[tuple[Member, ...], set[str]]]:
    """Return the members of groups that have some, and the topics they are assigned; waits while they are assigned.

    Raises TimedOutError, UnreachableError: that is unknown for a group.
    """
    from confluent_kafka.admin import AdminClient

    if not groups:
        return {}
    store = destination.store
    admin = client(AdminClient, store.config, store.watch)
    found: dict[str, tuple[tuple[Member, ...], set[str]]] = {}
    deadline = Deadline(_REBALANCE_S)
    for group in groups:

        def request(group: str = group) -> Future[Any]:
            asked: Future[Any] = admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group]
            return asked

        described = None
        while described is None or (described.state.name not in _SETTLED and not deadline.passed):
            if described is not None:
                time.sleep(_PAUSE_S)
            try:
                described = ask(request, admin, store.watch, Deadline(_TIMEOUT_S), f"describing group {visible(group)}")
            except BrokerError as error:
                if error.code == GROUP_ID_NOT_FOUND:
                    break  # it is gone
                if error.code not in COORDINATOR_MOVED or deadline.passed:
                    raise UnreachableError(
                        f"which topics group {visible(group)} reads is unknown: {error}", "run the same command again"
                    ) from error
                time.sleep(_PAUSE_S)
        if described is None or not described.members:
            continue
        if described.state.name not in _SETTLED:
            raise TimedOutError(
                f"which topics group {visible(group)} reads is unknown: it has been rebalancing for {_REBALANCE_S:g} s",
                "wait until its members are assigned their partitions, or stop them, and run the same command again",
            )
        members = tuple(Member(one.member_id, one.client_id, one.host) for one in described.members)
        assigned = {
            partition.topic
            for member in described.members
            if member.assignment
            for partition in member.assignment.topic_partitions
        }
        found[group] = (members, assigned)
    return found
