"""`failover`: stop mirroring immediately and make a mirror's topics writable; `remove`: the same for named topics.

Neither needs the source, an engine, Spark or Java. The steps are those of `ops.stop.stop`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing, suppress

from kmirror.errors import KmirrorError, Reason
from kmirror.ops.base.context import Destination, now_ms, require_mirror
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.standby import uncertain_once_stopped
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.stop.clients import ClientComparison
from kmirror.ops.stop.copied_back import live_elsewhere
from kmirror.ops.stop.report import VerbReport, sorted_rows, totals_of
from kmirror.ops.stop.steps import Checkpoint, Gate, StepRunner, no_gate
from kmirror.ops.stop.stop import stop
from kmirror.ops.stop.work import StopRequest, is_stopped
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.lease import end_transaction
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import BRIEFLY_S, UNTIL_ABORTED_S


def failover(
    destination: Destination,
    mirror: str,
    topics: TopicSelector | None = None,
    *,
    fence_with_record: bool = False,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
    gate: Gate = no_gate,
) -> VerbReport:
    """Stop these topics; by default all topics of the mirror, and its discovery too.

    `gate` is called before the first change, and must not need the source.

    Raises:
        RefusedError: no such mirror or topic.
        UnreachableError: the destination does not answer; run the same command again to continue.
    """
    runner = StepRunner(checkpoint, acts=not dry_run)
    if runner.acts and gate is not no_gate:
        _, record, chosen = _read(destination, mirror, topics, acts=True)
        gate(record, [topic.topic for topic in chosen])
    state, record, chosen = _chosen(destination, mirror, topics, runner)
    request = StopRequest(
        mirror,
        "failover",
        tuple(topic.topic for topic in chosen),
        Reason.FAILED_OVER,
        whole=topics is None,
        always_fence=True,
        fence_with_record=fence_with_record,
    )
    uncertain = uncertain_once_stopped(state, mirror, request.topics)
    return _stop(destination, state, record, request, chosen, runner, uncertain)


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
    runner = StepRunner(checkpoint, acts=not dry_run)
    state, record, chosen = _chosen(destination, mirror, topics, runner, each=False)
    names, lost = _source_patterns(topics, chosen, stored_settings(record.settings).topic_prefix)
    request = StopRequest(mirror, "remove", tuple(topic.topic for topic in chosen), Reason.REMOVED, exclude=names)
    warnings = [f"{p} is not a pattern of source names: later topics that match it are still discovered" for p in lost]
    unmatched = topics.unmatched(topic.topic for topic in chosen)
    warnings += [f"{p} matches no mirror topic of mirror {mirror}: no topic was stopped for it" for p in unmatched]
    return _stop(destination, state, record, request, chosen, runner, warnings)


def _chosen(
    destination: Destination, name: str, topics: TopicSelector | None, runner: StepRunner, *, each: bool = True
) -> tuple[State, MirrorRecord, list[TopicRecord]]:
    """Return the stored state, the mirror and the topics to stop."""
    if runner.acts:
        destination.will_change(name)
    return _read(destination, name, topics, each=each, acts=runner.acts)


def _read(
    destination: Destination, name: str, topics: TopicSelector | None, *, each: bool = True, acts: bool
) -> tuple[State, MirrorRecord, list[TopicRecord]]:
    state = destination.state(BRIEFLY_S if acts else UNTIL_ABORTED_S)
    if acts and destination.store.hidden_from is not None:
        if state.mirror(name) is not None:
            with suppress(KmirrorError):  # brokers abort it in the end
                end_transaction(destination.store, name)
        state = destination.state()
    mirror = require_mirror(state, name)
    return state, mirror, select_topics(state.topics(name), topics, f"of mirror {name}", each=each)


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


def _stop(
    destination: Destination,
    state: State,
    mirror: MirrorRecord,
    request: StopRequest,
    chosen: Sequence[TopicRecord],
    runner: StepRunner,
    warnings: Sequence[str] = (),
) -> VerbReport:
    began_ms = now_ms()
    if not (runner.acts or (chosen and all(is_stopped(topic) for topic in chosen))):
        require_own_rights(destination)
    with closing(ClientComparison(destination, mirror)) as clients, LeftBehind(mirror, whole=request.whole) as left:
        done = stop(destination, request, runner, state)
        gaps = clients.gaps(chosen, done.state)
        done.warnings += left.warnings(lambda: done.state or state)
    if chosen and all(is_stopped(topic) for topic in chosen) and done.source_trouble is None:
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
        dry_run=not runner.acts,
        groups=done.groups,
        warnings=[*warnings, *done.warnings],
        totals=totals,
        clients=gaps,
        steps=runner.done,
    )
    return VerbReport(result, evidence_of(destination, mirror, result, began_ms, runner.seconds))
