"""`run`: be the engine of some mirrors, until told to stop or until all is copied."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from kmirror import __version__
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.control.driver import Ending, Limits, RunView, Watcher, drive
from kmirror.engine.control.journal import Level, Note
from kmirror.engine.control.mirror import MirrorEngine
from kmirror.engine.control.side_jobs import JobView
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.conf import check as check_spark
from kmirror.engine.spark.failures import SparkLostError
from kmirror.engine.spark.shipping import cache_folder
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.ops.context import Destination, actor, cluster_id_of, require_mirror, source_client
from kmirror.ops.jobs.discovery import DiscoveryJob
from kmirror.ops.jobs.side_jobs import side_jobs_of
from kmirror.ops.rebuild import TopicRebuilder
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.run.last_group_sync import last_group_sync
from kmirror.ops.run.patience import Interrupted, Patience, may_pass
from kmirror.ops.stop.stop import require_not_failed_over
from kmirror.settings.table import parse_settings
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import MirrorRecord, PartitionState
from kmirror.words import counted

#: How long a lane may go on writing after it last saw that nobody took its place.
LEASE_TTL_MS = 5_000
_KEPT_LOGS = 20
_HEARTBEAT_TIMEOUT_S = 5.0
_SPARK_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `run` is asked to do; durations in milliseconds, None for without end."""

    mirrors: tuple[str, ...]
    master: str = "local[*]"
    until_caught_up: bool = False
    timeout_ms: int | None = None
    for_ms: int | None = None
    standby: bool = False
    take_over: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)


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
            _check_source(record, must_answer=request.until_caught_up)
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
    options = _spark_options(request, records, log_file)
    check_spark(options, os.environ)
    phase = _phase(request)
    with ExitStack() as stack:
        watcher(_view(request, began, phase))
        spark = _StartingSpark(options)
        stack.callback(spark.stop)
        if not request.standby:
            spark.begin()
        leases: list[Lease] = []
        for record in records:
            take = _Taking(destination, record, request, stop)
            lease = patience.attempt(f"the lease of {record.name}", take, phase=phase)
            if lease is None:
                raise Interrupted
            stack.callback(lease.close)
            leases.append(lease)
        if request.standby:
            watcher(_view(request, began, "starting"))
            spark.begin()
        at_once = request.until_caught_up and request.timeout_ms is None
        if request.until_caught_up:
            # what the filters take now is part of what is to be copied
            notes = patience.attempt(
                "the source's topics",
                lambda: list(_discover(destination, records, leases, stop)),
                phase="starting",
                at_once=at_once,
            )
            watcher(_view(request, began, "starting", notes))
        runtime = patience.attempt("Spark", spark.ready, phase="starting", at_once=at_once, idle=lambda: _keep(leases))
        state = patience.attempt("the destination", destination.state, phase="starting")
        engines = [
            MirrorEngine(
                record.name,
                state,
                lease,
                destination.properties,
                runtime,
                actor(),
                TopicRebuilder(destination.properties, record.name, runtime),
                side_jobs_of(record.name, destination.properties),
            )
            for record, lease in zip(records, leases, strict=True)
        ]
        limits = Limits(
            request.until_caught_up,
            request.timeout_ms / 1000 if request.timeout_ms is not None else None,
            request.for_ms / 1000 if request.for_ms is not None else None,
        )
        with _watched(runtime, stop) as lost:
            ending = drive(engines, stop, limits, watcher, began)
        if lost.is_set():
            raise SparkLostError(
                "Spark's Java process ended unexpectedly: copying has stopped",
                f"run it again; the cause may be in {options.log_file}",
            )
    outcome = _outcome(request, engines, ending)
    if ending is not Ending.CAUGHT_UP:
        return outcome
    groups = [last_group_sync(destination, engine.mirror) for engine in engines if engine.lost is None]
    return VerbResult.of(
        "run",
        outcome.mirror,
        [*outcome.results, *(one.trouble for one in groups if one.trouble is not None)],
        groups=[row for one in groups for row in one.rows],
        warnings=[*outcome.warnings, *(warning for one in groups for warning in one.warnings)],
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


def _keep(leases: Iterable[Lease]) -> None:
    """Renew leases while something else is waited for; what fails now is told when it is used."""
    for lease in leases:
        with suppress(KmirrorError, OutcomeUnknown):
            lease.heartbeat({}, timeout=_HEARTBEAT_TIMEOUT_S)


@contextmanager
def _watched(runtime: SparkRuntime, stop: threading.Event) -> Iterator[threading.Event]:
    """Set `stop`, and the event given, when Spark's Java process ends by itself."""
    lost, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_SPARK_LOOK_S):
            if runtime.is_lost:
                lost.set()
                stop.set()
                return

    thread = threading.Thread(target=watch, name="kmirror-spark-watch", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


def _discover(
    destination: Destination, records: Sequence[MirrorRecord], leases: Sequence[Lease], stop: threading.Event
) -> Iterator[str]:
    """Take what the mirrors' filters match at their sources now; yield what is to be told."""
    state = destination.state()
    for record in records:
        view = JobView(
            record,
            parse_settings(record.settings),
            state.topics(record.name),
            {
                TopicPartition(one.topic, one.partition): one
                for topic in state.topics(record.name)
                for one in state.partitions(record.name, topic.topic)
            },
            {},
        )
        with closing(DiscoveryJob(record.name, destination.properties)) as job:
            for told in job.run(view):
                for lease in leases:
                    lease.heartbeat({}, timeout=_HEARTBEAT_TIMEOUT_S)
                if told.note is not None:
                    yield told.note
                if stop.is_set():
                    return


def _check_source(record: MirrorRecord, *, must_answer: bool) -> None:
    try:
        with source_client(record.source) as client:
            found = cluster_id_of(client, timeout=5)
    except KmirrorError as error:
        if must_answer or not may_pass(error):
            raise
        return
    if record.source_cluster_id and found != record.source_cluster_id:
        raise RefusedError(
            f"another cluster answers at the source of mirror {record.name}: {found}, not {record.source_cluster_id}",
            "correct the source's bootstrap.servers; nothing was copied",
            Reason.SOURCE_CLUSTER_CHANGED,
        )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set an event at Ctrl-C or SIGTERM instead of dying of it; only the main thread can."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # a handler runs between any two lines of this very thread, also where it holds the event's lock: it must not set it
    heard: SimpleQueue[bool] = SimpleQueue()

    def pass_on() -> None:
        if heard.get():
            stop.set()

    listener = threading.Thread(target=pass_on, name="signals", daemon=True)
    listener.start()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: heard.put(True))
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.put(False)
        listener.join()


