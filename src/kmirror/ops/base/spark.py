"""Spark for a run: its options, its start in a thread, and a watch on its Java process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

from kmirror.cluster.security.properties import resolve_value
from kmirror.engine.executors import cores_of, lanes_of
from kmirror.engine.lane_channel import IS_POSSIBLE
from kmirror.engine.lanes.lane_hosts import LaneHosts
from kmirror.engine.lanes.lane_jobs import LaneRunner
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions, holds_secret
from kmirror.engine.spark.shipping import cache_folder
from kmirror.engine.spark.spark_failures import SparkLostError
from kmirror.errors import RefusedError
from kmirror.ops.base.run_request import RunRequest
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord

_KEPT_LOGS = 20
_CHECK_S = 1.0
#: Slots for lanes that a running mirror is given (`copy.lanes`), or mirrors that are created later: as many as a mirror
#: may have. On a local master, which has as many threads from the start, they cost nothing.
_LATER_SLOTS = 256
#: Slots for other work beside hosts: copies of what a rebuild removes.
_JOB_SLOTS = 16
#: The most processes for the lanes of several mirrors: each copies some hundred MB/s.
_MOST_HOSTS = 16


def spark_options(request: RunRequest, records: Sequence[MirrorRecord], log_file: Path) -> SparkOptions:
    """Return the options with which the lanes of these mirrors run at the same time, and one more."""
    hosts, count = _hosts_of(request), len(records)
    what = "all mirrors" if request.all_mirrors else ",".join(request.mirrors)
    name = f"kmirror {what} on {socket.gethostname()}"
    conf = with_secrets(request.spark_conf)
    if hosts is not None:
        return SparkOptions(hosts + 1, log_file, name, request.master, conf, later_slots=_JOB_SLOTS)
    lanes = sum(lanes_of(stored_settings(record.settings).copy_lanes, request.master, count) for record in records)
    return SparkOptions(lanes + 1, log_file, name, request.master, conf, later_slots=_LATER_SLOTS)


def _hosts_of(request: RunRequest) -> int | None:
    """Return how many processes the lanes of several mirrors share on this machine; None: each lane has its own."""
    cores = cores_of(request.master)
    is_shared = request.all_mirrors or len(request.mirrors) > 1
    return min(cores, _MOST_HOSTS) if cores is not None and IS_POSSIBLE and is_shared else None


def lane_runner(request: RunRequest, runtime: SparkRuntime) -> AbstractContextManager[LaneRunner]:
    """Return what runs the lanes: Spark, each in its own process; or for several mirrors on this machine, hosts."""
    count = _hosts_of(request)
    return nullcontext(runtime) if count is None else closing(LaneHosts(runtime, count))


def with_secrets(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the user's Spark settings with references in those that hold a secret replaced.

    Raises UnreachableError: one has no value here (SECRET_UNRESOLVED).
    """
    return {key: resolve_value(key, value) if holds_secret(key) else value for key, value in conf.items()}


def new_log_file() -> Path:
    """Return a log file for Spark in the user's cache folder; delete old ones of runs that have ended.

    Raises RefusedError: the folder cannot be used.
    """
    try:
        folder = cache_folder(os.environ) / "logs"
        folder.mkdir(exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is not writable")
    except OSError as error:
        raise RefusedError(
            f"the cache folder, into which Spark logs, cannot be used: {error}",
            "set XDG_CACHE_HOME to a folder of this user that kmirror may write to",
        ) from None
    kept = sorted(folder.glob("spark-*.log"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-_KEPT_LOGS]:
        if not Path("/proc", old.stem.removeprefix("spark-")).exists():
            old.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


class StartingSpark:
    """Start Spark in a thread: the JVM takes seconds, in which the lease can be taken."""

    def __init__(self, options: SparkOptions) -> None:
        self._options = options
        self._runtime = SparkRuntime(options)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start it in a thread."""
        self._error = None
        self._thread = threading.Thread(target=self._start, name="kmirror-spark-start", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._runtime.start()
        except BaseException as error:
            self._error = error

    def ready(self) -> SparkRuntime:
        """Wait for Spark and return it, or raise why it did not start; the next call starts it again."""
        if self._thread is None:
            self._runtime = SparkRuntime(self._options)
            self.begin()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            self._thread = None
            raise self._error
        return self._runtime

    def stop(self) -> None:
        """End Spark, even one that is still starting."""
        self._runtime.stop()
        if self._thread is not None:
            self._thread.join()


@contextmanager
def watched(runtime: SparkRuntime, stop: threading.Event) -> Iterator[list[SparkLostError]]:
    """Set `stop`, and add the reason to the yielded list, when Spark can run nothing more."""
    lost: list[SparkLostError] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_CHECK_S):
            try:
                loss = runtime.loss()
            except (OSError, RuntimeError):  # no file or thread is to be had now: the next look may succeed
                continue
            if loss is not None:
                lost.append(loss)
                stop.set()
                return

    thread = threading.Thread(target=watch, name="kmirror-spark-watch", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()
