"""How long is left of a wait."""

from __future__ import annotations

import time

#: An answer that is on its way has at least this long.
LEAST_S = 0.1


def seconds_left(deadline: float) -> float:
    """Return the seconds until a time of CLOCK_MONOTONIC, but never too few for an answer."""
    return max(deadline - time.monotonic(), LEAST_S)
