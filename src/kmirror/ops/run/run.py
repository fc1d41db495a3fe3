"""`run`: be the engine of some mirrors, until told to stop or until all is copied."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kmirror import __version__
from kmirror.engine.clock import now, now_ms
from kmirror.engine.control.driver import Ending, Limits, RunView, Watcher, drive
from kmirror.engine.control.engines import Engines
from kmirror.engine.control.journal import Level, Note
from kmirror.engine.spark.conf import check as check_spark
from kmirror.engine.spark.failures import SparkLostError
from kmirror.errors import UsageError
from kmirror.ops.context import Destination, require_mirror
from kmirror.ops.results import VerbResult
from kmirror.ops.run.engine_start import EngineStart, check_source
from kmirror.ops.run.last_group_sync import last_group_sync
from kmirror.ops.run.outcome import outcome
from kmirror.ops.run.patience import Interrupted, Patience
from kmirror.ops.run.request import RunRequest
from kmirror.ops.run.signals import stopping
from kmirror.ops.run.spark import StartingSpark, new_log_file, spark_options, watched
from kmirror.ops.stop.stop import require_not_failed_over
from kmirror.state.records import MirrorRecord


def run(open_destination: Callable[[], Destination], request: RunRequest, watcher: Watcher) -> VerbResult:
    """Copy until told to stop; `watcher` is called about once a second, from this thread.

    Ctrl-C and SIGTERM end it cleanly where this is the main thread. What may pass is waited for as long as it takes, or
    until the time of `--timeout` or `--for` is over; with `--until-caught-up` alone a cluster that does not answer at
    the start ends it, since nothing else would.

    Raises:
        UsageError: a contradictory request.
        RefusedError: no such mirror, another engine in charge, another cluster at the source, taken over (FENCED).
        UnreachableError: a cluster refuses us, or does not answer where that is not waited for.
        TimedOutError: the time is over, and copying has not begun.
        SparkLostError: Spark's Java process ended by itself.
    """
    if request.standby and request.take_over:
        raise UsageError("--standby and --take-over exclude each other", "give one of them")
    if request.for_ms is not None and request.until_caught_up:
        raise UsageError("--for and --until-caught-up exclude each other", "give one of them")
    began, log_file = now(), new_log_file()
    limit_ms = request.timeout_ms if request.until_caught_up else request.for_ms

    def watch(view: RunView) -> None:
        watcher(replace(view, spark_log=str(log_file)))

    def show(phase: str, note: str | None, level: Level = Level.INFO) -> None:
        watch(_view(request, began, phase, [note] if note is not None else [], level))

    with stopping() as stop:
        process = f"kmirror {__version__}, process {os.getpid()} on {socket.gethostname()}"
        show(_phase(request), f"{process}, Spark master {request.master}; Spark logs to {log_file}")
        patience = Patience(stop, limit_ms / 1000 if limit_ms is not None else None, show)
        at_once = request.until_caught_up and request.timeout_ms is None
        try:
            started = patience.attempt(
                "the clusters", lambda: _connect(open_destination, request), phase=_phase(request), at_once=at_once
            )
            try:
                return _run(started, request, watch, log_file, began, stop, patience)
            finally:
                if not patience.left_behind:
                    started.destination.close()
        except Interrupted:
            warning = "run was stopped before it started copying"
            return VerbResult.of("run", ",".join(request.mirrors), [], warnings=[warning])


@dataclass(frozen=True, slots=True)
class _Started:
    """What an engine begins with: the destination, and the mirrors that it is to copy."""

    destination: Destination
    records: tuple[MirrorRecord, ...]


def _connect(open_destination: Callable[[], Destination], request: RunRequest) -> _Started:
    """Reach the clusters, and see that there is something to run."""
    destination = open_destination()
    try:
        state = destination.state()
        records = tuple(require_mirror(state, name) for name in dict.fromkeys(request.mirrors))
        for record in records:
            require_not_failed_over(state, record)
            check_source(record, must_answer=request.until_caught_up)
    except BaseException:
        destination.close()
        raise
    return _Started(destination, records)


def _run(
    started: _Started,
    request: RunRequest,
    watcher: Watcher,
    log_file: Path,
    began: float,
    stop: threading.Event,
    patience: Patience,
) -> VerbResult:
    destination, records = started.destination, started.records
    options = spark_options(request, records, log_file)
    check_spark(options, os.environ)
    phase, at_once = _phase(request), request.gives_up_at_once
    with ExitStack() as stack:
        watcher(_view(request, began, phase))
        spark = StartingSpark(options)
        stack.callback(spark.stop)
        if not request.standby:
            spark.begin()
        starts = [EngineStart(destination, record, request, stop) for record in records]

        def keep(*but: EngineStart) -> None:
            for start in starts:
                if start not in but:
                    start.keep()

        for start in starts:
            stack.callback(start.close)
            idle = partial(keep, start)
            if not patience.attempt(f"the lease of {start.mirror}", start.take_lease, phase=phase, idle=idle):
                raise Interrupted
        if request.standby:
            watcher(_view(request, began, "starting"))
            spark.begin()
        for start in starts if request.until_caught_up else ():
            # what the filters take now is part of what is to be copied
            notes = patience.attempt(
                "the source's topics",
                lambda start=start: list(start.discover()),  # type: ignore[misc]
                phase="starting",
                at_once=at_once,
                idle=partial(keep, start),
            )
            watcher(_view(request, began, "starting", notes))
        runtime = patience.attempt("Spark", spark.ready, phase="starting", at_once=at_once, idle=keep)
        made = [
            patience.attempt("the destination", partial(start.engine, runtime), phase="starting", idle=keep)
            for start in starts
        ]
        limits = Limits(
            request.until_caught_up,
            request.timeout_ms / 1000 if request.timeout_ms is not None else None,
            request.for_ms / 1000 if request.for_ms is not None else None,
        )
        with watched(runtime, stop) as lost:
            ending = drive(engines := Engines(made), stop, limits, watcher, began)
        if lost.is_set():
            raise SparkLostError(
                "Spark's Java process ended unexpectedly: copying has stopped",
                f"run it again; the cause may be in {options.log_file}",
            )
    ended = outcome(request, engines, ending, engines.apart)
    return ended if ending is not Ending.CAUGHT_UP else _with_groups(destination, engines, ended)


def _with_groups(destination: Destination, engines: Engines, ended: VerbResult) -> VerbResult:
    """Sync the groups of what has caught up once more, and return the result with what came of it."""
    caught_up = [engine.mirror for engine in engines.last if engine.mirror not in engines.apart]
    groups = [last_group_sync(destination, mirror) for mirror in caught_up]
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
    at, mirrors = now_ms(), ",".join(request.mirrors)
    told = tuple(Note(at, level, mirrors, note) for note in notes)
    return RunView(at, now() - began, phase, request.mirrors, (), 0.0, told, level)


def _phase(request: RunRequest) -> str:
    return "waiting" if request.standby else "starting"
