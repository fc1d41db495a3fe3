"""Waiting in tests: for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

#: How long a test waits for what takes a second or two on a quiet machine, before it says that it never happens. Other
#: programs may use the machine too; a time that is part of a rule is a setting of the product, not a wait of a test.
PATIENCE_S = 120.0


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


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Return when `condition` holds, and fail the test when it never does."""
    deadline = time.monotonic() + seconds
    for _ in polls():
        if condition():
            return
        assert time.monotonic() < deadline, "what was waited for never happened"
