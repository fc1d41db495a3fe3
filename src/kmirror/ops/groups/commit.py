"""Set offsets of groups at the destination, as planned.

What is to be set is written down first, under the mirror's lock, where the topics are looked at once more: nothing is
set for one that an operator has stopped. What is not answered within seconds after that is not set any more.
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

#: Whoever was held up for longer since the topics were looked at does not set offsets any more.
_COMMIT_S = 5.0
#: How often it is written down that all groups were looked at, when there is nothing else to write.
_NOTE_MS = 60_000

_SENTENCES = {
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
class Carried:
    """What became of plans: a result for each offset, and the groups that are left alone from now on."""

    results: list[GroupResult]
    newly_skipped: list[tuple[str, GroupReason]]


def sentence(reason: GroupReason) -> str:
    """Return what a reason means, for people."""
    return _SENTENCES[reason]


def carry_out(
    destination: Destination,
    here: ClusterGroups,
    mirror: str,
    plans: Sequence[GroupPlan],
    allowed: Callable[[State], MirroredTopics],
    refused: dict[str, GroupReason],
    *,
    may_note: bool = True,
) -> Carried:
    """Write down what plans set, and set it.

    `allowed` says which topics may be touched, as they stand when it is written down. `refused` holds why brokers
    refused groups the last time, and is kept up to date. With `may_note` it is written down about once a minute that
    all groups were looked at.

    Raises:
        KmirrorError: what `ops.context.change` does, and nothing was set; or the destination falls silent.
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
                continue  # somebody else is at work on it
            kept = restricted(plan, topics)
            decided.append(kept)
            record = recorded(kept, mirror, at, refused.get(plan.group))
            if record is None or record == plan.record:
                continue
            records.append(record)
            if record.skipped is not None and (plan.record is None or plan.record.skipped is not record.skipped):
                skipped.append((record.destination_group, record.skipped))
        if may_note:
            records.append(GroupsRecord(mirror, at, len(plans)))
        return Changes(tuple(records))

    results: list[GroupResult] = []
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        noted = destination.state().groups_checked(mirror)
        is_due = may_note and (noted is None or now_ms() - noted.time_ms >= _NOTE_MS)
        if not is_due and not any(_is_news(plan, refused.get(plan.group)) for plan in plans):
            return Carried([], [])
        change(destination, mirror, decide)
        for plan in decided:
            if plan.changes:
                results += _set(here, plan, refused, _COMMIT_S - (boottime() - decided_at))
    return Carried(results, skipped)


def _is_news(plan: GroupPlan, refused: GroupReason | None) -> bool:
    before = plan.record.skipped if plan.record else None
    return bool(plan.changes) or (plan.skipped or refused if plan.changes else plan.skipped) is not before


def _set(here: ClusterGroups, plan: GroupPlan, refused: dict[str, GroupReason], seconds: float) -> list[GroupResult]:
    """Set a group's offsets, unless it is too late."""
    wanted: dict[TopicPartition, Committed] = {row.place: row.target for row in plan.changes}
    codes: Mapping[TopicPartition, int] = {}
    if seconds > 0:
        codes = here.commit(plan.destination_group, plan.kind, wanted, seconds)
    refused.pop(plan.group, None)
    results = []
    for row in plan.changes:
        code = codes.get(row.place)
        reason = None if code == 0 else GroupReason.UNKNOWN_NOW if code is None else reason_of(code)
        if reason in LASTING_REASONS:
            refused[plan.group] = reason
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.DONE if reason is None else Outcome.TIMED_OUT
        results.append(
            GroupResult(plan.destination_group, *row.place, row.destination_offset, row.target.offset, outcome, reason)
        )
    return results
