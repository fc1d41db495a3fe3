"""What a running engine would know: snapshots made by hand, and a run that serves them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now_ms
from kmirror.engine.driver.driver import COPYING, RunView
from kmirror.engine.driver.link_status import DestinationStatus, SourceStatus
from kmirror.engine.driver.live_status import LiveStatus
from kmirror.engine.driver.snapshots import MirrorSnapshot, Snapshots
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.status.counters import Counters
from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import StoredRecords
from kmirror.errors import UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.state.lease import Lease
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    DesiredState,
    EngineRecord,
    EngineState,
    Incarnation,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import State
from kmirror.web.recent import RecentEvents
from kmirror.web.run_service import RunService

MIRRORING = PartitionState.MIRRORING
#: The engine's clock and the wall clock when snapshots are made.
AT, NOW_MS = 1000.0, 1_700_000_000_000


def row(
    topic: str = "t", partition: int = 0, source: int | None = 100, copied: int | None = 90, **more: Any
) -> ProgressRow:
    """Return a lane's report on a partition."""
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "source_offset": source,
        "source_high_watermark": source,
        "source_log_start": 0,
        "destination_offset": copied,
        "last_timestamp_ms": NOW_MS - 4000,
        "state": MIRRORING,
        "begun": True,
    }
    return ProgressRow(**{**fields, **more})


def mirror_record(name: str = "m", **settings: str) -> MirrorRecord:
    """Return a mirror with these settings, dots as underscores."""
    given = {key.replace("_", "."): text for key, text in settings.items()}
    return MirrorRecord(name, {"bootstrap.servers": "a:9092"}, given, "A", "eve@ops", 0)


def topic_record(name: str, partitions: int = 1, mirror: str = "m", **more: Any) -> TopicRecord:
    """Return a topic that should be copied."""
    return TopicRecord(
        mirror, name, name, "x", "y", more.pop("desired", DesiredState.ACTIVE), partitions, TopicOrigin.CREATED, **more
    )


def snapshot(
    *rows: ProgressRow, mirror: MirrorRecord | None = None, records: Sequence[Record] = (), **more: Any
) -> MirrorSnapshot:
    """Return what the engine knows when lane 0 has just reported these rows, a second ago; `records` are stored too."""
    found = mirror or mirror_record()
    engine = EngineRecord(
        found.name,
        "l",
        EngineState.RUNNING,
        "h1",
        "b",
        7,
        8,
        "app-1",
        "local[2]",
        NOW_MS - 60_000,
        NOW_MS - 500,
        5_000,
        lanes={0: Incarnation(1, 0)},
    )
    report = ProgressRecord(found.name, 0, "l", 1, 0, "h1", 9, NOW_MS - 1000, rows)
    counts = Counter(one.topic for one in rows)
    stored: list[Record] = [found, engine, report]
    stored += [topic_record(topic, count, found.name) for topic, count in counts.items()]
    stored += [
        PartitionRecord(found.name, one.topic, one.partition, one.state, NOW_MS - 50_000, aligned=True, begun=True)
        for one in rows
    ]
    counters = Counters()
    counters.take(report)
    partitions = {TopicPartition(one.topic, one.partition): one for one in rows}
    fields: dict[str, Any] = {
        "mirror": found.name,
        "at": AT,
        "time_ms": NOW_MS,
        "began_at": AT - 60,
        "stored": {one.key: one for one in (*stored, *records)},
        "engine": engine,
        "lost": None,
        "source_trouble": None,
        "source_seen_at": AT - 4,
        "lacking": {},
        "lacking_starts": {},
        "paused_ends": (0.0, {}),
        "source_ends": {
            partition: (AT - 3, one.source_offset)
            for partition, one in partitions.items()
            if one.source_offset is not None
        },
        "rows": partitions,
        "reported_at": dict.fromkeys(partitions, AT - 1),
        "lanes": engine.lanes,
        "lanes_reported_at": {0: AT - 1},
        "silent_lanes": frozenset(),
        "lane_restarts": 0,
        "jobs": (),
        "jobs_done_at": {},
        "counters": counters,
        "events": Counter(),
        "lost_records": 0,
        "rebuilds": 0,
    }
    return MirrorSnapshot(**{**fields, **more})


def silent(found: MirrorSnapshot, seconds: float = 60) -> MirrorSnapshot:
    """Return the same snapshot with a lane that has been silent this long; the source still answers."""
    engine = replace(found.engine, silent_lanes={0: NOW_MS - int(1000 * seconds)})
    return replace(
        found,
        engine=engine,
        silent_lanes=frozenset({0}),
        lanes_reported_at={0: AT - seconds},
        reported_at=dict.fromkeys(found.reported_at, AT - seconds),
    )


@dataclass(frozen=True, slots=True)
class _Engine:
    found: MirrorSnapshot

    def snapshot(self) -> MirrorSnapshot:
        return self.found


def view(phase: str = COPYING, **more: Any) -> RunView:
    """Return what a run serves."""
    return RunView(now_ms(), 1.0, phase, ("m",), (), 0.0, more.pop("notes", ()), **more)


def no_events() -> RecentEvents:
    """Return a reader of the events of an unreachable destination."""

    def unreachable() -> Destination:
        raise UnreachableError("there is no destination here")

    return RecentEvents(unreachable)


@contextmanager
def turning(*found: MirrorSnapshot, **shown: Any) -> Iterator[RunService]:
    """Have a thread stand in for the driver, whose engines know this, and answer for it."""
    snapshots, over = Snapshots(), threading.Event()
    service = RunService(snapshots, no_events())
    engines = [_Engine(one) for one in found]

    def turn() -> None:
        while not over.wait(0.005):
            snapshots.turned(engines)

    snapshots.turned(engines)
    service.show(view(**shown))
    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield service
    finally:
        over.set()
        thread.join()


def live_status(known: MirrorSnapshot) -> LiveStatus:
    """Return what the engine's own thread keeps for the log of `run`, when it knows what the snapshot says."""
    state, journal, health = (
        State.of(known.stored.values()),
        MirrorJournal(known.mirror, "eve", now_ms),
        MirrorHealth(known.began_at),
    )
    record, topics = state.mirror(known.mirror), state.topics(known.mirror)
    assert record is not None
    records = [one for topic in topics for one in state.partitions(known.mirror, topic.topic)]
    partitions = MirrorPartitions(known.mirror, records, (), health, journal)
    source = SourceStatus(known.mirror, journal)
    source.trouble, source.paused_ends = known.source_trouble, known.paused_ends
    source.lacking, source.lacking_starts = dict(known.lacking), dict(known.lacking_starts)
    made = LiveStatus(
        MirrorTopics(record, topics, partitions, journal),
        partitions,
        health,
        cast(Lanes, SimpleNamespace(stopping=False, claims=lambda: known.lanes)),
        cast(Lease, SimpleNamespace(record=known.engine)),
        source,
        DestinationStatus(known.mirror, journal),
        StoredRecords(known.mirror, known.stored.values()),
    )
    for report in state.progress(known.mirror):
        at = known.lanes_reported_at[report.lane]
        health.take_lane(report, at, is_complete=True)
        made.take(report)
        for one in report.rows:
            partitions.take_row(TopicPartition(one.topic, one.partition), report, one, at)
    # what is stored is given, too
    partitions.records.update({TopicPartition(one.topic, one.partition): one for one in records})
    for partition, (seen_at, end) in known.source_ends.items():
        health.take_end(partition, end, seen_at)
    health.take_silence(dict.fromkeys(known.silent_lanes, known.at - 60), late=bool(known.silent_lanes))
    return made
