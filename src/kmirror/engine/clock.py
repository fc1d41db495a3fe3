"""The two clocks that lanes use."""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Return seconds of a clock that never jumps and that also runs while the machine sleeps."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


def now_ms() -> int:
    """Return the wall clock in epoch milliseconds, to compare with records' timestamps."""
    return time.time_ns() // 1_000_000


def epoch_ms(moment: float) -> int:
    """Return a moment that `now` gave as epoch milliseconds, by the wall clock of today."""
    return now_ms() - int(1000 * (now() - moment))
