"""Run mirrors until asked to stop: the driver's loop, and what it shows while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kmirror.engine.clock import now, now_ms
from kmirror.engine.driver.engines import STOP_SECONDS, Engines, NotCopied, Supervisor
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import NOT_COPYING
from kmirror.status.topic_status import TopicStatus

#: With many engines, to see which have something to do takes longer.
_LOOP_SECONDS, _MANY, _MANY_LOOP_SECONDS = 0.05, 30, 0.1
_VIEW_SECONDS = 1.0
#: Showing the state takes at most 1/125 of a core: with thousands of busy partitions it is shown less often; and 1/400
#: where that is possible with a pause of a few seconds. A service manager kills an engine that shows nothing for long.
_LEAST_PAUSE_PER_WORK, _PAUSE_PER_WORK, _SHORT_PAUSE, _LONG_PAUSE = 125.0, 400.0, 3.0, 20.0


class Ending(StrEnum):
    """Name why the loop ended."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught up"
    TIMED_OUT = "timed out"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RunView:
    """What a watcher is shown, once a second or less often; `notes` are only those not shown before."""

    time_ms: int
    elapsed_seconds: float
    phase: str
    mirrors: tuple[str, ...]
    #: Of all mirrors, those too that are paused or stopped.
    topics: tuple[TopicStatus, ...]
    total_bytes_per_second: float
    notes: tuple[Note, ...]
    #: How much attention the phase needs.
    level: Level = Level.INFO
    #: The mirrors without an engine in this run now, and why.
    not_copied: Mapping[str, NotCopied] = field(default_factory=dict)
    #: Spark's log file.
    spark_log: str | None = None


COPYING, STOPPING = "copying", "stopping"
NO_MIRRORS = "waiting for a mirror: the destination has none to copy"

Watcher = Callable[[RunView], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends by itself: seconds from its start, None for never."""

    until_caught_up: bool = False
    timeout: float | None = None
    duration: float | None = None


def drive(
    engines: Engines,
    stop: threading.Event,
    limits: Limits,
    watcher: Watcher,
    began: float,
    supervisor: Supervisor | None = None,
    snapshots: Snapshots | None = None,
) -> Ending:
    """Loop until stopped, caught up, out of time, or until no mirror is left; then end every lane.

    Each iteration answers those who ask `snapshots` for what the engines know.
    """
    snapshots = snapshots or Snapshots()
    shown, pause = 0.0, _VIEW_SECONDS
    ending: Ending | None = None
    while ending is None and not stop.wait(_LOOP_SECONDS if len(engines.running) < _MANY else _MANY_LOOP_SECONDS):
        if supervisor is not None:
            supervisor.tick(engines)
        engines.tick()
        snapshots.turned(engines.last)
        at = now()
        if at - shown >= pause:
            shown, worked = at, time.thread_time()
            watcher(view_of(engines, COPYING, at - began, supervisor))
            pause = view_pause(time.thread_time() - worked)
        ending = _ending(engines, limits, at - began, supervisor)
    engines.end_all()
    deadline = now() + STOP_SECONDS
    while now() < deadline and engines.running:
        engines.tick()
        snapshots.turned(engines.last)
        threading.Event().wait(_LOOP_SECONDS / 5)
    engines.close()
    if supervisor is not None:
        supervisor.take_ended(engines)
    watcher(view_of(engines, STOPPING, now() - began, supervisor))
    return ending or Ending.STOPPED


def view_pause(work: float) -> float:
    """Return for how many seconds nothing is shown after a view that took so many seconds of CPU."""
    usual = max(_VIEW_SECONDS, min(_PAUSE_PER_WORK * work, _SHORT_PAUSE), _LEAST_PAUSE_PER_WORK * work)
    return min(usual, _LONG_PAUSE)


def _ending(engines: Engines, limits: Limits, elapsed: float, supervisor: Supervisor | None) -> Ending | None:
    """Return why the loop ends now, None if it continues."""
    if supervisor is None or supervisor.is_done:
        if not engines.running:
            return Ending.LOST
        working = engines.working
        if limits.until_caught_up and working and all(engine.caught_up or engine.lost for engine in working):
            return Ending.CAUGHT_UP
    if limits.timeout is not None and elapsed >= limits.timeout:
        return Ending.TIMED_OUT
    if limits.duration is not None and elapsed >= limits.duration:
        return Ending.STOPPED
    return None


def view_of(engines: Engines, phase: str, elapsed: float, supervisor: Supervisor | None = None) -> RunView:
    """Sum up the mirrors' state, and take the engines' notes."""
    notes = engines.take_notes()
    not_copied: Mapping[str, NotCopied] = engines.not_copied
    if supervisor is not None:
        notes += supervisor.take_notes()
        not_copied = supervisor.not_copied
    copied = [engine for engine in engines.last if engine.mirror not in not_copied]
    topics = tuple(topic for engine in copied for topic in engine.topics())
    wanted = [topic for topic in topics if topic.is_wanted]
    rate = sum(topic.bytes_per_second or 0 for topic in wanted)
    if phase == COPYING and not copied:
        phase = "waiting" if not_copied else NO_MIRRORS
    elif phase == COPYING and wanted and all(topic.reason in NOT_COPYING for topic in wanted):
        phase = "not copying"
    mirrors = (*(engine.mirror for engine in copied), *not_copied) or ("*",)
    return RunView(now_ms(), elapsed, phase, mirrors, topics, rate, tuple(notes), not_copied=not_copied)
