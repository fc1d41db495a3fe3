"""The throttle: what one lane may fetch, against a simple model of a broker, and how lanes share a mirror's limit."""

from __future__ import annotations

import pytest

from kmirror.engine.lane.fetching import whole_batches
from kmirror.engine.lane.pace.throttle import Throttle
from kmirror.engine.lanes.throttle_shares import LaneUse, ThrottleShares

MB = 1_000_000
#: How long a lane waits for something to happen before it looks again.
TURN = 0.1


class Copying:
    """A lane that always wants more, and a broker that answers after some time with whole batches."""

    def __init__(self, batch: int, answers_after: float = 0.002) -> None:
        self.now = 0.0
        self.throttle = Throttle(self.now)
        self.batch, self.answers_after = batch, answers_after
        self.fetched: list[tuple[float, int]] = []

    def fetch_until(self, end: float, held_up: float = 0.0) -> None:
        """Fetch; every few seconds be `held_up` for so long."""
        held_up_at = self.now
        while self.now < end:
            if self.now - held_up_at > 3:
                self.now += held_up
                held_up_at = self.now
            allowed = self.throttle.allowance(self.now)
            if allowed == 0:
                self.now += TURN
                continue
            size = max(1, (2 * MB if allowed is None else min(allowed, 2 * MB)) // self.batch) * self.batch
            self.now += self.answers_after
            self.throttle.spend(size)
            self.fetched.append((self.now, size))

    def between(self, begin: float, end: float) -> int:
        return sum(size for at, size in self.fetched if begin < at <= end)


@pytest.mark.parametrize("batch", [100, 16_384, 256_000])
@pytest.mark.parametrize("limit", [MB, 20 * MB, 500 * MB])
def test_a_lane_that_wants_more_gets_its_limit(limit: int, batch: int) -> None:
    copying = Copying(batch)
    copying.throttle.set_limit(limit, 0.0)
    copying.fetch_until(30)
    for begin in (5, 15):
        assert copying.between(begin, begin + 10) == pytest.approx(10 * limit, rel=0.05)


def test_a_lane_that_is_held_up_makes_up_for_it() -> None:
    copying = Copying(16_384)
    copying.throttle.set_limit(5 * MB, 0.0)
    copying.fetch_until(60, held_up=1.0)
    assert copying.between(10, 60) == pytest.approx(50 * 5 * MB, rel=0.05)


def test_a_batch_larger_than_a_second_s_bytes_is_paid_for_afterwards() -> None:
    copying = Copying(MB)
    copying.throttle.set_limit(100_000, 0.0)
    copying.fetch_until(200)
    assert copying.between(0, 200) == pytest.approx(200 * 100_000, abs=MB)


def test_a_lane_that_was_idle_makes_up_for_nothing() -> None:
    copying = Copying(1000)
    copying.throttle.set_limit(MB, 0.0)
    copying.fetch_until(10)
    while copying.now < 1000:  # a source without anything new answers long polls
        if copying.throttle.allowance(copying.now):
            copying.throttle.spend(60)
        copying.now += 0.2
    copying.fetch_until(copying.now + 10)
    assert copying.between(copying.now - 10, copying.now) == pytest.approx(10 * MB, rel=0.05)


def test_another_limit_holds_at_once_and_none_takes_it_away() -> None:
    copying = Copying(1000)
    copying.throttle.set_limit(MB, copying.now)
    copying.fetch_until(10)
    copying.throttle.set_limit(5 * MB, copying.now)
    copying.fetch_until(20)
    assert copying.between(10, 20) == pytest.approx(50 * MB, rel=0.05)
    copying.throttle.set_limit(None, copying.now)
    assert copying.throttle.allowance(copying.now) is None
    copying.fetch_until(21)
    assert copying.between(20, 21) > 100 * MB


def test_a_lane_that_does_not_know_its_share_fetches_nothing() -> None:
    throttle = Throttle(0.0)
    throttle.set_limit(0, 0.0)
    assert [throttle.allowance(at) for at in (0.0, 1.0, 100.0)] == [0, 0, 0]


def test_it_counts_what_was_fetched_and_how_long_was_waited() -> None:
    throttle = Throttle(0.0)
    throttle.received(7)
    assert (throttle.fetched_bytes, throttle.waited(5.0)) == (7, 0.0)
    throttle.set_limit(100_000, 5.0)
    assert throttle.allowance(5.0) == 0
    assert throttle.waited(5.5) == 0.5
    assert throttle.allowance(6.0) == 16 << 10
    throttle.received(1_000_000)
    assert (throttle.fetched_bytes, throttle.waited(6.0)) == (1_000_007, 1.0)


def test_what_is_asked_for_and_never_comes_was_not_fetched() -> None:
    throttle = Throttle(0.0)
    throttle.set_limit(100_000, 0.0)
    throttle.spend(50_000)
    assert throttle.fetched_bytes == 0
    assert throttle.allowance(0.4) == 0
    throttle.spend(-50_000)
    assert throttle.fetched_bytes == 0
    throttle.spend(50_000)
    throttle.received(60_000, paid=50_000)
    assert throttle.fetched_bytes == 60_000


def reported(shares: ThrottleShares, rates: dict[int, int], waiting: set[int], seconds: int = 3) -> None:
    """Let lanes report each second what they have fetched, at these rates; those that wait say so."""
    for second in range(seconds):
        for lane, rate in rates.items():
            shares.take(lane, LaneUse(second, rate * second, second / 2 if lane in waiting else 0.0))


def test_lanes_without_a_report_get_equal_shares() -> None:
    assert ThrottleShares().of(MB, [0, 1, 2, 3]) == dict.fromkeys(range(4), MB // 4)


def test_what_one_lane_leaves_the_others_get() -> None:
    shares = ThrottleShares()
    reported(shares, {0: 100_000, 1: 450_000, 2: 450_000}, {1, 2})
    assert shares.of(MB, [0, 1, 2]) == {0: 125_000, 1: 437_500, 2: 437_500}
    reported(shares, {0: 0, 1: 500_000, 2: 500_000}, {1, 2})
    found = shares.of(MB, [0, 1, 2])
    assert 0 < found[0] < MB * 0.01
    assert sum(found.values()) == pytest.approx(MB, abs=3)


def test_without_waiting_lanes_there_is_no_throttle() -> None:
    shares = ThrottleShares()
    reported(shares, {0: 10, 1: 500_000}, set())
    assert shares.of(MB, [0, 1]) == {0: MB // 2, 1: MB // 2}


def test_a_lane_that_begins_to_wait_gets_an_equal_part_again() -> None:
    shares = ThrottleShares()
    reported(shares, {0: 0, 1: 900_000}, {1})
    assert shares.of(MB, [0, 1])[0] == MB * 0.01
    shares.take(0, LaneUse(3, 10_000, 0.9))
    assert shares.of(MB, [0, 1]) == {0: MB // 2, 1: MB // 2}


def test_a_restarted_lane_has_no_report() -> None:
    shares = ThrottleShares()
    reported(shares, {0: 1000, 1: 900_000}, {1})
    shares.take(0, LaneUse(3, 5, 0.0))
    assert shares.of(MB, [0, 1]) == {0: MB // 2, 1: MB // 2}


def test_a_lane_that_is_gone_takes_nothing() -> None:
    shares = ThrottleShares()
    reported(shares, {0: 900_000, 1: 900_000}, {0, 1})
    assert shares.of(MB, [1]) == {1: MB}
    assert shares.of(MB, []) == {}


@pytest.mark.slow
@pytest.mark.parametrize("batch", [100, 16_384, 100_000, 262_213, 900_000, 1_500_000])
def test_what_is_asked_for_ends_with_a_batch(batch: int) -> None:
    asked = whole_batches(1 << 20, batch)
    count, rest = divmod(asked, batch)
    assert count >= 1
    assert rest <= batch / 32
    assert asked <= max(1.5 * (1 << 20), 1.04 * batch)
    assert whole_batches(1 << 20, None) == 1 << 20
