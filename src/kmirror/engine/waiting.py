"""Waiting that ends: for a condition or for a call that may hang, no longer than told, and not while being stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from kmirror.errors import KmirrorError, TimedOutError

R = TypeVar("R")

_LOOK_EVERY_SECONDS = 0.02


class StoppedError(KmirrorError):
    """The wait was given up because Spark is being stopped."""


def until(condition: Callable[[], bool], seconds: float, stopping: threading.Event | None = None) -> None:
    """Return when `condition` holds; raise TimedOutError after `seconds`, StoppedError when `stopping` is set."""
    deadline = time.monotonic() + seconds
    while not condition():
        if stopping is not None and stopping.is_set():
            raise StoppedError("Spark was stopped during startup")
        if time.monotonic() > deadline:
            raise TimedOutError(f"this took longer than {seconds:.0f} s")
        time.sleep(_LOOK_EVERY_SECONDS)


def in_thread(function: Callable[[], R], seconds: float, stopping: threading.Event | None = None) -> R:
    """Return what `function` returns, called in a thread of its own; raise like `until`, leaving that thread behind."""
    future = begin(function)
    until(lambda: bool(wait([future], _LOOK_EVERY_SECONDS).done), seconds, stopping)
    return future.result()


def begin(function: Callable[[], R]) -> Future[R]:
    """Call `function` in a thread of its own, which the end of this process does not wait for."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kmirror-call", daemon=True).start()
    return future
