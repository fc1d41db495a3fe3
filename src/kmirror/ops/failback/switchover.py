"""`switchover`: exchange the roles of source and destination as planned.

1. Check in advance: the file names this very cluster, and the source answers.
2. Promote here. Topics that are not stopped in time stay mirrored, and then nothing is reversed.
3. Fail back on the old source: it has no records after the last mirrored ones, so nothing is copied again.

The same command, run again, resumes where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.context import (
    Destination,
    actor,
    change,
    cluster_id_of,
    now_ms,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.results import ErrorInfo, Outcome, TopicResult, VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.trust_checks import require_usable_once_stored
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import WATCH_S, FailbackRequest
from kmirror.ops.mirrors.create import checked_properties
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import IDLE_MS, PromoteRequest, PromoteView, Watcher
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.steps import Checkpoint
from kmirror.settings.patterns import TopicSelector
from kmirror.state.event_records import Event
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.workflow_records import WorkflowRecord
from kmirror.words import at_time, counted

SWITCHOVER = "switchover"

_PROMOTE = "PROMOTE"
_RETURN = "RETURN"


@dataclass(frozen=True, slots=True)
class SwitchoverRequest:
    """What to switch over; `properties` are how the old source reaches this cluster, `timeout_ms` None: no limit."""

    mirror: str
    properties: Mapping[str, str]
    topics: TopicSelector | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = IDLE_MS
    master: str = "local[*]"
    watch_s: float = WATCH_S
    #: Deny everyone WRITE on the source's topics until they are mirror topics of this cluster.
    block_producers: bool = False


def switchover(
    destination: Destination,
    request: SwitchoverRequest,
    watcher: Watcher = lambda _: None,
    stopping: threading.Event | None = None,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
) -> VerbReport:
    """Promote these topics here, all of the mirror by default, and make their source mirror them from here.

    Raises:
        UsageError: an invalid property.
        RefusedError: no such mirror or topic, the file names another cluster, another promote is waiting.
        UnreachableError: a cluster does not answer; the same command resumes.
    """
    began_ms = now_ms()
    state = destination.state()
    mirror = require_mirror(state, request.mirror)
    chosen = [t.topic for t in select_topics(state.topics(mirror.name), request.topics, f"of mirror {mirror.name}")]
    _require_way_back(destination, mirror, request)
    topics = TopicSelector(tuple(chosen))
    if not dry_run:
        _record_step(destination, mirror.name, _PROMOTE, chosen)
        checkpoint("begun")
    stopped = promote(
        destination,
        PromoteRequest(
            mirror.name,
            topics,
            timeout_ms=request.timeout_ms,
            idle_ms=request.idle_ms,
            master=request.master,
            block_producers=request.block_producers,
        ),
        watcher,
        stopping,
        dry_run=dry_run,
    )
    if dry_run or stopped.result.exit_code:
        # topics that are stopped stay so, and are reversed once the others are ready as well
        result = replace(stopped.result, verb=SWITCHOVER)
        if result.error is not None and not dry_run:
            again = "nothing was reversed yet: run the same command again to continue"
            hint = f"{result.error.hint}; {again}" if result.error.hint else again
            result = replace(result, error=replace(result.error, hint=hint))
        return VerbReport(result, {**stopped.evidence, "verb": SWITCHOVER})
    checkpoint("promoted")
    since_ms = now_ms()
    host, port = destination.config.bootstrap_servers[0]
    writable = f"{host}:{port} takes writes now, since {at_time(since_ms)}: start clients of"
    line = f"{writable} {counted(len(chosen), 'topic')} here; what follows prepares the way back"
    watcher(PromoteView((since_ms - began_ms) / 1000, lines=(line,)))
    _record_step(destination, mirror.name, _RETURN, chosen, writableSinceMs=since_ms)
    checkpoint("reversing")
    returned = _reverse(mirror, request, topics, watcher)
    result = _joined(mirror.name, stopped.result, returned)
    if result.exit_code == ExitCode.OK:
        _delete_progress(destination, mirror.name)
    back = returned.evidence if isinstance(returned, VerbReport) else None
    evidence = evidence_of(destination, mirror, result, began_ms, {}, promote=stopped.evidence, failback=back)
    return VerbReport(result, evidence)


def _require_way_back(destination: Destination, mirror: MirrorRecord, request: SwitchoverRequest) -> None:
    """Refuse, before anything is stopped, what the failback would refuse afterwards, as far as that can be known."""
    back, _ = checked_properties(request.properties)
    require_usable_once_stored(back)
    with source_client(back) as client:
        found = cluster_id_of(client)
    if found != destination.cluster_id:
        raise RefusedError(
            f"the file describes cluster {found}, but must describe this one, {destination.cluster_id}",
            "bootstrap.servers in --mirror-config names the brokers of this cluster, as reachable from the old source",
            Reason.SOURCE_CLUSTER_CHANGED,
        )
    with Destination.open(mirror.source) as old:
        require_same_cluster(mirror.source_cluster_id, old.cluster_id)


def _reverse(
    mirror: MirrorRecord, request: SwitchoverRequest, topics: TopicSelector, watcher: Watcher
) -> VerbReport | KmirrorError:
    """Make the old source a mirror of this cluster; return the result, or the error."""
    back = FailbackRequest(
        mirror.name, request.properties, topics, watch_s=request.watch_s, spark=SparkChoice(request.master)
    )
    try:
        with Destination.open(mirror.source, mirror.source_cluster_id) as old:
            return failback(old, back, watch=lambda view: watcher(PromoteView(view.at - view.since, work=view)))
    except KmirrorError as error:
        return error


def _joined(mirror: str, stopped: VerbResult, returned: VerbReport | KmirrorError) -> VerbResult:
    """Return one document for both halves; a failure of the second does not undo the promote."""
    if isinstance(returned, VerbReport):
        back = returned.result
        rows = (*stopped.results, *back.results)
        groups, warnings = (*stopped.groups, *back.groups), (*stopped.warnings, *back.warnings)
        error = back.error
        code = back.exit_code
    else:
        rows, groups, warnings = stopped.results, stopped.groups, stopped.warnings
        error, code = ErrorInfo.of(returned), returned.exit_code
    if code == ExitCode.REFUSED:
        # REFUSED would mean that nothing was changed. Clients still in use there may stop later, so retrying can help;
        # records after the fork stay.
        has_records = isinstance(returned, VerbReport)
        code = ExitCode.PARTLY_DONE if has_records else ExitCode.TIMED_OUT
    if error is not None:
        message = f"promoted, but the old source is not a mirror of this cluster yet: {error.message}"
        hint = f"{error.hint or 'fix the cause'}; then run the same command again"
        error = ErrorInfo(code, message, hint, error.reason)
        outcome = Outcome.TIMED_OUT if code == ExitCode.TIMED_OUT else Outcome.FAILED
        rows = (*rows, TopicResult(None, None, outcome, message, error.reason, hint=hint))
    done = VerbResult(SWITCHOVER, mirror, False, code, tuple(rows), tuple(groups), error, tuple(warnings))
    return replace(done, blocked=stopped.blocked)


def _record_step(destination: Destination, mirror: str, step: str, topics: list[str], **more: int) -> None:
    def decide(state: State) -> Changes:
        found = state.workflow(mirror, SWITCHOVER)
        began = found.began_ms if found else now_ms()
        facts: dict[str, Any] = {"topics": topics[:100], "count": len(topics), **more}
        record = WorkflowRecord(mirror, SWITCHOVER, step, actor(), began, now_ms(), facts)
        return Changes((record,), (), (Event(now_ms(), mirror, SWITCHOVER, actor(), step, facts),))

    change(destination, mirror, decide)


def _delete_progress(destination: Destination, mirror: str) -> None:
    def decide(state: State) -> Changes:
        found = state.workflow(mirror, SWITCHOVER)
        event = Event(now_ms(), mirror, SWITCHOVER, actor(), ExitCode.OK.name, {})
        return Changes((), (found.key,) if found else (), (event,))

    change(destination, mirror, decide)
