"""`promote`: the planned end of mirroring. It waits until a topic's copy is complete, then stops it.

A topic is complete when, for all its partitions, the lag is 0 and the source's high watermark is its last stable
offset, the source's end has not moved for a while, and the first copy is complete; and when its settings are equal and
groups are at the same offsets as at the source. What is true only for a moment is checked again right before the stop,
and the source's end once more after it: a record that arrives after all is reported, never hidden.

Only a live promote stops topics. Interrupted, or out of time, it releases the topics it has not stopped. The next
promote takes over the topics of one that was killed (`promote_claim`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, TimedOutError, UnreachableError
from kmirror.ops.base.blocked_producers import BlockedTopic, Denial, blocked_sentences, blocked_topics
from kmirror.ops.base.context import (
    Destination,
    now_ms,
    require_mirror,
    source_client,
)
from kmirror.ops.base.evidence import evidence_of
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.standby import uncertain_once_stopped
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.groups.commit import refused_sentences
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.rights.producer_block import ProducerBlock
from kmirror.ops.rights.protection import is_mirrored
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.stop.clients import ClientComparison
from kmirror.ops.stop.copied_back import live_elsewhere
from kmirror.ops.stop.copying_engine import CopyingEngine
from kmirror.ops.stop.promote_checks import (
    FinalCheck,
    dry_run_warnings,
    missing_beginnings,
    require_source,
)
from kmirror.ops.stop.promote_claim import Claim, has_unfinished_promote
from kmirror.ops.stop.promote_readiness import (
    Readiness,
    ReadinessChecker,
    not_ready_until_blocked,
    topics_to_block,
)
from kmirror.ops.stop.promote_request import (
    PromoteRequest,
    Show,
    Watcher,
    blocking_text,
    dry_run_rows,
    half_stopped_warnings,
    lost_rows,
    not_stopped,
    not_stopped_together,
    taken_row,
    waits_for_text,
)
from kmirror.ops.stop.report import VerbReport, sorted_rows
from kmirror.ops.stop.source_after_stop import check_source_after_stop, rows_of_stopped
from kmirror.ops.stop.steps import Gate, Step, StepRunner, no_gate
from kmirror.ops.stop.stop import stop
from kmirror.ops.stop.work import StopRequest, StopResults, is_stopped
from kmirror.state.records import PENDING_PROMOTE, DesiredState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted, one_line

_STEP_S = 0.5
#: Time lanes may take to report what they have copied.
_REPORT_S = 2.0


def promote(
    destination: Destination,
    request: PromoteRequest,
    watcher: Watcher = lambda _: None,
    stopping: threading.Event | None = None,
    *,
    dry_run: bool = False,
    own: OwnEngine | None = None,
    runner: StepRunner | None = None,
    gate: Gate = no_gate,
) -> VerbReport:
    """Stop each of these topics once it is complete; set `stopping` to interrupt.

    If no engine runs, `own` is started, or one that ends with the call. Several promotes in a row share a `runner`.
    `gate` is called before the first change.

    Raises:
        UsageError: `request` is contradictory, or its master is none.
        RefusedError: no such mirror or topic, another promote is waiting, another cluster answers as the source, or
            its producers cannot be blocked.
        TimedOutError: it is not known in time whether another promote still waits.
        UnreachableError: a cluster does not answer at the beginning.
    """
    request = request.checked()
    began_ms, show = now_ms(), Show(watcher)
    until = math.inf if request.timeout_ms is None else show.began + request.timeout_ms / 1000
    claim = Claim(destination, request.mirror, show.say)
    state = destination.state()
    mirror = require_mirror(state, request.mirror)
    chosen = select_topics(state.topics(mirror.name), request.topics, f"of mirror {mirror.name}", request.exclude)
    waiting = {topic.topic: topic for topic in chosen if not is_stopped(topic)}
    if dry_run and waiting:
        require_own_rights(destination)
    with (
        source_client(mirror.source, mirror.source_cluster_id) as source,
        nullcontext(own) if own else OwnEngine(mirror.name, destination.properties, request.master) as own_engine,
    ):
        checker = ReadinessChecker(destination, mirror, request.idle_ms)
        is_begun = bool(waiting) and all(has_unfinished_promote(topic) for topic in waiting.values())
        show.say(require_source(source, mirror, is_needed=dry_run or not is_begun))
        show.say(f"destination: cluster {destination.cluster_id}; {counted(len(chosen), 'topic')} to promote")
        producer_block = ProducerBlock(destination, mirror.name, source, state, [topic.topic for topic in chosen])
        if request.block_producers and waiting and not is_begun:
            producer_block.require_possible()
            show.say("producers can be blocked at the source, except its super users")
        engine, event = CopyingEngine(own_engine, mirror.name, show), stopping or threading.Event()
        promotion = _Promotion(
            destination, request, source, checker, claim, producer_block, engine, show, event, until, waiting,
            state, runner or StepRunner(acts=not dry_run), is_over=not waiting,
        )  # fmt: skip
        names = {topic.topic for topic in chosen}
        if not waiting:
            promotion.done.warnings += live_elsewhere(destination, mirror, names, "promote")
        promotion.done.warnings += half_stopped_warnings(state.topics(mirror.name), mirror.name, names)
        promotion.done.warnings += uncertain_once_stopped(state, mirror.name, names)
        promotion.runner.walk(NO_OTHER, promotion)
        claim.foresee(waiting)
        if not dry_run:
            gate(mirror, [topic.topic for topic in chosen])
        before = [topic for topic in chosen if topic.topic not in waiting]
        promotion.done.results, warnings = rows_of_stopped(destination, mirror, state, before, dry_run=dry_run)
        promotion.done.warnings += warnings
        try:
            promotion.runner.walk(PROMOTE, promotion)
        except KmirrorError as error:
            if not (promotion.has_begun or claim.is_lost):
                raise
            promotion.done.results += lost_rows(waiting, promotion.begun, error)
            if claim.is_lost:
                waiting.clear()
        finally:
            if claim.is_recorded:
                promotion.release(list(waiting), ends=True)
        blocked = promotion.blocked([topic.topic for topic in chosen]) if producer_block.since_ms else ()
    done = promotion.done
    none = TopicResult(None, None, Outcome.NOOP, f"mirror {mirror.name} has no topics to promote")
    rows = sorted_rows(done.results) or [none]
    whole = request.topics is None and request.exclude is None
    with closing(ClientComparison(destination, mirror)) as clients, LeftBehind(mirror, whole=whole) as left:
        done.warnings += left.warnings(destination.state)
        result = VerbResult.of(
            "promote",
            mirror.name,
            rows,
            dry_run=dry_run,
            groups=done.groups,
            warnings=done.warnings,
            clients=clients.gaps(chosen),
            steps=promotion.runner.done,
            blocked=blocked,
        )
    evidence = evidence_of(destination, mirror, result, began_ms, promotion.runner.seconds, together=request.together)
    return VerbReport(result, evidence)


@dataclass(slots=True)
class _Promotion:
    """A promote in progress: topics that are `waiting`, and the results of the others."""

    destination: Destination
    request: PromoteRequest
    source: ClusterClient
    checker: ReadinessChecker
    claim: Claim
    producer_block: ProducerBlock
    engine: CopyingEngine
    show: Show
    stopping: threading.Event
    #: When the time runs out, by `time.monotonic`; never if infinite.
    until: float
    waiting: dict[str, TopicRecord]
    #: The stored state as it was last read.
    state: State
    runner: StepRunner
    is_over: bool = False
    #: The waiting topics whose stop has begun and was interrupted.
    begun: Sequence[str] = ()
    #: True once topics were to be stopped: more than the claim may be changed.
    has_begun: bool = False
    #: What the waiting topics lacked when they were last looked at.
    readiness: Readiness = field(default_factory=Readiness)
    #: Why it is unknown now what the topics lack.
    unknown: str | None = None
    done: StopResults = field(default_factory=StopResults)
    #: Why topics that lack no records were not stopped at the last attempt.
    blockers: dict[str, str] = field(default_factory=dict)
    #: With `together`: a topic that cannot be stopped, so that none of the others can be.
    failed: str | None = None

    def begin(self) -> None:
        """Record that the topics wait."""
        self.begun, others = self.claim.begin(self.waiting, self.until)
        # a dead promote may have blocked their producers
        self.done.warnings += filter(None, [self.producer_block.lift(others)])

    def find_begun(self) -> None:
        """Find the topics that an interrupted promote has begun to stop."""
        self.begun = [name for name, topic in self.waiting.items() if has_unfinished_promote(topic)]

    def finish_begun(self) -> bool:
        """Finish their stops."""
        if self.request.block_producers:
            try:
                self.block(self.begun)
            except (UnreachableError, TimedOutError) as error:
                if not self.producer_block.recorded.issuperset(self.begun):
                    raise
                self.show.say(f"whether producers are still blocked is unknown: {error.message}")
        self.stop(self.begun)
        return True

    def rehearse_begun(self) -> None:
        """Report that their stops would be finished."""
        why = "would be stopped now: a promote had started to stop it"
        self.done.results += [TopicResult(n, None, Outcome.DONE, f"{n} {why}", Reason.PROMOTED) for n in self.begun]
        self.rehearse_stop(self.begun)

    def wait(self) -> None:
        """Stop each topic once it is complete, until none is left or the time is up."""
        waiting = self.waiting
        while waiting and not self.failed and not self.stopping.is_set():
            if not self.bear(self._stop_complete):
                if self.failed or time.monotonic() >= self.until:
                    break
                self.stopping.wait(_STEP_S)
        if waiting and not self.failed and not self.unknown and (trouble := self.engine.trouble(self.state)):
            self.done.warnings.append(trouble)
        self.done.warnings += self.engine.warnings
        why = "interrupted" if self.stopping.is_set() else "not ready in time"
        for topic in waiting:
            missing = self.readiness.missing.get(topic)
            what = (missing and missing.what) or self.blockers.get(topic) or "it was about to be stopped"
            row = not_stopped(topic, why, what, missing, self.unknown, begun=topic in self.begun)
            self.done.results.append(
                not_stopped_together(topic, self.failed) if self.failed and topic not in self.begun else row
            )

    def bear(self, act: Callable[[], bool]) -> bool:
        """Return what `act` does; False, and `unknown` says why, if a cluster does not answer: that may pass."""
        try:
            self.unknown = None
            return act()
        except (KmirrorError, OutcomeUnknown) as error:
            if not is_transient(error):
                raise
            self.unknown = one_line("; ".join(filter(None, (str(error), getattr(error, "hint", None)))))
            self.show.say(f"unknown now: {self.unknown}")
            return False

    def _stop_complete(self) -> bool:
        """Stop the topics that are complete now; return whether to look at the others at once."""
        request, waiting = self.request, self.waiting
        self.engine.ask()
        state = self.state = self.destination.state()
        self.claim.require(state)
        self.claim.renew(self.until)
        self._refresh(state)
        if self.begun:
            return self.finish_begun()
        self.engine.ensure(state)
        blocked = set(self.producer_block.in_force)
        readiness = self.readiness = self.checker.check(self.source, state, waiting, self.until)
        self.checker.add_partitions(waiting.values(), self.show.say)
        for topic, rows in readiness.failed.items():
            self.drop(topic, rows)
        if self.failed:
            return False
        if request.block_producers:
            readiness = self.readiness = not_ready_until_blocked(readiness, blocked)
            close = topics_to_block(readiness, blocked, together=request.together)
            if close and self._block_or_drop(close):
                return True
        ready = [topic for topic, missing in readiness.missing.items() if missing.what is None]
        lacking = [topic for topic in readiness.missing if topic not in ready]
        waits = request.together and bool(lacking)
        self.blockers = dict.fromkeys(ready, waits_for_text(lacking)) if waits else {}
        self.show.progress(readiness, self.blockers)
        if not ready or waits:
            return False
        if not (is_any_stopped := self._stop_ready(ready)):
            self.show.progress(readiness, self.blockers)
        return is_any_stopped

    def drop(self, name: str, rows: Sequence[TopicResult]) -> None:
        """Release a topic that cannot be stopped, and report why; with `together` no other topic can be either."""
        del self.waiting[name]
        self.release([name])
        self.done.results += rows
        if self.request.together:
            self.failed = self.failed or name

    def block(self, topics: Sequence[str]) -> None:
        """Deny producers WRITE on the sources of these topics; ends that are read from now on are final."""
        with self.claim.required():
            self.producer_block.block([self.waiting[name] for name in topics])
        self.show.say(f"producers are blocked at the source: {', '.join(topics)}")

    def _block_or_drop(self, topics: Sequence[str]) -> bool:
        """Block the producers of these topics, or drop the topics if that is refused; False: no answer yet."""
        try:
            self.block(topics)
        except UnreachableError as error:
            if error.reason is Reason.NOT_AUTHORIZED:
                self._drop_all(topics, error)
                return True
            self.show.say(f"producers cannot be blocked yet: {error.message}")
            return False
        except KmirrorError as error:
            self._drop_all(topics, error)
        return True

    def _drop_all(self, topics: Sequence[str], error: KmirrorError) -> None:
        for name in topics:
            message = f"{name} was not stopped: {error.message}"
            self.drop(name, [TopicResult(name, None, Outcome.FAILED, message, error.reason, hint=error.hint)])

    def blocked(self, chosen: Sequence[str]) -> tuple[BlockedTopic, ...]:
        """Return the topics whose producers were blocked and whether they still are, and add warnings."""
        with suppress(KmirrorError, OutcomeUnknown):
            self.state = self.destination.state()
        topics = {name: self.state.topic(self.request.mirror, name) for name in chosen}
        cut_off = [name for name, topic in topics.items() if topic is not None and not is_mirrored(topic)]
        rows = blocked_topics(
            self.producer_block.since_ms, self.producer_block.lifted_ms, self.producer_block.writable_ms, cut_off
        )
        lines = self.producer_block.unblocking(self.state, [r.topic for r in rows if r.denial is not Denial.LIFTED])
        self.done.warnings += blocked_sentences(rows, lines)
        return rows

    def release(self, topics: Sequence[str], *, ends: bool = False) -> None:
        """Release topics that were not stopped, and their producers; `ends`: the whole promote ends."""
        # producers first: without the claim, another promote could have blocked them again
        lifted = self.producer_block.lift(topics) if self.claim.is_held() else None
        for trouble in (lifted, self.claim.release(topics, ends=ends)):
            if trouble is not None:
                self.done.warnings.append(trouble)
                self.show.say(trouble)

    def _refresh(self, state: State) -> None:
        """Take what is stored of the waiting topics now; drop those that another command has stopped."""
        begun, stopped = list[str](), list[str]()
        for name in list(self.waiting):
            topic = state.topic(self.request.mirror, name)
            if topic is not None and name in self.begun and topic.stop_reason is Reason.PROMOTED:
                # it is our own stop whose outcome was unknown
                self.waiting[name] = topic
                (stopped if is_stopped(topic) else begun).append(name)
            elif topic is None or topic.desired is DesiredState.STOPPED or topic.pending_operation != PENDING_PROMOTE:
                self.drop(name, [taken_row(name, topic)])
            else:
                self.waiting[name] = topic
        self.begun = [*begun, *stopped]
        if stopped:
            mirror, topics = require_mirror(state, self.request.mirror), [self.waiting[name] for name in stopped]
            rows, warnings = rows_of_stopped(self.destination, mirror, state, topics, dry_run=False)
            self.begun = begun
            for name in stopped:
                del self.waiting[name]
            self.done.results += rows
            self.done.warnings += warnings

    def _stop_ready(self, ready: Sequence[str]) -> bool:
        """Stop these topics if a final check passes; return whether any was stopped."""
        waiting, check = self.waiting, self._final_check(ready)
        going = check.going
        if self.request.together and len(going) < len(waiting):
            check.blockers |= dict.fromkeys(going, waits_for_text([name for name in waiting if name not in going]))
            going = []
        self.blockers = check.blockers
        if not going or self.failed or self.stopping.is_set():
            return False
        self._report_groups(check, going)
        self.runner.reached("waited")
        self.stop(going)
        return True

    def _final_check(self, ready: Sequence[str]) -> FinalCheck:
        check = FinalCheck(
            self.destination, self.request, self.source, self.checker, self.waiting, ready, self.drop, self.show.work,
            self.producer_block if self.request.block_producers else None, self.until, self.runner.acts,
        )  # fmt: skip
        check.run()
        return check

    def _report_groups(self, check: FinalCheck, going: Sequence[str]) -> None:
        groups = [row for row in check.groups if row.topic in going]
        self.done.groups = [row for row in self.done.groups if row.topic not in going] + groups
        self.done.warnings += [one for one in refused_sentences(groups) if one not in self.done.warnings]

    def _walk_stop(self, going: Sequence[str]) -> StopResults:
        """Walk the steps of a stop of these topics."""
        together = self.request.together
        request = StopRequest(self.request.mirror, "promote", tuple(going), Reason.PROMOTED, together=together)
        done = stop(self.destination, request, self.runner)
        self.done.groups += done.groups
        self.done.warnings += [w for w in done.warnings if w not in self.done.warnings]
        return done

    def rehearse_stop(self, going: Sequence[str]) -> None:
        """Report what would fail if these topics were stopped now, instead of that they would be stopped."""
        done = self._walk_stop(going)
        failed = [row for row in done.results if row.result not in (Outcome.DONE, Outcome.NOOP)]
        names = {row.topic for row in failed}
        self.done.results = [row for row in self.done.results if row.topic not in names] + failed

    def stop(self, going: Sequence[str]) -> None:
        """Stop these topics, and check whether the source received anything after all."""
        self.begun, self.has_begun = going, True
        with self.claim.required():
            done = self._walk_stop(going)
        self.state = done.state or self.state
        if self.producer_block.since_ms:
            self.producer_block.note_writable(done.writable_ms)
        after = check_source_after_stop(self.source, self.waiting, done)
        after.record(self.destination, self.request.mirror)
        stopped = [self.waiting[name] for name in going if name in self.waiting]
        missing = missing_beginnings(self.destination, self.source, self.request.mirror, stopped)
        self.done.results += after.rows
        self.done.warnings += [*after.warnings, *missing]
        self.begun = ()  # not before: after an error on the way, what is stored says that they are stopped
        for name in going:
            self.waiting.pop(name, None)
            if done.has_stopped(name):
                self.show.say(f"{name} is stopped")
            elif self.request.together:
                self.failed = name

    def rehearse(self) -> None:
        """Report for each topic whether it would be stopped now."""
        request, state, readiness, done = self.request, self.destination.state(), Readiness(), self.done
        topics = {name: topic for name, topic in self.waiting.items() if name not in self.begun}
        at_last = time.monotonic() + (request.idle_ms or 0) / 1000 + _REPORT_S
        until = min(at_last, self.until)
        while not self.stopping.is_set():
            state = self.destination.state()
            readiness = self.checker.check(self.source, state, topics, self.until)
            self.show.progress(readiness, {})
            if time.monotonic() >= until or not any(one.only_time for one in readiness.missing.values()):
                break
            self.stopping.wait(_STEP_S)
        check = self._final_check(list(readiness.missing))
        rows = dry_run_rows(readiness, check.blockers, together=request.together)
        done.results += rows
        going = [row.topic for row in rows if row.topic and row.result is Outcome.DONE]
        self.rehearse_stop(going)
        self._report_groups(check, going)
        if request.block_producers and self.waiting:
            done.warnings.append(f"first, once nearly all is copied, {blocking_text(self.waiting.values())}")
        done.warnings += dry_run_warnings(
            self.destination, self.source, self.checker, state, request.mirror, self.waiting, list(topics.values()),
            done.groups,
        )  # fmt: skip


NO_OTHER: tuple[Step[_Promotion], ...] = (
    Step(
        "make sure that no other promote of the mirror waits",
        lambda promotion: promotion.claim.await_predecessor(promotion.stopping, promotion.until),
    ),
)
PROMOTE: tuple[Step[_Promotion], ...] = (
    Step(
        "record that the topics wait to be promoted",
        _Promotion.begin,
        _Promotion.find_begun,
    ),
    Step(
        "finish what an interrupted promote has begun to stop",
        lambda promotion: promotion.bear(promotion.finish_begun),  # or leave that to the wait
        rehearse=_Promotion.rehearse_begun,
        needed=lambda promotion: bool(promotion.begun),
    ),
    Step(
        "copy what is missing, and stop each topic once it is complete", _Promotion.wait, rehearse=_Promotion.rehearse
    ),
)