class _Taking:
    """Take the lease of one mirror; called again when it may have failed."""

    def __init__(
        self, destination: Destination, record: MirrorRecord, request: RunRequest, stop: threading.Event
    ) -> None:
        self._destination, self._record, self._request, self._stop = destination, record, request, stop
        self._identity = EngineIdentity.of_this_process(master=request.master)
        self._again = False

    def __call__(self) -> Lease | None:
        store, mirror, again = self._destination.store, self._record.name, self._again
        self._again = True
        if self._request.standby:
            return Lease.standby(store, mirror, self._identity, LEASE_TTL_MS, should_stop=self._stop.is_set)
        return Lease.acquire(
            store, mirror, self._identity, LEASE_TTL_MS, take_over=self._request.take_over, again=again
        )


def _spark_options(request: RunRequest, records: Sequence[MirrorRecord], log_file: Path) -> SparkOptions:
    lanes = sum(parse_settings(record.settings).copy_lanes for record in records)
    name = f"kmirror {','.join(request.mirrors)} on {socket.gethostname()}"
    return SparkOptions(lanes + 1, log_file, name, request.master, dict(request.spark_conf))


def new_log_file() -> Path:
    """Return a file for Spark's own words, in the user's cache folder; the oldest ones there are deleted."""
    folder = cache_folder(os.environ) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    kept = sorted(folder.glob("spark-*.log"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-_KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


class _StartingSpark:
    """Start Spark beside other things: the JVM takes seconds, and the lease takes none of its attention."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._runtime = SparkRuntime(options)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start it, in a thread."""
        self._error = None
        self._thread = threading.Thread(target=self._start, name="kmirror-spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._runtime.start()
        except BaseException as error:
            self._error = error

    def ready(self) -> SparkRuntime:
        """Wait for Spark and return it, or raise what kept it from starting; it is started again by the next call."""
        if self._thread is None:
            self._runtime = SparkRuntime(self._options)
            self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            self._thread = None
            raise self._error
        return self._runtime

    def stop(self) -> None:
        """End Spark, also one that is still starting."""
        self._runtime.stop()
        if self._thread is not None:
            self._thread.join()


def _outcome(request: RunRequest, engines: Sequence[MirrorEngine], ending: Ending) -> VerbResult:
    for engine in engines:
        if engine.lost is not None:
            raise engine.lost
    rows: list[TopicResult] = []
    for engine in engines:
        # how far behind it is counts from the end that was to be reached, else from what the source says now
        targets: dict[TopicPartition, int | None] = dict.fromkeys(a.destination for a in engine.orders.assignments())
        targets.update(engine.partitions.targets or {})
        for partition, target in sorted(targets.items()):
            row = engine.partitions.rows.get(partition)
            end = row.destination_offset if row else None
            if request.until_caught_up:
                lag = max(0, target - end) if end is not None and target is not None else None
            else:
                lag = engine.lag(partition)
            reason, why = engine.trouble(partition) or ((row.reason, row.message) if row is not None else (None, None))
            told = f"; {why}" if why else ""
            if row is not None and row.state is PartitionState.FAILED:
                rows.append(
                    TopicResult(*partition, Outcome.FAILED, row.message, row.reason, lag=lag, hint=_hint(engine.mirror))
                )
            elif ending is Ending.TIMED_OUT and lag != 0:
                unknown = "the number of missing records is unknown"
                missing = unknown if lag is None else counted(lag, "record is missing", "records are missing")
                message = f"{partition} has not caught up in time: {missing}{told}"
                rows.append(
                    TopicResult(
                        *partition,
                        Outcome.TIMED_OUT,
                        message,
                        reason,
                        lag=lag,
                        hint="run it again, or with a longer --timeout",
                    )
                )
            elif lag is None:
                message = f"the lag of {partition} is unknown{told}"
                rows.append(TopicResult(*partition, Outcome.DONE, message, reason))
            else:
                rows.append(TopicResult(*partition, Outcome.DONE, why, reason, lag=lag))
    return VerbResult.of("run", ",".join(request.mirrors), rows)


def _hint(mirror: str) -> str:
    return f"`kmirror describe --mirror {mirror} --failed` shows all of them"
