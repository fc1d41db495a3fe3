"""The number of connections, against a model of a path: what one connection brings, and what all of them may."""

from __future__ import annotations

import random

import pytest

from kmirror.engine.lane.breadth import Breadth

MB = 1_000_000.0
TICK = 0.1


class Path:
    """Connections that bring their share up to the path's rate; new ones open after two round trips."""

    def __init__(self, breadth: Breadth, each: float, path: float, round_trip: float) -> None:
        self.breadth, self.each, self.path, self.round_trip = breadth, each, path, round_trip
        self.now = 1000.0
        self.received = 0.0
        self.open, self.opens_at = 0, self.now + 2 * round_trip
        self.chance = random.Random(1)
        self.seen: list[int] = []

    def run(self, seconds: float, *, is_limit: bool = True) -> float:
        """Run for a while; return the mean rate of its last quarter."""
        until, begun = self.now + seconds, self.received
        while self.now < until:
            wanted = self.breadth.wanted
            self.open = min(self.open, wanted)
            if self.open < wanted and self.now >= self.opens_at:
                self.open, self.opens_at = wanted, self.now + 2 * self.round_trip
            rate = min(self.open * self.each, self.path) * self.chance.uniform(0.97, 1.03)
            self.received += rate * TICK if is_limit else 0
            self.now += TICK
            self.breadth.on_tick(self.now, int(self.received), self.open, is_limit=is_limit)
            self.seen.append(self.breadth.wanted)
            if self.now < until - seconds / 4:
                begun = self.received
        return (self.received - begun) / (seconds / 4)


def path(each: float, most: float, round_trip: float = 0.08, limit: int = 64) -> Path:
    return Path(Breadth(limit, round_trip), each * MB, most * MB, round_trip)


@pytest.mark.parametrize("round_trip", [0.005, 0.02, 0.08, 0.2])
def test_small_windows_get_many_connections_within_seconds(round_trip: float) -> None:
    one = path(2, 1000, round_trip)
    assert one.run(60 * max(round_trip, 0.1)) > 0.9 * 64 * 2 * MB


def test_the_number_stops_growing_where_the_path_is_full() -> None:
    one = path(10, 100)
    assert one.run(60) > 0.93 * 100 * MB
    assert max(one.seen) <= 32


def test_a_wide_connection_gets_few_others() -> None:
    one = path(150, 160)
    assert one.run(120) > 0.93 * 160 * MB
    assert one.breadth.wanted <= 8, "it never goes down"


def test_it_goes_down_only_as_far_as_the_rate_allows() -> None:
    one = path(5, 100)
    one.run(30)
    assert one.run(300) > 0.9 * 100 * MB


def test_a_limit_is_kept() -> None:
    one = path(2, 1000, limit=5)
    one.run(30)
    assert max(one.seen) == 5


def test_nothing_changes_while_something_else_is_the_limit() -> None:
    one = path(2, 1000)
    before = one.breadth.wanted
    one.run(60, is_limit=False)
    assert set(one.seen) == {before}


def test_refused_connections_are_not_asked_for_again_for_a_while() -> None:
    one = path(2, 1000)
    one.run(3)
    one.breadth.refused(10, one.now)
    one.seen.clear()
    one.run(50)
    assert max(one.seen) == 10
    one.run(60)
    assert one.breadth.wanted > 10


def test_a_throttled_broker_gets_fewer() -> None:
    one = path(2, 1000)
    one.run(10)
    one.breadth.throttled(one.now)
    before = one.breadth.wanted
    one.run(10)
    assert one.breadth.wanted == before
    one.breadth.throttled(one.now + 100)
    assert one.breadth.wanted == max(1, before // 2)
