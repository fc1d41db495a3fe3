"""Where the bulk work of a verb is done: in threads here where it is small, else on the Spark of `--master`.

Spark takes three seconds and more to start. It is started when it is first needed, and once for all work of a verb.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kmirror.engine.bulk.runner import THREADS, Runner, SparkTasks, Threads, Where
from kmirror.engine.lane_count import cores_of, lanes_of
from kmirror.errors import RefusedError
from kmirror.java import find_java
from kmirror.words import counted
from kmirror.work import Meter, Watch

if TYPE_CHECKING:
    from kmirror.engine.spark.application import SparkRuntime
    from kmirror.engine.spark.conf import SparkOptions

#: From so many bytes on Spark is worth its start: threads read as much in about the same time.
SPARK_FROM_BYTES = 256 << 20
_PRELOADED = (
    "kmirror.engine.archive.archiving",
    "kmirror.engine.compare.verification",
    "kmirror.engine.histories.fork_search",
)


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """What a verb was told of Spark: `--master` and `--spark-conf`; `log_file` None is one in the user's cache."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    log_file: Path | None = None


class Bulk:
    """Decide where bulk work of one verb is done, and give it runners; use it as a context manager."""

    def __init__(self, choice: SparkChoice, verb: str, mirror: str, lanes: int | None, watch: Watch) -> None:
        self._choice = choice
        self._verb = verb
        self._mirror = mirror
        #: How many tasks run at once on a cluster.
        self._lanes = lanes
        self._watch = watch
        self._resources = ExitStack()
        self._runtime: SparkRuntime | None = None

    def __enter__(self) -> Self:
        """Check what was chosen. Raises UsageError, RefusedError."""
        from kmirror.engine.spark.conf import check

        check(self._spark_options(Path(os.devnull)), os.environ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    @property
    def master(self) -> str:
        """The Spark master."""
        return self._choice.master

    def where(self, size_in_bytes: float) -> Where:
        """Decide where so much work is done; without Java, what this machine's Spark would do is done in threads."""
        if size_in_bytes < SPARK_FROM_BYTES or (self._runtime is None and self._lacks_java()):
            return Where.THREADS
        return Where.SPARK

    def slots(self, where: Where) -> int:
        """Return how many tasks run at once there."""
        return THREADS if where is Where.THREADS else slots_of(self._choice.master, self._lanes)

    def runner(self, where: Where) -> Runner:
        """Return what runs tasks there; the first one in Spark starts it.

        Raises:
            RefusedError, UnreachableError, TimedOutError: Spark does not start.
        """
        if where is Where.THREADS:
            return Threads()
        if self._runtime is None:
            from kmirror.engine.spark.application import SparkRuntime
            from kmirror.ops.run.spark import new_log_file

            options = self._spark_options(self._choice.log_file or new_log_file())
            with Meter(self._watch, f"starting Spark for {self._verb} of mirror {self._mirror}"):
                self._runtime = self._resources.enter_context(SparkRuntime(options))
        return SparkTasks(self._runtime)

    def told(self, where: Where, tasks: int) -> str:
        """Say where work was done."""
        if where is Where.THREADS:
            return f"in {counted(min(tasks, THREADS), 'thread')}"
        return f"in {counted(tasks, 'Spark task')} on {self._choice.master}"

    def named(self, where: Where) -> str:
        """Say where work is done, whatever its tasks are."""
        return "in threads" if where is Where.THREADS else f"on Spark ({self._choice.master})"

    def _lacks_java(self) -> bool:
        from kmirror.engine.spark.conf import is_local

        if not is_local(self._choice.master):
            return False
        try:
            find_java(os.environ)
        except RefusedError:
            return True
        return False

    def _spark_options(self, log_file: Path) -> SparkOptions:
        from kmirror.engine.spark.conf import SparkOptions

        return SparkOptions(
            slots=slots_of(self._choice.master, self._lanes),
            log_file=log_file,
            app_name=f"kmirror {self._verb} {self._mirror} on {socket.gethostname()}",
            master=self._choice.master,
            conf=dict(self._choice.conf),
            preload=_PRELOADED,
        )


def slots_of(master: str, lanes: int | None) -> int:
    """Return how many tasks run at once: one a core on this machine, as many as there are lanes on a cluster."""
    return cores_of(master) or lanes_of(lanes, master)
