"""Run mirrors until asked to stop: the loop on the driver, and what it shows while it turns."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.control.engines import STOP_SECONDS, Apart, Engines, Recruiting
from kmirror.engine.control.journal import Level, Note
from kmirror.engine.control.mirror import MirrorEngine
from kmirror.engine.control.snapshots import Snapshots
from kmirror.engine.histories.identity_check import LINK_REFUSED
from kmirror.errors import NOT_COPYING, KmirrorError, Reason
from kmirror.state.records import PartitionState

_TURN_SECONDS = 0.05
_VIEW_SECONDS = 1.0


class Ending(StrEnum):
    """Name why the loop ended."""

    STOPPED = "stopped"
    CAUGHT_UP = "caught up"
    TIMED_OUT = "timed out"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic while the engine runs. `lag` in offsets, None while unknown; it was so at `lag_as_of_ms`."""

    mirror: str
    topic: str
    partitions: int
    lag: int | None
    bytes_per_second: float
    state: str
    reason: Reason | None
    message: str | None
    lag_as_of_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunView:
    """What a watcher is shown about once a second; `notes` are those that it has not been shown before."""

    time_ms: int
    elapsed_seconds: float
    phase: str
    mirrors: tuple[str, ...]
    topics: tuple[TopicView, ...]
    total_bytes_per_second: float
    notes: tuple[Note, ...]
    #: How much attention the phase needs.
    level: Level = Level.INFO
    #: By mirror and topic, what is wanted of topics that are not to be copied: PAUSED, STOPPED.
    idle: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: The mirrors that have no engine in this run now, and why.
    apart: Mapping[str, Apart] = field(default_factory=dict)
    #: The file into which Spark logs.
    spark_log: str | None = None


COPYING, STOPPING = "copying", "stopping"
NO_MIRRORS = "waiting for a mirror: the destination has none to copy"
_ALIGNING = PartitionState.LOG_ALIGNMENT

Watcher = Callable[[RunView], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """When to end by oneself: seconds from the beginning, None for never."""

    until_caught_up: bool = False
    timeout: float | None = None
    duration: float | None = None


def drive(
    engines: Engines,
    stop: threading.Event,
    limits: Limits,
    watcher: Watcher,
    began: float,
    recruiting: Recruiting | None = None,
    snapshots: Snapshots | None = None,
) -> Ending:
    """Turn until stopped, caught up, out of time, or until no mirror is left; then end every lane.

    Who asks `snapshots` what the engines know is answered with each turn.
    """
    snapshots = snapshots or Snapshots()
    ending = _turn(engines, stop, limits, watcher, began, recruiting, snapshots)
    engines.end_all()
    deadline = now() + STOP_SECONDS
    while now() < deadline and engines.running:
        engines.tick()
        snapshots.turned(engines.last)
        threading.Event().wait(_TURN_SECONDS / 5)
    engines.close()
    watcher(view_of(engines, STOPPING, now() - began, recruiting))
    return ending


def _turn(
    engines: Engines,
    stop: threading.Event,
    limits: Limits,
    watcher: Watcher,
    began: float,
    recruiting: Recruiting | None,
    snapshots: Snapshots,
) -> Ending:
    shown = 0.0
    while not stop.wait(_TURN_SECONDS):
        if recruiting is not None:
            recruiting.tick(engines)
        engines.tick()
        snapshots.turned(engines.last)
        at = now()
        if at - shown >= _VIEW_SECONDS:
            shown = at
            watcher(view_of(engines, COPYING, at - began, recruiting))
        if recruiting is None or recruiting.is_done:
            if not engines.running:
                return Ending.LOST
            if limits.until_caught_up and all(engine.caught_up or engine.lost for engine in engines.running):
                return Ending.CAUGHT_UP
        if limits.timeout is not None and at - began >= limits.timeout:
            return Ending.TIMED_OUT
        if limits.duration is not None and at - began >= limits.duration:
            return Ending.STOPPED
    return Ending.STOPPED


def view_of(engines: Engines, phase: str, elapsed: float, recruiting: Recruiting | None = None) -> RunView:
    """Sum up the mirrors' state; the engines' notes are taken over."""
    topics: list[TopicView] = []
    notes = engines.take_notes()
    apart: Mapping[str, Apart] = engines.apart
    if recruiting is not None:
        notes += recruiting.take_notes()
        apart = recruiting.apart
    copied = [engine for engine in engines.last if engine.mirror not in apart]
    for engine in copied:
        partitions: dict[str, list[TopicPartition]] = defaultdict(list)
        for assignment in engine.orders.assignments():
            partitions[assignment.topic].append(assignment.destination)
        topics += [_topic_view(engine, topic, own) for topic, own in sorted(partitions.items())]
    rate = sum(topic.bytes_per_second for topic in topics)
    if phase == COPYING and not copied:
        phase = "waiting" if apart else NO_MIRRORS
    elif phase == COPYING and topics and all(topic.reason in NOT_COPYING for topic in topics):
        phase = "not copying"
    idle = {(engine.mirror, topic): wanted for engine in copied for topic, wanted in engine.idle_topics().items()}
    mirrors = (*(engine.mirror for engine in copied), *apart) or ("*",)
    return RunView(now_ms(), elapsed, phase, mirrors, tuple(topics), rate, tuple(notes), idle=idle, apart=apart)


def _topic_view(engine: MirrorEngine, topic: str, partitions: Sequence[TopicPartition]) -> TopicView:
    rows = [row for partition in partitions if (row := engine.partitions.rows.get(partition)) is not None]
    troubles = {partition: found for partition in partitions if (found := engine.trouble(partition)) is not None}
    lags = [engine.lag(partition) for partition in partitions]
    as_of = [at for partition in partitions if (at := engine.lag_as_of_ms(partition)) is not None]
    failed = next((row for row in rows if row.state is PartitionState.FAILED), None)
    troubled = failed or next((row for row in rows if row.reason), None)
    aligned = len(rows) == len(partitions) and all(row.begun or row.state is not _ALIGNING for row in rows)
    link = link_state([row.reason for row in rows], engine.source.trouble)
    flows = "LINK_FAILED" if troubles else "ACTIVE"
    state = "FAILED" if failed else link or (flows if aligned else "PENDING_MIRROR")
    reason, message = (troubled.reason, troubled.message) if troubled else (None, None)
    if troubles and not failed:
        reason, message = next(iter(troubles.values()))
    elif troubled is None and engine.source.trouble is not None:
        reason, message = engine.source.trouble.reason or Reason.SOURCE_UNREACHABLE, str(engine.source.trouble)
    return TopicView(
        engine.mirror,
        topic,
        len(partitions),
        None if None in lags else sum(lag for lag in lags if lag is not None),
        sum(row.bytes_per_second for row in rows if (row.topic, row.partition) not in troubles),
        state,
        reason,
        message,
        min(as_of) if len(as_of) == len(partitions) else None,
    )


def link_state(reasons: Sequence[Reason | None], seen: KmirrorError | None) -> str | None:
    """Return the state of a topic whose link is refused or down; None when it is neither.

    `reasons` is what lanes say of its partitions, `seen` what the source monitor saw at the source.
    """
    if LINK_REFUSED.intersection(reasons) or (seen is not None and seen.reason in LINK_REFUSED):
        return "LINK_FAILED"
    is_silent = seen is not None or (reasons and set(reasons) == {Reason.SOURCE_UNREACHABLE})
    return "SOURCE_UNAVAILABLE" if is_silent else None
