"""The steps of `add`, after the plan. Wherever it is killed, the same command finishes what it left.

1. Every topic is *claimed*: a record that says an `add` is under way, written under one lock common to all mirrors, so
   that no two of them take the same topic. Engines leave claimed topics alone. The claim keeps where the copy begins.
2. Destination topics are created, or the settings of existing ones changed.
3. The records are completed, with both topic ids, together with the mirror's filters and the event; what the brokers
   refused is given back. Partitions' records stand before their topic's, so that an engine that meets the one has met
   the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.authorized import missing_rights
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import BrokerError, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.plan import Action, FilterChange, TopicPlan, require_unchanged
from kmirror.ops.add.topic_admin import NewTopic, TopicAdmin, await_topics
from kmirror.ops.context import PENDING_ADD, Destination, actor, change, naming_cluster, now_ms, require_mirror
from kmirror.ops.results import Outcome, TopicResult, exit_code_of
from kmirror.ops.rights.acl_sync import protect_claimed
from kmirror.ops.rights.at_stop import lift_rights
from kmirror.ops.rights.protection import settle
from kmirror.settings.table import Settings, stored_settings
from kmirror.state.client import Deadline
from kmirror.state.events import Event
from kmirror.state.records import (
    DesiredState,
    Key,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    Record,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.sync.topic_settings import settings_made
from kmirror.words import counted

#: The one lock for claims of all mirrors; no mirror can have this name.
_CLAIMS = "*"
_NEEDED_AT_DESTINATION = ("READ", "WRITE")
#: How long new topics may take to get their leaders.
_CREATION_S = 30.0
_CREATION_S_A_TOPIC = 0.1
#: How long transactions that are open in adopted topics are waited for.
_TRANSACTIONS_S = 5.0
_MOST_TOPICS_IN_EVENT = 100
_MOST_OFFSETS_SHOWN = 20
_SETTINGS_NOTE = (
    " (those that would change or refuse what is copied are at values that do nothing until mirroring stops;"
    " max.message.bytes too: the source may hold batches larger than it takes today)"
)
_FINISH_HINT = "run the same command again to finish"


@dataclass(slots=True)
class Work:
    """The plan, and while it is carried out how each topic ended; `plans` and `changes` by destination name."""

    mirror: MirrorRecord
    settings: Settings
    plans: dict[str, TopicPlan]
    results: list[TopicResult]
    filters: FilterChange
    #: Settings to change on topics that exist.
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: By destination name, what counts as set by kmirror on topics that exist.
    made: dict[str, dict[str, str]] = field(default_factory=dict)
    #: True when nobody asked for the topics but the mirror's filters.
    discovers: bool = False
    #: Settings that the operator gives to topics that are created; they stay, as others that are set here do.
    overrides: Mapping[str, str] = field(default_factory=dict)

    def refuse(self, topic: str, error: KmirrorError, outcome: Outcome = Outcome.REFUSED) -> None:
        """Take a topic out of the plan."""
        del self.plans[topic]
        self.results.append(TopicResult(topic, None, outcome, error.message, error.reason, hint=error.hint))

    def new_topics(self) -> list[NewTopic]:
        """Return the topics to create."""
        new = [plan for plan in self.plans.values() if plan.action is Action.CREATE]
        factor = self.settings.replication_factor
        return [NewTopic(p.topic, p.partitions, factor, {**p.settings.now, **self.overrides}) for p in new]

    @property
    def changes_filters(self) -> bool:
        """Tell whether the filters are to be stored: not when every topic that was meant is refused."""
        refused = any(row.result not in (Outcome.DONE, Outcome.NOOP) for row in self.results)
        return bool(self.filters) and (bool(self.plans) or not refused)


def rows_of_plan(work: Work) -> list[TopicResult]:
    """Return the results a dry run shows."""
    planned = [TopicResult(p.topic, None, Outcome.DONE, _words(p, work, done=False)) for p in work.plans.values()]
    return [*work.results, *planned, *_filter_rows(work, "would change the filters")]


def carry_out(destination: Destination, work: Work) -> list[TopicResult]:
    """Do it; return the results.

    Raises:
        RefusedError: somebody else changed the mirror or one of the topics meanwhile; nothing was added.
        UnreachableError: the destination fell silent; the same command goes on from there.
    """
    if not work.plans and not work.changes_filters:
        return [*work.results, *_filter_rows(work, "")]
    claimed = dict(work.plans)
    _claim(destination, work)
    _protect(destination, work)
    unknown = _make(destination, work)
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
    given_up = _complete(destination, work, claimed, unknown, made, rows)
    given_back = (claimed.keys() - work.plans.keys() - unknown) | given_up
    if given_back:
        lift_rights(destination, work.mirror.name, given_back)
    return [_given_up(row) if row.topic in given_up else row for row in rows]


def _protect(destination: Destination, work: Work) -> None:
    """Keep others from writing to the topics from their beginning, or from now on, where that can be done."""
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
        for place, producers in sorted(still_open.items()):
            ids = ", ".join(str(producer.producer_id) for producer in producers)
            work.warnings.append(
                f"a transaction of producer id {ids} is open in {place}: if it writes on, the partition FAILS with "
                "DESTINATION_WRITTEN"
            )


def refusal_of(error: KmirrorError, operation: str, topic: str) -> KmirrorError:
    """Return a broker's refusal of an operation on a topic as a refusal for people."""
    if error.reason is Reason.NOT_AUTHORIZED:
        return UnreachableError(
            f"the destination does not grant us {operation} on topic {topic}",
            error.hint,
            Reason.NOT_AUTHORIZED,
        )
    if isinstance(error, BrokerError):
        return RefusedError(error.message, "fix that, or create the topic yourself and use --adopt")
    return error


