"""Commit group offsets on the destination, as planned.

The offsets are recorded first, under the mirror's lock, where the topics are checked once more: nothing is committed
for a topic that an operator has stopped, nor of a plan for partitions of which other offsets were recorded meanwhile;
such a plan has timed out. For commits that are not sent within seconds after that, this is done again;
the groups that have waited longest come first, and what is left undone is recorded as it was before. If brokers refuse
an offset because of a limit, the limit is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import OFFSETS_TOPIC, TOO_LARGE, ClusterGroups
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups.group_facts import reason_of
from kmirror.state.group_records import LASTING_REASONS, MOST_UNREADABLE, GroupReason, GroupRecord, GroupsRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import boottime
from kmirror.sync.group_changes import (
    WITH_DETAIL,
    GroupPlan,
    MirroredTopics,
    is_overtaken,
    metadata_length,
    recorded,
    restricted,
)
from kmirror.words import visible

#: No offset is committed later than this after the topics were checked.
_COMMIT_S = 5.0
#: How long what was read of the destination's groups is good enough to follow the source: others may commit there.
FRESH_S = 10.0
#: How many groups are recorded at once.
_AT_ONCE = 500
_UNCONFIRMED = "no broker has confirmed its offset in time"
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
    """The results of plans, one per offset, the groups that are skipped from now on, and the groups still to be done.

    `undone` are groups of the source whose new offsets were not committed in time.
    """

    results: list[GroupResult] = field(default_factory=list)
    newly_skipped: list[GroupRecord] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)


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
    seconds: float = math.inf,
) -> CommitResult:
    """Record the offsets of plans, and commit them, as long as that proceeds and for about so many seconds.

    `allowed` returns the topics that may be changed in a state. `refusals` is updated. With `may_note` it is stored
    about once a minute that all groups were checked, but for those that are `unreadable` at the source or were left
    undone; `noted` is what is stored of that.

    Raises:
        KmirrorError: as `ops.base.context.change`; or the destination stopped answering.
    """
    work = _Work(destination, here, mirror, allowed, refusals)
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        is_due = may_note and not is_still_true(noted, unreadable)
        if not is_due and not any(_is_news(plan, refusals.reasons.get(plan.group)) for plan in plans):
            return CommitResult()
        work.carry_out(plans, seconds)
        work.finish(plans if may_note else None, noted, unreadable)
    return CommitResult([row for rows in work.rows.values() for row in rows], work.skipped, work.undone)


def _unread(groups: Collection[str]) -> tuple[tuple[str, ...], int]:
    return tuple(sorted(groups)[:MOST_UNREADABLE]), len(groups)


def is_still_true(noted: GroupsRecord | None, unreadable: Collection[str]) -> bool:
    """Return whether what is stored of the last check is recent, and as many groups are unreadable now."""
    if noted is None or now_ms() - noted.time_ms >= _NOTE_MS:
        return False
    return (noted.unreadable, max(noted.unreadable_count, len(noted.unreadable))) == _unread(unreadable)


def _is_news(plan: GroupPlan, refused: GroupReason | None) -> bool:
    before = plan.record.skipped if plan.record else None
    return bool(plan.changes or plan.returned) or plan.skipped_with(refused) is not before


def _order(plan: GroupPlan) -> tuple[bool, int]:
    """Sort what is new before what is committed again, and by how long it has waited."""
    return all(row.again for row in plan.changes), plan.record.time_ms if plan.record else 0


class _Work:
    """Plans that are carried out, so many at a time."""

    def __init__(
        self,
        destination: Destination,
        here: ClusterGroups,
        mirror: str,
        allowed: Callable[[State], MirroredTopics],
        refusals: Refusals,
    ) -> None:
        self._destination, self._here, self._mirror = destination, here, mirror
        self._allowed, self._refusals = allowed, refusals
        #: The results by group of the source.
        self.rows: dict[str, list[GroupResult]] = {}
        self.skipped: list[GroupRecord] = []
        self.undone: list[str] = []
        #: What was stored for a group, before and now; without those whose offsets may have been committed.
        self._stored: dict[str, tuple[GroupRecord | None, GroupRecord]] = {}

    def carry_out(self, plans: Iterable[GroupPlan], seconds: float) -> None:
        """Carry them out, those that wait longest first, until no coordinator commits any or the time is over."""
        until, in_vain = boottime() + seconds, 0
        todo = sorted((plan for plan in plans if plan.changes), key=_order)
        some = [plan for plan in plans if not plan.changes]
        while True:
            some, todo = some + todo[:_AT_ONCE], todo[_AT_ONCE:]
            decided, decided_at = self._record(some)
            asked = [plan for plan in decided if plan.changes]
            left = self._commit(asked, decided_at + _COMMIT_S)
            in_vain = in_vain + len(left) if len(left) == len(asked) else 0
            todo, some = todo + left, []
            if len(todo) <= in_vain or boottime() > until:
                break
        for plan in todo:
            self.rows.setdefault(plan.group, self._results(plan, {}, {}))
        self.undone += [plan.group for plan in todo if not all(row.again for row in plan.changes)]

    def _record(self, plans: Iterable[GroupPlan]) -> tuple[list[GroupPlan], float]:
        """Record the offsets of plans; return what may be committed, and since when that is known."""
        decided: list[GroupPlan] = []
        overtaken: list[GroupPlan] = []
        skipped: list[GroupRecord] = []
        #: What was stored for a group, and what is now.
        records: list[tuple[GroupRecord | None, GroupRecord]] = []
        decided_at = 0.0

        def decide(state: State) -> Changes:
            nonlocal decided_at
            decided_at = boottime()
            for found in (decided, overtaken, skipped, records):
                found.clear()
            if state.mirror(self._mirror) is None:
                return Changes()
            topics, refusals = self._allowed(state), self._refusals
            for plan in plans:
                before = state.group(self._mirror, plan.group)
                kept = restricted(plan, topics)
                if is_overtaken(kept, before):
                    overtaken.append(kept)
                    continue
                refused = refusals.reasons.get(plan.group), refusals.details.get(plan.group)
                kept = replace(kept, record=before)
                record = recorded(kept, self._mirror, now_ms(), *refused)
                decided.append(replace(kept, record=record))
                if record is None or record == before:
                    continue
                records.append((before, record))
                if record.skipped is not None and (before is None or before.skipped is not record.skipped):
                    skipped.append(record)
            return Changes(tuple(record for _, record in records))

        change(self._destination, self._mirror, decide)
        for before, record in records:
            self._stored.setdefault(record.group, (before, record))
        self.rows |= {plan.group: self._results(plan, {}, {}) for plan in overtaken}
        self.undone += [plan.group for plan in overtaken]
        self.skipped += skipped
        return decided, decided_at

    def _commit(self, plans: Sequence[GroupPlan], until: float) -> list[GroupPlan]:
        """Commit offsets, without their metadata where the brokers refuse it; return the plans that are still to do."""
        found: Mapping[str, Mapping[TopicPartition, int]] = {}
        bare: Mapping[str, Mapping[TopicPartition, int]] = {}
        wanted = {plan.destination_group: (plan.kind, _targets(plan)) for plan in plans}
        if wanted and (seconds := until - boottime()) > 0:
            found = self._here.commit_all(wanted, seconds)
            refused: dict[str, tuple[GroupKind, dict[TopicPartition, Committed]]] = {}
            for group, answer in found.items():
                kind, offsets = wanted[group]
                some = {at: Committed(offsets[at].offset) for at, code in answer.items() if _refuses(offsets[at], code)}
                if some:
                    refused[group] = kind, some
            if refused and (seconds := until - boottime()) > 0:
                bare = self._here.commit_all(refused, seconds)
            # brokers answer this to much else, too: it is the metadata if it is refused while the offset is taken
            unclear = {
                group: wanted[group]
                for group, answer in bare.items()
                if any(found[group][at] == Code.UNKNOWN_SERVER_ERROR for at, code in answer.items() if not code)
            }
            if unclear and (seconds := until - boottime()) > 0:
                found = {**found, **self._here.commit_all(unclear, seconds)}
        left = []
        for plan in plans:
            codes = found.get(plan.destination_group, {})
            rows = self.rows[plan.group] = self._results(plan, codes, bare.get(plan.destination_group, {}))
            if codes:
                self._stored.pop(plan.group, None)
            if any(row.result is Outcome.TIMED_OUT for row in rows):
                left.append(plan)
        return left

    def _results(
        self, plan: GroupPlan, codes: Mapping[TopicPartition, int], bare: Mapping[TopicPartition, int]
    ) -> list[GroupResult]:
        """Return a row for each offset, from the codes of its commit, and of the one without metadata."""
        client, refusals, targets = self._here.client, self._refusals, _targets(plan)
        refused = {at: code for at, code in codes.items() if _refuses(targets[at], code)}
        codes, done = {**codes, **bare}, {at: code for at, code in refused.items() if bare.get(at) == 0}
        if done:
            refusals.longest_metadata = min(metadata_length(targets[at].metadata) for at in done) - 1
            refusals.note(plan.group, GroupReason.METADATA_REFUSED, metadata_limit(client, set(done.values())))
        elif codes and (bare or not refused):
            refusals.forget(plan.group)
        results = []
        for row in plan.changes:
            code = codes.get(row.topic_partition)
            reason = None if code == 0 else GroupReason.UNKNOWN_NOW if code is None else reason_of(code)
            if code and reason in LASTING_REASONS:
                refusals.note(plan.group, reason, limit_text(client, code))
                outcome = Outcome.REFUSED
            else:
                outcome = Outcome.DONE if reason is None else Outcome.TIMED_OUT
                if reason is None and (row.is_bare or row.topic_partition in done):
                    reason = GroupReason.METADATA_REFUSED
            text = _UNCONFIRMED if outcome is Outcome.TIMED_OUT else refusals.text(plan.group, reason)
            offsets = row.destination_offset, row.target.offset
            results.append(GroupResult(plan.destination_group, *row.topic_partition, *offsets, outcome, reason, text))
        return results

    def finish(
        self, plans: Sequence[GroupPlan] | None, noted: GroupsRecord | None, unreadable: Collection[str]
    ) -> None:
        """Record undone groups as before, and that these plans were all; None if that is not known."""
        unread = {*unreadable, *self.undone}
        is_due = plans is not None and not is_still_true(noted, unread)
        back = [self._stored[group] for group in self.undone if group in self._stored]

        def decide(state: State) -> Changes:
            if state.mirror(self._mirror) is None:
                return Changes()
            same = [(old, new) for old, new in back if state.group(self._mirror, new.group) == new]
            records: list[GroupRecord | GroupsRecord] = [old for old, _ in same if old is not None]
            if plans is not None and is_due:
                count = sum(one.knows_source for one in plans)
                records.append(GroupsRecord(self._mirror, now_ms(), count, *_unread(unread)))
            return Changes(tuple(records), tuple(new.key for old, new in same if old is None))

        if back or is_due:
            change(self._destination, self._mirror, decide)


def _targets(plan: GroupPlan) -> dict[TopicPartition, Committed]:
    return {row.topic_partition: row.target for row in plan.changes}


def _refuses(committed: Committed, code: int | None) -> bool:
    return bool(committed.metadata) and code in _METADATA_REFUSED


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
