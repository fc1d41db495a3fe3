"""When the copy of a partition is done, if it and its source keep the speed that they have. Pure: no I/O, no clock."""

from __future__ import annotations

#: A copy that is not further behind keeps up: what comes to its source meanwhile does not delay it.
KEEPS_UP_MS = 10_000


def closing_speed(time_lag_ms: int | None, speed: float, growth: float) -> float:
    """Return how many offsets a second the lag shrinks: `speed` is the copy's, `growth` that of its source's end."""
    keeps_up = time_lag_ms is not None and time_lag_ms <= KEEPS_UP_MS
    return speed if keeps_up else speed - growth


def eta(lag: float, closing: float) -> int | None:
    """Return in how many milliseconds the lag is gone; None where it does not shrink."""
    return None if closing <= 0 else round(lag / closing * 1000)
