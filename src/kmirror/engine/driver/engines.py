"""The engines of one run: each starts, runs and ends without affecting the others."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kmirror.engine.clock import now
from kmirror.engine.driver.job_pool import JobPool
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.executors import Placement
from kmirror.engine.lanes.spread import Spread
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import Reason

#: Lanes drain within milliseconds; one that does not is ended with its worker.
STOP_SECONDS = 3.0
#: How many engines `tick` at the same time: a heartbeat that waits for its coordinator must not delay all others.
_AT_ONCE = 16
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
        #: Engines that were closed in this `tick`.
        self._closed: set[MirrorEngine] = set()
        #: By mirror, the last engine that has ended, unless it was dropped.
        self.ended: dict[str, MirrorEngine] = {}
        self._pool: ThreadPoolExecutor | None = None
        # a source that does not answer delays side jobs much longer than its monitor
        self._side_jobs, self._monitors = JobPool(), JobPool()
        #: Returns where Spark's functions run; None if that is unknown.
        self.placement: Callable[[], Placement | None] = lambda: None
        self._spread = Spread()
        self._spread_at = 0.0
        for engine in engines:
            self.add(engine)

    def add(self, engine: MirrorEngine) -> None:
        """Start an engine and add it."""
        engine.start(self._side_jobs, self._monitors)
        self._running.append(engine)

    @property
    def running(self) -> Sequence[MirrorEngine]:
        """The engines that have not ended, in the order in which they were added."""
        return tuple(self._running)

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
        self._side_jobs.tick()
        self._monitors.tick()
        if len(self._running) > 1:
            self._pool = self._pool or ThreadPoolExecutor(_AT_ONCE, "kmirror-engine")
            for _ in self._pool.map(self._tick, self._running):
                pass
        else:
            for engine in self._running:
                self._tick(engine)
        self._running = [engine for engine in self._running if engine not in self._closed]
        self._closed.clear()
        if (at := now()) - self._spread_at >= _SPREAD_SECONDS:
            self._spread_at = at
            self._spread.tick(self.placement(), [e.balancer for e in self._running if e not in self._ending], at)

    def close(self) -> None:
        """Close the engines that are left."""
        for engine in self._running:
            self._close(engine)
        self._running = []
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _tick(self, engine: MirrorEngine) -> None:
        try:
            engine.tick()
        except Exception as error:
            _logger.info("the engine of %s broke", engine.mirror, exc_info=error)
            self._broken[engine] = error
            self._close(engine)
            return
        if engine.lost is not None:
            self.end(engine)
        until = self._ending.get(engine)
        if until is not None and (engine.finished or now() >= until):
            self._close(engine)

    def _close(self, engine: MirrorEngine) -> None:
        self._ending.pop(engine, None)
        self._closed.add(engine)
        with contextlib.suppress(Exception) if engine in self._broken else contextlib.nullcontext():
            engine.close()
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

    @property
    def is_done(self) -> bool: ...

    @property
    def not_copied(self) -> Mapping[str, NotCopied]: ...

    def take_notes(self) -> Sequence[Note]: ...
