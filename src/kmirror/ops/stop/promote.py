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
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UsageError
from kmirror.ops.context import (
    Destination,
    cluster_id_of,
    naming_cluster,
    now_ms,
    require_mirror,
    require_same_cluster,
    source_client,
    told,
)
from kmirror.ops.evidence import evidence_of
from kmirror.ops.groups.sync import final_sync
from kmirror.ops.results import GroupResult, Outcome, TopicResult, VerbResult
from kmirror.ops.run.own_engine import OwnEngine
from kmirror.ops.selection import select_topics
from kmirror.ops.show.rows import engine_in_charge
from kmirror.ops.stop.failover import Stopped
from kmirror.ops.stop.promote_checks import other_topics_of_groups, rights_trouble, settings_trouble, verify_trouble
from kmirror.ops.stop.promote_claim import Claim, was_promoted
from kmirror.ops.stop.promote_messages import half_stopped_told, not_stopped, not_without, others_told, rehearsed
from kmirror.ops.stop.promote_readiness import Completeness, Look, Missing, after_the_stop
from kmirror.ops.stop.stop import stop, stopped_already
from kmirror.ops.stop.work import Stopping, StopRequest, is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import parse_settings
from kmirror.state.records import PENDING_PROMOTE, DesiredState, TopicRecord
from kmirror.state.snapshot import State

IDLE_MS = 10_000
_STEP_S = 0.5
#: How long lanes may take to report what they have copied.
_REPORT_S = 2.0
_SOURCE_S = 10.0
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


@dataclass(frozen=True, slots=True)
class PromoteView:
    """What a watcher is shown: how far each topic is, the smallest lag first; `lines` are new sentences."""

    elapsed_seconds: float
    missing: tuple[Missing, ...] = ()
    lines: tuple[str, ...] = ()


Watcher = Callable[[PromoteView], None]


def promote(
    destination: Destination,
    request: PromoteRequest,
    watcher: Watcher = lambda _: None,
    stopping: threading.Event | None = None,
    *,
    dry_run: bool = False,
) -> Stopped:
    """Stop these topics as each becomes complete; `stopping` set from elsewhere interrupts.

    Raises:
        RefusedError: no such mirror or topic, another promote is waiting, another cluster at the source.
        TimedOutError: whether another promote still waits is not known in time.
        UnreachableError: a cluster does not answer when it begins.
    """
    if request.timeout_ms is not None and request.timeout_ms <= 0:
        raise UsageError("--timeout is not positive", "give a duration such as 30m")
    return _Promotion(destination, request, watcher, stopping or threading.Event()).run(dry_run=dry_run)


