"""What an engine knows of how far its copies are, and for how long it knows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.status.health import MirrorHealth
from kmirror.errors import Reason
from kmirror.ops.show.describe import read_status
from kmirror.state.engine_findings import JobFailure
from kmirror.state.records import (
    DesiredState,
    EngineRecord,
    EngineState,
    MirrorRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import State
from kmirror.status.engine_health import HeardEngines, engine_health, no_workers_text
from kmirror.status.lasting_troubles import failing_job_notes
from kmirror.status.observed import ClusterSnapshot

P0 = TopicPartition("t", 0)
MIRROR = MirrorRecord("m", {}, {}, None, "eve@ops", 0)
ROW = ProgressRow("t", 0, 120, 120, 0, 100, None, PartitionState.MIRRORING)


def report_of(row: ProgressRow = ROW, time_ms: int = 50_000, seen_within_ms: int = 2_000) -> ProgressRecord:
    return ProgressRecord("m", 0, "l", 1, 0, "h", 7, time_ms, (row,), seen_within_ms=seen_within_ms)


def report(health: MirrorHealth, row: ProgressRow, at: float, time_ms: int = 50_000) -> None:
    # the worker's clock is another one than the engine's
    health.take_row(P0, report_of(row, time_ms), row, at)


FAILING = {"group offsets": JobFailure(1_000, "no right"), "discovery": JobFailure(2_000, "no answer")}
ENGINE = EngineRecord(
    "m", "l", EngineState.RUNNING, "h", "b", 1, 1, None, "local", 0, 60_000, 5_000, failing_jobs=FAILING
)


def failing(engine: EngineRecord = ENGINE, *topics: DesiredState, now_ms: int = 61_000) -> list[str]:
    """Return which jobs are said to fail, of a mirror with such topics."""
    records = [TopicRecord("m", f"t{n}", "t", None, None, one, 1, TopicOrigin.CREATED) for n, one in enumerate(topics)]
    return [
        note.split(": ")[1]
        for note in failing_job_notes(State.of([engine, *records]), "m", engine_health(engine, "m", now_ms))
    ]


def test_a_job_fails_for_as_long_as_an_engine_says_so_and_there_is_something_to_do() -> None:
    new_topics = "new topics of the source are not found since 1970-01-01T00:00:02Z"
    both = [new_topics, "group offsets are not synced since 1970-01-01T00:00:01Z"]
    assert failing() == both
    assert failing(ENGINE, DesiredState.STOPPED, DesiredState.PAUSED) == both
    assert failing(ENGINE, DesiredState.STOPPED, DesiredState.STOPPED) == [new_topics]
    assert failing(ENGINE, now_ms=200_000) == []
    assert failing(replace(ENGINE, state=EngineState.RELEASED)) == []
    assert failing(replace(ENGINE, source_reason=Reason.SOURCE_UNREACHABLE)) == []


@pytest.mark.parametrize("off_ms", [-3_600_000, -61_000, -11_000, 3_600_000])
def test_a_reader_that_sees_heartbeats_arrive_knows_the_engine_alive_whatever_its_clock_says(off_ms: int) -> None:
    heartbeats = HeardEngines()

    def judged(read_ms: int, beat_ms: int) -> Reason | None:
        """Judge by a heartbeat, with its time by our clock, that is read at this time."""
        engine = replace(ENGINE, last_seen_ms=beat_ms + off_ms)
        heartbeats.take(State.of([MIRROR, engine]), read_ms)
        return engine_health(engine, "m", read_ms, heard_ms=heartbeats.heard_ms("m")).reason

    assert judged(10_000_000, 9_999_500) is not None, "it may be of any time"
    assert judged(10_002_000, 10_001_500) is None
    assert judged(10_009_000, 10_001_500) is None
    assert judged(10_012_000, 10_001_500) is Reason.ENGINE_SILENT
    assert judged(10_062_000, 10_001_500) is Reason.NO_ENGINE
    # it is as old as the last read may be, until there is a newer one
    assert judged(10_300_000, 10_100_000) is not None
    assert judged(10_301_000, 10_300_500) is None
    heartbeats.take(State.of([MIRROR]), 10_302_000)
    assert heartbeats.heard_ms("m") is None


def test_repeated_reads_of_the_status_hear_heartbeats() -> None:
    prober: Any = SimpleNamespace(heard=HeardEngines(), read=lambda *_: (ClusterSnapshot(0), {}))
    reasons = []
    for beat_ms in (1_000, 2_000, 2_000):
        state = State.of([MIRROR, replace(ENGINE, last_seen_ms=beat_ms)])
        (found,), _ = read_status(prober, state, (), [MIRROR])
        reasons.append(found.health.reason)
    assert reasons == [Reason.NO_ENGINE, None, None]


def test_a_lag_is_known_for_as_long_as_the_source_has_answered_lately() -> None:
    health = MirrorHealth(1000.0)
    assert health.lag(P0, 100, 1000.0) is None
    report(health, ROW, 1000.0)
    assert health.lag(P0, 100, 1000.0) == 20
    assert health.lag(P0, None, 1000.0) is None
    assert health.lag(P0, 100, 1007.9) == 20
    assert health.lag(P0, 100, 1008.1) is None


def test_a_lane_that_reports_but_does_not_hear_of_its_source_knows_nothing_new() -> None:
    health = MirrorHealth(1000.0)
    report(health, ROW, 1000.0)
    report(health, ROW._replace(source_seen_ms=43_000), 1005.0)
    assert health.lag(P0, 100, 1008.1) is None
    health.take_silence({}, late=False)
    assert health.wants_ends
    # the engine's own look is the newest
    health.take_end(P0, 150, 1007.0)
    assert health.lag(P0, 100, 1016.9) == 50
    report(health, ROW._replace(source_seen_ms=43_000), 1010.0)
    assert health.lag(P0, 100, 1016.9) == 50
    report(health, ROW, 1016.0)
    health.take_silence({}, late=False)
    assert not health.wants_ends


def test_rows_that_a_lane_does_not_name_are_as_old_as_its_last_report() -> None:
    health = MirrorHealth(1000.0)
    health.take_lane(report_of(), 1000.0, is_complete=True)
    report(health, ROW, 1000.0)
    health.take_lane(report_of(), 1020.0, is_complete=False)
    assert (health.lag(P0, 100, 1027.9), health.lag(P0, 100, 1028.1)) == (20, None)
    assert (health.reported_at(), health.reported_at_of(P0)) == ({P0: 1020.0}, 1020.0)
    assert (health.is_end_reported(P0, 1024.0), health.is_end_reported(P0, 1024.1)) == (True, False)
    # it hangs up and has forgotten when it last asked a source that did not grow: it had said so 2 s before
    health.take_lane(report_of(), 1022.0, is_complete=False)
    report(health, ROW._replace(source_seen_ms=1_000), 1022.0)
    assert (health.lag(P0, 100, 1027.9), health.lag(P0, 100, 1028.1)) == (20, None)
    # what it names no more when it says all is none of its work: silent from then on
    report(health, ROW, 1030.0)
    health.take_lane(report_of(), 1030.0, is_complete=True)
    health.take_lane(report_of(), 1040.0, is_complete=False)
    assert (health.reported, health.reported_at()) == (0, {P0: 1022.0})


def test_lanes_that_fall_silent_are_news_once_and_have_been_silent_since_they_reported() -> None:
    health = MirrorHealth(1000.0)
    assert health.take_silence({0: 1030.0, 1: None}, late=True)
    assert not health.take_silence({0: 1030.0, 1: None}, late=True)
    assert health.silent_lanes == {0: 1030.0, 1: 1000.0}
    assert health.silence(1045.0) == 45.0
    assert health.take_silence({}, late=False)
    assert (health.silence(1045.0), health.wants_ends) == (0.0, False)


def test_the_sentence_names_lanes_time_and_where_to_look() -> None:
    assert no_workers_text([1, 0], 34_900, "spark://h:7077", None) == (
        "no worker has reported on lanes 0, 1 for 34s; check the workers of Spark master spark://h:7077"
    )
    alone = no_workers_text([3], 10_000, None, None)
    assert alone == "no worker has reported on lane 3 for 10s; check the Spark workers"
    assert no_workers_text([3], 10_000, None, "b:9092") == (
        "no worker has reported on lane 3 for 10s; the destination's broker b:9092 throttles kmirror, so heartbeats "
        "and reports are late: raise the client quota of its user or client id (producer_byte_rate or "
        "request_percentage); otherwise check the Spark workers"
    )


def test_a_lane_says_for_all_its_rows_how_long_ago_it_asked_the_source() -> None:
    health = MirrorHealth(1000.0)
    health.take_lane(report_of(), 1000.0, is_complete=True)
    report(health, ROW, 1000.0)
    health.take_lane(report_of(seen_within_ms=5_000), 1003.0, is_complete=False)
    assert health.end_of(P0) == (998.0, 120)
    assert health.lanes_seen_at == [998.0]
    health.take_silence({}, late=False)
    assert health.is_end_reported(P0, 1003.0)
    assert not health.wants_ends
