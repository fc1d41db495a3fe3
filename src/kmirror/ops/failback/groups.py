"""What a failback does about consumer groups of the old source.

A group that is consuming from a topic about to become a mirror again would lose its position: such groups are found and
named. The committed offsets of all other groups are recorded as kmirror's own, so that the group sync may replace them
with those at the new primary, and lowered to the fork: offsets after it will be other records. Brokers delete offsets
together with their topic: for recreated topics they are restored.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.groups.cluster_groups import GROUP_ID_NOT_FOUND, ClusterGroups
from kmirror.cluster.groups.group_members import DescribedGroup, Member
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind, ListedGroup
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, TimedOutError, UnreachableError
from kmirror.ops.add.topic_admin import CREATION_S
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.gone import described_topic
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups.commit import limit_text, reason_text
from kmirror.ops.groups.group_facts import reason_of
from kmirror.ops.groups.restore import (
    CommittedOffsets,
    OffsetsByGroup,
    commit_to_new,
    committed_offsets,
    known_committed,
)
from kmirror.settings.table import Settings
from kmirror.state.group_records import KEPT_OFFSETS, GroupReason, GroupRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror.words import counted, visible

_PAUSE_S = 0.2
#: How long to wait for groups that are assigning partitions: until then no member reports any.
_REBALANCE_S = 10.0


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
    alive = {name: one for name, one in groups.listed().items() if one.has_members}
    found: defaultdict[str, set[str]] = defaultdict(set)
    kinds = {name: one.kind for name, one in alive.items() if one.kind is not GroupKind.OTHER}
    for name, offsets in known_committed(groups, kinds).items():
        found[name] |= {partition.topic for partition in offsets if partition.topic in topics}
    consumers = {name: one for name, one in alive.items() if one.kind is GroupKind.CONSUMER}
    described = _described(groups, consumers)
    for name, one in described.items():
        found[name] |= one.topics & set(topics)
    # one whose members have left since is not described either
    undescribed = {name for name in consumers if not found[name] and not _is_known(described.get(name))}
    if undescribed:
        again = groups.listed()
        for name in sorted(undescribed):
            if name in again and again[name].has_members:
                raise UnreachableError(
                    f"which topics group {visible(name)} reads is unknown: it has members, but is not described",
                    "stop its consumers, and run the same command again",
                )
    return [
        LiveGroup(name, tuple(sorted(some)), described[name].members if name in described else ())
        for name, some in sorted(found.items())
        if some
    ]


def _is_known(described: DescribedGroup | None) -> bool:
    return described is not None and bool(described.members or described.topics)


def adopt_offsets(
    destination: Destination, mirror: str, settings: Settings, limits: Mapping[TopicPartition, int]
) -> list[GroupResult]:
    """Record what groups have committed for these partitions as kmirror's own, and lower offsets above `limits`.

    Raises UnreachableError: the cluster does not answer.
    """
    present = committed_offsets(destination.client, {partition.topic for partition in limits})
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
    before: OffsetsByGroup,
    limits: Mapping[TopicPartition, int],
) -> list[GroupResult]:
    """Commit again what groups had committed for a deleted topic, where nothing is committed yet.

    Of partitions that the topic no longer has, nothing is. Raises UnreachableError: the cluster does not answer.
    """
    present, made = committed_offsets(destination.client, {topic}), described_topic(destination.client, topic)
    wanted: CommittedOffsets = {}
    for group, offsets in before.items():
        partitions = {TopicPartition(topic, p): offset for p, offset in offsets.items()}
        wanted[group] = {
            partition: Committed(min(offset, limits[partition]))
            for partition, offset in partitions.items()
            if partition in limits
            and (made is None or partition.partition in made.partitions)
            and partition not in present.get(group, {})
        }
    return _set(destination, mirror, settings, present, wanted)


def require_committed(results: Iterable[GroupResult], topic: str) -> None:
    """Raise KmirrorError if an offset of the topic could not be committed for a group."""
    failed = {row.group: row for row in results if row.topic == topic and row.result is Outcome.FAILED}
    if failed:
        row = failed[min(failed)]
        partition = TopicPartition(topic, row.partition)
        more = f"; the same for {counted(len(failed) - 1, 'more group')}" if len(failed) > 1 else ""
        raise KmirrorError(
            f"offset {row.to_offset} of {partition} was not committed for group {visible(row.group)}: "
            f"{row.message}{more}"
        )


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
    deadline = Deadline(CREATION_S)
    for group, offsets in wanted.items():
        before = present.get(group, {})
        changes = {partition: one for partition, one in offsets.items() if before.get(partition) != one}
        kind = kinds.get(group, GroupKind.CONSUMER)
        codes = commit_to_new(here, group, kind, changes, deadline) if changes else {}
        for partition, one in sorted(changes.items()):
            was = before.get(partition)
            outcome, reason, message = Outcome.DONE, None, None
            if code := codes.get(partition, Code.REQUEST_TIMED_OUT):
                outcome, reason = Outcome.FAILED, reason_of(code)
                detail = limit_text(here.client, code) if reason is GroupReason.REFUSED else None
                message = reason_text(reason, detail)
            offset = was.offset if was else None
            results.append(GroupResult(group, *partition, offset, one.offset, outcome, reason, message))
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


def _described(groups: ClusterGroups, wanted: Mapping[str, ListedGroup]) -> dict[str, DescribedGroup]:
    """Return what members of groups read, without groups that are gone; waits while they are assigned partitions.

    Raises TimedOutError, UnreachableError: that is unknown for a group.
    """
    found: dict[str, DescribedGroup] = {}
    left, deadline = dict(wanted), Deadline(_REBALANCE_S)
    while left:
        answers = groups.described(left)
        for name, answer in answers.items():
            if isinstance(answer, DescribedGroup):
                found[name] = answer
            elif answer == GROUP_ID_NOT_FOUND:
                found.pop(name, None)
            elif wanted[name].protocol != "streams":
                raise UnreachableError(
                    f"which topics group {visible(name)} reads is unknown: {code_name(answer)}",
                    "run the same command again",
                )
        left = {name: left[name] for name in answers if name in found and not found[name].is_settled}
        if left and deadline.passed:
            raise TimedOutError(
                f"which topics group {visible(min(left))} reads is unknown: it has been rebalancing for "
                f"{_REBALANCE_S:g} s",
                "wait until its members are assigned their partitions, or stop them, and run the same command again",
            )
        if left:
            time.sleep(_PAUSE_S)
    return found
