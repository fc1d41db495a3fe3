"""What is known of a `run` at any time: the run's own thread tells it, HTTP threads read it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from kmirror.engine.clock import epoch_ms, now, now_ms
from kmirror.engine.driver.driver import COPYING, STOPPING, RunView
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.engine.status.journal import Level
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.web.live_mirror import live_mirror
from kmirror.web.recent import Events, RecentEvents
from kmirror.web.served import ServedStatus, StuckError
from kmirror.words import at_time

#: The driver's loop runs many times a second; while the run waits for something at the start, once a second.
TURN_SECONDS = 10.0
ANSWER_SECONDS = 5.0
#: A client that asks more often gets the same answer again: making one takes work.
_SAME_SECONDS = 1.0

_STARTING, _WAITING = "starting", "waiting"


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the run last showed."""

    at: float
    phase: str
    words: str
    #: Why it waits, if that is known.
    why: str | None = None
    not_copied: Mapping[str, NotCopied] = field(default_factory=dict)


class RunService:
    """Answer for one run; `show` is called by its thread about once a second, everything else by any thread."""

    charge: ChargeKeeper | None = None

    def __init__(self, snapshots: Snapshots, recent: RecentEvents) -> None:
        self._snapshots = snapshots
        self.recent = recent
        self._shown = _Shown(now(), _STARTING, _STARTING)
        self._lock = threading.Lock()
        self._last: tuple[float, ServedStatus | StuckError] | None = None

    def show(self, view: RunView) -> None:
        """Take what the run shows."""
        phase, before = self._phase(view.phase), self._shown
        warnings = [note.text for note in view.notes if note.level is not Level.INFO]
        why = warnings[-1] if warnings else before.why if view.phase == before.words else None
        self._shown = _Shown(now(), phase, view.phase, why, view.not_copied)

    def _phase(self, words: str) -> str:
        if words == STOPPING:
            return STOPPING
        if self._snapshots.turned_at is not None:
            return COPYING  # also while it waits for all its mirrors
        return _WAITING if words.startswith(_WAITING) else _STARTING

    @property
    def stuck(self) -> str | None:
        """Why the run counts as stuck; None while its loop runs."""
        turned_at = max(self._shown.at, self._snapshots.turned_at or 0.0)
        if now() - turned_at <= TURN_SECONDS:
            return None
        return f"the driver is stuck: its loop last ran at {at_time(epoch_ms(turned_at))}"

    @property
    def alive(self) -> str:
        """What runs while it is not stuck."""
        return "the driver is running"

    def events(self) -> tuple[tuple[str | None, Events]]:
        """Return the recent events of the run's destination."""
        return ((None, self.recent.last()),)

    def status(self) -> ServedStatus:
        """Return what is known now, or was within the last second.

        Raises:
            StuckError: the driver does not answer.
        """
        with self._lock:
            if self._last is None or now() - self._last[0] > _SAME_SECONDS:
                found = self._ask()
                self._last = now(), found
            found = self._last[1]
        if isinstance(found, StuckError):
            raise found
        return found

    def _ask(self) -> ServedStatus | StuckError:
        shown = self._shown
        if self._snapshots.turned_at is None or shown.phase == STOPPING:
            why = f"{shown.words}: {shown.why}" if shown.why else shown.words
            return ServedStatus(shown.phase, now_ms(), why)
        try:
            snapshots = self._snapshots.ask(ANSWER_SECONDS)
        except TimeoutError:
            return StuckError(f"the driver is stuck: it has not answered for {ANSWER_SECONDS:g} s")
        found = (one for one in snapshots if one.mirror not in shown.not_copied)
        mirrors = tuple(map(live_mirror, found))
        time_ms = min((one.time_ms for one in snapshots), default=now_ms())
        return ServedStatus(COPYING, time_ms, None, mirrors, shown.not_copied)
