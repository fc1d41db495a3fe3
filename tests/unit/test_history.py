"""How a mirror went: which points are kept, for how long, and what they say of what is not known."""

from __future__ import annotations

from collections.abc import Iterable

from kmirror.engine.status.history import POINT_SECONDS, SAMPLE_SECONDS, History, Sample
from kmirror.state.history_records import HOUR_MS, KEPT_HOURS, HistoryPoint, HistoryRecord, points_of
from kmirror.state.record_kinds import decode, encode

HOUR = 489_000
QUIET = Sample(0, 0, 0, 0, 0, 0, 0)


class Clock:
    """Feed a history with a sample every fifteen seconds."""

    def __init__(self, history: History, at: float = 0.0, epoch_ms: int = HOUR * HOUR_MS) -> None:
        self.history, self.at, self.epoch_ms = history, at, epoch_ms

    def take(self, *samples: Sample) -> None:
        for sample in samples:
            self.at += SAMPLE_SECONDS
            self.epoch_ms += int(1000 * SAMPLE_SECONDS)
            assert self.history.is_due(self.at)
            self.history.take(sample, self.at, self.epoch_ms)
            assert not self.history.is_due(self.at + 1)


def copied(size: int, records: int) -> Sample:
    return Sample(0, 0, 0, size, records, 0, 0)


def unsaid(history: History) -> list[HistoryPoint]:
    return [point for record in history.unsent.values() for point in record.points]


def say(history: History) -> None:
    """Let a heartbeat store all that there is."""
    history.stored(tuple(history.unsent.values()), history.expired)


def test_a_point_a_minute_is_stored_and_says_the_worst_of_it() -> None:
    history = History("m", 0.0)
    clock = Clock(history)
    clock.take(Sample(5, 0, 100, 0, 0, 0, 0), Sample(90, 1, 700, 0, 0, 0, 0), Sample(None, 4, None, 0, 0, 2, 1))
    assert unsaid(history) == []
    clock.take(Sample(7, 0, 300, 6000, 60, 0, 0, "NO_WORKERS"))
    assert unsaid(history) == [HistoryPoint(60, 90, 4, 700, 100, 1, 2, 1, "NO_WORKERS")]
    assert [point.lag for _, point in history.recent(clock.epoch_ms)] == [5, 90, None, 7]


def test_a_quiet_hour_writes_sixty_times_and_is_small() -> None:
    history, written, size = History("m", 0.0), 0, 0
    clock = Clock(history)
    for _ in range(int(3600 / SAMPLE_SECONDS)):
        clock.take(QUIET)
        for record in history.unsent.values():
            key, value = encode(record)
            written, size = written + 1, len(value)
            assert decode(key, value) == record
        say(history)
    assert written == 60
    assert size < 1_350


def test_an_hour_of_a_large_mirror_is_small_too() -> None:
    point = HistoryPoint(0, 12_345_678, 5, 123_456, 123_000_000, 1_230_000, 12, 12)
    points = tuple(point._replace(second=60 * minute + 41) for minute in range(60))
    assert len(encode(HistoryRecord("m", HOUR, points))[1]) < 3_072


def test_a_rate_is_unknown_while_no_lane_reports_and_then_that_of_the_whole_time() -> None:
    history = History("m", 0.0)
    clock = Clock(history)
    silent = Sample(None, 3, None, None, None, 0, 3)
    clock.take(copied(1500, 15), silent, silent, copied(6000, 60))
    rates = [(point.bytes_per_second, point.records_per_second) for _, point in history.recent(clock.epoch_ms)]
    assert rates == [(100, 1), (None, None), (None, None), (100, 1)]
    clock.take(silent, silent, silent, silent)
    assert [point.bytes_per_second for point in unsaid(history)] == [100, None]
    clock.take(*[copied(6000 + 45, 60)] * 4)
    # one record in three minutes is not nothing
    assert [point.bytes_per_second for point in unsaid(history)] == [100, None, 0.375]


def test_what_was_stored_continues_and_two_days_are_kept() -> None:
    first, old = HistoryPoint(5, 1, 0, 1, 1, 1, 0, 0), HOUR - KEPT_HOURS
    stored = [HistoryRecord("m", hour, (first,), {"newer": 1}) for hour in (old, old + 1, HOUR)]
    history = History("m", 0.0, stored)
    clock = Clock(history)
    clock.take(*[QUIET] * 4)
    assert history.unsent[("history", "m", HOUR)].points == (first, HistoryPoint(60, 0, 0, 0, 0, 0, 0, 0))
    assert history.unsent[("history", "m", HOUR)].extra == {"newer": 1}
    expired = [history.expired]
    clock.epoch_ms += HOUR_MS
    clock.take(*[QUIET] * 4)
    expired.append(history.expired)
    say(history)
    assert (history.unsent, [*expired, history.expired]) == ({}, [(), (("history", "m", old),), ()])


def test_an_answer_to_an_earlier_heartbeat_leaves_what_came_since() -> None:
    history = History("m", 0.0)
    clock = Clock(history)
    clock.take(*[QUIET] * 4)
    sent = tuple(history.unsent.values())
    clock.take(*[QUIET] * 4)
    history.stored(sent, ())
    assert len(unsaid(history)) == 2


def test_a_record_that_cannot_be_read_is_not_touched() -> None:
    history = History("m", 0.0, (), [("history", "m", HOUR)])
    Clock(history).take(*[QUIET] * 4)
    assert history.unsent == {}


def test_an_engine_that_ends_stores_what_it_saw_last() -> None:
    history = History("m", 0.0)
    history.take(copied(500, 5), 5.0, HOUR * HOUR_MS + 5000, is_last=True)
    assert unsaid(history) == [HistoryPoint(5, 0, 0, 0, 100, 1, 0, 0)]


def test_an_hour_has_an_end_also_where_the_clock_goes_back() -> None:
    history, at = History("m", 0.0), 0.0
    for _ in range(1000):
        at += POINT_SECONDS
        history.take(QUIET, at, HOUR * HOUR_MS)
    assert len(unsaid(history)) == 120


def test_points_come_back_with_their_times_and_what_is_unknown() -> None:
    points = (
        HistoryPoint(90, None, 3, None, None, None, 0, 3, "NO_WORKERS"),
        HistoryPoint(30, 1, 0, 2, 12.5, 0.25, 0, 0),
    )
    record = HistoryRecord("m", HOUR, points)
    found = decode(*encode(record))
    assert found == record
    assert isinstance(found, HistoryRecord)
    assert points_of([found]) == _timed(points[::-1])


def _timed(points: Iterable[HistoryPoint]) -> list[tuple[int, HistoryPoint]]:
    return [(HOUR * HOUR_MS + 1000 * point.second, point) for point in points]
