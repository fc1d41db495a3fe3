"""`run`: be the engine of some mirrors, until told to stop or until all is copied."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from kmirror.cluster.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.driver import Ending, Limits, RunView, Watcher, drive
from kmirror.engine.mirror import MirrorEngine
from kmirror.engine.shipping import cache_folder
from kmirror.engine.side_jobs import JobView
from kmirror.engine.spark import SparkRuntime
from kmirror.engine.spark_conf import SparkOptions
from kmirror.engine.spark_conf import check as check_spark
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.ops.context import Destination, actor, cluster_id_of, require_mirror, source_client
from kmirror.ops.discovery import DiscoveryJob
from kmirror.ops.group_sync import final_sync
from kmirror.ops.rebuild import TopicRebuilder
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.side_jobs import side_jobs_of
from kmirror.ops.stop import require_not_failed_over
from kmirror.settings import parse_settings
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import DesiredState, MirrorRecord, PartitionState

#: How long a lane may go on writing after it last saw that nobody took its place.
LEASE_TTL_MS = 5_000
_KEPT_LOGS = 20
#: How long groups whose offsets still move are followed when all is copied.
_GROUPS_S = 3.0
_HEARTBEAT_TIMEOUT_S = 5.0


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
    #: Where Spark's own words go; None for a file in the user's cache folder.
    log_file: Path | None = None


def run(destination: Destination, request: RunRequest, watcher: Watcher) -> VerbResult:
    """Copy until told to stop; `watcher` is called about once a second, from this thread.

    Ctrl-C and SIGTERM end it cleanly where this is the main thread.

    Raises:
        UsageError: a contradictory request.
        RefusedError: no such mirror, another engine in charge, another cluster at the source, taken over (FENCED).
        UnreachableError: a cluster that is needed does not answer.
    """
    if request.standby and request.take_over:
        raise UsageError("--standby waits for the other engine, --take-over ends it", "choose one of them")
    if request.for_ms is not None and request.until_caught_up:
        raise UsageError("--for and --until-caught-up both say when to end", "choose one of them")
    began = now()
    state = destination.state()
    records = [require_mirror(state, name) for name in dict.fromkeys(request.mirrors)]
    for record in records:
        require_not_failed_over(state, record)
        _check_source(record, must_answer=request.until_caught_up)
    options = _spark_options(request, records)
    check_spark(options, os.environ)
    with stopping() as stop, ExitStack() as stack:
        watcher(RunView(now() - began, "waiting" if request.standby else "starting", request.mirrors, (), 0.0, ()))
        spark = None
        if not request.standby:
            spark = _StartingSpark(options)
            stack.callback(spark.stop)
        leases: list[Lease] = []
        for record in records:
            lease = _take_lease(destination, record, request, stop)
            if lease is None:
                return VerbResult.of("run", ",".join(request.mirrors), [])
            stack.callback(lease.close)
            leases.append(lease)
        if spark is None:
            watcher(RunView(now() - began, "starting", request.mirrors, (), 0.0, ()))
            spark = _StartingSpark(options)
            stack.callback(spark.stop)
        if request.until_caught_up:
            # what the filters take now is part of what is to be copied
            for note in _discover(destination, records, leases, stop):
                watcher(RunView(now() - began, "starting", request.mirrors, (), 0.0, (note,)))
        state = destination.state()
        runtime = spark.ready()
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
        ending = drive(engines, stop, limits, watcher, began)
    if ending is Ending.CAUGHT_UP:
        _sync_groups(destination, [engine.mirror for engine in engines if engine.lost is None])
    return _outcome(request, engines, ending)


def _sync_groups(destination: Destination, mirrors: Iterable[str]) -> None:
    """Leave groups where they are at the source, as far as that can be done at once: nobody does it later."""
    state = destination.state()
    for mirror in mirrors:
        topics = [topic.topic for topic in state.topics(mirror) if topic.desired is DesiredState.ACTIVE]
        with suppress(KmirrorError, OutcomeUnknown):
            final_sync(destination, mirror, topics, timeout_s=_GROUPS_S)


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
    except KmirrorError:
        if must_answer:
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


def _take_lease(
    destination: Destination, record: MirrorRecord, request: RunRequest, stop: threading.Event
) -> Lease | None:
    identity = EngineIdentity.of_this_process(master=request.master)
    if request.standby:
        return Lease.standby(destination.store, record.name, identity, LEASE_TTL_MS, should_stop=stop.is_set)
    return Lease.acquire(destination.store, record.name, identity, LEASE_TTL_MS, take_over=request.take_over)


def _spark_options(request: RunRequest, records: Sequence[MirrorRecord]) -> SparkOptions:
    lanes = sum(parse_settings(record.settings).copy_lanes for record in records)
    log_file = request.log_file or new_log_file()
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
        self.runtime = SparkRuntime(options)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="kmirror-spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self.runtime.start()
        except BaseException as error:
            self._error = error

    def ready(self) -> SparkRuntime:
        """Wait for Spark and return it, or raise what kept it from starting."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.runtime

    def stop(self) -> None:
        """End Spark, also one that is still starting."""
        self.runtime.stop()
        self._thread.join()


def _outcome(request: RunRequest, engines: Sequence[MirrorEngine], ending: Ending) -> VerbResult:
    for engine in engines:
        if engine.lost is not None:
            raise engine.lost
    rows: list[TopicResult] = []
    for engine in engines:
        # a partition whose source's end was never seen is not caught up either
        targets: dict[TopicPartition, int | None] = dict.fromkeys(a.destination for a in engine.assignments())
        targets.update(engine.targets or {})
        for partition, target in sorted(targets.items()):
            row = engine.rows.get(partition)
            end = row.destination_offset if row else None
            lag = max(0, target - end) if end is not None and target is not None else None
            if row is not None and row.state is PartitionState.FAILED:
                rows.append(
                    TopicResult(*partition, Outcome.FAILED, row.message, row.reason, lag=lag, hint=_hint(engine.mirror))
                )
            elif ending is Ending.TIMED_OUT and lag != 0:
                missing = f"{lag} records are missing" if lag is not None else "how much is missing is not known"
                why = f"; {row.message}" if row is not None and row.message else ""
                message = f"{partition} has not caught up in time: {missing}{why}"
                reason = row.reason if row is not None else None
                rows.append(
                    TopicResult(*partition, Outcome.TIMED_OUT, message, reason, lag=lag, hint="run it again, or longer")
                )
            else:
                rows.append(TopicResult(*partition, Outcome.DONE, lag=lag))
    return VerbResult.of("run", ",".join(request.mirrors), rows)


def _hint(mirror: str) -> str:
    return f"`kmirror describe --mirror {mirror} --failed` shows all of them"
