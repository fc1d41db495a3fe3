"""Run one function over many arguments, side by side: in threads of this process, or as tasks of a Spark.

    for result in runner.run("verify", compare_share, [Task(share, share.offsets) for share in shares], meter):
        …

The function is called as ``function(argument, progress)``. It needs sockets only and says what goes wrong in its
result; what it raises ends the whole run. A worker that dies is replaced by Spark, and its argument is done again.
Leaving the loop ends what still runs: a worker is killed, a thread ends where it tells its progress next.

This module runs in workers, and knows Spark only by what it is given.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from kmirror.engine.bulk.telling import Ear, Teller, listening, telling
from kmirror.work import Add, Meter, WorkIsOverError

A = TypeVar("A")
R = TypeVar("R")

Function = Callable[[A, Add], R]

#: More do not help: they share one interpreter.
THREADS = 4


class Where(StrEnum):
    """Name where bulk work is done."""

    THREADS = "THREADS"
    SPARK = "SPARK"


@dataclass(frozen=True, slots=True)
class Task(Generic[A]):
    """What one task is given, and how many units of the work that is."""

    argument: A
    units: int


class Runner(Protocol):
    """Run functions side by side."""

    @property
    def slots(self) -> int:
        """How many run at once."""

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield function(argument, progress) of all tasks, each as it comes; `meter` counts their units meanwhile.

        No more tasks are taken than fit, so what is found may decide which come next. The first failure is raised and
        ends the others; closing the iterator ends them too.
        """


class Runtime(Protocol):
    """What is asked of Spark."""

    @property
    def slots(self) -> int: ...
    @property
    def driver_host(self) -> str: ...
    @property
    def bind_address(self) -> str: ...
    def map(
        self, name: str, function: Callable[[Any, int], Any], arguments: Iterable[Any], at_once: int | None = None
    ) -> Generator[Any, None, None]: ...


class _Tally:
    """Add up what tasks tell: each unit once, however often it is told, or a task begins again. For any thread."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        #: By task: how much it is, and how much of that is done.
        self._tasks: dict[int, tuple[int, int]] = {}

    def begin(self, task: int, units: int) -> None:
        with self._lock:
            self._tasks[task] = units, 0

    def hear(self, task: int, done: int) -> None:
        with self._lock:
            if task not in self._tasks:
                return
            units, before = self._tasks[task]
            now = min(units, max(before, done))
            self._tasks[task] = units, now
        if now > before:
            self._meter.add(now - before)

    def end(self, task: int, done: int) -> None:
        """Take the last count of a task; what it has left out needs no work."""
        self.hear(task, done)
        with self._lock:
            units, now = self._tasks.pop(task)
        if units > now:
            self._meter.spare(units - now)


@dataclass(frozen=True, slots=True)
class _Order:
    """What a worker is sent."""

    function: Function[Any, Any]
    argument: Any
    number: int
    ear: Ear | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What it sends back."""

    number: int
    value: Any
    done: int


def carry_out(order: _Order, attempt: int) -> _Answer:
    """Do one task: the body of a Spark task, at each attempt."""
    with telling(order.ear, order.number) as teller:
        value = order.function(order.argument, teller.add)
    return _Answer(order.number, value, teller.done)


class SparkTasks:
    """Run tasks in the workers of a Spark; `at_once` limits how many, None for as many as fit."""

    def __init__(self, runtime: Runtime, at_once: int | None = None) -> None:
        self._runtime = runtime
        self._at_once = at_once

    @property
    def slots(self) -> int:
        """How many run at once."""
        return self._at_once or self._runtime.slots

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield results as they come; see `Runner`."""
        tally = _Tally(meter)
        with listening(self._runtime.driver_host, self._runtime.bind_address, tally.hear) as ear:

            def orders() -> Iterator[_Order]:
                for number, task in enumerate(tasks):
                    tally.begin(number, task.units)
                    yield _Order(function, task.argument, number, ear)

            with closing(self._runtime.map(name, carry_out, orders(), self._at_once)) as answers:
                for answer in answers:
                    tally.end(answer.number, answer.done)
                    yield answer.value


class Threads:
    """Run tasks in threads of this process."""

    def __init__(self, at_once: int = THREADS) -> None:
        self.slots = at_once

    def run(
        self, name: str, function: Function[A, R], tasks: Iterable[Task[A]], meter: Meter
    ) -> Generator[R, None, None]:
        """Yield results as they come; see `Runner`."""
        tally, over = _Tally(meter), threading.Event()
        waiting = enumerate(tasks)
        running: set[Future[_Answer]] = set()
        ended: queue.SimpleQueue[Future[_Answer]] = queue.SimpleQueue()

        def work(number: int, task: Task[A]) -> _Answer:
            def tell(done: int) -> None:
                tally.hear(number, done)

            teller = Teller(tell)

            def progress(count: int) -> None:
                if over.is_set():
                    raise WorkIsOverError
                teller.add(count)

            return _Answer(number, function(task.argument, progress), teller.done)

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
                    answer = future.result()
                    tally.end(answer.number, answer.done)
                    yield answer.value
            finally:
                over.set()
