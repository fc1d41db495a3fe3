"""The code that runs a function of ours in a Spark worker: it ties the worker to its driver and returns the result.

An exception raised by the function is a result too: it is sent back as data and raised at the driver. Spark repeats a
task that *fails*, and only a worker that died is a reason to repeat.

A driver on the same machine passes a *mark*, two file names: the worker keeps its process id in one while the function
runs, and does not run it if the other exists. The driver writes the second before it reads the first, so that a
cancelled function is either killed by its process id or never starts.

This module runs in workers.
"""

from __future__ import annotations

import importlib
import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kmirror.engine import lifeline
from kmirror.errors import KmirrorError


class RemoteError(KmirrorError):
    """An exception in a worker that could not be sent to the driver; the message holds its type and text."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """How a function ended: with a value, or with an exception and its traceback as text."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""


class Mark(NamedTuple):
    """The files by which a driver finds, on its own machine, the process that runs one function."""

    pid_file: Path
    cancelled_file: Path

    @classmethod
    def at(cls, path: Path) -> Mark:
        return cls(path.with_suffix(".pid"), path.with_suffix(".cancelled"))


def run_task(rows: Iterable[object], *, payload: bytes, generations: int, mark: Mark | None) -> Iterator[bytes]:
    """Run the pickled (function, argument) of `payload` as function(argument, attempt); yield one pickled Outcome.

    `rows` is drained, otherwise Spark would not reuse the worker. `attempt` counts the workers that have died with this
    task, from 0. `generations` is for `lifeline.tie_to_driver`.
    """
    lifeline.tie_to_driver(generations)
    from pyspark.taskcontext import TaskContext

    for _ in rows:
        pass
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    with _marked(mark):
        outcome = _dump(_outcome(payload, attempt))
    yield outcome


def _outcome(payload: bytes, attempt: int) -> TaskOutcome:
    try:
        function: Callable[[Any, int], Any]
        function, argument = pickle.loads(payload)
        return TaskOutcome(value=function(argument, attempt))
    except BaseException as error:
        return TaskOutcome(error=error, trace=traceback.format_exc())


def _dump(outcome: TaskOutcome) -> bytes:
    """Pickle `outcome`; one that does not survive the round trip becomes a RemoteError, which does."""
    from pyspark import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(outcome)
        if outcome.error is not None:
            pickle.loads(data)
        return data
    except Exception as error:
        broken = outcome.error or error
        text = RemoteError(f"{type(broken).__name__}: {broken}")
        return pickle.dumps(TaskOutcome(error=text, trace=outcome.trace or traceback.format_exc()))


@contextmanager
def _marked(mark: Mark | None) -> Iterator[None]:
    if mark is None:
        yield
        return
    mark.pid_file.write_text(str(os.getpid()))
    try:
        if mark.cancelled_file.exists():
            os._exit(1)
        yield
    finally:
        mark.pid_file.unlink(missing_ok=True)


def check_imports(modules: tuple[str, ...], attempt: int) -> None:
    """Import `modules`: the first task of a worker, which fails if our libraries are missing or do not fit."""
    for module in modules:
        importlib.import_module(module)
