"""The progress of long work: how much is done, of how much, how fast, and the time left.

The worker counts, and `watch` is called with views of it:

    with Meter(watch, "comparing orders", "offset", total) as meter:
        meter.add(500)

Counts are facts. Rate and time left are those of the last ten seconds, and None while they are unknown: before anything
has moved, when nothing moves any more, and for the time left also without a total.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

#: A rate is measured over this time, and at least over this many steps, since some work is done in large pieces.
WINDOW_SECONDS = 10.0
_LEAST_STEPS = 4
#: Work has stalled if there was no step for this many times the longest of the last steps.
_PATIENCE = 3
_SHOW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WorkView:
    """The state of work: `done` of `total` units (None if unknown); times are of `time.monotonic`.

    Without a `unit` only the time counts. `note` is shown beside the numbers.
    """

    what: str
    since: float
    at: float
    unit: str = ""
    done: int = 0
    total: int | None = None
    note: str = ""
    is_over: bool = False


#: Called from the thread that works, or from several, but never concurrently.
Watch = Callable[[WorkView], None]
#: Called with how much more is done; may be called from any thread.
Add = Callable[[int], None]


def unwatched(_: object) -> None:
    """Show nothing."""


class WorkIsOverError(Exception):
    """A thread adds to work that was abandoned, or has failed elsewhere."""


class Meter:
    """Count the progress of work during a `with` block; `add` may be called from any thread."""

    def __init__(self, watch: Watch, what: str, unit: str = "", total: int | None = None) -> None:
        self._watch = watch
        self._what = what
        self._unit = unit
        self._total = total
        self._done = 0
        self._note = ""
        self._is_over = False
        self._lock = threading.Lock()
        self._since = self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._show(is_over=True)

    def add(self, count: int, note: str | None = None) -> None:
        """Count `count` more units as done.

        Raises:
            WorkIsOverError: the block was left: nothing waits for this thread any more.
        """
        if self._is_over:
            raise WorkIsOverError
        with self._lock:
            at = time.monotonic()
            is_due = at - self._shown_at >= _SHOW_SECONDS
            self._done += count
            self._note = self._note if note is None else note
        if is_due:
            self._show()

    def reach(self, done: int) -> None:
        """Set the number of units done; a decrease is ignored."""
        self.add(max(0, done - self._done))

    def shrink_total(self, count: int) -> None:
        """Reduce the total by units that turned out to need no work."""
        with self._lock:
            self._total = None if self._total is None else self._total - count
        self._show()

    def _show(self, *, is_over: bool = False) -> None:
        with self._lock:
            if self._is_over != is_over:
                return
            self._shown_at = time.monotonic()
            # a log may have grown since the total was read
            total = None if self._total is None else max(self._total, self._done)
            self._watch(
                WorkView(
                    self._what, self._since, self._shown_at, self._unit, self._done, total, self._note, is_over=is_over
                )
            )


class Speed:
    """The rate of work, computed from its views; reads no clock."""

    def __init__(self, since: float) -> None:
        #: Times at which something was done, with the total done by then; the first is the start.
        self._steps: deque[tuple[float, int]] = deque([(since, 0)])

    def take(self, view: WorkView) -> None:
        """Add a view."""
        if view.done > self._steps[-1][1]:
            if self._steps[0][1] == 0:
                # the wait before the first step does not count
                self._steps.clear()
            self._steps.append((view.at, view.done))
            while len(self._steps) > _LEAST_STEPS + 1 and self._steps[1][0] <= view.at - WINDOW_SECONDS:
                self._steps.popleft()

    def rate(self, at: float) -> float | None:
        """Return units per second; None if too few steps are known, or the work has stalled."""
        if len(self._steps) < 3 or self.silence(at) is not None:
            return None
        began, before = next(
            step
            for index, step in reversed(list(enumerate(self._steps)))
            if index == 0 or (step[0] <= at - WINDOW_SECONDS and len(self._steps) - index > _LEAST_STEPS)
        )
        return (self._steps[-1][1] - before) / max(at - began, 1e-3)

    def silence(self, at: float) -> float | None:
        """Return for how many seconds the work has stalled; None if it has not."""
        times = [time for time, _ in self._steps]
        slowest = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        silent = at - times[-1]
        return silent if silent > max(WINDOW_SECONDS, _PATIENCE * slowest) else None

    def seconds_left(self, view: WorkView, at: float) -> float | None:
        """Return the time left at the current rate, in seconds; None if unknown."""
        rate = self.rate(at)
        if not rate or view.total is None or view.done >= view.total:
            return None
        return (view.total - view.done) / rate
