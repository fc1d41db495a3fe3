"""Commit group offsets on the destination, as planned.

The offsets are recorded first, under the mirror's lock, where the topics are checked once more: nothing is committed
for a topic that an operator has stopped. Commits that are not sent within seconds after that are dropped. If brokers
refuse an offset because of a limit, the limit is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import OFFSETS_TOPIC, TOO_LARGE, ClusterGroups
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.group_offsets import Committed
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups.group_facts import reason_of
from kmirror.state.group_records import LASTING_REASONS, MOST_UNREADABLE, GroupReason, GroupRecord, GroupsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import boottime
from kmirror.sync.group_changes import WITH_DETAIL, GroupPlan, MirroredTopics, metadata_length, recorded, restricted
from kmirror.words import visible

#: No offset is committed later than this after the topics were checked.
_COMMIT_S = 5.0
#: How often to store that all groups were checked, if nothing else is stored.
_NOTE_MS = 60_000

#: The codes for which an offset is committed without its metadata, which may be what is too large.
_METADATA_REFUSED = TOO_LARGE | {Code.OFFSET_METADATA_TOO_LARGE}

_TEXTS = {
    GroupReason.HAS_MEMBERS: "the group has members on the destination",
    GroupReason.COMMITTED_HERE: "another client committed an offset on the destination; `kafka-consumer-groups "
    "--delete-offsets` there lets kmirror sync it",
    GroupReason.OTHER_TYPE: "the destination has a group of that name with another type",
    GroupReason.NOT_AUTHORIZED: "missing right: READ on the group and its topics on the destination",
    GroupReason.SHARE_GROUPS_UNSUPPORTED: "the destination's brokers do not support share groups",
    GroupReason.REFUSED: "the destination's brokers refuse it",
    GroupReason.METADATA_REFUSED: "its offsets are committed without their commit metadata, which the destination's "
    "brokers refuse",
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
    newly_skipped: list[GroupRecord]


@dataclass(slots=True)
class Refusals:
    """What the destination's brokers have refused, as one job or command has learned: by source group."""

    reasons: dict[str, GroupReason] = field(default_factory=dict)
    #: The limit, with name and value, or the error.
    details: dict[str, str] = field(default_factory=dict)
    #: Longer commit metadata is refused; None if none was.
    longest_metadata: int | None = None

    def note(self, group: str, reason: GroupReason, detail: str) -> None:
        """Note why brokers refused the last commit of a group."""
        self.reasons[group], self.details[group] = reason, detail

    def forget(self, group: str) -> None:
        """Forget a group: its next commit is on its way."""
        self.reasons.pop(group, None)

    def text(self, group: str, reason: GroupReason | None) -> str | None:
        """Return what a reason means for a group, with the limit."""
        if reason is None:
            return None
        is_known = reason in WITH_DETAIL and self.reasons.get(group) is reason
        return reason_text(reason, self.details.get(group) if is_known else None)

    def is_lasting(self, group: str) -> bool:
        """Return whether the group's offsets were refused, not only their metadata."""
        return self.reasons.get(group) in LASTING_REASONS


def reason_text(reason: GroupReason, detail: str | None = None) -> str:
    """Return what a reason means, for people."""
    return f"{_TEXTS[reason]}: {detail}" if detail else _TEXTS[reason]


def carry_out(
    destination: Destination,
    here: ClusterGroups,
    mirror: str,
    plans: Sequence[GroupPlan],
    allowed: Callable[[State], MirroredTopics],
    refusals: Refusals,
    *,
    may_note: bool = True,
    noted: GroupsRecord | None = None,
    unreadable: Collection[str] = (),
) -> CommitResult:
    """Record the offsets of plans, and commit them.

    `allowed` returns the topics that may be changed in a state. `refusals` is updated. With `may_note` it is stored
    about once a minute that all groups were checked, but for those that are `unreadable` at the source; `noted` is what
    is stored of that.

    Raises:
        KmirrorError: as `ops.base.context.change`, and nothing was committed; or the destination stopped answering.
    """
    unread = tuple(sorted(unreadable)[:MOST_UNREADABLE])
    decided: list[GroupPlan] = []
    skipped: list[GroupRecord] = []
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
            record = recorded(kept, mirror, at, refusals.reasons.get(plan.group), refusals.details.get(plan.group))
            if record is None or record == plan.record:
                continue
            records.append(record)
            if record.skipped is not None and (plan.record is None or plan.record.skipped is not record.skipped):
                skipped.append(record)
        if may_note:
            records.append(GroupsRecord(mirror, at, sum(plan.knows_source for plan in plans), unread))
        return Changes(tuple(records))

    results: list[GroupResult] = []
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        is_due = may_note and (noted is None or noted.unreadable != unread or now_ms() - noted.time_ms >= _NOTE_MS)
        if not is_due and not any(_is_news(plan, refusals.reasons.get(plan.group)) for plan in plans):
            return CommitResult([], [])
        change(destination, mirror, decide)
        for plan in decided:
            if plan.changes:
                results += _set(here, plan, refusals, _COMMIT_S - (boottime() - decided_at))
    return CommitResult(results, skipped)


