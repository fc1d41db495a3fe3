"""A verb as a table of steps, and the runner that carries one out.

After a kill, the same command runs the same table from its beginning: what is recorded is not done again, and what was
true only for a moment is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kmirror.state.client import boottime

#: Called with the name of each step that has been reached.
Checkpoint = Callable[[str], None]


class Clock:
    """Time the steps of a verb, in `seconds` by name, and tell a checkpoint of each one that has been reached."""

    def __init__(self, checkpoint: Checkpoint = lambda _: None, seconds: Mapping[str, float] | None = None) -> None:
        self._checkpoint = checkpoint
        self._at = boottime()
        self.seconds = dict(seconds or {})

    def reached(self, step: str) -> None:
        """Add the time since the step before to this one's."""
        self.seconds[step] = self.seconds.get(step, 0.0) + boottime() - self._at
        self._at = boottime()
        self._checkpoint(step)


class Work(Protocol):
    """What the steps of a table share; `is_over` skips the remaining steps."""

    is_over: bool


W = TypeVar("W", bound=Work)


@dataclass(frozen=True, slots=True)
class Step(Generic[W]):
    """One step: what it `does`, in words, and `run`, which returns the name of what it reached, or None.

    A `durable` step records its outcome before it returns, and does not repeat what is recorded. Each run repeats any
    other step.
    """

    does: str
    run: Callable[[W], str | None]
    durable: bool = False


def carry_out(steps: Sequence[Step[W]], work: W, clock: Clock) -> None:
    """Run these steps in order until the work is over."""
    for step in steps:
        if work.is_over:
            return
        reached = step.run(work)
        if reached is not None:
            clock.reached(reached)
