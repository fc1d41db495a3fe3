"""The two clocks that lanes use."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return the time of a monotonic clock, in seconds, that also runs while the machine sleeps."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


def now_ms() -> int:
    """Return the wall clock in epoch milliseconds, comparable with record timestamps."""
    return time.time_ns() // 1_000_000


def epoch_ms(moment: float) -> int:
    """Convert a time of `now` into epoch milliseconds, by the current wall clock."""
    return now_ms() - int(1000 * (now() - moment))