class _Promotion:
    def __init__(
        self, destination: Destination, request: PromoteRequest, watcher: Watcher, stopping: threading.Event
    ) -> None:
        self._destination = destination
        self._request = request
        self._watcher = watcher
        self._stopping = stopping
        self._began = time.monotonic()
        self._began_ms = now_ms()
        self._rows: list[TopicResult] = []
        self._groups: list[GroupResult] = []
        self._warnings: list[str] = []
        self._steps: dict[str, float] = {}
        self._engine: OwnEngine | None = None
        self._engine_at = 0.0
        #: Why topics that lack no records were not stopped when that was last tried.
        self._held: dict[str, str] = {}
        #: The topic that keeps the others from being stopped together with it, for good.
        self._missed: str | None = None
        self._claim = Claim(destination, request.mirror, self._say)

    def run(self, *, dry_run: bool) -> Stopped:
        request, destination = self._request, self._destination
        state = destination.state()
        mirror = require_mirror(state, request.mirror)
        chosen = select_topics(state.topics(mirror.name), request.topics, f"mirror {mirror.name}")
        if request.exclude is not None:
            chosen = [topic for topic in chosen if not request.exclude.matches(topic.topic)]
        with (
            source_client(mirror.source) as source,
            OwnEngine(mirror.name, destination.properties, request.master) as own,
        ):
            self._completeness = Completeness(destination, mirror, request.idle_ms)
            require_same_cluster(mirror.source_cluster_id, cluster_id_of(source))
            self._say(f"the source answers: cluster {mirror.source_cluster_id}")
            self._say(f"destination: cluster {destination.cluster_id}; {len(chosen)} topics to promote")
            self._engine = own
            waiting = {topic.topic: topic for topic in chosen if not is_stopped(state, topic)}
            for topic in chosen:
                if topic.topic not in waiting:
                    self._rows += stopped_already(state, topic)
            names = {topic.topic for topic in chosen}
            self._warnings += half_stopped_told(state.topics(mirror.name), mirror.name, names)
            if dry_run:
                self._rehearse(source, waiting)
            elif waiting:
                self._claim.await_predecessor(self._stopping, self._until)
                begun = self._claim.begin(waiting)
                try:
                    if begun:
                        self._stop(source, waiting, begun)
                    self._wait(source, waiting)
                finally:
                    self._note(self._claim.give_back(waiting, ends=True))
        rows = sorted(self._rows, key=lambda row: (row.topic or "", -1 if row.partition is None else row.partition))
        if not rows:
            rows = [TopicResult(None, None, Outcome.NOOP, f"mirror {mirror.name} has no topics to promote")]
        result = VerbResult.of(
            "promote", mirror.name, rows, dry_run=dry_run, groups=self._groups, warnings=self._warnings
        )
        evidence = evidence_of(destination, mirror, result, self._began_ms, self._steps)
        return Stopped(result, evidence | {"together": request.together})

    # -- waiting --------------------------------------------------------------------------------------------------

    def _wait(self, source: ClusterClient, waiting: dict[str, TopicRecord]) -> None:
        request, look = self._request, Look()
        while waiting and not self._stopping.is_set():
            state = self._destination.state()
            self._drop_stopped_by_others(state, waiting)
            self._have_engine(state)
            look = self._completeness.look(source, state, waiting)
            for topic, rows in look.failed.items():
                self._drop(waiting, topic, rows)
            if self._missed:
                break
            ready = [topic for topic, missing in look.missing.items() if missing.what is None]
            lacking = [topic for topic in look.missing if topic not in ready]
            waits = request.together and bool(lacking)
            self._held = dict.fromkeys(ready, others_told(lacking)) if waits else {}
            self._show(look)
            if ready and not waits:
                if self._stop_ready(source, waiting, ready):
                    continue
                self._show(look)
            if self._missed or (self._until is not None and time.monotonic() >= self._until):
                break
            self._claim.live_on()
            self._stopping.wait(_STEP_S)
        why = "interrupted" if self._stopping.is_set() else "not ready in time"
        for topic in waiting:
            missing = look.missing.get(topic)
            what = (missing.what if missing else None) or self._held.get(topic) or "it was about to be stopped"
            self._rows.append(
                not_without(topic, self._missed) if self._missed else not_stopped(topic, why, what, missing)
            )

    def _drop(self, waiting: dict[str, TopicRecord], name: str, rows: Sequence[TopicResult]) -> None:
        """Give back a topic that cannot be stopped, and say why; with `together` no other one can be, then."""
        del waiting[name]
        self._note(self._claim.give_back([name]))
        self._rows += rows
        if self._request.together:
            self._missed = self._missed or name

    def _drop_stopped_by_others(self, state: State, waiting: dict[str, TopicRecord]) -> None:
        for name in list(waiting):
            topic = state.topic(self._request.mirror, name)
            if topic is None or topic.desired is DesiredState.STOPPED or topic.pending_operation != PENDING_PROMOTE:
                why = (
                    f"stopped by another command ({topic.stop_reason})" if topic and topic.stop_reason else "taken over"
                )
                hint = "check with `kmirror describe` and `kmirror events`"
                row = TopicResult(name, None, Outcome.FAILED, f"{name} was {why} meanwhile", Reason.FENCED, hint=hint)
                self._drop(waiting, name, [row])

    def _have_engine(self, state: State) -> None:
        """See to it that somebody copies."""
        engine = self._engine
        if engine is None or engine_in_charge(state, self._request.mirror, now_ms()) is not None:
            return
        if not engine.is_running and time.monotonic() - self._engine_at > _RESTART_ENGINE_S:
            said = engine.said()
            self._say("no engine is in charge: one is started" + (f" again ({said})" if said else ""))
            self._engine_at = time.monotonic()
            engine.start()

    # -- stopping -------------------------------------------------------------------------------------------------

    def _stop_ready(self, source: ClusterClient, waiting: dict[str, TopicRecord], ready: Sequence[str]) -> bool:
        """Stop these topics, after a last look at all that must hold; tell whether any was."""
        request = self._request
        held: dict[str, str] = {}
        at = time.monotonic()
        before = {name: self._completeness.source_ends(waiting[name]) for name in ready}
        groups: tuple[GroupResult, ...] = ()
        going: list[str] = []
        try:
            held |= settings_trouble(self._destination, request.mirror, ready)
            if request.together:
                held |= rights_trouble(self._destination, ready)
            if request.verify:
                self._verify(waiting, [name for name in ready if name not in held])
            groups = self._sync_groups([name for name in ready if name in waiting and name not in held], held)
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self._completeness.see_ends(source, [waiting[name] for name in ready if name in waiting])
            going = [name for name in ready if name in waiting and name not in held]
        except (KmirrorError, OutcomeUnknown) as error:
            held.update(dict.fromkeys(ready, str(error)))
        for name in going:
            if request.idle_ms is not None and self._completeness.source_ends(waiting[name]) != before[name]:
                held[name] = "producers: the source's end moved a moment ago"
        going = [name for name in going if name not in held]
        if request.together and len(going) < len(waiting):
            lacking = [name for name in waiting if name not in going]
            held |= dict.fromkeys(going, others_told(lacking))
            going = []
        self._held = held
        if not going or self._missed or self._stopping.is_set():
            return False
        self._groups += [row for row in groups if row.topic in going]
        self._steps["waited"] = self._steps.get("waited", 0.0) + at - self._began
        self._stop(source, waiting, going)
        return True

    def _stop(self, source: ClusterClient, waiting: dict[str, TopicRecord], going: Sequence[str]) -> None:
        """Stop these topics, and look whether anything came after all."""
        request = StopRequest(
            self._request.mirror, "promote", tuple(going), Reason.PROMOTED, together=self._request.together
        )
        self._take(source, waiting, going, stop(self._destination, request))

    def _verify(self, waiting: dict[str, TopicRecord], topics: Sequence[str]) -> None:
        """Compare contents; topics that are not equal are given back."""
        unequal = verify_trouble(self._destination, self._request.mirror, topics, self._request.master)
        for name, rows in unequal.items():
            self._drop(waiting, name, rows)

    def _sync_groups(self, topics: Sequence[str], held: dict[str, str]) -> tuple[GroupResult, ...]:
        if not topics:
            return ()
        try:
            rows = final_sync(self._destination, self._request.mirror, topics)
        except (KmirrorError, OutcomeUnknown) as error:
            held.update(dict.fromkeys(topics, f"groups: {told(error).message}"))
            return ()
        for row in rows:
            if row.result in (Outcome.TIMED_OUT, Outcome.FAILED):
                held.setdefault(
                    row.topic, f"group {row.group} is not where it is at the source ({row.reason or 'moving'})"
                )
        return rows

    def _take(
        self, source: ClusterClient, waiting: dict[str, TopicRecord], going: Sequence[str], done: Stopping
    ) -> None:
        """Take over what a stop has done, after a look at the source's ends."""
        self._warnings += [w for w in done.warnings if w not in self._warnings]
        self._groups += done.groups
        for name, seconds in done.steps.items():
            self._steps[name] = self._steps.get(name, 0.0) + seconds
        rows, warnings = after_the_stop(source, waiting, done)
        self._rows += rows
        self._warnings += warnings
        for name in going:
            waiting.pop(name, None)
            if all(row.result in (Outcome.DONE, Outcome.NOOP) for row in done.results if row.topic == name):
                self._say(f"{name} is stopped")
            elif self._request.together:
                self._missed = name

    # -- the rehearsal --------------------------------------------------------------------------------------------

    def _rehearse(self, source: ClusterClient, waiting: Mapping[str, TopicRecord]) -> None:
        """Say of each topic whether it would be stopped now."""
        request, state, look = self._request, self._destination.state(), Look()
        begun = [name for name, topic in waiting.items() if was_promoted(topic)]
        for name in begun:
            word = f"{name} would be stopped now: a promote had started to stop it"
            self._rows.append(TopicResult(name, None, Outcome.DONE, word, Reason.PROMOTED))
        until = time.monotonic() + (request.idle_ms or 0) / 1000 + _REPORT_S
        while not self._stopping.is_set():
            state = self._destination.state()
            look = self._completeness.look(source, state, {n: t for n, t in waiting.items() if n not in begun})
            self._show(look)
            if time.monotonic() >= until or not any(one.passes for one in look.missing.values()):
                break
            self._stopping.wait(_STEP_S)
        ready = [name for name, missing in look.missing.items() if missing.what is None]
        held = settings_trouble(self._destination, request.mirror, ready, dry_run=True)
        if request.together:
            held |= rights_trouble(self._destination, ready)
        self._rows += rehearsed(look, held, together=request.together)
        if engine_in_charge(state, request.mirror, now_ms()) is None:
            self._warnings.append("no engine is in charge: promote would run one itself")
        if parse_settings(require_mirror(state, request.mirror).settings).sync_group_offsets_enabled:
            self._warnings += other_topics_of_groups(source, state, request.mirror, waiting.values())

    # -- showing --------------------------------------------------------------------------------------------------

    @property
    def _until(self) -> float | None:
        """The moment at which the time runs out, of `time.monotonic`."""
        timeout_ms = self._request.timeout_ms
        return None if timeout_ms is None else self._began + timeout_ms / 1000

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _note(self, trouble: str | None) -> None:
        if trouble is not None:
            self._warnings.append(trouble)

    def _say(self, line: str) -> None:
        self._watcher(PromoteView(self._elapsed, lines=(line,)))

    def _show(self, look: Look) -> None:
        found = (replace(one, what=one.what or self._held.get(one.topic)) for one in look.missing.values())
        missing = sorted(found, key=lambda one: (one.lag is None, one.lag or 0, one.topic))
        self._watcher(PromoteView(self._elapsed, tuple(missing)))
