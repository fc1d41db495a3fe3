"""The steps of `add`, after the plan. If it is killed anywhere, the same command finishes what it left.

1. *Claim* every topic: write a record that says an `add` is in progress, under one lock for all mirrors, so that no two
   of them take the same topic. Engines ignore claimed topics. The claim stores where copying begins.
2. Create destination topics, or change the settings of existing ones.
3. Complete the records, with both topic ids, together with the mirror's filters and the event; release the claims of
   topics that the brokers refused. Partition records are written before their topic's, so that an engine that reads
   the topic has read its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.rights.authorized import missing_rights
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.topics.policies import refuses_settings
from kmirror.commands import option
from kmirror.errors import BrokerError, KmirrorError, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.ops.add.add_plan import Action, TopicPlan, require_unchanged
from kmirror.ops.add.add_work import AddWork
from kmirror.ops.add.settle import settle_new
from kmirror.ops.add.topic_admin import TopicAdmin, await_topics
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms, own_event, require_mirror
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.groups.restore import former_groups
from kmirror.ops.rights.acl_sync import protect_claimed
from kmirror.ops.rights.lift import lift_rights
from kmirror.ops.rights.protection import settle
from kmirror.settings.parsing import stored_settings
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    PENDING_ADD,
    DesiredState,
    Key,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror.status.in_charge import FIRST_TERM
from kmirror.sync.setting_changes import MIRROR_VALUES, settings_made
from kmirror.words import counted, listed

#: The lock for claims of all mirrors; no mirror can have this name.
_CLAIMS = "*"
_NEEDED_AT_DESTINATION = ("READ", "WRITE")
#: How long new topics may take to get their leaders.
_CREATION_S = 30.0
_CREATION_S_A_TOPIC = 0.1
#: How long to wait for open transactions in adopted topics.
_TRANSACTIONS_S = 5.0
_MOST_TOPICS_IN_EVENT = 100
_MOST_OFFSETS_SHOWN = 20
#: What brokers have by default of the settings that are always synced.
_DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.compaction.lag.ms": "0",
}
_ANY_HINT = "fix that, or create the topic yourself and use --adopt"
#: What to do where no one can create the topic.
_HINTS: Mapping[int, str] = {
    Code.INVALID_TOPIC_EXCEPTION: "delete the topic that has such a name, or mirror this one with a topic.prefix",
    Code.TOPIC_ALREADY_EXISTS: "another client has just created it: run the same command again",
}
_FINISH_HINT = "run the same command again to finish"


def rows_of_plan(work: AddWork) -> list[TopicResult]:
    """Return the results that a dry run shows."""
    planned = [TopicResult(p.topic, None, Outcome.DONE, _text(p, work, done=False)) for p in work.plans.values()]
    return [*work.results, *planned, *_filter_rows(work, "would change the filters")]


def carry_out(destination: Destination, work: AddWork) -> list[TopicResult]:
    """Carry out the plan; return the results.

    Raises:
        RefusedError: another operation changed the mirror or one of the topics meanwhile; nothing was added.
        UnreachableError: the destination stopped answering; the same command continues from there.
    """
    if not work.plans and not work.changes_filters:
        return [*work.results, *_filter_rows(work, "")]
    claimed = dict(work.plans)
    _claim(destination, work)
    _protect(destination, work)
    unknown = _create_topics(destination, work)
    patience = _CREATION_S + _CREATION_S_A_TOPIC * len(work.plans)
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        made = await_topics(destination.client, list(work.plans), Deadline(patience))
        lacking = missing_rights(destination.client, list(work.plans), _NEEDED_AT_DESTINATION)
    for plan in list(work.plans.values()):
        found = made.topics.get(plan.topic)
        if found is None or found.error_code or len(found.partitions) != plan.partitions:
            unknown.add(plan.topic)
            late = RefusedError(f"topic {plan.topic} does not exist {patience:g} s after its creation", _FINISH_HINT)
            work.refuse(plan.topic, late, Outcome.TIMED_OUT)
    rows = [*work.results, *(_done(plan, work, lacking, destination.config) for plan in work.plans.values())]
    rows += _filter_rows(work, "changed the filters")
    unwanted = _complete(destination, work, claimed, unknown, made, rows)
    released = (claimed.keys() - work.plans.keys() - unknown) | unwanted
    if released:
        lift_rights(destination, work.mirror.name, released)
    return [_unwanted(row) if row.topic in unwanted else row for row in rows]


def _protect(destination: Destination, work: AddWork) -> None:
    """Deny others write access to the topics where that is possible, and warn of open transactions."""
    work.warnings += protect_claimed(destination, work.mirror.name, work.settings, list(work.plans))
    adopted = [
        TopicPartition(plan.topic, partition)
        for plan in work.plans.values()
        if plan.action is Action.ADOPT
        for partition in range(plan.partitions)
    ]
    if adopted:
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            still_open = settle(destination, adopted, _TRANSACTIONS_S)
        for topic_partition, producers in sorted(still_open.items(), key=lambda one: one[0]):
            if producers is None:
                work.warnings.append(
                    f"whether a transaction is open in {topic_partition} is unknown: if one writes more, the partition "
                    "FAILS with DESTINATION_WRITTEN"
                )
                continue
            ids = ", ".join(str(producer.producer_id) for producer in producers)
            work.warnings.append(
                f"a transaction of producer id {ids} is open in {topic_partition}: if it writes more, the partition "
                "FAILS with DESTINATION_WRITTEN"
            )


def refusal_of(error: KmirrorError, operation: str, topic: str) -> KmirrorError:
    """Return the error to show for a broker's refusal of an operation on a topic."""
    if error.reason is Reason.NOT_AUTHORIZED:
        return UnreachableError(
            f"the destination does not grant us {operation} on topic {topic}",
            error.hint,
            Reason.NOT_AUTHORIZED,
        )
    if isinstance(error, BrokerError) and error.code == Code.THROTTLING_QUOTA_EXCEEDED:
        return TimedOutError(error.message, "try again later, or ask for a larger quota on the destination")
    if isinstance(error, BrokerError):
        return RefusedError(error.message, _HINTS.get(error.code, _ANY_HINT))
    return error


