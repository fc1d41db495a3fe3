"""What a lane reports of a partition: how both ends grow, and when it last had all that its source had."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.engine.lane.reports import row_reports as report
from kmirror.engine.lane.reports.row_reports import Reports
from kmirror.state.assignment import Assignment
from kmirror.state.records import ProgressRow
from tests.support.frames import PLAIN

ASSIGNMENT = Assignment(
    topic="orders",
    partition=0,
    source_topic="orders",
    source_topic_id=None,
    destination_topic_id=None,
    producer_id=1 << 62,
)


ROWS: dict[PartitionCopy, ProgressRow] = {}


def reported(reports: Reports, copy: PartitionCopy) -> ProgressRow:
    """Return what is reported of a partition, whether it is new or not."""
    news = reports.changes([copy])
    ROWS[copy] = news.changed.get(copy.assignment.destination) or ROWS[copy]
    return ROWS[copy]


def test_the_growth_of_the_source_is_measured_while_it_is_seen() -> None:
    copy = PartitionCopy(ASSIGNMENT)
    seen: list[float | None] = [None]
    reports = Reports(lambda _: seen[0])

    def rate(at: float | None, offset: int | None) -> float | None:
        seen[0], copy.source.last_stable_offset = at, offset
        return reported(reports, copy).records_per_second

    assert rate(None, None) is None
    assert rate(100.0, 1000) is None
    assert rate(101.0, 1020) is None, "too short to measure"
    assert rate(110.0, 1200) == 20
    assert rate(120.0, 1600) == 35, "a quarter of it is what was measured before"
    # a source that does not answer has not stopped growing
    assert rate(120.0, 1600) == 35
    assert rate(130.0, 1600) == 8.8
    # another history
    assert rate(140.0, 10) is None


def test_rates_and_the_last_moment_without_lag_are_those_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    monkeypatch.setattr(report, "now_ms", lambda: 900_000 + int(clock * 1000))
    copy = PartitionCopy(ASSIGNMENT)
    copy.status, copy.progress.is_aligned = Status.COPYING, True
    reports = Reports(lambda _: clock - 0.2)

    def row(at: float, source_end: int, end: int, size: int) -> ProgressRow:
        nonlocal clock
        clock = at
        copy.source.last_stable_offset, copy.progress.acknowledged, copy.progress.bytes_copied = source_end, end, size
        return reported(reports, copy)

    first = row(100, 10, 4, 0)
    assert (first.caught_up_ms, first.offsets_per_second, first.bytes_per_second) == (None, None, 0)
    caught_up = row(102, 10, 10, 600)
    assert (caught_up.caught_up_ms, caught_up.offsets_per_second, caught_up.bytes_per_second) == (None, None, 300)
    # the source was asked 0.2 s before the observation
    behind = row(110, 50, 20, 1400)
    assert (behind.caught_up_ms, behind.offsets_per_second) == (1_000_000 + 1_800, 1.6)
    assert row(110.1, 50, 20, 1400).offsets_per_second == 1.6, "too short to measure"
    stands = row(120, 60, 20, 1400)
    assert (stands.caught_up_ms, stands.offsets_per_second) == (behind.caught_up_ms, 0.4)
    assert row(130, 60, 10, 1400).offsets_per_second is None, "the destination lost its tail"
    copy.status = Status.FAILED
    assert row(140, 60, 60, 1400).caught_up_ms == behind.caught_up_ms


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_right_sets_right_what_is_reported(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    clock, wall = 100.0, 1_700_000_000_000
    monkeypatch.setattr(report, "now", lambda: clock)
    monkeypatch.setattr(report, "now_ms", lambda: wall)
    copy = PartitionCopy(ASSIGNMENT)
    reports = Reports(lambda _: 100.0)
    reported(reports, copy)
    clock, wall = 120.0, wall + hours * 3_600_000
    assert reported(reports, copy).source_seen_ms == wall - 20_000


def test_a_long_gap_is_reported_with_what_is_left_and_its_speed_and_so_is_filler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    copy = PartitionCopy(ASSIGNMENT)
    copy.status, copy.progress.is_aligned, copy.progress.acknowledged = Status.COPYING, True, 5
    reports = Reports(lambda _: clock)

    def row(at: float, reached: tuple[int, int] | None) -> tuple[int | None, float | None]:
        nonlocal clock
        clock, copy.fill.reached = at, reached
        found = reported(reports, copy)
        return found.offsets_to_fill, found.offsets_per_second

    assert row(100, None) == (None, None)
    assert row(110, (100_005, 1_000_005)) == (900_000, 10_000)
    assert row(120, (200_005, 1_000_005)) == (800_000, 10_000)
    assert row(121, (999_000, 1_000_005))[0] is None, "few"
    copy.progress.acknowledged = 1_000_005
    assert row(130, None)[0] is None
    # below the log start; its speed says nothing of what comes before or after
    copy.progress.is_aligned, copy.progress.acknowledged = False, 0
    copy.log_start.fill_then_trim(10**9, 0)
    assert row(140, None) == (10**9, None)
    copy.progress.acknowledged = 10**8
    assert row(150, None) == (9 * 10**8, 10**7)
    copy.log_start.trim(None)
    copy.progress.is_aligned = True
    assert row(151, None) == (None, None)


def test_an_idle_partition_is_observed_when_something_has_happened_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    copies = [PartitionCopy(replace(ASSIGNMENT, partition=number)) for number in range(3)]
    for copy in copies:
        copy.status, copy.progress.is_aligned = Status.COPYING, True
        copy.source.last_stable_offset = copy.progress.acknowledged = 10
    answered_at: float | None = None
    reports = Reports(lambda _: answered_at or clock, lambda: answered_at or clock)

    def look(*moved: PartitionCopy, partitions: list[PartitionCopy] = copies) -> list[int]:
        nonlocal clock
        clock += 1.0
        return sorted(topic_partition.partition for topic_partition in reports.changes(list(partitions), moved).changed)

    assert look() == [0, 1, 2], "the first look is at all"
    for _ in range(10):
        look()
    # an idle partition has no change that stays unnoticed
    copies[0].source.last_stable_offset = copies[1].source.last_stable_offset = 11
    assert look() == []
    assert look(copies[1]) == [1]
    copies[1].progress.acknowledged = 11
    assert look() == [1], "one that is not idle is looked at without a word"
    # another assignment: all are observed
    assert look(partitions=copies[:1]) == [0]
    copies[0].progress.acknowledged = 11
    for _ in range(10):
        look(partitions=copies[:1])
    # where the source does not answer, rows age by themselves
    answered_at = clock
    clock += 10.0
    assert look(partitions=copies[:1]) == [0]


def test_slow_answers_of_a_broker_change_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = answered_at = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    copies = [PartitionCopy(replace(ASSIGNMENT, partition=number)) for number in range(3)]
    for copy in copies:
        copy.status, copy.progress.is_aligned = Status.COPYING, True
        copy.source.last_stable_offset = copy.progress.acknowledged = 10
    reports = Reports(lambda _: answered_at, lambda: answered_at)
    for _ in range(20):
        clock = answered_at = clock + 1.0
        reports.changes(copies, [])
    ages = {}
    for tenths in range(1, 70):
        clock = answered_at + tenths / 10
        found = reports.changes(copies, [])
        ages[tenths] = found.seen_within, len(found.changed)
    assert {age: ages[age] for age in (19, 20, 25, 49, 50, 51)} == {
        19: (2.0, 0), 20: (3.0, 0), 25: (4.0, 0), 49: (6.0, 0), 50: (2.0, 3), 51: (2.0, 0),
    }  # fmt: skip
    assert all(
        row.source_seen_ms is None
        for row in Reports(lambda _: clock - 3, lambda: clock - 3).changes(copies).changed.values()
    )
    answered_at = clock
    assert [row.source_seen_ms for row in reports.changes(copies, []).changed.values()] == [None] * 3


def test_a_connection_that_is_opened_again_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100, 200))
    clock = answered_at = float(next(times))
    monkeypatch.setattr(report, "now", lambda: clock)
    copy = PartitionCopy(ASSIGNMENT)
    copy.status, copy.progress.is_aligned = Status.COPYING, True
    copy.source.last_stable_offset = copy.progress.acknowledged = 10
    reports = Reports(lambda _: clock - 0.2, lambda: answered_at)
    reported(reports, copy)
    for _ in range(20):  # until its rates are known to be zero
        clock = answered_at = float(next(times))
        reports.changes([copy], [])
    clock, answered_at = float(next(times)), -math.inf
    assert not reports.changes([copy], []).changed
    clock = answered_at = float(next(times))
    copy.source.last_stable_offset = 12
    (row,) = reports.changes([copy], [copy]).changed.values()
    assert row.caught_up_ms is not None


def test_a_partition_that_is_put_off_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    copy = PartitionCopy(ASSIGNMENT)
    copy.status, copy.progress.is_aligned = Status.COPYING, True
    copy.source.last_stable_offset = copy.progress.acknowledged = 10
    deferred_at: float | None = None
    reports = Reports(lambda _: deferred_at or clock, lambda: clock)
    for _ in range(20):
        clock += 1.0
        reports.changes([copy])
    deferred_at = clock
    copy.defer(is_deferred=True)
    assert not reports.changes([copy], [copy]).changed
    clock += 20.0
    (row,) = reports.changes([copy], []).changed.values()
    assert row.source_seen_ms is not None


def test_it_reports_when_a_connection_to_the_source_broke_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(report, "now", lambda: clock)
    copy = PartitionCopy(ASSIGNMENT)
    copy.status, copy.progress.is_aligned = Status.COPYING, True
    copy.source.seen_at = 99.875
    monkeypatch.setattr(report, "now_ms", lambda: int(clock * 1000))
    reports = Reports(lambda copy: copy.source.seen_at, lambda: -math.inf)
    copy.source.lost(99.9375)
    copy.source.lost(99.96875)
    (row,) = reports.changes([copy]).changed.values()
    assert (row.source_seen_ms, row.source_lost_ms) == (99_875, 99_937)
    # it has answered since, and breaks again
    copy.source.seen_at = clock = 101.0
    (row,) = reports.changes([copy]).changed.values()
    assert (row.source_seen_ms, row.source_lost_ms) == (None, None)
    copy.source.lost(101.5)
    clock = 102.0
    (row,) = reports.changes([copy]).changed.values()
    assert row.source_lost_ms == 101_500


def test_a_partition_that_came_to_rest_is_named_once_more_and_a_restless_one_each_time() -> None:
    lane = LaneState(*cast("Any", (None, PLAIN, PLAIN, SimpleNamespace(counts=Counts()), None, None)))
    copy, other, leaving = (
        PartitionCopy(replace(ASSIGNMENT, partition=number), activated=lane.activate) for number in range(3)
    )
    lane.revoked = [leaving]
    leaving.revoke(0.0)
    del lane.active[leaving]
    copy.status, copy.source.last_stable_offset, copy.progress.acknowledged = Status.COPYING, 10, 10
    assert (set(lane.take_touched()), set(lane.take_touched())) == ({copy, other, leaving}, {copy, other, leaving})
    lane.set_aside_resting()
    assert set(lane.active) == {other}
    assert (set(lane.take_touched()), set(lane.take_touched())) == ({copy, other, leaving}, {other, leaving})
    copy.defer(is_deferred=False)
    assert copy not in lane.take_touched()
    copy.defer(is_deferred=True)
    assert copy in lane.take_touched()
