"""How lanes are spread over Spark's executors: which one moves, and how many a mirror has where room is short."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.engine.executors import Executor, Placement
from kmirror.engine.lanes.lane_balancer import LaneBalancer
from kmirror.engine.lanes.lane_slots import LaneSlots
from kmirror.engine.lanes.spread import RunningLane, Spread, lane_moves, slot_shares
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.errors import Reason
from kmirror.state.records import Rebuild, RebuildStep, TopicRecord
from tests.support.live_engine import topic_record

A, B, C = (Executor(name, "h", 2) for name in "abc")
MB = 1e6


def lanes_at(rates: dict[Executor, list[float]], *, behind: Executor | None = None) -> list[RunningLane]:
    """Return seats with these rates in megabytes a second, with numbers from 0."""
    places = [(executor, rate) for executor, some in rates.items() for rate in some]
    return [
        RunningLane("m", n, executor, rate * MB, rate * MB, executor == behind)
        for n, (executor, rate) in enumerate(places)
    ]


def moved(rates: dict[Executor, list[float]], behind: Executor | None = None) -> list[tuple[int, str]]:
    """Return which lane goes where."""
    seats = lanes_at(rates, behind=behind)
    placement = Placement(tuple(rates), {f"{n}": seat.executor for n, seat in enumerate(seats)})
    return [(seat.lane, executor.name) for seat, executor in lane_moves(placement, seats)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        pytest.param({A: [0, 0], B: [0, 0]}, [], id="even"),
        pytest.param({A: [0, 0], B: [0]}, [], id="one more is even enough"),
        pytest.param({A: [0, 0], B: []}, [(0, "b")], id="a worker that has joined gets an idle lane"),
        pytest.param({A: [0, 0], B: [0, 0], C: []}, [(0, "c")], id="and no more than the others then have"),
        pytest.param({A: [5], B: []}, [], id="a lane alone stays"),
        pytest.param({A: [50, 40], B: [1]}, [(1, "b")], id="bytes count, not lanes alone"),
        pytest.param({A: [50, 5], B: [40, 4]}, [], id="no room"),
        pytest.param({A: [50, 1], B: [40]}, [], id="not worth it"),
    ],
)
def test_a_lane_moves_where_that_makes_the_busier_executor_less_busy(
    rates: dict[Executor, list[float]], expected: list[tuple[int, str]]
) -> None:
    assert moved(rates) == expected


def test_a_slow_executor_that_looks_idle_gets_no_more() -> None:
    assert moved({A: [50, 40], B: [1]}, behind=B) == []


def test_what_other_functions_take_of_an_executor_is_not_free() -> None:
    placement = Placement((A, B), {"lane": A, "lane 2": A, "verify 1": B, "verify 2": B})
    assert lane_moves(placement, lanes_at({A: [9, 9]})) == []


@pytest.mark.parametrize(
    ("wanted", "slots", "expected"),
    [
        ({"m": 2, "n": 2}, 4, {}),
        ({"m": 4}, 3, {"m": 3}),
        ({"m": 2, "n": 8}, 6, {"m": 2, "n": 4}),
        ({"m": 4, "n": 4}, 5, {"m": 3, "n": 2}),
        # who has none would be shown as silent: it waits in Spark's queue, and is
        ({"m": 2, "n": 2, "o": 2}, 2, {"m": 1, "n": 1, "o": 1}),
        ({"m": 2}, None, {}),
    ],
)
def test_mirrors_share_the_room_there_is(wanted: dict[str, int], slots: int | None, expected: dict[str, int]) -> None:
    assert slot_shares(wanted, slots) == expected


@dataclass
class Engine:
    """An engine with lanes in name alone."""

    mirror: str = "m"
    lanes_wanted: int = 4
    is_settled: bool = True
    is_rebuilding: bool = False
    limits: list[int | None] = field(default_factory=list)
    moves: list[tuple[int, str]] = field(default_factory=list)
    have: list[RunningLane] = field(default_factory=list)

    def take_placement(self, placement: Placement, limit: int | None) -> None:
        self.limits.append(limit)

    def running_lanes(self) -> list[RunningLane]:
        return self.have

    def move_lane(self, lane: int, place: Executor) -> None:
        self.moves.append((lane, place.name))


def test_fewer_slots_are_believed_when_that_lasts_and_more_at_once() -> None:
    engine, spread = Engine(), Spread()
    for at, executors in enumerate([(A, B), (A,), (A, B), (A,), (A,), (A,), (A,), (A,), (A,), (A, B), (A,), ()]):
        spread.tick(Placement(executors, {}), [engine], float(at))
    # no executor at all tells nothing
    assert engine.limits == [None] * 8 + [2] + [None] * 3
    spread.tick(None, [engine], 99.0)
    assert len(engine.limits) == 12


@pytest.mark.parametrize(("wanted", "limit"), [(3, None), (4, 3), (9, 3)])
def test_lanes_leave_room_for_what_a_rebuild_archives(wanted: int, limit: int | None) -> None:
    engine, spread = Engine(lanes_wanted=wanted), Spread()
    spread.tick(Placement((A, B), {}), [engine], 0.0)
    engine.is_rebuilding = True
    spread.tick(Placement((A, B), {}), [engine], 1.0)
    spread.tick(Placement((A, B), {}, is_elastic=True), [engine], 2.0)
    assert engine.limits == [4 if wanted > 4 else None, limit, None]


def test_a_rebuild_that_has_failed_takes_no_lane_until_it_gets_on() -> None:
    going = Rebuild(Reason.SOURCE_TOPIC_RECREATED, RebuildStep.ARCHIVE, "t.kmirror-archive.1", 1)
    by_name: dict[str, TopicRecord] = {}
    topics = SimpleNamespace(record=SimpleNamespace(name="m"), by_name=by_name, claimed=by_name.keys)
    nothing = cast(Any, None)
    balancer = LaneBalancer(cast(MirrorTopics, topics), nothing, nothing, nothing, nothing)
    assert not balancer.is_rebuilding
    by_name["t"] = replace(topic_record("t"), rebuild=replace(going, trouble="no right"))
    assert not balancer.is_rebuilding
    by_name["u"] = replace(topic_record("u"), rebuild=going)
    assert balancer.is_rebuilding


def test_where_spark_makes_room_there_is_no_limit() -> None:
    engine, spread = Engine(), Spread()
    spread.tick(Placement((A,), {}, is_elastic=True), [engine], 0.0)
    assert engine.limits == [None]


def test_a_lane_that_was_moved_stays_for_a_while() -> None:
    engine, spread = Engine(lanes_wanted=2), Spread()
    engine.have = lanes_at({A: [0, 0]})
    placement = Placement((A, B), {"0": A, "1": A})
    spread.tick(placement, [engine], 0.0)
    assert engine.moves == [(0, "b")]
    # while it is on its way
    engine.have = [replace(seat, may_move=False) for seat in engine.have]
    spread.tick(placement, [engine], 1.0)
    assert engine.moves == [(0, "b")]


def test_nothing_moves_while_a_lane_is_being_started() -> None:
    # it may be where nothing seems to be
    starting, other, spread = Engine("m", 2, is_settled=False), Engine("n", 2), Spread()
    other.have = lanes_at({A: [0, 0]})
    for at in (0.0, 1.0):
        spread.tick(Placement((A, B), {"0": A, "1": A}), [starting, other], at)
    assert (other.moves, other.limits) == ([], [None, None])


def test_for_what_they_copy_lanes_move_now_and_then_only() -> None:
    engine, spread = Engine(lanes_wanted=3), Spread()
    engine.have = lanes_at({A: [50, 40], B: [1]})
    placement = Placement((A, B), {"0": A, "1": A, "2": B})
    for at in (0.0, 1.0, 299.0, 301.0):
        spread.tick(placement, [engine], at)
    assert engine.moves == [(1, "b"), (1, "b")]


def test_a_lane_leaves_a_slow_executor_and_none_goes_there_for_a_while() -> None:
    engine, spread = Engine(lanes_wanted=3), Spread()
    engine.have = lanes_at({A: [50], B: [50, 50], C: [1]}, behind=C)
    placement = Placement((A, B, C), {"0": A, "1": B, "2": B, "3": C})
    spread.tick(placement, [engine], 0.0)
    assert engine.moves == [(3, "a")]
    # then that one looks idle
    engine.have = lanes_at({A: [50, 50], B: [50, 50]})
    spread.tick(Placement((A, B, C), {"0": A, "1": A, "2": B, "3": B}), [engine], 10.0)
    assert engine.moves == [(3, "a")]
    spread.tick(Placement((A, B, C), {"0": A, "1": A, "2": B, "3": B}), [engine], 1000.0)
    assert len(engine.moves) == 2


def test_a_lane_that_is_behind_stays_where_others_are_no_faster() -> None:
    engine, spread = Engine(lanes_wanted=2), Spread()
    engine.have = lanes_at({A: [50], C: [40]}, behind=C)
    spread.tick(Placement((A, C), {"0": A, "1": C}), [engine], 0.0)
    assert engine.moves == []


def test_seats_go_that_have_no_work_and_then_those_that_do_not_report() -> None:
    seats = LaneSlots()
    seats.resize(4, with_work=(), reporting=())
    assert seats.open == [0, 1, 2, 3]
    seats.resize(3, with_work={0, 2, 3}, reporting={0, 2, 3})
    assert seats.open == [0, 2, 3]
    seats.resize(2, with_work={0, 2, 3}, reporting={2, 3})
    assert seats.open == [2, 3]
    seats.resize(1, with_work={2, 3}, reporting={2, 3})
    assert seats.open == [2]
    seats.resize(2, with_work={2}, reporting={2})
    assert seats.open == [2, 0]


def test_a_successor_takes_the_place_of_a_lane_when_it_has_come() -> None:
    seats = LaneSlots()
    seats.resize(2, with_work=(), reporting=())
    assert seats.begin_successor(0, {0, 1}) == 2
    seats.resize(2, with_work={0, 1}, reporting={0, 1})
    assert (seats.open, seats.arriving, seats.successors) == ([0, 1], {2}, {})
    seats.arrived(2)
    assert (seats.successors, seats.steady) == ({0: 2}, {1})
    seats.resize(2, with_work={0, 1}, reporting={0, 1, 2})
    seats.close(0)
    assert (seats.open, seats.steady) == ([1, 2], {1, 2})


def test_a_successor_that_does_not_come_leaves_all_as_it_was() -> None:
    seats = LaneSlots()
    seats.resize(2, with_work=(), reporting=())
    seats.begin_successor(0, {0, 1})
    seats.gone(2)
    seats.resize(2, with_work={0, 1}, reporting={0, 1})
    assert (seats.open, seats.arriving, seats.successors) == ([0, 1], set(), {})
