"""`run`: be the engine of some mirrors, until it is asked to end or everything is copied.

Its memory stays small however long it runs: glibc's malloc is configured before the first thread starts.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kmirror import __version__
from kmirror.engine.clock import now, now_ms
from kmirror.engine.driver.driver import NO_MIRRORS, Ending, Limits, RunView, Watcher, drive
from kmirror.engine.driver.engines import Engines, NotCopied, Supervisor
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.engine.memory import allow_many_files, limit_arenas, return_large_blocks
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import check as check_spark
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import KmirrorError, RefusedError, TimedOutError, UsageError
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.retrying import Interrupted, Retries
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.spark import StartingSpark, lane_runner, new_log_file, spark_options, watched
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.run.engine_start import EngineStart, check_source
from kmirror.ops.run.event_hook import EventHook
from kmirror.ops.run.last_group_sync import last_group_sync
from kmirror.ops.run.outcome import outcome
from kmirror.ops.run.signals import Hangup, at_hangup, stopping
from kmirror.ops.run.supervisor import EngineSupervisor, unreadable_mirrors, wanted_mirrors
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.stop.stop import require_not_failed_over
from kmirror.state.engine_identity import EngineIdentity, is_over, require_no_heartbeat
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.words import counted

#: Answer HTTP for a run until the `with` block ends, by what its engines know; yields where, and what takes its views.
Serve = Callable[[Snapshots], AbstractContextManager[tuple[str, Watcher]]]

#: How long Spark's workers may take to start Python, and check what they have.
_WORKERS_S = 30.0


def run(
    open_destination: Callable[[], Destination],
    request: RunRequest,
    watcher: Watcher,
    serve: Serve | None = None,
    event_hook: EventHook | None = None,
) -> VerbResult:
    """Copy until asked to stop; `watcher` is called about once a second, from this thread.

    Events that are stored are passed on to `event_hook`.

    Ctrl-C and SIGTERM end it cleanly if this is the main thread. Transient errors are retried without limit, or until
    the time of `--timeout` or `--for` is over; with `--until-caught-up` alone a cluster that does not answer at the
    start ends it, since nothing else would.

    Raises:
        UsageError: a contradictory request.
        RefusedError: no such mirror, another engine in charge, another cluster at a source that must answer, FENCED, or
            the address for HTTP cannot be listened on.
        UnreachableError: a cluster refuses us, or does not answer and that is not retried.
        TimedOutError: the time is over, or with `--until-caught-up` it was asked to stop, before copying started.
        SparkLostError: Spark's Java process ended by itself, or its folder was removed.
    """
    began, log_file = now(), new_log_file()
    _require_consistent(request, log_file)
    keep_memory_small()
    allow_many_files()
    limit_ms = request.timeout_ms if request.until_caught_up else request.for_ms

    snapshots, served = Snapshots(), list[Watcher]()

    def watch(view: RunView) -> None:
        for show_served in served:
            show_served(view)
        more = () if event_hook is None else event_hook.take_notes()
        watcher(replace(view, spark_log=str(log_file), notes=(*view.notes, *more)))

    def show(phase: str, note: str | None, level: Level = Level.INFO) -> None:
        watch(_view(request, began, phase, [note] if note is not None else [], level))

    with stopping() as stop, at_hangup(stop) as hangup, ExitStack() as stack:
        listening: str | None = None
        if serve is not None:
            listening, show_served = stack.enter_context(serve(snapshots))
            served.append(show_served)
        process = f"kmirror {__version__}, process {os.getpid()} on {socket.gethostname()}"
        show(_phase(request), f"{process}, Spark master {request.master}; Spark logs to {log_file}")
        if listening is not None:
            paths = "/healthz, /readyz, /status.json, /history.json and /metrics"
            show(_phase(request), f"http://{listening} answers {paths}; / is a page for people")
        retries = Retries(stop, limit_ms / 1000 if limit_ms is not None else None, show)
        try:
            started = retries.attempt(
                "the clusters",
                lambda: _connect(open_destination, request),
                phase=_phase(request),
                at_once=request.fails_fast,
                awaits_files=request.standby,
            )
            run_them = _Run(started.destination, request, watch, log_file, began, stop, hangup, retries, snapshots)
            try:
                with nullcontext() if event_hook is None else event_hook.running(started.destination):
                    return run_them.all_mirrors(started.state) if request.all_mirrors else run_them.named(started)
            finally:
                if not retries.has_running_attempt:
                    started.destination.close()
        except Interrupted:
            warning = "run was stopped before it started copying"
            if request.until_caught_up:
                raise TimedOutError(warning, "run it again") from None
            return VerbResult.of("run", ",".join(request.mirrors), [], warnings=[warning])


def preview(open_destination: Callable[[], Destination], request: RunRequest) -> VerbResult:
    """Return what a run would copy, and change nothing.

    Raises what `run` raises for a request that it refuses at its start, and for a cluster that does not answer.
    """
    _require_consistent(request, Path(os.devnull))
    started = _connect(open_destination, request)
    with started.destination as destination:
        require_own_rights(destination)
        state, rows = started.state, list[TopicResult]()
        for record in wanted_mirrors(state).values() if request.all_mirrors else started.records:
            engine = state.engine(record.name)
            what = f"would copy mirror {record.name} of the cluster at {record.source.get('bootstrap.servers')}"
            if engine is not None and not is_over(engine, EngineIdentity.of_this_process()):
                if request.take_over:
                    what += f", and fence {engine.name}"
                elif request.standby:
                    what += f", once {engine.name} has stopped"
                else:
                    require_no_heartbeat(destination.store, engine, DEFAULT_TIMEOUT_S)
            rows.append(TopicResult(None, None, Outcome.DONE, what))
            for topic in state.topics(record.name):
                is_copied = topic.desired is DesiredState.ACTIVE
                outcome = Outcome.DONE if is_copied else Outcome.NOOP
                words = f"would copy {counted(topic.partitions, 'partition')}" if is_copied else topic.desired
                rows.append(TopicResult(topic.topic, None, outcome, words))
    return VerbResult.of("run", ",".join(request.mirrors), rows, dry_run=True)


def _require_consistent(request: RunRequest, log_file: Path) -> None:
    if request.standby and request.take_over:
        raise UsageError("--standby and --take-over exclude each other", "give one of them")
    if request.for_ms is not None and request.until_caught_up:
        raise UsageError("--for and --until-caught-up exclude each other", "give one of them")
    if request.all_mirrors and request.mirrors:
        raise UsageError("--mirror and --all exclude each other", "give one of them")
    if not request.all_mirrors and not request.mirrors:
        raise UsageError("--mirror is missing", "give --mirror M, or --all for every mirror of the destination")
    check_spark(spark_options(request, (), log_file), os.environ)


@dataclass(frozen=True, slots=True)
class _Started:
    """What a run starts with: the destination, its stored state, and the records of the named mirrors."""

    destination: Destination
    state: State
    records: tuple[MirrorRecord, ...]


def _connect(open_destination: Callable[[], Destination], request: RunRequest) -> _Started:
    """Connect to the clusters, and check that there is something to run."""
    destination = open_destination()
    destination.use_in_threads()
    try:
        state = destination.state()
        records = tuple(require_mirror(state, name) for name in dict.fromkeys(request.mirrors))
        for record in records:
            require_not_failed_over(state, record)
            check_source(record, must_answer=request.until_caught_up)
        if request.all_mirrors and request.until_caught_up and not (wanted_mirrors(state) or unreadable_mirrors(state)):
            raise RefusedError(
                "there is no mirror to copy on this destination",
                "`kmirror create` creates one; check that --bootstrap-server is the destination",
            )
    except BaseException:
        destination.close()
        raise
    return _Started(destination, state, records)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run, once its clusters are connected."""

    destination: Destination
    request: RunRequest
    watcher: Watcher
    log_file: Path
    began: float
    stop: threading.Event
    hangup: Hangup
    retries: Retries
    snapshots: Snapshots

    def named(self, started: _Started) -> VerbResult:
        """Copy the named mirrors; what prevents an engine's start ends the run, but not once it copies."""
        request, retries, records = self.request, self.retries, started.records
        phase, at_once = _phase(request), request.fails_fast
        with ExitStack() as stack:
            self.watcher(_view(request, self.began, phase))
            spark = StartingSpark(spark_options(request, records, self.log_file))
            stack.callback(spark.stop)
            if not request.standby:
                spark.begin()
            starts = [EngineStart(self.destination, record, request, self.stop) for record in records]

            def keep(*but: EngineStart) -> None:
                for start in starts:
                    if start not in but:
                        start.keep()

            for start in starts:
                stack.callback(start.close)
                idle = partial(keep, start)
                if not retries.attempt(f"the lease of {start.mirror}", start.take_lease, phase=phase, idle=idle):
                    raise Interrupted
            if request.standby:
                self.watcher(_view(request, self.began, "starting"))
                spark.begin()
            for start in starts if request.until_caught_up else ():
                # topics that the filters match now must be copied too
                notes = retries.attempt(
                    "the source's topics",
                    lambda start=start: list(start.discover()),  # type: ignore[misc]
                    phase="starting",
                    at_once=at_once,
                    idle=partial(keep, start),
                )
                self.watcher(_view(request, self.began, "starting", notes))
            runtime = retries.attempt("Spark", spark.ready, phase="starting", at_once=at_once, idle=keep)
            for start in starts:
                check = partial(start.check_workers, runtime, _WORKERS_S)
                retries.attempt("Spark's workers", check, phase="starting", at_once=at_once, idle=keep)
            lanes = stack.enter_context(lane_runner(request, runtime))
            engines = Engines(
                [
                    retries.attempt(
                        "the destination", partial(start.engine, runtime, lanes), phase="starting", idle=keep
                    )
                    for start in starts
                ]
            )
            again: EngineSupervisor | None = None
            if not request.until_caught_up:
                # a mirror that a command took for a moment is started again, and one that a standby has lost, too
                again = EngineSupervisor(self.destination, request, started.state, engines.running)
                again.use(runtime, lanes)
                stack.callback(again.close)
            ending = self._drive(runtime, engines, again)
            retries.has_running_attempt |= again is not None and again.is_busy
        return self._ended(engines, ending, again.not_copied if again and request.standby else engines.not_copied)

    def all_mirrors(self, state: State) -> VerbResult:
        """Copy all mirrors that there are; what keeps one from its engine does not affect the others."""
        request, retries = self.request, self.retries
        engines, everyone = Engines(), EngineSupervisor(self.destination, request, state)
        engines.expected = lambda: len(everyone.records)
        with ExitStack() as stack:
            stack.callback(everyone.close)
            # Spark costs memory: it starts when there is something to copy
            everyone.tick(engines)
            phase = _phase(request) if everyone.records else NO_MIRRORS
            retries.attempt("a mirror", everyone.wait_for_work, phase=phase, idle=lambda: everyone.tick(engines))
            self.watcher(_view(request, self.began, "starting"))
            spark = StartingSpark(spark_options(request, everyone.records, self.log_file))
            stack.callback(spark.stop)
            runtime = retries.attempt(
                "Spark",
                spark.ready,
                phase="starting",
                at_once=request.fails_fast,
                idle=lambda: everyone.tick(engines),
            )
            everyone.use(runtime, stack.enter_context(lane_runner(request, runtime)))
            ending = self._drive(runtime, engines, everyone)
            retries.has_running_attempt |= everyone.is_busy
        return self._ended(engines, ending, everyone.not_copied)

    def _drive(self, runtime: SparkRuntime, engines: Engines, supervisor: Supervisor | None) -> Ending:
        request = self.request
        limits = Limits(
            request.until_caught_up,
            request.timeout_ms / 1000 if request.timeout_ms is not None else None,
            request.for_ms / 1000 if request.for_ms is not None else None,
        )
        self.hangup.then = engines.renew_logins
        engines.placement = lambda: runtime.placement
        with watched(runtime, self.stop) as lost:
            ending = drive(engines, self.stop, limits, self.watcher, self.began, supervisor, self.snapshots)
        for loss in lost:
            raise loss
        return ending

    def _ended(self, engines: Engines, ending: Ending, not_copied: Mapping[str, NotCopied]) -> VerbResult:
        ended = outcome(self.request, engines, ending, not_copied)
        if ending is not Ending.CAUGHT_UP:
            return ended
        caught_up = [engine for engine in engines.last if engine.mirror not in not_copied]
        done = _with_groups(self.destination, [engine.mirror for engine in caught_up], ended)
        return _with_left_out(self.destination, caught_up, done)


