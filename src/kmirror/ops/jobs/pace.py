"""How often an engine's jobs look at both clusters: as often as they are asked to, but never at the copy's expense.

Reading what brokers say of thousands of topics takes processor time. A job that looks again and again is paced by what
its last look took, so that it never needs more than a small share of one core.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: At most a two-hundredth of a core for each job.
_PAUSE_PER_WORK = 200.0


class Pace:
    """Say how long to pause after a look; for one thread."""

    def __init__(self) -> None:
        self._work_s = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the processor time that the body takes in this thread."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._work_s = time.thread_time() - began

    def interval_s(self, wanted_s: float) -> float:
        """Return the pause in seconds, `wanted_s` unless the last look took much work."""
        return max(float(wanted_s), self._work_s * _PAUSE_PER_WORK)