def _text(plan: TopicPlan, work: AddWork, *, done: bool) -> str:
    many = counted(plan.partitions, "partition")
    infinitive, past, shown = {
        Action.CREATE: (f"create with {many}", f"created with {many}", {**plan.settings.now, **work.overrides}),
        Action.FINISH: ("finish what was started", "finished what was started", work.changes.get(plan.topic, {})),
        Action.ADOPT: ("adopt", "adopted", work.changes.get(plan.topic, {})),
    }[plan.action]
    settings = _settings_text(shown)
    what = f"{past if done else f'would {infinitive}'}, to mirror {plan.source_topic}"
    if begins := _beginnings(plan):
        what = f"{what}; {begins}"
    # settings are for a dry run only
    return f"{what}; {settings}" if settings and not done else what


def _settings_text(settings: Mapping[str, str]) -> str:
    """Return the settings that say something about a topic; those that mirrors or brokers have anyway are counted."""
    usual = {**_DEFAULTS, **MIRROR_VALUES}
    shown = [f"{key}={value}" for key, value in sorted(settings.items()) if usual.get(key) != value]
    rest = len(settings) - len(shown)
    counts = [f"{counted(rest, 'setting')} as every mirror topic has"] if rest else []
    return ", ".join([*shown, *counts])


def _beginnings(plan: TopicPlan) -> str:
    offsets = [f"{offset} (partition {index})" for index, offset in sorted(plan.first_offsets.items())]
    shown = listed(offsets, _MOST_OFFSETS_SHOWN)
    if plan.is_start_fixed:
        return f"begins at {f'offset {shown}' if offsets else 'the start of its source'}, as fixed when it was begun"
    return f"begins at offset {shown}" if offsets else ""


def _filter_rows(work: AddWork, what: str) -> list[TopicResult]:
    if work.changes_filters:
        return [TopicResult(None, None, Outcome.DONE, f"{what}: {work.filters}")]
    if not work.plans and not work.results:
        return [TopicResult(None, None, Outcome.NOOP, "nothing to add: the filters already contain these patterns")]
    return []


