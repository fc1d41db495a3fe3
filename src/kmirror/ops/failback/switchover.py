"""`switchover`: exchange the roles of source and destination as planned.

It is checked in advance that the file names this very cluster, and that the source answers. Then `SWITCHOVER` lists the
steps: promote here, where topics that are not stopped in time stay mirrored, and then nothing is reversed; fail back on
the old source, which has no records after the last mirrored ones, so nothing is copied again.

The same command, run again, resumes where it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.cluster.writing.writable import probe_writable
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.context import (
    Destination,
    cluster_id_of,
    now_ms,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.results import ErrorInfo, VerbResult
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.trust_checks import require_usable_once_stored
from kmirror.ops.base.versions import Role, require_supported
from kmirror.ops.failback.choice import existing_topics, require_not_owned, topics_to_return
from kmirror.ops.failback.facts import InUseError, require_takes_copies
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import WATCH_S, FailbackRequest, mirror_for
from kmirror.ops.failback.progress import Workflow
from kmirror.ops.mirrors.create import checked_properties
from kmirror.ops.rights.own_rights import refusal_of_records
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import IDLE_MS, PromoteRequest, PromoteView, Watcher
from kmirror.ops.stop.report import VerbReport, partitions_of
from kmirror.ops.stop.steps import Checkpoint, Gate, Step, StepRunner, no_gate
from kmirror.ops.stop.work import is_stopped
from kmirror.settings.parsing import parse_settings, stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.words import address_of, at_time, counted, listed

VERB = "switchover"

#: The steps that are recorded.
_PROMOTE = "PROMOTE"
_RETURN = "RETURN"
_MOST_RECORDED = 100
#: What a topic's source may have had after the stop; a failback shows it, and asks what to do with it.
_SHOWN_BY_FAILBACK = frozenset(
    {Reason.SOURCE_WRITTEN_AFTER_STOP, Reason.SOURCE_TOPIC_RECREATED, Reason.SOURCE_DIVERGED}
)


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
    gate: Gate = no_gate,
) -> VerbReport:
    """Promote these topics here, all of the mirror by default, and make their source mirror them from here.

    `gate` is called before the first change.

    Raises:
        UsageError: an invalid property.
        RefusedError: no such mirror or topic, the file names another cluster, another promote is waiting.
        UnreachableError: a cluster does not answer; the same command resumes.
    """
    began_ms = now_ms()
    state = destination.state()
    mirror = require_mirror(state, request.mirror)
    selected = select_topics(state.topics(mirror.name), request.topics, f"of mirror {mirror.name}")
    stopped_before = {topic.topic for topic in selected if is_stopped(topic)}
    chosen, omitted = _require_way_back(destination, mirror, request, selected)
    runner = StepRunner(checkpoint, acts=not dry_run)
    work = _Switchover(destination, request, mirror, chosen, stopped_before, watcher, stopping, runner, began_ms, gate)
    with LeftBehind(mirror, whole=request.topics is None) as left:
        try:
            runner.walk(SWITCHOVER, work)
        except KmirrorError as error:
            if not hasattr(work, "stopped"):
                raise
            if work.returned is not None:
                omitted.append(f"the recorded progress was not deleted: {error.message}; run the same command again")
            work.returned = work.returned or error
        stopped, returned = work.stopped, work.returned
        warnings = (*omitted, *stopped.result.warnings, *left.warnings(destination.state))
        stopped = replace(stopped, result=replace(stopped.result, warnings=warnings))
    if returned is None:
        # topics that are stopped stay so, and are reversed once the others are ready as well
        result = replace(stopped.result, verb=VERB, steps=runner.done)
        if result.error is not None and not dry_run:
            again = "nothing was reversed yet: run the same command again to continue"
            hint = f"{result.error.hint}; {again}" if result.error.hint else again
            result = replace(result, error=replace(result.error, hint=hint))
        return VerbReport(result, {**stopped.evidence, "verb": VERB})
    result = replace(_joined(mirror.name, stopped.result, returned), steps=runner.done)
    back = returned.evidence if isinstance(returned, VerbReport) else None
    evidence = evidence_of(destination, mirror, result, began_ms, {}, promote=stopped.evidence, failback=back)
    return VerbReport(result, evidence)


@dataclass(slots=True)
class _Switchover:
    """A switchover in progress: first the promote here, then the failback there."""

    destination: Destination
    request: SwitchoverRequest
    mirror: MirrorRecord
    topics: list[str]
    #: Those that an earlier run has stopped: what is wrong with them was reported then.
    stopped_before: set[str]
    watcher: Watcher
    stopping: threading.Event | None
    runner: StepRunner
    began_ms: int
    gate: Gate = no_gate
    stopped: VerbReport = field(init=False)
    returned: VerbReport | KmirrorError | None = None
    is_over: bool = False

    def promote(self) -> None:
        """Promote the topics here; the switchover is over unless all are stopped, with nothing new left behind."""
        request = self.request
        if not self.runner.acts:
            self.runner.walk(BEGIN, self)
        self.stopped = promote(
            self.destination,
            PromoteRequest(
                self.mirror.name,
                TopicSelector(tuple(self.topics)),
                timeout_ms=request.timeout_ms,
                idle_ms=request.idle_ms,
                master=request.master,
                block_producers=request.block_producers,
            ),
            self.watcher,
            self.stopping,
            dry_run=not self.runner.acts,
            gate=self._begin,
        )
        self.runner.also(self.stopped.result.steps or ())
        self.is_over = self.runner.acts and any(
            row.topic not in self.stopped_before or row.reason not in _SHOWN_BY_FAILBACK
            for row in self.stopped.result.results
            if row.result not in (Outcome.DONE, Outcome.NOOP)
        )

    def _begin(self, mirror: MirrorRecord, topics: Sequence[str]) -> None:
        """Pass the gate and record the beginning, once the preconditions of the promote hold."""
        self.gate(mirror, topics)
        self.runner.walk(BEGIN, self)

    @property
    def progress(self) -> Workflow:
        """Its stored progress."""
        return Workflow(self.destination, self.mirror.name, VERB)

    @property
    def facts(self) -> dict[str, Any]:
        """What is recorded with each step."""
        return {"topics": self.topics[:_MOST_RECORDED], "count": len(self.topics)}

    def record_writable(self) -> None:
        """Record and show that this cluster takes writes, to all topics but those on which a probe is refused."""
        state, name = self.destination.state(), self.mirror.name
        known = [record for topic in self.topics if (record := state.topic(name, topic))]
        partitions = [partition for topic in known for partition in partitions_of(topic)]
        since_ms, probed = now_ms(), probe_writable(self.destination.client, partitions)
        failed = {partition.topic: error for partition, error in probed.items() if error}
        denied = sorted(topic for topic, error in failed.items() if error.reason is Reason.NOT_AUTHORIZED)
        unknown = sorted(failed.keys() - set(denied))
        count, facts, lines = len(known) - len(failed), self.facts, []
        if denied:
            facts["denied"] = denied[:_MOST_RECORDED]
            lines.append(f"kmirror is denied WRITE on {listed(denied)} here: allow it before you start clients of them")
        if unknown:
            lines.append(f"not known whether {listed(unknown)} can be written here: {failed[unknown[0]].message}")
        if count:
            facts["writableSinceMs"] = since_ms
            writable = f"{address_of(*self.destination.config.bootstrap_servers[0])} takes writes now"
            start = f"start clients of {counted(count, 'topic')} here"
            lines.append(f"{writable}, since {at_time(since_ms)}: {start}; what follows prepares the way back")
        self.watcher(PromoteView((since_ms - self.began_ms) / 1000, lines=tuple(lines)))
        self.progress.begin(_RETURN, facts)

    def reverse(self) -> None:
        """Make the old source a mirror of this cluster."""
        request, mirror, watcher = self.request, self.mirror, self.watcher
        try:
            known = select_topics(
                self.destination.state().topics(mirror.name), TopicSelector(tuple(self.topics)), "of the mirror"
            )
            there, _ = existing_topics(self.destination.client, known, request.topics)
            topics, spark = TopicSelector(tuple(one.topic for one in there)), SparkChoice(request.master)
            back = FailbackRequest(mirror.name, request.properties, topics, watch_s=request.watch_s, spark=spark)
            with Destination.open(mirror.source, mirror.source_cluster_id) as old:
                self.returned = failback(
                    old, back, watch=lambda view: watcher(PromoteView(view.at - view.since, work=view))
                )
            self.runner.also(self.returned.result.steps or ())
        except KmirrorError as error:
            self.returned = error

    @property
    def is_reversed(self) -> bool:
        """True unless the old source is known not to be a mirror of this cluster."""
        return self.returned is None or (isinstance(self.returned, VerbReport) and not self.returned.result.exit_code)


#: Taken by the first step of the others.
BEGIN: tuple[Step[_Switchover], ...] = (
    Step(
        "record that the switchover has begun",
        lambda work: work.progress.begin(_PROMOTE, work.facts),
        recorded=lambda work: work.progress.has_reached((_PROMOTE, _RETURN), work.facts),
    ),
)
SWITCHOVER: tuple[Step[_Switchover], ...] = (
    # repeated: a topic may be mirrored again since
    Step("promote the topics here", _Switchover.promote, rehearse=_Switchover.promote),
    Step(
        "record since when this cluster takes writes",
        _Switchover.record_writable,
        # one that is left over from an earlier round says nothing of topics that were mirrored again since
        recorded=lambda work: (
            work.stopped_before.issuperset(work.topics) and work.progress.has_reached((_RETURN,), work.facts)
        ),
    ),
    Step("fail back on the old source, which makes it a mirror of this cluster", _Switchover.reverse),
    Step(
        "delete the recorded progress",
        lambda work: work.progress.finish(ExitCode.OK.name, {}, is_over=True),
        needed=lambda work: work.is_reversed,
    ),
)


def _require_way_back(
    destination: Destination, mirror: MirrorRecord, request: SwitchoverRequest, selected: Sequence[TopicRecord]
) -> tuple[list[str], list[str]]:
    """Refuse, before anything is stopped, what the failback would refuse afterwards, as far as that can be known.

    Return the names of the topics to switch over, and warnings that name those that are omitted.
    """
    back, settings = checked_properties(request.properties)
    if prefix := stored_settings(mirror.settings).topic_prefix or parse_settings(settings).topic_prefix:
        raise RefusedError(
            f"topic.prefix={prefix}: the topics have different names on the old source, which cannot mirror them back",
            "stop them with `kmirror promote`; for the way back create a separate mirror there with `kmirror create`",
        )
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
        require_supported(old.client, "the old source", Role.DESTINATION)
        if refusal := refusal_of_records(old, "the old source"):
            raise refusal
        state = old.state()
        way_back = mirror_for(old, state, mirror.name, back, settings, found, "on the old source")
        if prefix := stored_settings(way_back.settings).topic_prefix:
            raise RefusedError(
                f"mirror {mirror.name} on the old source has topic.prefix={prefix}: topics would not keep their names",
                "delete that mirror there first",
            )
        returning, omitted = topics_to_return(selected, request.topics, state)
        topics = [topic.topic for topic in returning]
        require_not_owned(state, topics, mirror.name, "on the old source")
        require_takes_copies(old, topics, "on the old source")
    _, deleted = existing_topics(destination.client, returning, request.topics)
    return topics, [*omitted, *deleted]


def _joined(mirror: str, stopped: VerbResult, returned: VerbReport | KmirrorError) -> VerbResult:
    """Return one document for both halves; a failure of the second does not undo the promote."""
    if isinstance(returned, VerbReport):
        back = returned.result
        # what an earlier run has left behind is in the failback's rows
        rows = (*(row for row in stopped.results if row.result in (Outcome.DONE, Outcome.NOOP)), *back.results)
        groups, warnings = (*stopped.groups, *back.groups), (*stopped.warnings, *back.warnings)
        error = back.error
        code = back.exit_code
    else:
        rows, groups, warnings = stopped.results, stopped.groups, stopped.warnings
        error, code = ErrorInfo.of(returned), returned.exit_code
    if code == ExitCode.REFUSED:
        # REFUSED would mean that nothing was changed, as would UNREACHABLE. Clients still in use there may stop later,
        # so retrying can help; records after the fork, and anything else, stay.
        has_records = isinstance(returned, VerbReport)
        code = ExitCode.TIMED_OUT if isinstance(returned, InUseError) else ExitCode.PARTLY_DONE
        if has_records and error is not None:
            error = replace(error, hint=f"`kmirror failback` on the old source decides about them: {error.hint}")
    elif code == ExitCode.UNREACHABLE:
        passes = isinstance(returned, KmirrorError) and is_transient(returned)
        code = ExitCode.TIMED_OUT if passes else ExitCode.PARTLY_DONE
    if error is not None:
        message = f"promoted, but the old source is not a mirror of this cluster yet: {error.message}"
        hint = f"{error.hint or 'fix the cause'}; then run the same command again"
        error = ErrorInfo(code, message, hint, error.reason)
        outcome = Outcome.TIMED_OUT if code == ExitCode.TIMED_OUT else Outcome.FAILED
        rows = (*rows, TopicResult(None, None, outcome, message, error.reason, hint=hint))
    return VerbResult(
        verb=VERB,
        mirror=mirror,
        dry_run=False,
        exit_code=code,
        results=rows,
        groups=groups,
        blocked=stopped.blocked,
        error=error,
        warnings=warnings,
    )
