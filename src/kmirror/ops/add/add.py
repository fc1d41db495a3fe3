"""`add`: mirror topics of the source.

Gathers facts about both clusters, makes a plan (`add_plan`), and prints it or carries it out (`add_steps`): a dry run
does the same up to the last step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.rights.authorized import missing_rights
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.message_formats import (
    OLD_TOPIC_HINT,
    TOPIC_FORMAT,
    refused_formats,
)
from kmirror.cluster.topics.policies import refuses_settings, settled_to_create
from kmirror.cluster.topics.settling import ADJUSTABLE
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import option
from kmirror.engine.archive.archive_topic import archive_name
from kmirror.errors import BrokerError, Reason, RefusedError, UsageError
from kmirror.ops.add.add_plan import Action, AddFacts, FilterChange, decide, select
from kmirror.ops.add.add_steps import carry_out, refusal_of, rows_of_plan
from kmirror.ops.add.add_work import AddWork
from kmirror.ops.add.adopt import Clusters, compare_adopted
from kmirror.ops.add.filling import filling_warnings
from kmirror.ops.add.settle import settle_new, settle_present
from kmirror.ops.add.topic_admin import QUOTA_WAIT_S, TopicAdmin
from kmirror.ops.base.bulk import Bulk, SparkChoice
from kmirror.ops.base.context import (
    Destination,
    naming_cluster,
    now_ms,
    require_mirror,
    require_own_brokers,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.source_settings import source_settings
from kmirror.ops.base.standby import announce_takeover
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.upstream import Upstream, upstream_of
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.rights.producer_block import unblock_mirrored
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.settings.value_types import StartFrom
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.status.in_charge import holdings_in
from kmirror.sync.setting_changes import (
    ALWAYS,
    MIRROR_VALUES,
    SettingsPlan,
    kept_settings,
    settings_for,
    settled_notes,
)
from kmirror.words import counted
from kmirror.work import Watch, unwatched

_NEEDED_AT_SOURCE = ("READ", "DESCRIBE_CONFIGS")
_FIX_HINT = "fix that, and run the same command again"


def add(
    destination: Destination,
    mirror: str,
    topics: TopicSelector,
    *,
    exclude: TopicSelector | None = None,
    adopt: bool = False,
    keep_stopped: bool = False,
    allow_missing: bool = False,
    start_from: StartFrom | None = None,
    first_offsets: Mapping[TopicPartition, int] | None = None,
    overrides: Mapping[str, str] | None = None,
    replication_factor: int = -1,
    spark: SparkChoice | None = None,
    bulk: Bulk | None = None,
    watch: Watch = unwatched,
    dry_run: bool = False,
) -> VerbResult:
    """Create (or with `adopt` take over) destination topics for the selected source topics; one result per topic.

    `start_from` is where copying begins, by default as in the mirror's settings; an adopted topic always continues at
    its log end; with `keep_stopped` none that was stopped is adopted. `first_offsets` are where the sources' own logs
    began: what an adopted log has from before is kept until its source deletes more. `overrides` are settings of
    created topics that replace their sources'; `replication_factor` is theirs where the mirror has none. `watch` gets
    the progress of comparing adopted topics, which `bulk`, or else `spark`, does.

    Raises:
        UsageError: the patterns contradict the mirror's filters, or a setting cannot be overridden.
        RefusedError: no such mirror, or the source is another cluster now (SOURCE_CLUSTER_CHANGED).
        UnreachableError: a cluster does not answer or refuses us.
    """
    _check_overrides(overrides or {})
    if not dry_run:
        destination.will_change(mirror)
    state = destination.state()
    record = require_mirror(state, mirror)
    settings = _replicated(stored_settings(record.settings), replication_factor)
    with source_client(record.source, record.source_cluster_id) as source:
        found = _source_topics(source, topics, record.source_cluster_id)
        require_own_brokers(source, destination.cluster_id)
        excluded = exclude or TopicSelector()
        selection = select(topics, excluded, settings, found, source.config, allow_missing=allow_missing)
        selection.filters.apply(settings)
        work = AddWork(record, settings, {}, list(selection.results), selection.filters, warnings=[*selection.warnings])
        work.overrides = dict(overrides or {})
        names = selection.chosen
        upstream = upstream_of(record, destination.cluster_id, settings.topic_prefix, names)
        work.warnings += upstream.warnings()
        facts = replace(
            _facts(destination, source, state, work, found, names),
            upstream=upstream,
            start_from=start_from or settings.start_from,
            start_is_named=start_from is not None,
        )
        _plan(source, facts, work, names, adopt=adopt, named=topics.names, keep_stopped=keep_stopped)
        for (topic, partition), offset in (first_offsets or {}).items():
            if (plan := work.plans.get(topic)) is not None:
                began = {**plan.first_offsets, partition: offset}
                work.plans[topic] = replace(plan, first_offsets=began)
        work.warnings += filling_warnings(source, work.plans.values())
    with ExitStack() as stack:
        if bulk is None:
            own = Bulk(spark or SparkChoice(), "add", mirror, settings.copy_lanes, watch)
            bulk = stack.enter_context(own)
        _compare_adopted(destination, work, bulk, watch)
    _check_at_destination(destination, work)
    if dry_run and work.plans:
        require_own_rights(destination)
    rows = rows_of_plan(work) if dry_run else carry_out(destination, work)
    if not dry_run:
        after = (
            unblock_mirrored(destination, mirror, list(work.plans)),
            announce_takeover(destination, record, [settings.topic_prefix + name for name in names]),
        )
        work.warnings += [warning for warning in after if warning is not None]
    rows.sort(key=lambda row: (row.topic is not None, row.topic or ""))
    return VerbResult.of("add", mirror, rows, dry_run=dry_run, warnings=work.warnings)


def _replicated(settings: Settings, replication_factor: int) -> Settings:
    """Return the settings with this replication factor, unless they have one."""
    return settings if settings.replication_factor > 0 else replace(settings, replication_factor=replication_factor)


def require_recreatable(
    destination: Destination,
    state: State,
    mirror: MirrorRecord,
    source: ClusterClient,
    topics: Mapping[str, TopicMetadata],
) -> None:
    """Refuse unless `add` would create these topics of the destination again if they were deleted.

    Raises:
        RefusedError: it would not, for one of them; nothing was changed.
        UnreachableError: a cluster does not answer.
    """
    client, names = destination.client, TopicSelector(tuple(topics))
    settings = stored_settings(mirror.settings)
    found = _source_topics(source, names, mirror.source_cluster_id)
    selection = select(names, TopicSelector(), settings, found, source.config, allow_missing=False)
    chosen = selection.chosen
    work = AddWork(mirror, settings, {}, list(selection.results), selection.filters)
    gone = {
        name: replace(topic, error_code=int(Code.UNKNOWN_TOPIC_OR_PARTITION), partitions={})
        for name, topic in topics.items()
    }
    facts = _facts(destination, source, state, work, found, chosen)
    facts = replace(facts, destination={**facts.destination, **gone}, destination_ends={})
    facts = replace(facts, upstream=upstream_of(mirror, destination.cluster_id, "", chosen))
    _plan(source, facts, work, chosen, adopt=True, named=chosen)
    for topic, error in TopicAdmin(destination).create(work.new_topics(), validate_only=True).items():
        # brokers look whether we may create it before they look whether it exists
        if error is not None and not (isinstance(error, BrokerError) and error.code == Code.TOPIC_ALREADY_EXISTS):
            work.refuse(topic, refusal_of(error, "CREATE", topic))
    taken, present = client.metadata(None).topics, topic_settings(client, work.plans)
    for plan in list(work.plans.values()):
        factor = _replicated(settings, topics[plan.topic].replication_factor).replication_factor
        own = kept_settings(present[plan.topic])
        try:
            # under a free name: a name that exists is refused before the rest is looked at
            settled_to_create(
                client, archive_name(plan.topic, taken), plan.partitions, factor, {**plan.settings.now, **own}, own
            )
        except BrokerError as error:
            if error.code == Code.INVALID_REPLICATION_FACTOR or refuses_settings(error):
                what = f"creating topic {plan.topic}: {error.name}"
                work.refuse(plan.topic, RefusedError(f"{what}: {error.detail}" if error.detail else what, _FIX_HINT))
    if refused := [row for row in work.results if row.result is not Outcome.NOOP]:
        first = refused[0]
        more = f" ({counted(len(refused), 'topic')} in all)" if len(refused) > 1 else ""
        raise RefusedError(
            f"{first.topic} is not deleted, because it could not be created again: {first.message}{more}",
            first.hint,
            first.reason,
        )


def _check_overrides(overrides: Mapping[str, str]) -> None:
    for key in overrides:
        if key in ALWAYS or (key in MIRROR_VALUES and key not in ADJUSTABLE):
            raise UsageError(
                f"--config {key} cannot be set on a mirror topic: it decides which records are kept, so the source's"
                " value applies",
                "omit it; change it with kafka-configs after mirroring has stopped",
            )


def add_discovered(
    destination: Destination,
    source: ClusterClient,
    state: State,
    mirror: MirrorRecord,
    found: Mapping[str, TopicMetadata],
    names: Sequence[str],
    upstream: Upstream,
) -> tuple[list[TopicResult], list[str]]:
    """Mirror source topics that the mirror's filters include, as `add` does; existing topics are not adopted.

    Returns the results, and what is weaker about topics whose settings the destination does not take.

    Raises:
        RefusedError: the filters no longer include them, or discovery has ended.
        UnreachableError: a cluster does not answer; the next run continues from there.
    """
    settings = stored_settings(mirror.settings)
    work = AddWork(mirror, settings, {}, [], FilterChange(), discovers=True)
    facts = _facts(destination, source, state, work, found, names)
    facts = replace(facts, upstream=upstream, start_from=settings.start_from)
    _plan(source, facts, work, names, adopt=False, named=())
    _check_at_destination(destination, work)
    rows = carry_out(destination, work)
    return rows, settled_notes({plan.topic: plan.settings for plan in work.plans.values()}, now_ms())


def _plan(
    source: ClusterClient,
    facts: AddFacts,
    work: AddWork,
    names: Sequence[str],
    *,
    adopt: bool,
    named: Collection[str],
    keep_stopped: bool = False,
) -> None:
    for name in names:
        decided = decide(facts, name, adopt=adopt, named=name in named, keep_stopped=keep_stopped)
        if isinstance(decided, TopicResult):
            work.results.append(decided)
        else:
            work.plans[decided.topic] = decided
    _look_up_starts(source, work, facts.start_from)


def _source_topics(source: ClusterClient, topics: TopicSelector, cluster_id: str | None) -> Mapping[str, TopicMetadata]:
    metadata = source.metadata(None if topics.expressions else topics.names)
    require_same_cluster(cluster_id, metadata.cluster_id)
    # a list of all topics omits those we may not describe; asked for by name they have an error code
    missing = topics.missing_names(metadata.topics)
    return {**metadata.topics, **(source.metadata(missing).topics if missing else {})}


def _facts(
    destination: Destination,
    source: ClusterClient,
    state: State,
    work: AddWork,
    found: Mapping[str, TopicMetadata],
    chosen: Sequence[str],
) -> AddFacts:
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        names = [work.settings.topic_prefix + name for name in chosen]
        here = destination.client.metadata([STATE_TOPIC, *names]).topics
        ends = _log_ends(destination.client, here)
        known = topic_settings(destination.client, [STATE_TOPIC])[STATE_TOPIC]
    deferred = source_settings(source, work.mirror.source, chosen)
    work.warnings += [
        f"{name} is itself a mirror topic, and which of its settings are deferred is unknown: {why}"
        for name, why in deferred.unreadable.items()
    ]
    plans: dict[str, SettingsPlan | int] = {}
    for name, one in deferred.topics.items():
        if isinstance(one, int):
            plans[name] = one
            continue
        plan = settings_for(one, None if isinstance(known, int) else known, work.settings.excluded_properties)
        plan = replace(plan, first_source_seen_ms=deferred.first_source_seen_ms.get(name))
        plans[name] = plan.settling({key: None for key in work.overrides if key in MIRROR_VALUES})
    return AddFacts(
        state,
        work.mirror.name,
        work.settings,
        found,
        here,
        ends,
        plans,
        source.config,
        destination.config,
        missing_rights(source, chosen, _NEEDED_AT_SOURCE),
        held=holdings_in(state),
    )


def _log_ends(client: ClusterClient, topics: Mapping[str, TopicMetadata]) -> dict[TopicPartition, int]:
    wanted = {
        TopicPartition(topic.name, partition): LATEST
        for topic in topics.values()
        if not topic.error_code
        for partition in topic.partitions
    }
    answers = client.list_offsets(wanted, log_end=True)
    # an unknown end may not be zero
    return {partition: 1 if answer.offset is None else answer.offset for partition, answer in answers.items()}


def _look_up_starts(source: ClusterClient, work: AddWork, start_from: StartFrom) -> None:
    """Ask the source, once, for the offsets at which copying begins if that is not its log start."""
    for plan in work.plans.values():
        if plan.begun and not start_from.is_earliest:
            work.warnings.append(f"{plan.topic} already holds records: start.from={start_from} does not apply to it")
    undecided = [plan for plan in work.plans.values() if plan.is_start_open]
    wanted = [TopicPartition(plan.source_topic, index) for plan in undecided for index in range(plan.partitions)]
    if not wanted:
        return
    # the ends first, so that a record produced after this request is copied whatever the second one returns
    ends = source.list_offsets(dict.fromkeys(wanted, LATEST), read_committed=True)
    at_time = start_from.timestamp_ms
    found = {} if at_time is None else source.list_offsets(dict.fromkeys(wanted, at_time), read_committed=True)
    for plan in undecided:
        first_offsets: dict[int, int] = {}
        for index in range(plan.partitions):
            partition = TopicPartition(plan.source_topic, index)
            answers = [answers[partition] for answers in (found, ends) if partition in answers]
            offset = next((answer.offset for answer in answers if answer.offset is not None), None)
            code = next((answer.error_code for answer in answers if answer.error_code), 0)
            if code or offset is None:
                why = code_name(code) if code else "no offset"
                message = f"cannot resolve start.from={start_from} for {partition}: {why}"
                work.refuse(plan.topic, RefusedError(message, "try again when all its partitions have leaders"))
                break
            first_offsets[index] = offset
        else:
            work.plans[plan.topic] = replace(plan, first_offsets=first_offsets, is_start_open=False)


def _compare_adopted(destination: Destination, work: AddWork, bulk: Bulk, watch: Watch) -> None:
    """Compare the topics to adopt with their sources, over separate connections, and refuse those that differ."""
    adopted = [plan for plan in work.plans.values() if plan.action is Action.ADOPT]
    if not adopted:
        return
    access = ClusterAccess(work.mirror.source, work.mirror.source_cluster_id)
    with (
        source_client(access.properties, access.cluster_id) as source,
        ClusterClient(destination.config) as here,
    ):
        clusters = Clusters(source, here, access, destination.access)
        found = compare_adopted(clusters, adopted, work.mirror.name, bulk, work.warnings.append, watch)
    for topic, refused in found.refused.items():
        del work.plans[topic]
        work.results.append(refused)
    for topic, ends in found.ends.items():
        work.plans[topic] = replace(work.plans[topic], compared_ends=ends)


def _refuse_old_formats(destination: Destination, work: AddWork, present: dict[str, TopicSettings]) -> None:
    """Refuse topics that are there and whose brokers refuse the batches that would be copied."""
    for topic, value in refused_formats(destination.client, present).items():
        del present[topic]
        message = f"{topic} has {TOPIC_FORMAT}={value}: copied batches are refused below 0.11"
        work.refuse(topic, RefusedError(message, OLD_TOPIC_HINT, Reason.RECORD_REJECTED))


def _check_at_destination(destination: Destination, work: AddWork) -> None:
    """Ask the destination whether it would create the new topics, and which settings differ on the others."""
    # an engine does not ask first: a quota of changes counts that, and might never leave enough for the topics
    new = [] if work.discovers else work.new_topics()
    outcomes = TopicAdmin(destination).create(new, validate_only=True, quota_wait_s=QUOTA_WAIT_S) if new else {}
    refused = {topic: error for topic, error in outcomes.items() if error is not None}
    for topic, error in settle_new(destination.client, work, refused).items():
        work.refuse(topic, refusal_of(error, "CREATE", topic))
    existing = [plan.topic for plan in work.plans.values() if plan.action is not Action.CREATE]
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        present = topic_settings(destination.client, existing)
    readable: dict[str, TopicSettings] = {}
    for topic, found in present.items():
        if isinstance(found, int):
            message = f"no right to read the settings of {topic} on the destination"
            hint = grant_line(destination.config, ("DESCRIBE_CONFIGS", "ALTER_CONFIGS"), *option("--topic", topic))
            work.refuse(topic, RefusedError(message, hint, Reason.NOT_AUTHORIZED))
        else:
            readable[topic] = found
    _refuse_old_formats(destination, work, readable)
    for topic, error in settle_present(destination.client, work, readable).items():
        work.refuse(topic, refusal_of(error, "ALTER_CONFIGS", topic))
    for plan in work.plans.values():
        if plan.settings.left_out:
            keys = ", ".join(plan.settings.left_out)
            work.warnings.append(f"{plan.topic}: the destination does not know the setting {keys}; left out")
    work.warnings += settled_notes({plan.topic: plan.settings for plan in work.plans.values()}, now_ms())