def _done(plan: TopicPlan, work: AddWork, lacking: Mapping[str, list[str]], login: ClientConfig) -> TopicResult:
    text = _text(plan, work, done=True)
    if plan.topic not in lacking:
        return TopicResult(plan.topic, None, Outcome.DONE, text)
    missing = " and ".join(lacking[plan.topic])
    grant = grant_line(login, lacking[plan.topic], *option("--topic", plan.topic))
    return TopicResult(
        plan.topic,
        None,
        Outcome.FAILED,
        f"{text}; but the destination does not grant us {missing} on topic {plan.topic}",
        Reason.NOT_AUTHORIZED,
        hint=f"the engine retries automatically once this is granted:\n{grant}",
    )


def _claim(destination: Destination, work: AddWork) -> None:
    def decide(state: State) -> Changes:
        present = require_mirror(state, work.mirror.name)
        if gone := _not_chosen(present, work):
            raise RefusedError(
                f"the filters of mirror {present.name} no longer include {min(gone)}",
                "check them with `kmirror config`",
                Reason.FENCED,
            )
        for plan in work.plans.values():
            require_unchanged(state, plan, work.mirror.name)
        return Changes(tuple(_claim_of(plan, work.mirror) for plan in work.plans.values()))

    if work.plans:
        change(destination, _CLAIMS, decide)


def _not_chosen(mirror: MirrorRecord, work: AddWork) -> frozenset[str]:
    """Return the topics that discovery planned but the filters no longer include."""
    if not work.discovers:
        return frozenset()
    settings = stored_settings(mirror.settings)
    is_over = mirror.discovery_ended or not settings.discovers
    return frozenset(p.topic for p in work.plans.values() if is_over or not settings.selects(p.source_topic))


def _unwanted(row: TopicResult) -> TopicResult:
    message = f"topic {row.topic} was created, but the mirror's filters no longer include it: it is an ordinary topic"
    return replace(row, result=Outcome.REFUSED, message=message)


def _create(client: ClusterClient, admin: TopicAdmin, work: AddWork) -> dict[str, KmirrorError | None]:
    """Create the new topics, if need be with the closest settings that are accepted."""
    outcomes = admin.create(work.new_topics(), quota_wait_s=work.quota_wait_s)
    refused = {topic: error for topic, error in outcomes.items() if error is not None and refuses_settings(error)}
    left = settle_new(client, work, refused)
    again = [topic for topic in work.new_topics() if topic.name in refused and topic.name not in left]
    return outcomes | left | (admin.create(again, quota_wait_s=work.quota_wait_s) if again else {})


def _create_topics(destination: Destination, work: AddWork) -> set[str]:
    """Create topics and change settings; return the topics for which the outcome is unknown."""
    admin = TopicAdmin(destination)
    new = work.new_topics()
    unknown: set[str] = set()
    for operation, outcomes in (
        ("CREATE", _create(destination.client, admin, work) if new else {}),
        ("ALTER_CONFIGS", admin.set_settings(work.changes) if work.changes else {}),
    ):
        for topic, error in outcomes.items():
            if error is None:
                continue
            # it did not exist a moment ago: another client's, or ours if the first answer was lost
            appeared = isinstance(error, BrokerError) and error.code == Code.TOPIC_ALREADY_EXISTS
            unanswered = isinstance(error, UnreachableError) and error.reason is not Reason.NOT_AUTHORIZED
            if appeared or unanswered:
                unknown.add(topic)
                work.refuse(topic, KmirrorError(error.message, _FINISH_HINT, error.reason), Outcome.FAILED)
            else:
                work.refuse(topic, refusal_of(error, operation, topic))
    return unknown


