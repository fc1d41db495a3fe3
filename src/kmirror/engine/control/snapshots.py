"""What a running engine knows of its mirrors, for other threads: made by the driver's thread, and only when asked for.

The driver answers as its loop turns, and copying what it knows costs it a millisecond; what is made of that is work of
the thread that asked. A driver that does not answer does not turn.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.control.counters import Counters
from kmirror.errors import KmirrorError
from kmirror.state.history_records import TimedPoint
from kmirror.state.records import EngineRecord, Incarnation, Key, ProgressRow, Record, Unknown


@dataclass(frozen=True, slots=True)
class MirrorSnapshot:
    """What the engine of one mirror knew at a moment: `at` by the engine's clock, `time_ms` by the wall clock.

    Other moments are by the engine's clock too.
    """

    mirror: str
    at: float
    time_ms: int
    began_at: float
    #: What is stored of the mirror, by key.
    stored: Mapping[Key, Record | Unknown]
    #: The engine's record as it was last accepted, and when; None before the first heartbeat.
    engine: EngineRecord
    heartbeat_at: float | None
    #: Why the engine had to let go of the mirror; None in the normal case.
    lost: KmirrorError | None
    #: Why the source does not answer, None in the normal case; and when it last did, None for never.
    source_trouble: KmirrorError | None
    source_seen_at: float | None
    #: By destination partition, when its source said where it ends, and where.
    source_ends: Mapping[TopicPartition, tuple[float, int]]
    #: The last word of the lanes that copy them, and when it was heard.
    rows: Mapping[TopicPartition, ProgressRow]
    reported_at: Mapping[TopicPartition, float]
    #: The lanes that may write, when each last reported, and those that no worker reports on.
    lanes: Mapping[int, Incarnation]
    lanes_heard_at: Mapping[int, float]
    silent_lanes: frozenset[int]
    lane_restarts: int
    #: The jobs beside the copy, and when each was last done; those that never were are left out.
    jobs: tuple[str, ...]
    jobs_done_at: Mapping[str, float]
    #: What its lanes have copied.
    counters: Counters
    #: How many events the engine has recorded, by what they are about and their result.
    events: Counter[tuple[str, str]]
    #: Records that the source had lost before they were copied, since the engine began.
    lost_records: int
    rebuilds: int
    #: How the mirror went in the last hour, oldest first.
    history: tuple[TimedPoint, ...] = ()


class Engine(Protocol):
    """What is asked of the engine of one mirror."""

    def snapshot(self) -> MirrorSnapshot:
        """Copy what it knows now."""


class Snapshots:
    """Hand what the driver's engines know to threads that ask."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Future[tuple[MirrorSnapshot, ...]]] = queue.SimpleQueue()
        #: When the driver last turned; None before it began.
        self.turned_at: float | None = None

    def turned(self, engines: Iterable[Engine]) -> None:
        """Note that the driver turns, and answer who has asked; called by its thread, often."""
        self.turned_at = now()
        if self._asked.empty():
            return
        found = tuple(engine.snapshot() for engine in engines)
        while not self._asked.empty():
            self._asked.get().set_result(found)

    def ask(self, seconds: float) -> tuple[MirrorSnapshot, ...]:
        """Return what the driver knows within a turn, one snapshot a mirror.

        Raises:
            TimeoutError: the driver has not answered in time.
        """
        future: Future[tuple[MirrorSnapshot, ...]] = Future()
        self._asked.put(future)
        return future.result(seconds)
