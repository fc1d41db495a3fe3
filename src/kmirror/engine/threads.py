"""Threads, and waiting with a limit: for a condition, or for a call that may hang."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from kmirror.errors import KmirrorError, TimedOutError

R = TypeVar("R")

_POLL_SECONDS = 0.02
_IDLE = "kmirror-idle"


def guarded_thread(run: Callable[[], None], name: str, broken: Callable[[Exception], None]) -> threading.Thread:
    """Return a daemon thread that calls `run`, and `broken` with an exception that it raises."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:
            broken(error)

    return threading.Thread(target=guarded, name=name, daemon=True)


class StoppedError(KmirrorError):
    """The wait ended because Spark is being stopped."""


def wait_until(condition: Callable[[], bool], seconds: float, stopping: threading.Event | None = None) -> None:
    """Wait for `condition`; raise TimedOutError after `seconds`, StoppedError when `stopping` is set."""
    deadline = time.monotonic() + seconds
    while not condition():
        if stopping is not None and stopping.is_set():
            raise StoppedError("Spark was stopped during startup")
        if time.monotonic() > deadline:
            raise TimedOutError(f"this took longer than {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def call_with_timeout(function: Callable[[], R], seconds: float, stopping: threading.Event | None = None) -> R:
    """Return `function()`, called in a new thread; raise like `wait_until`, leaving that thread behind."""
    future = call_in_thread(function)
    wait_until(lambda: bool(wait([future], _POLL_SECONDS).done), seconds, stopping)
    return future.result()


def call_in_thread(function: Callable[[], R], name: str = "kmirror-call") -> Future[R]:
    """Call `function` in a new thread, which the end of this process does not wait for."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


_Call = tuple[Callable[[], None], str, "Future[None]"]


class ReusedThreads:
    """Call functions in threads that are used again, and that the end of this process does not wait for.

    There are as many as functions ran at the same time; those without one are named kmirror-idle.
    """

    def __init__(self) -> None:
        #: What hands a call to each thread that has none.
        self._free: list[queue.SimpleQueue[_Call | None]] = []

    def call(self, function: Callable[[], None], name: str) -> Future[None]:
        """Call `function` in a thread of that name."""
        future: Future[None] = Future()
        try:
            calls = self._free.pop()
        except IndexError:
            calls = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(calls,), name=_IDLE, daemon=True).start()
        calls.put((function, name, future))
        return future

    def close(self) -> None:
        """End the threads that call nothing."""
        while self._free:
            self._free.pop().put(None)

    def _serve(self, calls: queue.SimpleQueue[_Call | None]) -> None:
        thread = threading.current_thread()
        while (call := calls.get()) is not None:
            function, thread.name, future = call
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:
                error = raised
            thread.name = _IDLE
            self._free.append(calls)  # before anyone learns that the call has ended, and starts another
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
            del call, function, future, error