def _complete(
    destination: Destination,
    work: AddWork,
    claimed: Mapping[str, TopicPlan],
    unknown: set[str],
    made: ClusterMetadata,
    rows: list[TopicResult],
) -> frozenset[str]:
    """Complete the records of created topics and release the other claims, except unknown ones, in one transaction.

    Returns the topics that were released because the filters no longer include them.
    """
    mirror = work.mirror.name
    unwanted: frozenset[str] = frozenset()

    def decide(state: State) -> Changes:
        nonlocal unwanted
        present = require_mirror(state, mirror)
        unwanted = _not_chosen(present, work)
        records: list[Record] = []
        tombstones: list[Key] = []
        for topic, plan in claimed.items():
            claim = _claim_of(plan, work.mirror)
            if state.topic(mirror, topic) != claim:
                raise RefusedError(
                    f"another operation changed the stored state of {topic} meanwhile",
                    "check with `kmirror describe` and try again",
                    Reason.FENCED,
                )
            if topic in work.plans and topic not in unwanted:
                topic_id = made.topics[topic].printed_topic_id
                partitions, forgotten = _partition_records(state, plan, mirror, topic_id)
                records += partitions
                tombstones += forgotten
                complete = replace(claim, pending_operation=None, destination_topic_id=topic_id, first_offsets=None)
                made_of = work.made.get(topic, settings_made(plan.settings))
                made_of = {key: value for key, value in made_of.items() if key not in work.overrides}
                settled = dict(plan.settings.settled) or None
                records.append(replace(complete, settings=made_of, settled=settled, added_at_ms=now_ms()))
            elif topic not in unknown and plan.former is None:
                tombstones.append(claim.key)
            elif topic not in unknown and plan.former is not None:
                records.append(plan.former)
        records += former_groups(state, mirror, work.plans.keys() - unwanted)
        if work.changes_filters:
            filters = work.filters.apply(stored_settings(present.settings))
            records.append(replace(present, settings=_with_filters(present.settings, filters)))
        names = sorted({*work.plans} - unwanted)
        details = {"topics": names[:_MOST_TOPICS_IN_EVENT], "count": len(names), "filters": str(work.filters)}
        what, result = ("discovery", "ADDED") if work.discovers else ("add", exit_code_of(rows).name)
        event = own_event(mirror, what, result, details)
        return Changes(tuple(records), tuple(tombstones), () if unwanted and not names else (event,))

    change(destination, mirror, decide)
    return unwanted


def _with_filters(settings: Mapping[str, str], filters: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in settings.items() if key not in filters}
    return kept | {key: value for key, value in filters.items() if value}


def _claim_of(plan: TopicPlan, mirror: MirrorRecord) -> TopicRecord:
    return TopicRecord(
        mirror.name,
        plan.topic,
        source_topic=plan.source_topic,
        source_topic_id=plan.source_topic_id,
        destination_topic_id=None,
        desired=DesiredState.PAUSED if mirror.paused else DesiredState.ACTIVE,
        partitions=plan.partitions,
        origin=TopicOrigin.ADOPTED if plan.action is Action.ADOPT else TopicOrigin.CREATED,
        pending_operation=PENDING_ADD,
        deferred=dict(plan.settings.deferred),
        inherited=plan.settings.inherited,
        first_source_seen_ms=plan.settings.first_source_seen_ms,
        first_offsets=dict(plan.first_offsets) or None,
        upstream_unknown=plan.upstream_unknown,
        term=None if plan.term == FIRST_TERM else plan.term,
        extra=plan.former.extra if plan.former else {},
    )


def _partition_records(
    state: State, plan: TopicPlan, mirror: str, topic_id: str | None
) -> tuple[list[PartitionRecord], list[Key]]:
    """Return the records of the topic's partitions, and the keys of records to delete.

    A topic that was a mirror topic before keeps its guard, since its brokers remember the producer id; otherwise
    nothing is kept. A partition that starts at its source's log start has no record yet.
    """
    found = {partition.partition: partition for partition in state.partitions(mirror, plan.topic)}
    is_same = plan.former is not None and plan.former.destination_topic_id == topic_id
    records = []
    for index in range(plan.partitions):
        before = found.pop(index, None)
        if before is None and index not in plan.first_offsets and index not in plan.begun:
            continue
        new = PartitionRecord(mirror, plan.topic, index, PartitionState.LOG_ALIGNMENT, now_ms())
        first_offset, begun = plan.first_offsets.get(index), index in plan.begun
        new = replace(new, compared_end=plan.compared_ends.get(index))
        if before is not None and is_same:
            new = replace(new, guard=before.guard, extra=before.extra)
            first_offset = before.first_offset if plan.begun and first_offset is None else first_offset
            begun = begun or before.begun
        records.append(replace(new, first_offset=first_offset, begun=begun))
    return records, [partition.key for partition in found.values()]
