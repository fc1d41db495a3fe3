"""Run one function over many arguments, in parallel: in threads of this process, or as Spark tasks.

    for result in runner.run("verify", compare_work_unit, [Task(share, share.offsets) for share in shares], meter):
        …

The function is called as ``function(argument, progress)``. It needs only sockets and returns errors as part of its
result; an exception ends the whole run. If a worker dies, Spark replaces it and runs the function again.
Leaving the loop ends what still runs: workers are killed, threads end when they next report progress.

This module runs in workers, and knows Spark only through its arguments.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from kmirror.engine.bulk.bulk_progress import ProgressAddress, ProgressCounter, receiving_progress, reporting_progress
from kmirror.work import Add, Meter, WorkIsOverError

A = TypeVar("A")
R = TypeVar("R")

Function = Callable[[A, Add], R]

#: More do not help: they share one interpreter lock.
THREADS = 4
#: How long to wait for the lanes of an application to leave a slot.
_SLOT_SECONDS = 60.0
_LOOK_SECONDS = 0.5


class Where(StrEnum):
    """Where bulk work runs."""

    THREADS = "THREADS"
    SPARK = "SPARK"


@dataclass(frozen=True, slots=True)
class Task(Generic[A]):
    """The argument of one task, and how many units of work it is."""

    argument: A
    units: int


class Runner(Protocol):
    """Run functions in parallel."""

    @property
    def slots(self) -> int:
        """How many functions run at once."""

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield function(argument, progress) of all tasks, each as it completes; `meter` counts their units meanwhile.

        Tasks are taken only when a slot is free, so earlier results may decide which come next. The first failure is
        raised and ends the others; closing the iterator ends them too.
        """


class TaskRuntime(Protocol):
    """What a runner needs of Spark."""

    @property
    def slots(self) -> int: ...
    @property
    def driver_host(self) -> str: ...
    @property
    def bind_address(self) -> str: ...
    def map(
        self, name: str, function: Callable[[Any, int], Any], arguments: Iterable[Any], at_once: int | None = None
    ) -> Generator[Any, None, None]: ...


class LaneRuntime(TaskRuntime, Protocol):
    """The Spark application that lanes run in."""

    @property
    def spare_slots(self) -> int: ...


class _Tally:
    """Add up the progress of tasks: each unit once, even if it is reported twice or a task restarts. For any thread."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        #: By task: its units, and how many of them are done.
        self._tasks: dict[int, tuple[int, int]] = {}

    def begin(self, task: int, units: int) -> None:
        with self._lock:
            self._tasks[task] = units, 0

    def reported(self, task: int, done: int) -> None:
        with self._lock:
            if task not in self._tasks:
                return
            units, before = self._tasks[task]
            now = min(units, max(before, done))
            self._tasks[task] = units, now
        if now > before:
            self._meter.add(now - before)

    def end(self, task: int, done: int) -> None:
        """Take the last count of a task; units that it skipped need no work."""
        self.reported(task, done)
        with self._lock:
            units, now = self._tasks.pop(task)
        if units > now:
            self._meter.shrink_total(units - now)


@dataclass(frozen=True, slots=True)
class _TaskCall:
    """What a worker receives."""

    function: Function[Any, Any]
    argument: Any
    number: int
    address: ProgressAddress | None


@dataclass(frozen=True, slots=True)
class _TaskResult:
    """What a worker sends back."""

    number: int
    value: Any
    done: int


def run_task(call: _TaskCall, attempt: int) -> _TaskResult:
    """Run one task: the body of a Spark task, in each attempt."""
    with reporting_progress(call.address, call.number) as counter:
        value = call.function(call.argument, counter.add)
    return _TaskResult(call.number, value, counter.done)


class SparkTasks:
    """Run tasks in Spark workers; `at_once` limits how many, None for as many as fit."""

    def __init__(self, runtime: TaskRuntime, at_once: int | None = None) -> None:
        self._runtime = runtime
        self._at_once = at_once

    @property
    def slots(self) -> int:
        """How many functions run at once."""
        return self._at_once or self._runtime.slots

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield results as they complete; see `Runner`."""
        tally = _Tally(meter)
        with receiving_progress(self._runtime.driver_host, self._runtime.bind_address, tally.reported) as address:

            def calls() -> Iterator[_TaskCall]:
                for number, task in enumerate(tasks):
                    tally.begin(number, task.units)
                    yield _TaskCall(function, task.argument, number, address)

            with closing(self._runtime.map(name, run_task, calls(), self._at_once)) as results:
                for result in results:
                    tally.end(result.number, result.done)
                    yield result.value


class Threads:
    """Run tasks in threads of this process."""

    def __init__(self, at_once: int = THREADS) -> None:
        self.slots = at_once

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield results as they complete; see `Runner`."""
        tally, over = _Tally(meter), threading.Event()
        waiting = enumerate(tasks)
        running: set[Future[_TaskResult]] = set()
        ended: queue.SimpleQueue[Future[_TaskResult]] = queue.SimpleQueue()

        def work(number: int, task: Task[A]) -> _TaskResult:
            counter = ProgressCounter(partial(tally.reported, number))

            def progress(count: int) -> None:
                if over.is_set():
                    raise WorkIsOverError
                counter.add(count)

            return _TaskResult(number, function(task.argument, progress), counter.done)

        with ThreadPoolExecutor(self.slots, name) as pool:
            try:
                while True:
                    for number, task in islice(waiting, self.slots - len(running)):
                        tally.begin(number, task.units)
                        future = pool.submit(work, number, task)
                        running.add(future)
                        future.add_done_callback(ended.put)
                    if not running:
                        return
                    future = ended.get()
                    running.remove(future)
                    result = future.result()
                    tally.end(result.number, result.done)
                    yield result.value
            finally:
                over.set()


def runner_beside_lanes(runtime: LaneRuntime) -> Runner:
    """Return the runner of tasks beside lanes, with one slot to spare for a lane that restarts.

    Lanes never end. If they leave no slot for a while, as where each mirror has one, it is a thread of this process.
    """
    deadline = time.monotonic() + _SLOT_SECONDS
    while not (spare := runtime.spare_slots):
        if time.monotonic() > deadline:
            return Threads(1)
        time.sleep(_LOOK_SECONDS)
    return SparkTasks(runtime, max(1, spare - 1))
