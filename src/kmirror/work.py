"""Work that takes long: what is done of how much, how fast, and for how long still.

Who works counts, and who watches is given views of it:

    with Meter(watch, "comparing orders", "offset", total) as meter:
        meter.add(500)

Counts are facts. How fast it goes, and how long it still takes, is said of the last ten seconds, and not at all while
it is not known: where nobody knows the total, before anything has moved, and when nothing moves any more.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

#: Over so many seconds a rate is taken, and at least over so many steps: some work comes in large pieces.
WINDOW_SECONDS = 10.0
_LEAST_STEPS = 4
#: Work that comes in pieces has stalled when none has come for so many times as long as the slowest of the last took.
_PATIENCE = 3
_SHOW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class WorkView:
    """How far work is: `done` of `total` units (None: nobody knows how many); times are of `time.monotonic`.

    Without a `unit` there is nothing to count, but the time. `note` is what else should be known at once.
    """

    what: str
    since: float
    at: float
    unit: str = ""
    done: int = 0
    total: int | None = None
    note: str = ""
    is_over: bool = False


#: Called from the thread that works, or from several, one at a time.
Watch = Callable[[WorkView], None]
#: Given how much more is done; may be called from any thread.
Add = Callable[[int], None]


def unwatched(_: object) -> None:
    """Show nothing."""


class WorkIsOverError(Exception):
    """A thread adds to work that was given up, or has failed elsewhere."""


class Meter:
    """Count what is done of a piece of work, for the time of a `with` block; `add` may be called from any thread."""

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
        """Count so much more as done.

        Raises:
            WorkIsOverError: the block was left, and nobody waits for this thread's part any more.
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
        """Count all that is done now; what falls is taken for the same as before."""
        self.add(max(0, done - self._done))

    def spare(self, count: int) -> None:
        """Take so much out of the total: it needs no work, as was found."""
        with self._lock:
            self._total = None if self._total is None else self._total - count
        self._show()

    def _show(self, *, is_over: bool = False) -> None:
        with self._lock:
            if self._is_over != is_over:
                return
            self._shown_at = time.monotonic()
            # a log may have grown since the total was taken
            total = None if self._total is None else max(self._total, self._done)
            self._watch(
                WorkView(
                    self._what, self._since, self._shown_at, self._unit, self._done, total, self._note, is_over=is_over
                )
            )


class Speed:
    """How fast work goes, from views of it; reads no clock."""

    def __init__(self, since: float) -> None:
        #: When something was done, and how much there was done by then; at first, since when nothing is.
        self._steps: deque[tuple[float, int]] = deque([(since, 0)])

    def take(self, view: WorkView) -> None:
        """Take note of a view."""
        if view.done > self._steps[-1][1]:
            if self._steps[0][1] == 0:
                # work may wait before it begins
                self._steps.clear()
            self._steps.append((view.at, view.done))
            while len(self._steps) > _LEAST_STEPS + 1 and self._steps[1][0] <= view.at - WINDOW_SECONDS:
                self._steps.popleft()

    def rate(self, at: float) -> float | None:
        """Return how much is done a second; None before it is known, and when nothing moves any more."""
        if len(self._steps) < 3 or self.silence(at) is not None:
            return None
        began, before = next(
            step
            for index, step in reversed(list(enumerate(self._steps)))
            if index == 0 or (step[0] <= at - WINDOW_SECONDS and len(self._steps) - index > _LEAST_STEPS)
        )
        return (self._steps[-1][1] - before) / max(at - began, 1e-3)

    def silence(self, at: float) -> float | None:
        """Return for how many seconds nothing has moved that should have; None while it moves."""
        times = [time for time, _ in self._steps]
        slowest = max((later - earlier for earlier, later in pairwise(times)), default=0.0)
        silent = at - times[-1]
        return silent if silent > max(WINDOW_SECONDS, _PATIENCE * slowest) else None

    def seconds_left(self, view: WorkView, at: float) -> float | None:
        """Return how long the rest takes if it goes on like this; None where that is not known."""
        rate = self.rate(at)
        if not rate or view.total is None or view.done >= view.total:
            return None
        return (view.total - view.done) / rate
