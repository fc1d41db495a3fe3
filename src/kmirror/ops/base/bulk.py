"""Where the bulk work of a verb runs: in threads of this process if it is small, else on the Spark of `--master`.

Spark takes at least three seconds to start. It is started when first needed, once for all work of a verb.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kmirror.engine.bulk.runner import THREADS, Runner, SparkTasks, Threads, Where
from kmirror.engine.executors import cores_of, lanes_of
from kmirror.errors import RefusedError
from kmirror.java import find_java
from kmirror.words import counted
from kmirror.work import Meter, Watch

if TYPE_CHECKING:
    from kmirror.engine.spark.application import SparkRuntime
    from kmirror.engine.spark.conf import SparkOptions

#: From this many bytes on, Spark is worth its start-up time, in which threads read about as much.
SPARK_FROM_BYTES = 256 << 20
_PRELOADED = (
    "kmirror.engine.archive.archiving",
    "kmirror.engine.compare.verification",
    "kmirror.engine.histories.fork_search",
)


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """The Spark options of a verb: `--master` and `--spark-conf`; `log_file` None is one in the user's cache."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    log_file: Path | None = None


class Bulk:
    """Decide where bulk work of one verb runs, and create its runners; use it as a context manager."""

    def __init__(self, choice: SparkChoice, verb: str, mirror: str, lanes: int | None, watch: Watch) -> None:
        self._choice = choice
        self._verb = verb
        self._mirror = mirror
        #: Concurrent tasks on a Spark cluster.
        self._lanes = lanes
        self._watch = watch
        self._resources = ExitStack()
        self._runtime: SparkRuntime | None = None

    def __enter__(self) -> Self:
        """Check the Spark options. Raises UsageError, RefusedError."""
        from kmirror.engine.spark.conf import check

        check(self._spark_options(Path(os.devnull)), os.environ)
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def master(self) -> str:
        """The Spark master."""
        return self._choice.master

    def where(self, size_in_bytes: float) -> Where:
        """Decide where work on this many bytes runs; without Java on this machine, threads replace local Spark."""
        if size_in_bytes < SPARK_FROM_BYTES or (self._runtime is None and self._lacks_java()):
            return Where.THREADS
        return Where.SPARK

    def slots(self, where: Where) -> int:
        """Return the number of concurrent tasks there."""
        return THREADS if where is Where.THREADS else slots_of(self._choice.master, self._lanes)

    def runner(self, where: Where) -> Runner:
        """Return a runner of tasks there; the first one for Spark starts it.

        Raises:
            KmirrorError: Spark does not start.
        """
        if where is Where.THREADS:
            return Threads()
        if self._runtime is None:
            from kmirror.engine.spark.application import SparkRuntime
            from kmirror.ops.base.spark import new_log_file

            options = self._spark_options(self._choice.log_file or new_log_file())
            with Meter(self._watch, f"starting Spark for {self._verb} of mirror {self._mirror}"):
                self._runtime = self._resources.enter_context(SparkRuntime(options))
        return SparkTasks(self._runtime)

    def summary(self, where: Where, tasks: int) -> str:
        """Return where work ran, for people."""
        if where is Where.THREADS:
            return f"in {counted(min(tasks, THREADS), 'thread')}"
        return f"in {counted(tasks, 'Spark task')} on {self._choice.master}"

    def place(self, where: Where) -> str:
        """Return where work runs, for people, without its tasks."""
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
        from kmirror.ops.base.spark import with_secrets

        return SparkOptions(
            slots=slots_of(self._choice.master, self._lanes),
            log_file=log_file,
            app_name=f"kmirror {self._verb} {self._mirror} on {socket.gethostname()}",
            master=self._choice.master,
            conf=with_secrets(self._choice.conf),
            preload=_PRELOADED,
        )


def slots_of(master: str, lanes: int | None) -> int:
    """Return the number of concurrent tasks: one per core on this machine, one per lane on a cluster."""
    return cores_of(master) or lanes_of(lanes, master)