def _words(plan: TopicPlan, work: Work, *, done: bool) -> str:
    many = counted(plan.partitions, "partition")
    infinitive, past, shown = {
        Action.CREATE: (f"create with {many}", f"created with {many}", {**plan.settings.now, **work.overrides}),
        Action.FINISH: ("finish what was started", "finished what was started", work.changes.get(plan.topic, {})),
        Action.ADOPT: ("adopt", "adopted", work.changes.get(plan.topic, {})),
    }[plan.action]
    settings = ", ".join(f"{key}={value}" for key, value in sorted(shown.items()))
    what = f"{past if done else f'would {infinitive}'}, to mirror {plan.source_topic}"
    if begins := _beginnings(plan):
        what = f"{what}; {begins}"
    # Whoever asks what would happen wants to see it all; whoever has done it, that it is done.
    return f"{what}; settings: {settings}{_SETTINGS_NOTE}" if settings and not done else what


def _beginnings(plan: TopicPlan) -> str:
    offsets = [f"{offset} (partition {index})" for index, offset in sorted(plan.first_offsets.items())]
    more = len(offsets) - _MOST_OFFSETS_SHOWN
    shown = ", ".join(offsets[:_MOST_OFFSETS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    if plan.is_start_fixed:
        return f"begins at {f'offset {shown}' if offsets else 'the start of its source'}, as fixed when it was begun"
    return f"begins at offset {shown}" if offsets else ""


def _filter_rows(work: Work, what: str) -> list[TopicResult]:
    if work.changes_filters:
        return [TopicResult(None, None, Outcome.DONE, f"{what}: {work.filters}")]
    if not work.plans and not work.results:
        return [TopicResult(None, None, Outcome.NOOP, "nothing to add: the filters already contain these patterns")]
    return []


def _done(plan: TopicPlan, work: Work, lacking: Mapping[str, list[str]], login: ClientConfig) -> TopicResult:
    said = _words(plan, work, done=True)
    if plan.topic not in lacking:
        return TopicResult(plan.topic, None, Outcome.DONE, said)
    missing = " and ".join(lacking[plan.topic])
    grant = grant_line(login, lacking[plan.topic], f"--topic {plan.topic}")
    return TopicResult(
        plan.topic,
        None,
        Outcome.FAILED,
        f"{said}; but the destination does not grant us {missing} on topic {plan.topic}",
        Reason.NOT_AUTHORIZED,
        hint=f"the engine retries automatically when this is granted:\n{grant}",
    )


def _claim(destination: Destination, work: Work) -> None:
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


def _not_chosen(mirror: MirrorRecord, work: Work) -> frozenset[str]:
    """Return the topics that discovery planned and that are not to be taken any more."""
    if not work.discovers:
        return frozenset()
    settings = stored_settings(mirror.settings)
    is_over = mirror.discovery_ended or not settings.discovers
    return frozenset(p.topic for p in work.plans.values() if is_over or not settings.selects(p.source_topic))


def _given_up(row: TopicResult) -> TopicResult:
    told = f"topic {row.topic} was created, but the mirror's filters no longer include it: it is an ordinary topic"
    return replace(row, result=Outcome.REFUSED, message=told)


def _make(destination: Destination, work: Work) -> set[str]:
    """Create topics and change settings; return those of which nobody knows whether it happened."""
    admin = TopicAdmin(destination.store)
    new = work.new_topics()
    unknown: set[str] = set()
    for operation, outcomes in (
        ("CREATE", admin.create(new) if new else {}),
        ("ALTER_CONFIGS", admin.set_settings(work.changes) if work.changes else {}),
    ):
        for topic, error in outcomes.items():
            if error is None:
                continue
            # it did not exist a moment ago: somebody's, or our own whose first answer was lost
            appeared = isinstance(error, BrokerError) and error.code == Code.TOPIC_ALREADY_EXISTS
            silent = isinstance(error, UnreachableError) and error.reason is not Reason.NOT_AUTHORIZED
            if appeared or silent:
                unknown.add(topic)
                work.refuse(topic, KmirrorError(error.message, _FINISH_HINT, error.reason), Outcome.FAILED)
            else:
                work.refuse(topic, refusal_of(error, operation, topic))
    return unknown


def _complete(
    destination: Destination,
    work: Work,
    claimed: Mapping[str, TopicPlan],
    unknown: set[str],
    made: ClusterMetadata,
    rows: list[TopicResult],
) -> frozenset[str]:
    """Complete the records of what is made and give back what is not, unless that is unknown, in one transaction.

    Returns the topics that were given back because they are not wanted any more.
    """
    mirror = work.mirror.name
    given_up: frozenset[str] = frozenset()

    def decide(state: State) -> Changes:
        nonlocal given_up
        present = require_mirror(state, mirror)
        given_up = _not_chosen(present, work)
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
            if topic in work.plans and topic not in given_up:
                topic_id = made.topics[topic].printed_topic_id
                partitions, forgotten = _partition_records(state, plan, mirror, topic_id)
                records += partitions
                tombstones += forgotten
                complete = replace(claim, pending_operation=None, destination_topic_id=topic_id, first_offsets=None)
                made_of = work.made.get(topic, settings_made(plan.settings))
                made_of = {key: value for key, value in made_of.items() if key not in work.overrides}
                records.append(replace(complete, settings=made_of, added_at_ms=now_ms()))
            elif topic not in unknown and plan.former is None:
                tombstones.append(claim.key)
            elif topic not in unknown and plan.former is not None:
                records.append(plan.former)
        if work.changes_filters:
            filters = work.filters.apply(stored_settings(present.settings))
            records.append(replace(present, settings=_with_filters(present.settings, filters)))
        names = sorted({*work.plans} - given_up)
        details = {"topics": names[:_MOST_TOPICS_IN_EVENT], "count": len(names), "filters": str(work.filters)}
        told = ("discovery", "ADDED") if work.discovers else ("add", exit_code_of(rows).name)
        event = Event(now_ms(), mirror, told[0], actor(), told[1], details)
        return Changes(tuple(records), tuple(tombstones), () if given_up and not names else (event,))

    change(destination, mirror, decide)
    return given_up


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
        extra=plan.former.extra if plan.former else {},
    )


def _partition_records(
    state: State, plan: TopicPlan, mirror: str, topic_id: str | None
) -> tuple[list[PartitionRecord], list[Key]]:
    """Return what is remembered of the partitions from now on, and what is forgotten.

    On a topic that was a mirror topic before the guard goes on, since its brokers remember it; of another one nothing
    is left. Partitions of which there is nothing to say have no record.
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
        if before is not None and is_same:
            new = replace(new, guard=before.guard, extra=before.extra)
            first_offset = before.first_offset if plan.begun else first_offset
            begun = begun or before.begun
        records.append(replace(new, first_offset=first_offset, begun=begun))
    return records, [partition.key for partition in found.values()]
