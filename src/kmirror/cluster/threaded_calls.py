"""Call a function with several arguments at once, in threads that the end of this process does not wait for.

Python waits at its end for the threads of a `ThreadPoolExecutor`, also while they wait for a broker that is silent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


def begin_each(
    function: Callable[[A], R], arguments: Iterable[A], name: str, at_once: int | None = None
) -> list[Future[R]]:
    """Call `function` with each argument in threads of this name, all or so many at once; do not wait for them.

    What is cancelled before its turn is not called.
    """
    waiting = deque((Future[R](), argument) for argument in arguments)
    futures = [future for future, _ in waiting]

    def work() -> None:
        while True:
            try:
                future, argument = waiting.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(argument))
            except BaseException as error:
                future.set_exception(error)

    for _ in futures[:at_once]:
        threading.Thread(target=work, name=name, daemon=True).start()
    return futures


def call_each(function: Callable[[A], R], arguments: Iterable[A], name: str) -> list[R]:
    """Return what `function` returns for each argument, called at once; none of the calls is left when this ends."""
    given = list(arguments)
    if len(given) < 2:
        return [function(one) for one in given]
    futures = begin_each(function, given, name)
    try:
        return [future.result() for future in futures]
    finally:
        wait(futures)
