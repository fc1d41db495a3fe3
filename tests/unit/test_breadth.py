"""The number of connections, against a model of a path: what one connection brings, and what all of them may."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import pytest

from kmirror.engine.lane.pace.breadth import Breadth

MB = 1_000_000.0
TICK = 0.1


@dataclass
class Path:
    """Connections that bring their share up to the path's rate, in MB/s; each opens late and begins slowly."""

    each: float = 2.0
    together: float = inf
    round_trip: float = 0.08
    limit: int = 64
    first: int = 1
    #: What there is to carry each second.
    supply: float = inf
    #: Connections that the broker accepts.
    accepted: int = 1000
    is_throttled: bool = False
    now: float = 1000.0
    carried: float = 0.0
    refusals: int = 0
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.breadth = Breadth(self.limit, self.round_trip, first=self.first)
        #: When each connection was, or will be, open.
        self.opened = [self.now] * self.first
        self._chance = random.Random(1)

    @property
    def can_carry(self) -> float:
        """What the connections can carry now, in MB/s."""
        start = max(0.1, 5 * self.round_trip)
        each = (min(1.0, max(0.0, self.now - at) / start) * self.each for at in self.opened)
        return min(self.together, sum(each)) * self._chance.uniform(0.97, 1.03)

    def run(self, seconds: float) -> float:
        """Let time pass; return the mean rate of the last quarter, in MB/s."""
        until, begun = self.now + seconds, self.carried
        while self.now < until:
            self.now += TICK
            can_carry = self.can_carry
            self.carried += min(can_carry, self.supply) * TICK
            breadth = self.breadth
            if self.is_throttled:
                breadth.throttled(self.now)
            is_open = sum(at <= self.now for at in self.opened)
            breadth.on_tick(self.now, int(self.carried * MB), is_open, is_limit=self.supply > can_carry)
            if breadth.wanted > self.accepted:
                self.refusals += 1
                breadth.refused(is_open, self.now)
            assert 1 <= breadth.wanted <= breadth.limit
            del self.opened[breadth.wanted :]
            self.opened += [self.now + 2 * self.round_trip] * (breadth.wanted - len(self.opened))
            self.seen.append(breadth.wanted)
            if self.now < until - seconds / 4:
                begun = self.carried
        return (self.carried - begun) / (seconds / 4)


@pytest.mark.parametrize("first", [1, 8])
@pytest.mark.parametrize("round_trip", [0.005, 0.02, 0.08, 0.2])
def test_small_windows_get_many_connections_within_seconds(round_trip: float, first: int) -> None:
    path = Path(round_trip=round_trip, first=first)
    assert path.run(60 * max(round_trip, 0.1)) > 0.9 * 64 * 2
    path.run(2)
    assert path.breadth.rate == pytest.approx(64 * 2 * MB, rel=0.1)


def test_a_short_path_has_one() -> None:
    path = Path(round_trip=0.0015)
    path.run(60)
    assert set(path.seen) == {1}


@pytest.mark.parametrize("first", [1, 8])
@pytest.mark.parametrize("connections", [1, 3, 10, 40])
def test_the_number_stops_growing_where_the_path_is_full(connections: int, first: int) -> None:
    path = Path(together=connections * 2, first=first)
    path.run(20)
    # no fewer than it takes, and none of which most bring nothing; it is tried again now and then
    assert path.run(5) > 0.93 * path.together
    assert connections <= path.breadth.wanted <= max(2 * connections, first)
    path.seen.clear()
    assert path.run(600) > 0.93 * path.together
    assert sum(one < other for one, other in pairwise(path.seen)) <= 6


def test_a_wide_connection_gets_few_others() -> None:
    path = Path(each=150, together=160, first=8)
    assert path.run(120) > 0.93 * 160
    assert path.breadth.wanted <= 8


def test_a_limit_is_kept_and_may_change_at_any_time() -> None:
    path = Path(limit=5)
    path.run(30)
    assert max(path.seen) == path.breadth.wanted == 5
    path.breadth.limit = 3
    path.run(1)
    assert path.breadth.wanted == 3
    path.breadth.limit = 6
    path.run(4)
    assert path.breadth.wanted == 6


def test_nothing_changes_while_something_else_is_the_limit() -> None:
    path = Path(first=8, supply=0)
    path.run(120)
    assert set(path.seen) == {8}


def test_what_there_is_to_carry_gets_no_more_connections_than_carry_it() -> None:
    path = Path(supply=9)
    path.run(50)
    assert path.breadth.wanted == 8


@pytest.mark.parametrize("first", [1, 8])
def test_with_nothing_to_carry_the_first_are_left_after_a_minute(first: int) -> None:
    path = Path(first=first)
    path.run(10)
    path.supply = 0
    path.run(58)
    assert path.breadth.wanted == 64
    path.run(5)
    assert path.breadth.wanted == first
    path.supply = inf
    path.run(8)
    assert path.breadth.wanted == 64


def test_with_little_to_carry_there_are_fewer_and_more_as_soon_as_they_are_full() -> None:
    path = Path()
    path.run(10)
    path.supply = 12
    path.run(300)
    path.seen.clear()
    path.run(60)
    assert set(path.seen) <= {4, 8}


def test_a_throttled_broker_gets_fewer_and_is_tried_again_later() -> None:
    path = Path()
    path.run(10)
    before = path.breadth.wanted
    path.is_throttled = True
    path.run(11)
    assert path.breadth.wanted in {before // 2, before // 4}
    path.run(70)
    assert path.breadth.wanted == 1
    path.is_throttled = False
    path.run(29)
    assert path.breadth.wanted == 1
    path.run(30)
    assert path.breadth.wanted == 64


def test_a_path_that_has_become_slow_gets_fewer_and_more_again_when_it_is_fast() -> None:
    path = Path()
    path.run(10)
    path.together = 10
    assert path.run(10) > 0.93 * 10
    assert path.breadth.wanted <= 10
    path.together = inf
    path.run(60)
    assert path.breadth.wanted == 64


def test_refused_connections_are_not_asked_for_again_for_a_while() -> None:
    path = Path(first=8)
    path.run(10)
    path.breadth.refused(10, path.now)
    path.seen.clear()
    assert path.breadth.refused_until == path.now + 60
    path.run(50)
    assert max(path.seen) == 8, "others are left some"
    path.run(60)
    assert path.breadth.wanted > 10


def test_a_broker_that_accepts_no_more_is_asked_for_more_ever_less_often() -> None:
    path = Path(accepted=5)
    path.run(10)
    assert path.breadth.wanted in {3, 4}
    path.run(600)
    assert path.breadth.wanted in {3, 4}
    assert path.refusals <= 12
