"""Waiting in tests: for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


def polls() -> Iterator[None]:
    """Yield before each check of a condition, without end.

    Between checks it rests for four times as long as one takes, within limits: brokers, engines and other tests need
    the CPU to make the condition true.
    """
    while True:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        time.sleep(max(0.02, min(4 * took, 0.25), min(took, 0.5)))


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return when `condition` holds, and fail the test when it never does."""
    deadline = time.monotonic() + seconds
    for _ in polls():
        if condition():
            return
        assert time.monotonic() < deadline, "what was waited for never happened"
