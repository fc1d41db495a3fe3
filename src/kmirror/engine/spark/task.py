"""What runs in a Spark worker around a function of ours: ties the worker to its driver, and carries the result home.

An exception raised by the function is a result like another: it travels back as data and is raised at the driver. Spark
repeats a task that *fails*, and repeating is for workers that died, never for an answer that displeases.

A driver on the same machine gives a *mark*, two file names: the worker keeps its process id in one while the function
runs, and does not run it when the other exists. The driver writes the second before it reads the first, so that a
cancelled function is either killed by its process id or never begins.

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
    """An exception in a worker that could not be carried to the driver itself; the message holds its type and text."""


@dataclass(frozen=True, slots=True)
class Outcome:
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

    `rows` is drained, or Spark would not use the worker again. `attempt` counts from 0: how many workers have died with
    this task before. `generations` is for `lifeline.tie_to_driver`.
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


def _outcome(payload: bytes, attempt: int) -> Outcome:
    try:
        function: Callable[[Any, int], Any]
        function, argument = pickle.loads(payload)
        return Outcome(value=function(argument, attempt))
    except BaseException as error:
        return Outcome(error=error, trace=traceback.format_exc())


def _dump(outcome: Outcome) -> bytes:
    """Pickle `outcome`; what cannot make the way there and back becomes a RemoteError that can."""
    from pyspark import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(outcome)
        if outcome.error is not None:
            pickle.loads(data)
        return data
    except Exception as error:
        broken = outcome.error or error
        text = RemoteError(f"{type(broken).__name__}: {broken}")
        return pickle.dumps(Outcome(error=text, trace=outcome.trace or traceback.format_exc()))


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


def introduce(modules: tuple[str, ...], attempt: int) -> None:
    """Import `modules`: the first thing a worker is asked for, which fails where ours are missing or do not fit."""
    for module in modules:
        importlib.import_module(module)
