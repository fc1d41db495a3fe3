"""What a failback does about consumer groups of the old source.

Who consumes from a topic that is to become a mirror again would lose his place: such groups are found and named. The
offsets of all others stand from before; they are written down as kmirror's own, so that the group sync may set what the
groups have at the new primary, and brought down to where the two logs part: what they point to beyond will be another
record. Brokers forget the offsets of a topic with the topic: where it was created again, they are put back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from kmirror.cluster.groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import BrokerError, UnreachableError
from kmirror.ops.context import Destination, change, now_ms
from kmirror.ops.groups.commit import sentence
from kmirror.ops.groups.facts import reason_of
from kmirror.ops.results import GroupResult, Outcome
from kmirror.settings.table import Settings
from kmirror.state.client import Deadline, ask, client
from kmirror.state.group_records import KEPT_OFFSETS, GroupRecord
from kmirror.state.snapshot import Changes, State

_TIMEOUT_S = 30.0

#: By group, what it has committed.
Standing = dict[str, dict[TopicPartition, Committed]]
#: The same for one topic, as it is stored: by group and partition.
Stored = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group, as its coordinator tells; brokers do not tell since when it has been silent."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group with members, and which of the topics it reads; no `members` where they are not told."""

    group: str
    topics: tuple[str, ...]
    members: tuple[Member, ...] = ()


def live_groups(destination: Destination, topics: Collection[str]) -> list[LiveGroup]:
    """Return the groups with members that have committed offsets for these topics, or are assigned them.

    Raises:
        UnreachableError: the cluster does not answer, or does not tell of a group.
    """
    groups = ClusterGroups(destination.client)
    alive = {name: one.kind for name, one in groups.listed().items() if one.has_members}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, offsets in _committed(groups, {n: k for n, k in alive.items() if k is not GroupKind.OTHER}).items():
        found[name] |= {place.topic for place in offsets if place.topic in topics}
    described = _described(destination, [n for n, k in alive.items() if k is GroupKind.CONSUMER])
    for name, (_, assigned) in described.items():
        found[name] |= assigned & set(topics)
    return [
        LiveGroup(name, tuple(sorted(some)), described[name][0] if name in described else ())
        for name, some in sorted(found.items())
        if some
    ]


def standing_offsets(destination: Destination, topics: Collection[str]) -> Standing:
    """Return what groups have committed for these topics; groups without any are left out.

    Raises:
        UnreachableError: the cluster does not answer, or does not tell of a group.
    """
    groups = ClusterGroups(destination.client)
    kinds = {name: one.kind for name, one in groups.listed().items() if one.kind is not GroupKind.OTHER}
    found = {
        group: {place: one for place, one in offsets.items() if place.topic in topics}
        for group, offsets in _committed(groups, kinds).items()
    }
    return {group: offsets for group, offsets in found.items() if offsets}


def take_over(
    destination: Destination, mirror: str, settings: Settings, limits: Mapping[TopicPartition, int]
) -> list[GroupResult]:
    """Write down what groups have committed for these partitions as kmirror's, and lower what lies beyond `limits`.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    standing = standing_offsets(destination, {place.topic for place in limits})
    wanted = {
        group: {
            place: one._replace(offset=min(one.offset, limits[place]))
            for place, one in offsets.items()
            if place in limits
        }
        for group, offsets in standing.items()
    }
    return _set(destination, mirror, settings, standing, wanted)


def put_back(
    destination: Destination,
    mirror: str,
    settings: Settings,
    topic: str,
    before: Stored,
    limits: Mapping[TopicPartition, int],
) -> list[GroupResult]:
    """Commit again what groups had committed for a topic that was deleted, where nothing stands yet.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    standing = standing_offsets(destination, {topic})
    wanted: Standing = {}
    for group, offsets in before.items():
        places = {TopicPartition(topic, p): offset for p, offset in offsets.items()}
        wanted[group] = {
            place: Committed(min(offset, limits[place]))
            for place, offset in places.items()
            if place in limits and place not in standing.get(group, {})
        }
    return _set(destination, mirror, settings, standing, wanted)


def _set(
    destination: Destination, mirror: str, settings: Settings, standing: Standing, wanted: Standing
) -> list[GroupResult]:
    if not any(wanted.values()):
        return []
    here = ClusterGroups(destination.client)
    kinds = {name: one.kind for name, one in here.listed().items()}

    def decide(state: State) -> Changes:
        records = []
        for group, offsets in wanted.items():
            if offsets and settings.selects_group(group):
                kind = kinds.get(group, GroupKind.CONSUMER)
                before = state.group(mirror, group)
                known = before or GroupRecord(mirror, group, group, kind.value, now_ms())
                record = _with_ours(known, offsets, standing.get(group, {}))
                if record != before:
                    records.append(replace(record, time_ms=now_ms()))
        return Changes(tuple(records))

    change(destination, mirror, decide)
    results = []
    for group, offsets in wanted.items():
        present = standing.get(group, {})
        changes = {place: one for place, one in offsets.items() if present.get(place) != one}
        codes = here.commit(group, kinds.get(group, GroupKind.CONSUMER), changes) if changes else {}
        for place, one in sorted(changes.items()):
            was = present.get(place)
            code = codes[place]
            outcome = Outcome.FAILED if code else Outcome.DONE
            reason = reason_of(code) if code else None
            results.append(GroupResult(group, *place, was.offset if was else None, one.offset, outcome, reason))
    return results


def _with_ours(
    record: GroupRecord, wanted: Mapping[TopicPartition, Committed], present: Mapping[TopicPartition, Committed]
) -> GroupRecord:
    offsets = {topic: dict(partitions) for topic, partitions in record.offsets.items()}
    for place, one in wanted.items():
        here = (present[place].offset,) if place in present else ()
        kept = tuple(dict.fromkeys((one.offset, *here, *record.ours(*place))))[:KEPT_OFFSETS]
        offsets.setdefault(place.topic, {})[place.partition] = kept
    return replace(record, offsets=offsets, skipped=None)


def _committed(groups: ClusterGroups, kinds: Mapping[str, GroupKind]) -> Standing:
    found: Standing = {}
    for group, answer in sorted(groups.committed(kinds).items()):
        if isinstance(answer, int):
            raise UnreachableError(
                f"committed offsets of group {group} are unknown: {sentence(reason_of(answer))} (error {answer})",
                "grant DESCRIBE on the group",
            )
        found[group] = answer
    return found


def _described(destination: Destination, groups: Collection[str]) -> dict[str, tuple[tuple[Member, ...], set[str]]]:
    """Return the members of groups, and the topics that they are assigned."""
    from confluent_kafka.admin import AdminClient

    if not groups:
        return {}
    store = destination.store
    admin = client(AdminClient, store.config, store.watch)
    found: dict[str, tuple[tuple[Member, ...], set[str]]] = {}
    for group in groups:

        def request(group: str = group) -> Future[Any]:
            asked: Future[Any] = admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group]
            return asked

        try:
            told = ask(request, admin, store.watch, Deadline(_TIMEOUT_S), f"describing group {group}")
        except BrokerError:
            continue  # it is gone, or of a kind that only its committed offsets tell of
        members = tuple(Member(one.member_id, one.client_id, one.host) for one in told.members)
        assigned = {
            place.topic for member in told.members if member.assignment for place in member.assignment.topic_partitions
        }
        found[group] = (members, assigned)
    return found
