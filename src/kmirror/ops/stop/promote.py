"""`promote`: the planned end of mirroring. It waits until a topic's copy is complete, then stops it.

A topic is complete when, for all its partitions, the lag is 0 and the source's high watermark is its last stable
offset, the source's end has not moved for a while, the first copy is complete; and when its settings are equal and
groups stand where they do at the source. What is true of a moment only is looked at again right before the stop, and
the source's end once more after it: a record that came after all is told, never hidden.

Only a promote that lives stops topics. Interrupted, or out of time, it gives back what it has not stopped. Of one that
was killed the next one is the heir (`promote_claim`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import ClusterClient
from kmirror.errors import KmirrorError, Reason, UnreachableError, UsageError
from kmirror.ops.blocked_producers import BlockedTopic, Denial, blocked_sentences, blocked_topics
from kmirror.ops.context import Destination, cluster_id_of, now_ms, require_mirror, require_same_cluster, source_client
from kmirror.ops.evidence import evidence_of
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.rights.protection import is_mirrored
from kmirror.ops.rights.source_cut import SourceCut
from kmirror.ops.run.own_engine import OwnEngine
from kmirror.ops.selection import select_topics
from kmirror.ops.show.rows import engine_in_charge
from kmirror.ops.stop.clients import look_at_clients
from kmirror.ops.stop.failover import Stopped
from kmirror.ops.stop.promote_checks import (
    LastLook,
    other_topics_of_groups,
    rights_trouble,
    settings_trouble,
)
from kmirror.ops.stop.promote_claim import Claim, was_promoted
from kmirror.ops.stop.promote_messages import (
    blocking_told,
    half_stopped_told,
    not_stopped,
    not_without,
    others_told,
    rehearsed,
)
from kmirror.ops.stop.promote_readiness import Completeness, Look, Missing, after_the_stop, to_block, without_unblocked
from kmirror.ops.stop.stop import stop, stopped_already
from kmirror.ops.stop.work import Stopping, StopRequest, is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import stored_settings
from kmirror.state.records import PENDING_PROMOTE, DesiredState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted
from kmirror.work import WorkView

IDLE_MS = 10_000
_STEP_S = 0.5
#: How long lanes may take to report what they have copied.
_REPORT_S = 2.0
#: How soon an engine that has ended is started again.
_RESTART_ENGINE_S = 5.0


@dataclass(frozen=True, slots=True)
class PromoteRequest:
    """What is to be promoted; `timeout_ms` None: as long as it takes, `idle_ms` None: producers may go on."""

    mirror: str
    topics: TopicSelector | None = None
    exclude: TopicSelector | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = IDLE_MS
    verify: bool = False
    master: str = "local[*]"
    #: Stop all of the topics at once, or none.
    together: bool = False
    #: Deny everybody WRITE on the source's topics, in place of waiting until their ends have stood still for a while.
    block_producers: bool = False


@dataclass(frozen=True, slots=True)
class PromoteView:
    """What a watcher is shown: how far each topic is, the smallest lag first; `lines` are new sentences.

    `work` is what is done meanwhile: contents are compared.
    """

    elapsed_seconds: float
    missing: tuple[Missing, ...] = ()
    lines: tuple[str, ...] = ()
    work: WorkView | None = None


Watcher = Callable[[PromoteView], None]


def promote(
    destination: Destination,
    request: PromoteRequest,
    watcher: Watcher = lambda _: None,
    stopping: threading.Event | None = None,
    *,
    dry_run: bool = False,
    own: OwnEngine | None = None,
) -> Stopped:
    """Stop these topics as each becomes complete; `stopping` set from elsewhere interrupts.

    An engine that has to be started is `own`, or one for the time of the call.

    Raises:
        RefusedError: no such mirror or topic, another promote is waiting, another cluster at the source, or its
            producers cannot be blocked there.
        TimedOutError: whether another promote still waits is not known in time.
        UnreachableError: a cluster does not answer when it begins.
    """
    if request.timeout_ms is not None and request.timeout_ms <= 0:
        raise UsageError("--timeout is not positive", "give a duration such as 30m")
    if request.block_producers:
        if request.idle_ms is None:
            raise UsageError("--block-producers and --allow-producers exclude each other", "give one of them")
        request = replace(request, idle_ms=0)
    began_ms, show = now_ms(), _Show(watcher)
    until = None if request.timeout_ms is None else show.began + request.timeout_ms / 1000
    claim = Claim(destination, request.mirror, show.say)
    state = destination.state()
    mirror = require_mirror(state, request.mirror)
    chosen = select_topics(state.topics(mirror.name), request.topics, f"of mirror {mirror.name}")
    if request.exclude is not None:
        chosen = [topic for topic in chosen if not request.exclude.matches(topic.topic)]
    waiting = {topic.topic: topic for topic in chosen if not is_stopped(state, topic)}
    with (
        source_client(mirror.source) as source,
        nullcontext(own) if own else OwnEngine(mirror.name, destination.properties, request.master) as own_engine,
    ):
        completeness = Completeness(destination, mirror, request.idle_ms)
        require_same_cluster(mirror.source_cluster_id, cluster_id_of(source))
        show.say(f"the source answers: cluster {mirror.source_cluster_id}")
        show.say(f"destination: cluster {destination.cluster_id}; {counted(len(chosen), 'topic')} to promote")
        cut = SourceCut(destination, mirror.name, source, state, [topic.topic for topic in chosen])
        if request.block_producers and waiting:
            cut.require_possible()
            show.say("producers can be blocked at the source; its super users are excepted")
        engine, event = _Engine(own_engine, mirror.name, show), stopping or threading.Event()
        one = _Promotion(destination, request, source, completeness, claim, cut, engine, show, event, until, waiting)
        for topic in chosen:
            if topic.topic not in waiting:
                one.done.results += stopped_already(state, topic)
        names = {topic.topic for topic in chosen}
        one.done.warnings += half_stopped_told(state.topics(mirror.name), mirror.name, names)
        if dry_run:
            one.rehearse()
        elif waiting:
            claim.await_predecessor(event, until)
            begun = claim.begin(waiting)
            try:
                if begun:
                    if request.block_producers:
                        one.block(begun)
                    one.stop(begun)
                one.wait()
            finally:
                one.give_back(list(waiting), ends=True)
        blocked = one.blocked([topic.topic for topic in chosen]) if cut.since_ms else ()
    done = one.done
    rows = sorted(done.results, key=lambda row: (row.topic or "", -1 if row.partition is None else row.partition))
    if not rows:
        rows = [TopicResult(None, None, Outcome.NOOP, f"mirror {mirror.name} has no topics to promote")]
    with look_at_clients(destination, mirror) as clients:
        result = VerbResult.of(
            "promote",
            mirror.name,
            rows,
            dry_run=dry_run,
            groups=done.groups,
            warnings=done.warnings,
            clients=clients.found(chosen),
        )
        result = replace(result, blocked=blocked)
    evidence = evidence_of(destination, mirror, result, began_ms, done.steps, together=request.together)
    return Stopped(result, evidence)


class _Show:
    """Tell a watcher how it goes."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.began = time.monotonic()

    def say(self, line: str) -> None:
        self._watcher(PromoteView(time.monotonic() - self.began, lines=(line,)))

    def work(self, view: WorkView) -> None:
        """Show how comparing contents goes."""
        self._watcher(PromoteView(view.at - self.began, work=view))

    def progress(self, look: Look, held: Mapping[str, str]) -> None:
        """Show what each topic lacks; `held` says why those that lack no records were not stopped."""
        found = (replace(one, what=one.what or held.get(one.topic)) for one in look.missing.values())
        missing = sorted(found, key=lambda one: (one.lag is None, one.lag or 0, one.topic))
        self._watcher(PromoteView(time.monotonic() - self.began, tuple(missing)))


