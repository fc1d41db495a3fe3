"""Waiting in tests: for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Return when `condition` holds, and fail the test when it never does.

    Between looks it rests for as long as a look takes: those that are dear would keep from work what is waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        ended = time.monotonic()
        assert ended < deadline, "what was waited for never happened"
        time.sleep(min(max(0.02, ended - began), 0.5))
