"""Made-up facts for reports: a mirror with some trouble, and one with any number of partitions."""

from __future__ import annotations

from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason, UnreachableError
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.stop.report import stopped_row
from kmirror.state.event_records import Event
from kmirror.state.history_records import HistoryPoint, TimedPoint
from kmirror.state.records import (
    AtStop,
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
from kmirror.status.observed import ClusterSnapshot
from kmirror.web.report_facts import ClusterFacts, ReportFacts
from tests.support.statuses import status_of

NOW = 1_767_323_160_000
MINUTE, HOUR = 60_000, 3_600_000


def mirror_record(name: str = "dr") -> MirrorRecord:
    return MirrorRecord(name, {"bootstrap.servers": "a1:9092,a2:9092"}, {}, "Sa1Qk", "eve@ops", NOW - 90 * 24 * HOUR)


def topic_record(name: str, partitions: int = 1, desired: DesiredState = DesiredState.ACTIVE) -> TopicRecord:
    return TopicRecord("dr", name, name, None, None, desired, partitions, TopicOrigin.CREATED)


def report_facts(
    topics: int = 4, partitions: int = 2, *, engine_age_ms: int = 500, source_trouble_text: str | None = None
) -> ReportFacts:
    """Return the facts of a mirror one of whose topics FAILED, and another of which is stopped."""
    records = [topic_record(f"shop.orders-{number:04d}", partitions) for number in range(topics)]
    stopped = replace(
        topic_record("shop.payments", 1, DesiredState.STOPPED), stop_reason=Reason.FAILED_OVER, archive=None
    )
    rebuilt = replace(topic_record("shop.users"), rebuilt_at_ms=NOW - 5 * HOUR, archive="shop.users.kmirror-archive.1")
    rows = [
        ProgressRow(
            topic.topic,
            partition,
            1200,
            1200,
            0,
            1200 - partition * 40,
            NOW - 3000,
            PartitionState.MIRRORING,
            begun=True,
        )
        for topic in (*records, rebuilt)
        for partition in range(topic.partitions)
    ]
    rows[0] = rows[0]._replace(
        state=PartitionState.FAILED, reason=Reason.SOURCE_DIVERGED, message="the logs differ from offset 900 on"
    )
    engine = EngineRecord(
        "dr",
        "L",
        EngineState.RUNNING,
        "node-7",
        "b",
        7,
        8,
        "app-1",
        "local[4]",
        NOW - HOUR,
        NOW - engine_age_ms,
        5000,
        lanes={0: Incarnation(1, 0)},
    )
    end = PartitionRecord(
        "dr",
        "shop.payments",
        0,
        PartitionState.STOPPED,
        NOW - 2 * HOUR,
        Reason.FAILED_OVER,
        last_mirrored_offset=880,
        last_mirrored_epoch=4,
        at_stop=AtStop(
            NOW - 2 * HOUR, 880, NOW - 2 * HOUR - 4000, 900, 900, NOW - 2 * HOUR - 500, NOW - 2 * HOUR - 300
        ),
    )
    progress = ProgressRecord("dr", 0, "L", 1, 0, "node-7", 1, NOW - 900, tuple(rows))
    state = State.of([mirror_record(), *records, stopped, rebuilt, engine, end, progress])
    topic_partitions = [TopicPartition(row.topic, row.partition) for row in rows]
    ends = {TopicPartition(row.topic, row.partition): row.destination_offset or 0 for row in rows}
    here = ClusterSnapshot(NOW, log_start_offset=dict.fromkeys(topic_partitions, 0), high_watermark=ends)
    there = ClusterSnapshot(
        NOW,
        last_stable_offset=dict.fromkeys(topic_partitions, 1200),
        high_watermark=dict.fromkeys(topic_partitions, 1200),
        log_start_offset=dict.fromkeys(topic_partitions, 0),
    )
    if source_trouble_text is not None:
        there = ClusterSnapshot(NOW, trouble=UnreachableError(source_trouble_text, None, Reason.SOURCE_UNREACHABLE))
    record, all_topics = mirror_record(), state.topics("dr")
    return ReportFacts(
        NOW,
        "eve@ops",
        ClusterFacts("a1:9092,a2:9092", "Sa1Qk", "Kafka 3.9", source_trouble_text),
        ClusterFacts("b1:9092", "Db2Xy", "Kafka 4.0 or later"),
        status_of(state, record, all_topics, here, there, NOW, engine_has_ended=False),
        all_topics,
        (stopped_row(TopicPartition("shop.payments", 0), end, Outcome.DONE, end.reason),),
        tuple(history()),
        tuple(events()),
        {"shop.users": ("shop.users.kmirror-archive.1", "shop.users.kmirror-archive.2")},
    )


def history() -> list[TimedPoint]:
    """Return two days with an hour without an engine, ten minutes without workers, and a burst."""
    points = []
    for minute in range(48 * 60):
        time_ms = NOW - 48 * HOUR + minute * MINUTE + 30_000
        if 20 * 60 <= minute < 21 * 60:
            continue
        point = HistoryPoint(30, 12 + minute % 7, 0, 900, 2_400_000 + 9000 * (minute % 50), 5200.0, 0, 0)
        if 30 * 60 <= minute < 30 * 60 + 10:
            point = HistoryPoint(30, None, 9, None, None, None, 0, 9, "NO_WORKERS")
        elif 36 * 60 <= minute < 37 * 60:
            point = point._replace(lag=40_000 * (60 - abs(minute - 36 * 60 - 30)), time_lag_ms=95_000)
        elif minute > 46 * 60:
            point = point._replace(failed=1, lag_unknown=2 if minute > 47 * 60 else 0)
        points.append((time_ms, point))
    return points


def events() -> list[Event]:
    """Return some of what operators did, and what an engine decided."""
    return [
        Event(NOW - 90 * 24 * HOUR, "dr", "create", "eve@ops", "OK", {"sourceClusterId": "Sa1Qk"}),
        Event(NOW - 20 * HOUR, "dr", "run", "svc@node-7", "started", {"master": "local[4]"}),
        Event(
            NOW - 6 * HOUR,
            "dr",
            "partition",
            "svc@node-7",
            "LOSS_ACCEPTED",
            {"topic": "shop.orders-0001", "partition": 0, "from": 10, "until": 30, "records": 20},
        ),
        Event(NOW - 2 * HOUR, "dr", "failover", "ann@ops", "OK", {"topics": ["shop.payments"], "count": 1}),
        Event(
            NOW - HOUR,
            "dr",
            "partition",
            "svc@node-7",
            "FAILED",
            {"topic": "shop.orders-0000", "partition": 0, "reason": "SOURCE_DIVERGED", "message": '<b>& "</b>'},
        ),
    ]
