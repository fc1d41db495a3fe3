"""How often the jobs of an engine read both clusters: as often as their settings say, but not at the copy's expense.

Reading what brokers return for thousands of topics takes processor time. How long a job pauses depends on what its last
run took, so that it uses a small share of one core at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: At most a two-hundredth of a core for each job.
_PAUSE_PER_WORK = 200.0


class Pace:
    """Compute how long to pause after a run; for one thread."""

    def __init__(self) -> None:
        self._work_s = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the processor time of this thread in the body."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._work_s = time.thread_time() - began

    def interval_s(self, wanted_s: float) -> float:
        """Return the pause in seconds: `wanted_s`, or more if the last run took much work."""
        return max(float(wanted_s), self._work_s * _PAUSE_PER_WORK)
