"""Which executor runs which function, looked at again and again beside all else: to ask the JVM takes milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kmirror.engine.executors import Executor, Placement
from kmirror.engine.spark.context import executor_of, executors, stages_of

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_SECONDS = 1.0
#: A function whose place is known is looked at less often: it moves only when its worker dies.
_EVERY = 5


class Places:
    """Keep the last look; `jobs` tells the groups of the functions that are under way, by name."""

    def __init__(self, context: SparkContext, jobs: Callable[[], Mapping[str, str]], *, is_elastic: bool) -> None:
        self._context = context
        self._jobs = jobs
        self._is_elastic = is_elastic
        #: By group, Spark's number of its stage.
        self._stages: dict[str, int] = {}
        #: By group, the executor.
        self._found: dict[str, str] = {}
        self._looks = 0
        #: What the last look has found; None before the first one, and when the JVM did not answer the last one.
        self.last: Placement | None = None

    def follow(self, stop: threading.Event) -> None:
        """Look until told to stop; the body of a thread."""
        while not stop.is_set():
            try:
                self.last = self._look()
            except Exception:
                self.last = None
            stop.wait(_LOOK_SECONDS)

    def _look(self) -> Placement:
        alive = {executor.name: executor for executor in executors(self._context)}
        jobs = self._jobs()
        self._looks += 1
        places: dict[str, Executor] = {}
        for number, (name, group) in enumerate(jobs.items()):
            known = self._found.get(group)
            if known not in alive or (self._looks + number) % _EVERY == 0:
                known = self._ask(group)
            if known in alive:
                places[name] = alive[known]
                self._found[group] = known
            else:
                self._found.pop(group, None)
        for kept in (self._stages, self._found):
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