def _is_news(plan: GroupPlan, refused: GroupReason | None) -> bool:
    before = plan.record.skipped if plan.record else None
    return bool(plan.changes or plan.returned) or plan.skipped_with(refused) is not before


def _set(here: ClusterGroups, plan: GroupPlan, refusals: Refusals, seconds: float) -> list[GroupResult]:
    """Commit a group's offsets, unless it is too late; without their metadata where the brokers refuse it."""
    wanted: dict[TopicPartition, Committed] = {row.topic_partition: row.target for row in plan.changes}
    codes: dict[TopicPartition, int] = {}
    if seconds > 0:
        deadline = boottime() + seconds
        codes = here.commit(plan.destination_group, plan.kind, wanted, seconds)
        refused = {at: codes[at] for at in codes if codes[at] in _METADATA_REFUSED and wanted[at].metadata}
        if refused and (left := deadline - boottime()) > 0:
            bare = {at: Committed(wanted[at].offset) for at in refused}
            codes |= here.commit(plan.destination_group, plan.kind, bare, left)
            done = {at: code for at, code in refused.items() if codes[at] == 0}
            if done:
                shortest = min(metadata_length(wanted[at].metadata) for at in done)
                refusals.longest_metadata = shortest - 1
                refusals.note(plan.group, GroupReason.METADATA_REFUSED, metadata_limit(here.client, set(done.values())))
            else:
                refused = {}
    else:
        refused = {}
    if not refused:
        refusals.forget(plan.group)
    results = []
    for row in plan.changes:
        code = codes.get(row.topic_partition)
        reason = None if code == 0 else GroupReason.UNKNOWN_NOW if code is None else reason_of(code)
        if code and reason in LASTING_REASONS:
            refusals.note(plan.group, reason, limit_text(here.client, code))
            outcome = Outcome.REFUSED
        else:
            outcome = Outcome.DONE if reason is None else Outcome.TIMED_OUT
            if reason is None and (row.is_bare or row.topic_partition in refused):
                reason = GroupReason.METADATA_REFUSED
        results.append(
            GroupResult(
                plan.destination_group,
                *row.topic_partition,
                row.destination_offset,
                row.target.offset,
                outcome,
                reason,
                refusals.text(plan.group, reason),
            )
        )
    return results


def refused_sentences(rows: Iterable[GroupResult]) -> list[str]:
    """Return a sentence for each group whose offsets, or their metadata, the destination does not take."""
    found: dict[str, GroupResult] = {}
    for row in rows:
        if row.result is Outcome.REFUSED or row.reason is GroupReason.METADATA_REFUSED:
            before = found.setdefault(row.group, row)
            if before.result is not Outcome.REFUSED:
                found[row.group] = row
    return [_refused_sentence(row) for _, row in sorted(found.items())]


def _refused_sentence(row: GroupResult) -> str:
    group = visible(row.group)
    if row.result is not Outcome.REFUSED:
        return f"group {group}: {row.message}"
    here = "has no offset" if row.from_offset is None else f"stays at offset {row.from_offset}"
    where = f"in {TopicPartition(row.topic, row.partition)}"
    return f"group {group} {here} {where} on the destination, instead of {row.to_offset}: {row.message}"


_METADATA_LIMIT = "offset.metadata.max.bytes"
_BATCH_LIMIT = "max.message.bytes"
_UNREADABLE = "its value is unknown without DESCRIBE_CONFIGS"


def metadata_limit(client: ClusterClient, codes: Collection[int]) -> str:
    """Return which limit commit metadata exceeds, with its value if that can be read."""
    if Code.OFFSET_METADATA_TOO_LARGE not in codes:
        return _batch_limit(client)
    values: list[int] = []
    with suppress(KmirrorError, OutcomeUnknown):
        found = client.broker_configs(client.metadata([]).brokers, [_METADATA_LIMIT])
        values = [int(own[_METADATA_LIMIT]) for own in found.values() if _METADATA_LIMIT in own]
    return f"{_METADATA_LIMIT}={min(values)}" if values else f"{_METADATA_LIMIT} ({_UNREADABLE})"


def limit_text(client: ClusterClient, code: int) -> str:
    """Return what brokers said when they refused an offset, and the limit if it is one."""
    text = f"{code_name(code)} (error {code})"
    return f"{text}; {_batch_limit(client)}" if code in TOO_LARGE else text


def _batch_limit(client: ClusterClient) -> str:
    known = f"{_BATCH_LIMIT} ({_UNREADABLE})"
    with suppress(KmirrorError, OutcomeUnknown):
        found = topic_settings(client, [OFFSETS_TOPIC], [_BATCH_LIMIT])[OFFSETS_TOPIC]
        if not isinstance(found, int) and _BATCH_LIMIT in found:
            known = f"{_BATCH_LIMIT}={found[_BATCH_LIMIT].value}"
    return f"{known} of topic {OFFSETS_TOPIC}"
