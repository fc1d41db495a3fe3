"""`failover`: make a mirror's topics ordinary ones at once; and `remove`, which does that for topics by name.

Neither needs the source, an engine, Spark or Java. What is done, and in which order, is `ops.stop`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.authorized import cluster_operations, missing_operations, missing_rights
from kmirror.cluster.fence import log_ends
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.ops.context import Destination, naming_cluster, now_ms, require_mirror
from kmirror.ops.evidence import evidence_of
from kmirror.ops.gone import gone_topics, not_described
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.selection import select_topics
from kmirror.ops.stop.clients import look_at_clients
from kmirror.ops.stop.facts import StopLook
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.report import incomplete_told, places_of, spread_told, stopped_row, totals_of, unmirrored_row
from kmirror.ops.stop.steps import Checkpoint
from kmirror.ops.stop.stop import ended, stop, stopped_already
from kmirror.ops.stop.work import Stopping, StopRequest, is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import stored_settings
from kmirror.state.records import AtStop, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State

_NEEDED = ("DESCRIBE", "READ", "WRITE", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
_TO_FENCE = ("CLUSTER_ACTION", "ALTER")


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a verb that stops topics hands back: its document, and the evidence for `--report`."""

    result: VerbResult
    evidence: dict[str, Any]


def failover(
    destination: Destination,
    mirror: str,
    topics: TopicSelector | None = None,
    *,
    fence_with_record: bool = False,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
) -> Stopped:
    """Stop these topics, all of the mirror by default, and its discovery with them.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer; run the same command again to continue.
    """
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
) -> Stopped:
    """Stop these topics, and keep discovery from bringing them back.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer; run the same command again to continue.
    """
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
    """Return patterns of source names for patterns of destination names, and those of which there is none."""
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
) -> Stopped:
    began_ms = now_ms()
    mirror = require_mirror(state, request.mirror)
    with look_at_clients(destination, mirror) as look:
        done = _preview(destination, state, request, chosen) if dry_run else stop(destination, request, checkpoint)
        clients = look.found(chosen)
    rows = sorted(done.results, key=lambda row: (row.topic or "", -1 if row.partition is None else row.partition))
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
        clients=clients,
    )
    return Stopped(result, evidence_of(destination, mirror, result, began_ms, done.steps))


def _preview(destination: Destination, state: State, request: StopRequest, chosen: Sequence[TopicRecord]) -> Stopping:
    """Return what a stop would find now; the drill."""
    going = [topic for topic in chosen if not is_stopped(state, topic)]
    with (
        naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE),
        StopLook(destination, state, require_mirror(state, request.mirror), going) as look,
    ):
        if going:
            look.ask_source()
        return _rehearse(destination, state, request, chosen, look)


def _rehearse(
    destination: Destination, state: State, request: StopRequest, chosen: Sequence[TopicRecord], look: StopLook
) -> Stopping:
    done = Stopping()
    going = [topic for topic in chosen if not is_stopped(state, topic)]
    found = destination.client.metadata([topic.topic for topic in going]).topics
    gone = gone_topics(destination.client, going, found)
    unadded = {topic.topic for topic in going if topic.destination_topic_id is None}
    unclear = {name: one for name, one in found.items() if one.error_code and name not in gone | unadded}
    alive = [topic for topic in going if topic.topic not in gone | unadded | unclear.keys()]
    first_source = FirstSource(state.mirror(request.mirror), alive)
    places = {place: topic for topic in alive for place in places_of(topic)}
    ends = log_ends(destination.client, places)
    lacking = missing_rights(destination.client, [topic.topic for topic in alive], _NEEDED)
    may_fence = _may_fence(destination)
    known = look.found(ends)
    known = look.answered(known, look.last_mirrored_offsets)
    source = look.source() if going else None
    done.source_trouble = source.trouble if source is not None else None
    for topic in chosen:
        if topic not in going:
            done.results += stopped_already(state, topic)
        elif topic.topic in gone:
            done.results.append(TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} was deleted"))
        elif topic.topic in unadded:
            unfinished = f"{topic.topic} had not become a mirror topic yet"
            done.results.append(TopicResult(topic.topic, None, Outcome.DONE, unfinished))
        elif topic.topic in unclear:
            error = not_described(unclear[topic.topic])
            done.results.append(TopicResult(topic.topic, None, Outcome.FAILED, error.message, hint=error.hint))
    for place, topic in places.items():
        done.results.append(_would_stop(state, topic, place, known.get(place), look, request.reason))
    if source is not None:
        done.results += [unmirrored_row(place, records, request.reason) for place, records in source.unmirrored.items()]
    for name, rights in sorted(lacking.items()):
        done.results.append(
            TopicResult(
                name,
                None,
                Outcome.FAILED,
                f"the destination does not grant us {' and '.join(rights)} on topic {name}",
                Reason.NOT_AUTHORIZED,
                hint=grant_line(destination.config, rights, f"--topic {name}"),
            )
        )
    if request.always_fence and not may_fence:
        done.warnings.append(
            "kmirror lacks the right to write markers here (ALTER or CLUSTER_ACTION on the cluster): a forgotten"
            " engine would be fenced by its lease only"
        )
    first_source.applied(destination.config, done.warnings)
    done.warnings += look.warnings
    done.warnings += incomplete_told(state, request.mirror, alive, look.seen)
    done.warnings += spread_told(going, look.seen)
    return done


def _would_stop(
    state: State, topic: TopicRecord, place: TopicPartition, known: AtStop | None, look: StopLook, reason: Reason
) -> TopicResult:
    if known is None:
        return TopicResult(
            *place,
            Outcome.FAILED,
            f"the leader of {place} does not answer",
            Reason.DESTINATION_UNREACHABLE,
            hint="bring its broker back, or elect another leader",
        )
    record = state.partition(topic.mirror, *place)
    if record is None:
        record = PartitionRecord(topic.mirror, *place, PartitionState.LOG_ALIGNMENT, now_ms())
    record = ended(record, topic, look.last_mirrored_offsets[place], known, None)
    return stopped_row(place, record, Outcome.DONE, reason, "would be stopped")


def _may_fence(destination: Destination) -> bool:
    """Tell whether markers may be written, by what brokers say of our rights on the cluster (KIP-430)."""
    operations = cluster_operations(destination.client)
    return any(not missing_operations(operations, [operation]) for operation in _TO_FENCE)
