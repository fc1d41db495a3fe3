"""A verb as a table of steps, and the runner that carries it out.

After a kill, the same command runs the same table from its beginning: recorded steps are not repeated, and what was
true only for a moment is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kmirror.state.librdkafka import boottime

#: Called with the name of each completed step.
Checkpoint = Callable[[str], None]


class Clock:
    """Measure the steps of a verb, in `seconds` by name, and call the checkpoint after each of them."""

    def __init__(self, checkpoint: Checkpoint = lambda _: None, seconds: Mapping[str, float] | None = None) -> None:
        self._checkpoint = checkpoint
        self._at = boottime()
        self.seconds = dict(seconds or {})

    def reached(self, step: str) -> None:
        """Add the time since the previous step to this one's."""
        self.seconds[step] = self.seconds.get(step, 0.0) + boottime() - self._at
        self._at = boottime()
        self._checkpoint(step)


class Work(Protocol):
    """What the steps of a table share; set `is_over` to skip the remaining steps."""

    is_over: bool


W = TypeVar("W", bound=Work)


@dataclass(frozen=True, slots=True)
class Step(Generic[W]):
    """One step: what it `does`, in words, and `run`, which returns a name for timing and checkpoint, or None.

    A `durable` step records its outcome before it returns, and does not repeat what is recorded. Any other step is
    repeated by each run.
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