def _with_left_out(destination: Destination, engines: Iterable[MirrorEngine], ended: VerbResult) -> VerbResult:
    """Return the result with warnings of topics that were not copied; a refusal if they are all of a mirror's."""
    rows, warnings = list(ended.results), list(ended.warnings)
    for engine in engines:
        missed = _left_out(destination, engine.mirror)
        if engine.orders.assignments():
            warnings += missed
            continue
        what = f"nothing was copied: mirror {engine.mirror} has no topics to copy"
        rows += [TopicResult(None, None, Outcome.REFUSED, what, hint=text) for text in missed]
        warnings += [] if missed else [what]
    return VerbResult.of("run", ended.mirror, rows, groups=ended.groups, warnings=warnings)


def _left_out(destination: Destination, mirror: str) -> list[str]:
    try:
        record = require_mirror(destination.state(), mirror)
    except KmirrorError:
        return []  # what is copied is copied
    with LeftBehind(record, whole=True) as left:
        return left.warnings(destination.state, "not copied")


def _with_groups(destination: Destination, mirrors: Iterable[str], ended: VerbResult) -> VerbResult:
    """Sync the groups of mirrors that have caught up once more, and return the result with theirs."""
    groups = [last_group_sync(destination, mirror) for mirror in mirrors]
    return VerbResult.of(
        "run",
        ended.mirror,
        [*ended.results, *(one.trouble for one in groups if one.trouble is not None)],
        groups=[row for one in groups for row in one.rows],
        warnings=[*ended.warnings, *(warning for one in groups for warning in one.warnings)],
    )


def _view(
    request: RunRequest, began: float, phase: str, notes: Sequence[str] = (), level: Level = Level.INFO
) -> RunView:
    """Return what is shown before there are engines."""
    at, mirrors = now_ms(), ",".join(request.named)
    shown = tuple(Note(at, level, mirrors, note) for note in notes)
    return RunView(at, now() - began, phase, request.named, (), 0.0, shown, level)


def _phase(request: RunRequest) -> str:
    return "waiting" if request.standby else "starting"


def keep_memory_small() -> None:
    """Have malloc keep little; each HTTP request is answered in a thread of its own."""
    limit_arenas()
    return_large_blocks()
