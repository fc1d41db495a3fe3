"""Commit group offsets on the destination, as planned.

The offsets are recorded first, under the mirror's lock, where the topics are checked once more: nothing is committed
for a topic that an operator has stopped. Commits that are not sent within seconds after that are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kmirror.cluster.groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.ops.context import Destination, change, naming_cluster, now_ms
from kmirror.ops.groups.facts import reason_of
from kmirror.ops.results import GroupResult, Outcome
from kmirror.state.client import boottime
from kmirror.state.group_records import LASTING_REASONS, GroupReason, GroupRecord, GroupsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.groups import GroupPlan, MirroredTopics, recorded, restricted

#: No offset is committed later than this after the topics were checked.
_COMMIT_S = 5.0
#: How often to store that all groups were checked, if nothing else is stored.
_NOTE_MS = 60_000

_TEXTS = {
    GroupReason.HAS_MEMBERS: "the group has members on the destination",
    GroupReason.COMMITTED_HERE: "another client committed an offset on the destination; `kafka-consumer-groups "
    "--delete-offsets` there lets kmirror sync it",
    GroupReason.OTHER_TYPE: "the destination has a group of that name with another type",
    GroupReason.NOT_AUTHORIZED: "missing right: READ on the group and its topics on the destination",
    GroupReason.SHARE_GROUPS_UNSUPPORTED: "the destination's brokers do not support share groups",
    GroupReason.REFUSED: "the destination's brokers refuse it",
    GroupReason.SYNC_DISABLED: "sync.group.offsets.enabled is false",
    GroupReason.STOPPED: "its topic is stopped, so kmirror no longer changes the group's offset",
    GroupReason.SOURCE_UNREACHABLE: "the source does not answer",
    GroupReason.PAUSED_BY_OPERATOR: "its topic is paused",
    GroupReason.SOURCE_TOPIC_RECREATED: "the source topic was recreated",
    GroupReason.PARTITION_FAILED: "its partition is FAILED",
    GroupReason.NOT_ALIGNED: "its partition is not yet aligned with the source",
    GroupReason.UNKNOWN_NOW: "a broker does not report its offset",
}


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The results of plans, one per offset, and the groups that are skipped from now on."""

    results: list[GroupResult]
    newly_skipped: list[tuple[str, GroupReason]]


def reason_text(reason: GroupReason) -> str:
    """Return what a reason means, for people."""
    return _TEXTS[reason]


def carry_out(
    destination: Destination,
    here: ClusterGroups,
    mirror: str,
    plans: Sequence[GroupPlan],
    allowed: Callable[[State], MirroredTopics],
    refused: dict[str, GroupReason],
    *,
    may_note: bool = True,
) -> CommitResult:
    """Record the offsets of plans, and commit them.

    `allowed` returns the topics that may be changed in a state. `refused` has the reasons for which brokers refused
    groups last, and is updated. With `may_note` it is stored about once a minute that all groups were checked.

    Raises:
        KmirrorError: as `ops.context.change`, and nothing was committed; or the destination stopped answering.
    """
    decided: list[GroupPlan] = []
    skipped: list[tuple[str, GroupReason]] = []
    decided_at = 0.0

    def decide(state: State) -> Changes:
        nonlocal decided_at
        decided_at = boottime()
        decided.clear()
        skipped.clear()
        at = now_ms()
        if state.mirror(mirror) is None:
            return Changes()
        topics = allowed(state)
        records: list[GroupRecord | GroupsRecord] = []
        for plan in plans:
            if state.group(mirror, plan.group) != plan.record:
                continue  # another operation changed it meanwhile
            kept = restricted(plan, topics)
            decided.append(kept)
            record = recorded(kept, mirror, at, refused.get(plan.group))
            if record is None or record == plan.record:
                continue
            records.append(record)
            if record.skipped is not None and (plan.record is None or plan.record.skipped is not record.skipped):
                skipped.append((record.destination_group, record.skipped))
        if may_note:
            records.append(GroupsRecord(mirror, at, sum(plan.knows_source for plan in plans)))
        return Changes(tuple(records))

    results: list[GroupResult] = []
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        noted = destination.state().groups_checked(mirror)
        is_due = may_note and (noted is None or now_ms() - noted.time_ms >= _NOTE_MS)
        if not is_due and not any(_is_news(plan, refused.get(plan.group)) for plan in plans):
            return CommitResult([], [])
        change(destination, mirror, decide)
        for plan in decided:
            if plan.changes:
                results += _set(here, plan, refused, _COMMIT_S - (boottime() - decided_at))
    return CommitResult(results, skipped)


def _is_news(plan: GroupPlan, refused: GroupReason | None) -> bool:
    before = plan.record.skipped if plan.record else None
    return bool(plan.changes or plan.returned) or plan.skipped_with(refused) is not before


def _set(here: ClusterGroups, plan: GroupPlan, refused: dict[str, GroupReason], seconds: float) -> list[GroupResult]:
    """Commit a group's offsets, unless it is too late."""
    wanted: dict[TopicPartition, Committed] = {row.topic_partition: row.target for row in plan.changes}
    codes: Mapping[TopicPartition, int] = {}
    if seconds > 0:
        codes = here.commit(plan.destination_group, plan.kind, wanted, seconds)
    refused.pop(plan.group, None)
    results = []
    for row in plan.changes:
        code = codes.get(row.topic_partition)
        reason = None if code == 0 else GroupReason.UNKNOWN_NOW if code is None else reason_of(code)
        if reason in LASTING_REASONS:
            refused[plan.group] = reason
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.DONE if reason is None else Outcome.TIMED_OUT
        results.append(
            GroupResult(
                plan.destination_group, *row.topic_partition, row.destination_offset, row.target.offset, outcome, reason
            )
        )
    return results