class _Engine:
    """See to it that somebody copies while topics wait."""

    def __init__(self, own: OwnEngine, mirror: str, show: _Show) -> None:
        self._own = own
        self._mirror = mirror
        self._show = show
        self._started_at = 0.0

    def have(self, state: State) -> None:
        """Start one where none is in charge."""
        if engine_in_charge(state, self._mirror, now_ms()) is not None or self._own.is_running:
            return
        if time.monotonic() - self._started_at > _RESTART_ENGINE_S:
            said = self._own.said()
            self._show.say("no engine is in charge: one is started" + (f" again ({said})" if said else ""))
            self._started_at = time.monotonic()
            self._own.start()


@dataclass(slots=True)
class _Promotion:
    """Topics that are `waiting`, and what has become of the others."""

    destination: Destination
    request: PromoteRequest
    source: ClusterClient
    completeness: Completeness
    claim: Claim
    cut: SourceCut
    engine: _Engine
    show: _Show
    stopping: threading.Event
    #: The moment at which the time runs out, of `time.monotonic`.
    until: float | None
    waiting: dict[str, TopicRecord]
    done: Stopping = field(default_factory=Stopping)
    #: Why topics that lack no records were not stopped when that was last tried.
    held: dict[str, str] = field(default_factory=dict)
    #: The topic that keeps the others from being stopped together with it, for good.
    missed: str | None = None

    def wait(self) -> None:
        """Stop each topic as it becomes complete, until none is left, or the time is up."""
        request, waiting, look = self.request, self.waiting, Look()
        while waiting and not self.stopping.is_set():
            state = self.destination.state()
            self._drop_stopped_by_others(state)
            self.engine.have(state)
            blocked = set(self.cut.in_force)
            look = self.completeness.look(self.source, state, waiting)
            for topic, rows in look.failed.items():
                self.drop(topic, rows)
            if self.missed:
                break
            if request.block_producers:
                look = without_unblocked(look, blocked)
                close = to_block(look, blocked, together=request.together)
                if close and self._blocks(close):
                    continue
            ready = [topic for topic, missing in look.missing.items() if missing.what is None]
            lacking = [topic for topic in look.missing if topic not in ready]
            waits = request.together and bool(lacking)
            self.held = dict.fromkeys(ready, others_told(lacking)) if waits else {}
            self.show.progress(look, self.held)
            if ready and not waits:
                if self._stop_ready(ready):
                    continue
                self.show.progress(look, self.held)
            if self.missed or (self.until is not None and time.monotonic() >= self.until):
                break
            self.claim.live_on()
            self.stopping.wait(_STEP_S)
        why = "interrupted" if self.stopping.is_set() else "not ready in time"
        for topic in waiting:
            missing = look.missing.get(topic)
            what = (missing.what if missing else None) or self.held.get(topic) or "it was about to be stopped"
            self.done.results.append(
                not_without(topic, self.missed) if self.missed else not_stopped(topic, why, what, missing)
            )

    def drop(self, name: str, rows: Sequence[TopicResult]) -> None:
        """Give back a topic that cannot be stopped, and say why; with `together` no other one can be, then."""
        del self.waiting[name]
        self.give_back([name])
        self.done.results += rows
        if self.request.together:
            self.missed = self.missed or name

    def block(self, topics: Sequence[str]) -> None:
        """Keep producers from writing to the sources of these topics; what is looked at from now on is their end."""
        self.cut.block([self.waiting[name] for name in topics])
        self.show.say(f"producers are blocked at the source: {', '.join(topics)}")

    def _blocks(self, topics: Sequence[str]) -> bool:
        """Block the producers of these topics, or drop them where that is refused; False: the source is silent."""
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
        """Return what became of producers that were blocked, and tell it."""
        state = self.destination.state()
        topics = {name: state.topic(self.request.mirror, name) for name in chosen}
        cut_off = [name for name, topic in topics.items() if topic is not None and not is_mirrored(topic)]
        rows = blocked_topics(self.cut.since_ms, self.cut.lifted_ms, self.cut.writable_ms, cut_off)
        left = [row.topic for row in rows if row.denial is not Denial.LIFTED]
        lines = self.cut.unblocking(state, left)
        self.done.warnings += blocked_sentences(rows, lines)
        return rows

    def give_back(self, topics: Sequence[str], *, ends: bool = False) -> None:
        """Let go of topics that were not stopped, and of their producers; `ends`: nobody waits any more."""
        for trouble in (self.claim.give_back(topics, ends=ends), self.cut.lift(topics)):
            if trouble is not None:
                self.done.warnings.append(trouble)
                self.show.say(trouble)

    def _drop_stopped_by_others(self, state: State) -> None:
        for name in list(self.waiting):
            topic = state.topic(self.request.mirror, name)
            if topic is None or topic.desired is DesiredState.STOPPED or topic.pending_operation != PENDING_PROMOTE:
                why = (
                    f"stopped by another command ({topic.stop_reason})" if topic and topic.stop_reason else "taken over"
                )
                hint = "check with `kmirror describe` and `kmirror events`"
                row = TopicResult(name, None, Outcome.FAILED, f"{name} was {why} meanwhile", Reason.FENCED, hint=hint)
                self.drop(name, [row])

    def _stop_ready(self, ready: Sequence[str]) -> bool:
        """Stop these topics, after a last look at all that must hold; tell whether any was."""
        at, waiting = time.monotonic(), self.waiting
        last = LastLook(
            self.destination,
            self.request,
            self.source,
            self.completeness,
            waiting,
            ready,
            self.drop,
            self.show.work,
            self.cut if self.request.block_producers else None,
        )
        last.run()
        going = last.going
        if self.request.together and len(going) < len(waiting):
            last.held |= dict.fromkeys(going, others_told([name for name in waiting if name not in going]))
            going = []
        self.held = last.held
        if not going or self.missed or self.stopping.is_set():
            return False
        self.done.groups += [row for row in last.groups if row.topic in going]
        self.done.steps["waited"] = self.done.steps.get("waited", 0.0) + at - self.show.began
        self.stop(going)
        return True

    def stop(self, going: Sequence[str]) -> None:
        """Stop these topics, and look whether anything came at the source after all."""
        together = self.request.together
        request = StopRequest(self.request.mirror, "promote", tuple(going), Reason.PROMOTED, together=together)
        done = stop(self.destination, request)
        self.done.warnings += [w for w in done.warnings if w not in self.done.warnings]
        self.done.groups += done.groups
        if self.cut.since_ms:
            self.cut.note_writable(done.writable_ms)
        for name, seconds in done.steps.items():
            self.done.steps[name] = self.done.steps.get(name, 0.0) + seconds
        rows, warnings = after_the_stop(self.source, self.waiting, done)
        self.done.results += rows
        self.done.warnings += warnings
        for name in going:
            self.waiting.pop(name, None)
            if all(row.result in (Outcome.DONE, Outcome.NOOP) for row in done.results if row.topic == name):
                self.show.say(f"{name} is stopped")
            elif together:
                self.missed = name

    def rehearse(self) -> None:
        """Say of each topic whether it would be stopped now."""
        request, state, look, done = self.request, self.destination.state(), Look(), self.done
        begun = [name for name, topic in self.waiting.items() if was_promoted(topic)]
        for name in begun:
            word = f"{name} would be stopped now: a promote had started to stop it"
            done.results.append(TopicResult(name, None, Outcome.DONE, word, Reason.PROMOTED))
        topics = {name: topic for name, topic in self.waiting.items() if name not in begun}
        until = time.monotonic() + (request.idle_ms or 0) / 1000 + _REPORT_S
        while not self.stopping.is_set():
            state = self.destination.state()
            look = self.completeness.look(self.source, state, topics)
            self.show.progress(look, {})
            if time.monotonic() >= until or not any(one.passes for one in look.missing.values()):
                break
            self.stopping.wait(_STEP_S)
        ready = [name for name, missing in look.missing.items() if missing.what is None]
        held = settings_trouble(self.destination, request.mirror, ready, dry_run=True)
        if request.together:
            held |= rights_trouble(self.destination, ready)
        done.results += rehearsed(look, held, together=request.together)
        if request.block_producers and self.waiting:
            names = sorted(topic.source_topic for topic in self.waiting.values())
            done.warnings.append(f"first, once nearly all is copied, {blocking_told(names)}")
        if engine_in_charge(state, request.mirror, now_ms()) is None:
            done.warnings.append("no engine is in charge: promote would run one itself")
        if stored_settings(require_mirror(state, request.mirror).settings).sync_group_offsets_enabled:
            done.warnings += other_topics_of_groups(self.source, state, request.mirror, self.waiting.values())
