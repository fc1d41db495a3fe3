"""`failover`: stop mirroring immediately and make a mirror's topics writable; `remove`: the same for named topics.

Neither needs the source, an engine, Spark or Java. The steps are those of `ops.stop.stop`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing

from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.rights.authorized import cluster_operations, marker_operations, missing_operations, missing_rights
from kmirror.cluster.writing.fence import log_ends
from kmirror.commands import option
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, naming_cluster, now_ms, require_mirror
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.gone import gone_topics, not_described
from kmirror.ops.base.results import Outcome, TopicResult, VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.groups.at_stop import clamp_groups
from kmirror.ops.stop.clients import ClientComparison
from kmirror.ops.stop.facts import StopFacts
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.make_writable import log_ranges
from kmirror.ops.stop.report import (
    VerbReport,
    incomplete_warnings,
    partitions_of,
    sorted_rows,
    spread_warnings,
    stopped_row,
    totals_of,
    with_all_partitions,
)
from kmirror.ops.stop.reverse import live_elsewhere
from kmirror.ops.stop.steps import Checkpoint
from kmirror.ops.stop.stop import already_stopped_rows, stop, with_end
from kmirror.ops.stop.work import StopRequest, StopResults, is_stopped
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import AtStop, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.sync.setting_changes import retention_notes

_NEEDED = ("DESCRIBE", "READ", "WRITE", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")


def failover(
    destination: Destination,
    mirror: str,
    topics: TopicSelector | None = None,
    *,
    fence_with_record: bool = False,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
) -> VerbReport:
    """Stop these topics; by default all topics of the mirror, and its discovery too.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer; run the same command again to continue.
    """
    if not dry_run:
        destination.will_change(mirror)
    state = destination.state()
    require_mirror(state, mirror)
    chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
    request = StopRequest(
        mirror,
        "failover",
        tuple(topic.topic for topic in chosen),
        Reason.FAILED_OVER,
        whole=topics is None,
        always_fence=True,
        fence_with_record=fence_with_record,
    )
    return _carry_out(destination, state, request, chosen, dry_run=dry_run, checkpoint=checkpoint)


def remove(
    destination: Destination,
    mirror: str,
    topics: TopicSelector,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
) -> VerbReport:
    """Stop these topics, and keep discovery from bringing them back.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer; run the same command again to continue.
    """
    if not dry_run:
        destination.will_change(mirror)
    state = destination.state()
    record = require_mirror(state, mirror)
    chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
    names, lost = _source_patterns(topics, chosen, stored_settings(record.settings).topic_prefix)
    request = StopRequest(mirror, "remove", tuple(topic.topic for topic in chosen), Reason.REMOVED, exclude=names)
    warnings = [f"{p} is not a pattern of source names: later topics that match it are still discovered" for p in lost]
    return _carry_out(destination, state, request, chosen, dry_run=dry_run, checkpoint=checkpoint, warnings=warnings)


def _source_patterns(
    topics: TopicSelector, chosen: Sequence[TopicRecord], prefix: str
) -> tuple[tuple[str, ...], list[str]]:
    """Translate patterns of destination names to source names; also return those that cannot be translated."""
    expressions, lost = [], []
    for pattern in topics.expressions:
        if not prefix:
            expressions.append(pattern)
        elif pattern.startswith(re.escape(prefix)):
            expressions.append(pattern.removeprefix(re.escape(prefix)))
        else:
            lost.append(pattern)
    known = TopicSelector(tuple(expressions))
    names = [topic.source_topic for topic in chosen if not known.matches(topic.source_topic)]
    return (*names, *expressions), lost


def _carry_out(
    destination: Destination,
    state: State,
    request: StopRequest,
    chosen: Sequence[TopicRecord],
    *,
    dry_run: bool,
    checkpoint: Checkpoint,
    warnings: Sequence[str] = (),
) -> VerbReport:
    began_ms = now_ms()
    mirror = require_mirror(state, request.mirror)
    with closing(ClientComparison(destination, mirror)) as clients:
        done = _preview(destination, state, request, chosen) if dry_run else stop(destination, request, checkpoint)
        gaps = clients.gaps(chosen)
    if chosen and all(is_stopped(state, topic) for topic in chosen) and done.source_trouble is None:
        names = {topic.topic for topic in chosen}
        done.warnings += live_elsewhere(destination, mirror, names, request.verb)
    rows = sorted_rows(done.results)
    totals = totals_of(rows, done.source_trouble)
    if not rows:
        rows = [TopicResult(None, None, Outcome.NOOP, f"mirror {request.mirror} has no topics")]
    result = VerbResult.of(
        request.verb,
        request.mirror,
        rows,
        dry_run=dry_run,
        groups=done.groups,
        warnings=[*warnings, *done.warnings],
        totals=totals,
        clients=gaps,
    )
    return VerbReport(result, evidence_of(destination, mirror, result, began_ms, done.steps))


def _preview(
    destination: Destination, state: State, request: StopRequest, chosen: Sequence[TopicRecord]
) -> StopResults:
    """Return what a stop would find now: the dry run."""
    going = [topic for topic in chosen if not is_stopped(state, topic)]
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        found = destination.client.metadata([topic.topic for topic in going]).topics
    going = [with_all_partitions(state, topic, found.get(topic.topic)) for topic in going]
    with (
        naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE),
        closing(StopFacts(destination, state, require_mirror(state, request.mirror), going)) as facts,
    ):
        if going:
            facts.ask_source()
        return _dry_run(destination, state, request, chosen, going, found, facts)


def _dry_run(
    destination: Destination,
    state: State,
    request: StopRequest,
    chosen: Sequence[TopicRecord],
    going: Sequence[TopicRecord],
    found: Mapping[str, TopicMetadata],
    facts: StopFacts,
) -> StopResults:
    done = StopResults()
    gone = gone_topics(destination.client, going, found)
    unadded = {topic.topic for topic in going if topic.destination_topic_id is None}
    unclear = {name: one for name, one in found.items() if one.error_code and name not in gone | unadded}
    alive = [topic for topic in going if topic.topic not in gone | unadded | unclear.keys()]
    first_source = FirstSource(state.mirror(request.mirror), alive)
    partitions = {partition: topic for topic in alive for partition in partitions_of(topic)}
    ends = log_ends(destination.client, partitions)
    lacking = missing_rights(destination.client, [topic.topic for topic in alive], _NEEDED)
    operations = cluster_operations(destination.client)
    to_fence = marker_operations(destination.client)
    may_fence = any(not missing_operations(operations, [operation]) for operation in to_fence)
    known = facts.with_source_answer(facts.at_stop(ends), facts.last_mirrored_offsets)
    source = facts.source() if going else None
    done.source_trouble = source.trouble if source is not None else None
    names = {topic.topic for topic in going}
    for topic in chosen:
        if topic.topic not in names:
            done.results += already_stopped_rows(state, topic)
        elif topic.topic in gone:
            done.results.append(TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} was deleted"))
        elif topic.topic in unadded:
            unfinished = f"{topic.topic} had not become a mirror topic yet"
            done.results.append(TopicResult(topic.topic, None, Outcome.DONE, unfinished))
        elif topic.topic in unclear:
            error = not_described(unclear[topic.topic])
            done.results.append(TopicResult(topic.topic, None, Outcome.FAILED, error.message, hint=error.hint))
    for partition, topic in partitions.items():
        done.results.append(_would_stop(state, topic, partition, known.get(partition), facts, request.reason))
    if source is not None:
        kept = {topic.topic for topic in alive}
        done.results += [
            stopped_row(partition, record, Outcome.DONE, request.reason)
            for partition, record in facts.unmirrored().items()
            if partition.topic in kept
        ]
    for name, rights in sorted(lacking.items()):
        message = f"the destination does not grant us {' and '.join(rights)} on topic {name}"
        hint = grant_line(destination.config, rights, *option("--topic", name))
        done.results.append(TopicResult(name, None, Outcome.FAILED, message, Reason.NOT_AUTHORIZED, hint=hint))
    if request.always_fence and not may_fence:
        done.warnings.append(
            f"kmirror lacks the right to write markers here ({' or '.join(to_fence)} on the cluster): a forgotten"
            " engine would be fenced by its lease only"
        )
    try:
        ranges = log_ranges(destination.client, partitions)
        groups = clamp_groups(destination, request.mirror, ranges, put_back=True, dry_run=True)
        done.groups += groups.results
        done.warnings += groups.warnings(dry_run=True)
    except (KmirrorError, OutcomeUnknown) as error:
        done.warnings.append(f"group offsets could not be read: {error}")
    done.warnings += retention_notes(first_source.applied(destination.config, done.warnings), now_ms())
    done.warnings += facts.warnings
    absent = source.absent if source is not None else ()
    done.warnings += incomplete_warnings(state, request.mirror, alive, facts.reports, absent)
    done.warnings += spread_warnings(going, facts.reports)
    return done


def _would_stop(
    state: State, topic: TopicRecord, partition: TopicPartition, known: AtStop | None, facts: StopFacts, reason: Reason
) -> TopicResult:
    if known is None:
        message, hint = f"the leader of {partition} does not answer", "bring its broker back, or elect another leader"
        return TopicResult(*partition, Outcome.FAILED, message, Reason.DESTINATION_UNREACHABLE, hint=hint)
    record = state.partition(topic.mirror, *partition)
    if record is None:
        record = PartitionRecord(topic.mirror, *partition, PartitionState.LOG_ALIGNMENT, now_ms())
    record = with_end(record, topic, facts.last_mirrored_offsets[partition], known, None)
    return stopped_row(partition, record, Outcome.DONE, reason, "would be stopped")
