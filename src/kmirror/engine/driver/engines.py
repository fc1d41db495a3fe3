"""The engines of one run: each starts, runs and ends without affecting the others.

One thread gives all engines their turns, in which none waits for a cluster. What waits is done by threads that all
engines share, of which there are a fixed number however many mirrors there are.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Protocol

from kmirror.engine.clock import now
from kmirror.engine.driver.job_pool import Pools
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.state_tail import StateTail
from kmirror.engine.executors import Placement
from kmirror.engine.lanes.spread import Spread
from kmirror.engine.status.journal import Level, Note
from kmirror.engine.threads import call_in_thread
from kmirror.errors import Reason

#: Lanes drain within milliseconds; one that does not is ended with its worker.
STOP_SECONDS = 3.0
#: How many engines are closed at the same time.
_AT_ONCE = 16
#: How long to wait in the end for engines that are being closed: a lease that is not released expires.
_CLOSE_SECONDS = 3.0
#: An engine for which nothing is due has a turn this often for each engine that there is, and at least this often.
_TURN_SECONDS, _MOST_TURN_SECONDS = 0.01, 1.0
#: How often to check where lanes run.
_SPREAD_SECONDS = 1.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NotCopied:
    """Why a mirror has no engine in this run, and the level of the note about it."""

    why: str
    level: Level = Level.ERROR
    reason: Reason | None = None


class Engines:
    """Keep the engines that run; for one thread, which calls `tick` many times a second.

    An engine that has lost its mirror, or raises, ends by itself; then `why_ended` returns the cause.
    """

    def __init__(self, engines: Iterable[MirrorEngine] = ()) -> None:
        self._running: list[MirrorEngine] = []
        #: Engines that end, and until when to wait for their lanes.
        self._ending: dict[MirrorEngine, float] = {}
        #: Unexpected exceptions of engines.
        self._broken: dict[MirrorEngine, Exception] = {}
        self._dropped: set[MirrorEngine] = set()
        #: The notes of engines that have ended since.
        self._last_notes: list[Note] = []
        #: Engines that are to be closed, and those that are being closed.
        self._leaving: deque[MirrorEngine] = deque()
        self._closing: dict[MirrorEngine, Future[None]] = {}
        #: By mirror, the last engine that has ended, unless it was dropped.
        self.ended: dict[str, MirrorEngine] = {}
        self._pools, self._tail = Pools(), StateTail()
        #: When each engine had its last turn.
        self._turned_at: dict[MirrorEngine, float] = {}
        #: Returns where Spark's functions run; None if that is unknown.
        self.placement: Callable[[], Placement | None] = lambda: None
        #: Returns how many mirrors the run is to copy, as far as it knows.
        self.expected: Callable[[], int] = lambda: 0
        self._sharing = 1
        self._spread = Spread()
        self._spread_at = 0.0
        for engine in engines:
            self.add(engine)

    def add(self, engine: MirrorEngine) -> None:
        """Start an engine and add it."""
        engine.start(self._pools, self._tail)
        self._running.append(engine)
        engine.balancer.share_machine(self._sharing)

    @property
    def running(self) -> Sequence[MirrorEngine]:
        """The engines that have not ended or are not closed yet, in the order in which they were added."""
        return tuple(self._running)

    @property
    def working(self) -> Sequence[MirrorEngine]:
        """The running engines without those that are being closed."""
        return tuple(one for one in self._running if one not in self._closing and one not in self._leaving)

    @property
    def last(self) -> Sequence[MirrorEngine]:
        """The last engine of each mirror, whether it runs or has ended."""
        return tuple({**self.ended, **{engine.mirror: engine for engine in self._running}}.values())

    def why_ended(self, engine: MirrorEngine) -> Exception | None:
        """Return why an engine ended by itself; None if it runs or was asked to end."""
        return self._broken.get(engine) or engine.lost

    @property
    def not_copied(self) -> dict[str, NotCopied]:
        """The mirrors whose last engine has ended by itself."""
        return {
            engine.mirror: NotCopied(str(why), reason=getattr(why, "reason", None))
            for engine in self.ended.values()
            if engine in self.last and (why := self.why_ended(engine)) is not None
        }

    def end(self, engine: MirrorEngine) -> None:
        """Ask an engine to end; it does so within STOP_SECONDS."""
        if engine not in self._ending:
            self._ending[engine] = now() + STOP_SECONDS
            engine.stop()

    def drop(self, mirror: str) -> None:
        """Remove a mirror from the run, and ask its engine to end if it runs; it is not reported any more."""
        if (before := self.ended.pop(mirror, None)) is not None:
            self._broken.pop(before, None)
        for engine in self._running:
            if engine.mirror == mirror:
                self._dropped.add(engine)
                self.end(engine)

    def renew_logins(self) -> None:
        """Have all engines log in to their sources again; from any thread."""
        for engine in tuple(self._running):
            engine.renew_login()

    def take_notes(self) -> list[Note]:
        """Return the engines' notes since the last call."""
        found, self._last_notes = self._last_notes, []
        for engine in self._running:
            found += engine.journal.notes
            engine.journal.notes.clear()
        return found

    def end_all(self) -> None:
        """Ask all to end."""
        for engine in self._running:
            self.end(engine)

    def tick(self) -> None:
        """Have each engine do what is due, and close those that have ended."""
        at = now()
        if (sharing := max(1, len(self._running), self.expected())) != self._sharing:
            self._sharing = sharing
            for engine in self.working:
                engine.balancer.share_machine(sharing)
        pause = min(_MOST_TURN_SECONDS, _TURN_SECONDS * len(self._running))
        for engine in self.working:
            turned_at = self._turned_at.get(engine)
            if turned_at is None or engine.has_news(at) or engine in self._ending or at - turned_at >= pause:
                self._turned_at[engine] = at
                self._turn(engine)
        self._pools.tick()
        self._close_some()
        if (at := now()) - self._spread_at >= _SPREAD_SECONDS:
            self._spread_at = at
            self._spread.tick(self.placement(), [e.balancer for e in self._running if e not in self._ending], at)

    def close(self) -> None:
        """Close the engines that are left."""
        for engine in self.working:
            self._leave(engine)
        deadline = now() + _CLOSE_SECONDS
        self._close_some()
        while self._closing and now() < deadline:
            wait(self._closing.values(), 0.05, FIRST_COMPLETED)
            self._close_some()
        for engine in self._running:
            self._note_closed(engine)
        self._running = []
        self._tail.close()
        self._pools.close()

    def _turn(self, engine: MirrorEngine) -> None:
        try:
            engine.tick()
        except Exception as error:
            _logger.info("the engine of %s broke", engine.mirror, exc_info=error)
            self._broken[engine] = error
            self._leave(engine)
            return
        if engine.lost is not None:
            self.end(engine)
        until = self._ending.get(engine)
        if until is not None and (engine.finished or now() >= until):
            self._leave(engine)

    def _leave(self, engine: MirrorEngine) -> None:
        """Have an engine closed soon; it has no more turns."""
        self._ending.pop(engine, None)
        self._leaving.append(engine)
        try:
            engine.leave()
        except Exception as error:
            if engine not in self._broken:
                self._broken[engine] = error

    def _close_some(self) -> None:
        """Close engines that have left, each in a thread, since it may wait for brokers; forget those that are."""
        for engine, closed in list(self._closing.items()):
            if closed.done():
                del self._closing[engine]
                self._running.remove(engine)
                if (error := closed.exception()) is not None and engine not in self._broken:
                    if not isinstance(error, Exception):
                        raise error
                    self._broken[engine] = error
                self._note_closed(engine)
        while self._leaving and len(self._closing) < _AT_ONCE:
            engine = self._leaving.popleft()
            self._closing[engine] = call_in_thread(engine.close, "kmirror-close")

    def _note_closed(self, engine: MirrorEngine) -> None:
        self._turned_at.pop(engine, None)
        self._last_notes += engine.journal.notes
        if engine in self._dropped:
            self._dropped.remove(engine)
            self._broken.pop(engine, None)
            return
        if (before := self.ended.get(engine.mirror)) is not None:
            self._broken.pop(before, None)
        self.ended[engine.mirror] = engine


class Supervisor(Protocol):
    """What adds and drops engines while others run: see `ops.run.supervisor.EngineSupervisor`."""

    def tick(self, engines: Engines) -> None: ...

    def take_ended(self, engines: Engines) -> None: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def not_copied(self) -> Mapping[str, NotCopied]: ...

    def take_notes(self) -> Sequence[Note]: ...
