"""Which executor runs which function, read repeatedly by a thread of its own: asking the JVM takes milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kmirror.engine.executors import Executor, Placement
from kmirror.engine.spark.spark_context import executor_of, executors, stages_of

if TYPE_CHECKING:
    from pyspark import SparkContext

_READ_SECONDS = 1.0
#: How often a function whose executor is known is read: it moves only when its worker dies.
_EVERY = 5


class ExecutorTracker:
    """Keep the last placement; `jobs` returns the job groups of the functions that run, by name."""

    def __init__(self, context: SparkContext, jobs: Callable[[], Mapping[str, str]], *, is_elastic: bool) -> None:
        self._context = context
        self._jobs = jobs
        self._is_elastic = is_elastic
        #: By group, the id of its stage.
        self._stages: dict[str, int] = {}
        #: By group, the id of its executor.
        self._executors: dict[str, str] = {}
        self._reads = 0
        #: The last placement; None before the first, and when the JVM did not answer the last time.
        self.last: Placement | None = None

    def follow(self, stop: threading.Event) -> None:
        """Read until `stop` is set; the target of a thread."""
        while not stop.is_set():
            try:
                self.last = self._read()
            except Exception:
                self.last = None
            stop.wait(_READ_SECONDS)

    def _read(self) -> Placement:
        alive = {executor.name: executor for executor in executors(self._context)}
        jobs = self._jobs()
        self._reads += 1
        places: dict[str, Executor] = {}
        for number, (name, group) in enumerate(jobs.items()):
            known = self._executors.get(group)
            if known not in alive or (self._reads + number) % _EVERY == 0:
                known = self._ask(group)
            if known in alive:
                places[name] = alive[known]
                self._executors[group] = known
            else:
                self._executors.pop(group, None)
        for kept in (self._stages, self._executors):
            for group in kept.keys() - set(jobs.values()):
                kept.pop(group, None)
        return Placement(tuple(alive.values()), places, self._is_elastic)

    def _ask(self, group: str) -> str | None:
        if group not in self._stages:
            stages = stages_of(self._context, group)
            if not stages:
                return None
            self._stages[group] = stages[-1]
        return executor_of(self._context, self._stages[group])
