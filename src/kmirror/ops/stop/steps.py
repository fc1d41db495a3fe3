"""A verb as a table of steps, and the one runner that walks it: acting, or for a dry run without acting.

After a kill, the same command walks the same table from its beginning: what a durable step has recorded is not done
again, and what was true only for a moment is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kmirror.state.records import MirrorRecord
from kmirror.state.waiting import boottime

#: Called with what each step does, once it is done.
Checkpoint = Callable[[str], None]

#: Called once, when the preconditions hold and before the first change, with the mirror and its topics on the
#: destination; what it raises ends the verb. A dry run does not call it.
Gate = Callable[[MirrorRecord, Sequence[str]], None]


def no_gate(_: MirrorRecord, __: Sequence[str]) -> None:
    """Let the verb change what it has to."""


class Work(Protocol):
    """What the steps of a table share; set `is_over` to skip the remaining steps."""

    is_over: bool


W = TypeVar("W", bound=Work)


def _nothing(_: Work) -> None: ...


def _always(_: Work) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step(Generic[W]):
    """One step of a verb: what it `does` in words, and how.

    `read` changes nothing and always runs. `act` does what the words say, if it is `needed` by what was read; a dry run
    says the same words and calls `rehearse`, which changes nothing but the work in memory. `read` and `act` may return
    a name to measure them by.

    With `recorded` a step is durable: its outcome is stored before `act` returns, and once `recorded` finds it there,
    the step is not done again. Any other step is repeated by each run, and must be repeatable.
    """

    does: str
    act: Callable[[W], object] | None = None
    read: Callable[[W], str | None] = _nothing
    rehearse: Callable[[W], object] = _nothing
    needed: Callable[[W], bool] = _always
    recorded: Callable[[W], bool] | None = None

    def is_due(self, work: W) -> bool:
        """Return whether it has something to do, by what it has read."""
        if self.act is None or not self.needed(work):
            return False
        return self.recorded is None or not self.recorded(work)


class StepRunner:
    """Walk tables of steps; with `acts` False nothing is changed.

    Afterwards `done` has what was done, or would be, in words; `seconds` has how long it took, by name.
    """

    def __init__(
        self,
        checkpoint: Checkpoint = lambda _: None,
        seconds: Mapping[str, float] | None = None,
        *,
        acts: bool = True,
    ) -> None:
        self.acts = acts
        self.seconds = dict(seconds or {})
        self._checkpoint = checkpoint
        self._at: float | None = None
        self._done: dict[str, None] = {}

    @property
    def done(self) -> tuple[str, ...]:
        """What was done, or in a dry run would be, each once and in this order."""
        return tuple(self._done)

    def also(self, done: Iterable[str]) -> None:
        """Add what another runner has done."""
        self._done |= dict.fromkeys(done)

    def reached(self, name: str | None) -> None:
        """Add the time since the last name to this one's."""
        if self.acts and name is not None and self._at is not None:
            self.seconds[name] = self.seconds.get(name, 0.0) + boottime() - self._at
            self._at = boottime()

    def walk(self, steps: Sequence[Step[W]], work: W) -> None:
        """Take these steps in order until the work is over; Ctrl-C is raised with what to do then."""
        try:
            self._walk(steps, work)
        except KeyboardInterrupt as interruption:
            if self.acts and not hasattr(interruption, "__notes__"):
                interruption.add_note("run the same command again to finish")
            raise

    def _walk(self, steps: Sequence[Step[W]], work: W) -> None:
        self._at = self._at or boottime()
        for step in steps:
            if work.is_over:
                return
            name = step.read(work)
            if not step.is_due(work):
                self.reached(name)
                continue
            self.also([step.does])
            if not self.acts or step.act is None:
                step.rehearse(work)
                continue
            found = step.act(work)
            self.reached(found if isinstance(found, str) else name)
            self._checkpoint(step.does)
