"""The window of bytes on the way, against a simple model of a line: a rate, a delay, and a queue."""

from __future__ import annotations

from collections import deque

import pytest

from kmirror.engine.lane.pace.window import LEAST_BYTES, LEAST_FAR_BYTES, Window

REQUEST = 1 << 20


def fill_the_line(bytes_per_second: float, delay: float, seconds: float) -> tuple[Window, float]:
    """Send as much as the window lets through; return it and the rate of the last second."""
    window = Window()
    on_the_way: deque[tuple[float, int, float]] = deque()
    now = line_free_at = 0.0
    last_second = 0
    while now < seconds:
        while window.is_open:
            line_free_at = max(line_free_at, now) + REQUEST / bytes_per_second
            on_the_way.append((line_free_at + delay, window.sent(REQUEST), now))
        now, delivered, sent_at = on_the_way.popleft()
        window.answered(REQUEST, delivered, sent_at, now)
        last_second += REQUEST if now > seconds - 1 else 0
    return window, last_second


def test_a_near_broker_gets_no_more_than_it_takes() -> None:
    window, rate = fill_the_line(600e6, 0.0005, 5)
    assert window.limit < 2 * LEAST_BYTES
    assert rate > 0.9 * 600e6


def test_a_slow_connection_gets_no_more_for_its_own_queue_and_shows_it() -> None:
    window = Window()
    window.know_round_trip(0.08, is_long=True)
    for number in range(50):
        # five requests on the way at 1.3 MB/s, each waiting for the four before it
        window.answered(65536, window.sent(65536), number * 0.05 - 0.25, number * 0.05)
    assert window.is_queueing
    assert window.limit == LEAST_FAR_BYTES
    window.answered(65536, window.sent(65536), 9.9, 10.0)
    assert not window.is_queueing


@pytest.mark.parametrize("delay", [0.02, 0.08, 0.2])
def test_a_long_line_is_filled(delay: float) -> None:
    window, rate = fill_the_line(250e6, delay, 20)
    assert rate > 0.9 * 250e6
    assert window.limit < 2.5 * 250e6 * delay + 2 * LEAST_BYTES


def test_a_line_that_has_become_slow_is_not_drowned() -> None:
    window, _ = fill_the_line(250e6, 0.1, 10)
    wide = window.limit
    now = 11.0
    for _ in range(100):
        delivered = window.sent(REQUEST)
        window.answered(REQUEST, delivered, now, now + 0.11)
        now += 0.11
    assert window.limit < wide / 4


def test_what_is_on_the_way_is_counted() -> None:
    window = Window()
    window.sent(LEAST_BYTES - 1)
    assert (window.is_open, window.bytes_in_flight) == (True, LEAST_BYTES - 1)
    window.sent(1)
    assert (window.is_open, window.bytes_in_flight) == (False, LEAST_BYTES)
    window.answered(LEAST_BYTES - 1, 0, 0.0, 0.0)
    assert (window.is_open, window.bytes_in_flight) == (True, 1)
