"""How far behind in time a copy is, how fast it copies, and when it is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.errors import Reason
from kmirror.state.records import EngineState, PartitionState, ProgressRow
from kmirror.state.snapshot import State
from kmirror.status.observed import CLOCK_SKEW_MS, time_lag
from kmirror.status.partition_row import PARTITIONS, WIDE_PARTITIONS, PartitionRow
from kmirror.status.topic_status import Totals, totals
from tests.support.statuses import status_of
from tests.unit.test_ops_rows import ENGINE, HERE, MIRROR, NOW, SILENT, THERE, TOPIC, progress, row

LONG = 600_000
REPORTED = NOW - 1_000


def lag_of(last_timestamp_ms: int | None, caught_up_ms: int | None, lag: int | None = 1) -> int | None:
    return time_lag(lag, last_timestamp_ms, caught_up_ms, REPORTED, NOW)


def test_after_an_idle_while_the_time_lag_begins_where_the_copy_last_had_everything() -> None:
    assert lag_of(NOW - LONG, NOW - 2_000) == 2_000
    assert lag_of(NOW - LONG, None) == LONG


def test_old_timestamps_make_a_copy_that_keeps_up_no_older() -> None:
    assert lag_of(0, NOW - 3_000) == 3_000


def test_a_backlog_is_as_old_as_the_last_record_copied() -> None:
    assert lag_of(NOW - 5_000, NOW - LONG) == 5_000


def test_nothing_lacks_and_nothing_known() -> None:
    assert lag_of(NOW - LONG, None, lag=0) == 0
    assert lag_of(NOW - LONG, NOW, lag=None) is None
    assert lag_of(None, None) is None


@pytest.mark.parametrize(
    ("dated", "expected"),
    [
        (REPORTED + CLOCK_SKEW_MS, NOW - REPORTED),  # it had come when it was reported, whatever its date
        (REPORTED + CLOCK_SKEW_MS + 1, None),
        (-1, None),
    ],
)
def test_a_timestamp_that_cannot_be_true_does_not_say_when_a_record_was_written(
    dated: int, expected: int | None
) -> None:
    assert lag_of(dated, None) == expected
    assert lag_of(dated, NOW - 500) == 500


def test_a_report_that_lacked_nothing_says_since_when_something_does() -> None:
    (old,) = progress().rows
    level = replace(progress(), rows=(old._replace(source_offset=90, destination_offset=90, last_timestamp_ms=5),))
    assert row(ENGINE, level).time_lag_ms == 1_000 + 2_000  # the report is a second old, and speaks of two before it
    behind = replace(progress(), rows=(old._replace(caught_up_ms=NOW - 700, last_timestamp_ms=5),))
    assert row(ENGINE, behind).time_lag_ms == 700
    assert row(ENGINE, behind, there=SILENT).time_lag_ms is None


COPYING: dict[str, Any] = {"bytes_per_second": 1_000.0, "offsets_per_second": 5.0, "records_per_second": 1.0}
SPEEDS = ("bytes_per_second", "records_per_second", "eta_ms")


def speeds(found: PartitionRow) -> tuple[object, ...]:
    return tuple(getattr(found, name) for name in SPEEDS)


def test_speed_and_end_of_what_is_copied() -> None:
    behind = progress(**{**COPYING, "caught_up_ms": NOW - LONG})
    (old,) = behind.rows
    far_behind = replace(behind, rows=(old._replace(last_timestamp_ms=NOW - 10_001),))
    assert speeds(row(ENGINE, far_behind)) == (1_000, 5.0, 2_500)  # 10 offsets; 5 a second, and 1 more comes
    assert speeds(row(ENGINE, behind)) == (1_000, 5.0, 2_000)  # it keeps up


def far(**more: Any) -> ProgressRow:
    return progress(**{**COPYING, **more}).rows[0]._replace(last_timestamp_ms=NOW - LONG)


@pytest.mark.parametrize(
    "more",
    [{"records_per_second": 5.0}, {"records_per_second": None}, {"offsets_per_second": 0.0}],
    ids=["the source is as fast", "its speed is not measured yet", "the copy is stopped"],
)
def test_without_an_end_in_sight_there_is_none(more: dict[str, Any]) -> None:
    assert row(ENGINE, replace(progress(), rows=(far(**more),))).eta_ms is None


def test_what_no_lane_reports_has_no_speed() -> None:
    report = replace(progress(), rows=(far(),))
    assert row(ENGINE, report).eta_ms is not None
    for engine in (
        replace(ENGINE, last_seen_ms=NOW - 30_000),
        replace(ENGINE, state=EngineState.RELEASED),
        replace(ENGINE, silent_lanes={0: NOW - 20_000}),
        replace(ENGINE, lease_id="another"),
    ):
        found = row(engine, report)
        assert speeds(found) == (None, None, None)
        assert found.time_lag_ms == LONG, "nothing is copied, and so it grows"


@pytest.mark.parametrize("state", [PartitionState.FAILED, PartitionState.MIRRORING])
def test_what_is_in_trouble_has_no_end(state: PartitionState) -> None:
    (old,) = progress(state).rows
    trouble = old._replace(**{**COPYING, "reason": Reason.RECORD_REJECTED, "message": "too large"})
    assert speeds(row(ENGINE, replace(progress(), rows=(trouble,)))) == (1_000, 5.0, None)


LACKING = row(ENGINE, replace(progress(), rows=(far(),)))
DONE = replace(LACKING, lag=0, time_lag_ms=0, records_per_second=1.0)
STOPPED = replace(LACKING, state=PartitionState.STOPPED, lag=None, time_lag_ms=None, bytes_per_second=None)


def test_partitions_are_done_together() -> None:
    large = replace(LACKING, lag=100)
    assert (LACKING.eta_ms, large.eta_ms) == (2_500, 25_000)
    assert totals([LACKING, LACKING, DONE, STOPPED]) == Totals(20, 0, 3_000, LONG, 2_500)
    assert totals([LACKING, large]).eta_ms == round(110 / 8 * 1000), "what is done leaves its part to the others"
    # one whose turn it is not for a moment is copied later; the source of another outruns it for a moment
    waiting = replace(LACKING, records_per_second=0.0, lag=30)
    slower = replace(LACKING, records_per_second=0.5)
    assert (waiting.eta_ms, slower.eta_ms) == (None, None)
    assert totals([LACKING, LACKING, waiting, slower]).eta_ms == round(60 / 6.5 * 1000)
    # what keeps up has nothing to leave to others
    keeping_up = replace(LACKING, time_lag_ms=100)
    assert totals([LACKING, keeping_up]).eta_ms == 2_500
    assert totals([keeping_up, keeping_up]).eta_ms == 2_000


@pytest.mark.parametrize(
    "other",
    [
        replace(LACKING, lag=None, time_lag_ms=None),
        replace(LACKING, source_records_per_second=10.0),
        replace(LACKING, is_reported=False, records_per_second=None),
        replace(LACKING, state=PartitionState.FAILED),
        replace(LACKING, reason=Reason.SOURCE_UNREACHABLE),
    ],
    ids=["unknown lag", "sources are faster", "no lane", "failed", "in trouble"],
)
def test_what_has_no_end_leaves_the_whole_without_one(other: PartitionRow) -> None:
    assert totals([LACKING, DONE, other]).eta_ms is None


def test_sums_are_of_what_is_known_and_say_of_how_many_it_is_not() -> None:
    unknown = replace(LACKING, lag=None, time_lag_ms=None, bytes_per_second=None)
    assert totals([LACKING, unknown]) == Totals(10, 1, 1_000, None, None)
    assert totals([unknown]) == Totals(None, 1, None, None, None)
    assert totals([STOPPED]) == totals([]) == Totals(None, 0, None, None, None)
    assert totals([DONE]) == Totals(0, 0, 1_000, 0, 0)


def test_the_wide_table_shows_them() -> None:
    headers = [column.header for column in WIDE_PARTITIONS.shown]
    shown = {name: cell.text for name, cell in zip(headers, WIDE_PARTITIONS.cells([LACKING])[0], strict=True)}
    assert [shown[name] for name in ("TIME-LAG", "RATE", "ETA", "WORKER", "REASON", "STATE")] == [
        "10m",
        "1.0KB/s",
        "2s",
        "h1",
        "-",
        "MIRRORING",
    ]
    idle = row(replace(ENGINE, last_seen_ms=NOW - 30_000), replace(progress(), rows=(far(),)))
    cells = WIDE_PARTITIONS.used_by([idle]).cells([idle])[0]
    assert [cell.text for cell in cells[-6:]] == ["10m", "-", "-", "-", "ENGINE_SILENT", "MIRRORING"]
    assert cells[-1].code == Reason.ENGINE_SILENT, "it is not green"


def test_a_worker_is_named_while_its_lane_reports() -> None:
    reported = replace(progress(), rows=(far(),))
    lane, at_place = reported.lane, replace(ENGINE, places={reported.lane: "spark-3/7"})
    assert [(one.lane, one.worker) for one in (row(ENGINE, reported), row(at_place, reported))] == [
        (lane, reported.host),
        (lane, "spark-3/7"),
    ]
    for engine in (
        replace(at_place, silent_lanes={lane: NOW - 11_000}),
        replace(at_place, last_seen_ms=NOW - 30_000),
        replace(at_place, lanes={}),
    ):
        assert (row(engine, reported).lane, row(engine, reported).worker) == (None, None)


def test_reports_are_of_the_topic_that_is_looked_at() -> None:
    (found,) = status_of(State.of([MIRROR, TOPIC, ENGINE]), MIRROR, [TOPIC], HERE, THERE, NOW).partitions
    assert speeds(found) == (None, None, None)
    assert PARTITIONS.document(found)["timeLagMs"] is None
