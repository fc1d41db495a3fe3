"""What a running engine knows of its mirrors, copied for other threads when they ask for it.

The driver's loop makes the copy, which costs it a millisecond; everything else is done by the thread that asked. A
driver that does not answer is stuck.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.status.counters import Counters
from kmirror.errors import KmirrorError
from kmirror.state.engine_findings import Lacking
from kmirror.state.history_records import TimedPoint
from kmirror.state.record_kinds import Record, Unknown
from kmirror.state.records import EngineRecord, Incarnation, Key, ProgressRow
from kmirror.work import WorkView


@dataclass(frozen=True, slots=True)
class MirrorSnapshot:
    """What the engine of one mirror knew at a time: `at` by the engine's clock, `time_ms` by the wall clock.

    Other `_at` times are by the engine's clock too.
    """

    mirror: str
    at: float
    time_ms: int
    began_at: float
    #: What is stored of the mirror, by key.
    stored: Mapping[Key, Record | Unknown]
    #: The engine's record as last accepted.
    engine: EngineRecord
    #: Why the engine had to stop the mirror; None in the normal case.
    lost: KmirrorError | None
    #: Why the source does not answer, None in the normal case; and when it last did, None for never.
    source_trouble: KmirrorError | None
    source_seen_at: float | None
    #: The mirror topics that lack partitions of their sources; and where the logs of those begin at the source.
    lacking: Mapping[str, Lacking]
    lacking_starts: Mapping[TopicPartition, int]
    #: When the ends of paused partitions were last read, and the ends, at the source and at the destination.
    paused_ends: tuple[float, Mapping[TopicPartition, tuple[int, int]]]
    #: By destination partition, when its source last returned its end, and the end.
    source_ends: Mapping[TopicPartition, tuple[float, int]]
    #: By partition, its lane's last row, and when that lane last reported.
    rows: Mapping[TopicPartition, ProgressRow]
    reported_at: Mapping[TopicPartition, float]
    #: The lanes that may write, when each last reported, and those that no worker reports on.
    lanes: Mapping[int, Incarnation]
    lanes_reported_at: Mapping[int, float]
    silent_lanes: frozenset[int]
    lane_restarts: int
    #: The side jobs, and when each last succeeded; those that never did are left out.
    jobs: tuple[str, ...]
    jobs_done_at: Mapping[str, float]
    #: What its lanes have copied.
    counters: Counters
    #: How many events the engine has recorded, by subject and result.
    events: Counter[tuple[str, str]]
    #: Records that the source had lost before they were copied, since the engine started.
    lost_records: int
    rebuilds: int
    #: The points of the last hour, oldest first.
    history: tuple[TimedPoint, ...] = ()
    #: Why the destination does not answer; None in the normal case.
    destination_trouble: str | None = None
    #: How far the archives of topics are that are being rebuilt.
    rebuilding: Mapping[str, WorkView] = field(default_factory=dict)


class Engine(Protocol):
    """An engine that can be asked for a snapshot."""

    def snapshot(self) -> MirrorSnapshot:
        """Return a copy of what it knows now."""


class Snapshots:
    """Give other threads snapshots of the driver's engines."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Future[tuple[MirrorSnapshot, ...]]] = queue.SimpleQueue()
        #: When the driver's loop last ran; None before it started.
        self.turned_at: float | None = None

    def turned(self, engines: Iterable[Engine]) -> None:
        """Note that the driver's loop runs, and answer the threads that ask; called by its thread, often."""
        self.turned_at = now()
        if self._asked.empty():
            return
        found = tuple(engine.snapshot() for engine in engines)
        while not self._asked.empty():
            self._asked.get().set_result(found)

    def ask(self, seconds: float) -> tuple[MirrorSnapshot, ...]:
        """Return one snapshot a mirror.

        Raises:
            TimeoutError: the driver has not answered in time.
        """
        future: Future[tuple[MirrorSnapshot, ...]] = Future()
        self._asked.put(future)
        return future.result(seconds)
