"""How long a fetch of quiet partitions waits at the broker: longer where it is more work for the broker."""

from __future__ import annotations

import pytest

from kmirror.engine.lane.brokers.links import LONGEST_QUIET_MS, QUIET_WAIT_MS, next_quiet_wait_ms


@pytest.mark.parametrize(
    ("asked_ms", "seconds", "wanted"),
    [
        (500, 0.5, QUIET_WAIT_MS),  # a few partitions
        (500, 0.55, QUIET_WAIT_MS),
        (500, 0.625, 1250),
        (1250, 1.375, 1250),  # the same work again changes nothing
        (1250, 1.25, QUIET_WAIT_MS),  # and less shortens the wait
        (500, 30.0, LONGEST_QUIET_MS),  # a broker that was frozen
        (1500, 0.0, QUIET_WAIT_MS),  # a throttled response, which comes at once
    ],
)
def test_it_waits_ten_times_as_long_as_it_takes_within_bounds(asked_ms: int, seconds: float, wanted: int) -> None:
    assert next_quiet_wait_ms(asked_ms, seconds) == wanted
