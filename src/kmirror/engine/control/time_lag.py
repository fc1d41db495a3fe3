"""How far behind in time the copy of a partition is. Pure: no I/O, no clock.

What is not copied yet came to the source after the newest record that is copied, and after the moment at which the
copy last had everything the source had. The later of the two says how far behind the copy is at most: right after an
idle hour, and where records carry old timestamps.
"""

from __future__ import annotations

#: By so much a producer's clock may be ahead of ours; a record that is dated later does not tell when it came.
CLOCK_SKEW_MS = 60_000


def time_lag(
    lag: int | None, last_timestamp_ms: int | None, caught_up_ms: int | None, reported_ms: int, now_ms: int
) -> int | None:
    """Return for how many milliseconds at most the destination has lacked something; None where that is not known.

    `last_timestamp_ms` is that of the last record copied, `caught_up_ms` when the copy last had everything; both were
    told at `reported_ms`.
    """
    if lag is None or lag == 0:
        return lag
    since_ms = caught_up_ms
    if last_timestamp_ms is not None and 0 <= last_timestamp_ms <= reported_ms + CLOCK_SKEW_MS:
        arrived_ms = min(last_timestamp_ms, reported_ms)
        since_ms = arrived_ms if since_ms is None else max(since_ms, arrived_ms)
    return None if since_ms is None else max(0, now_ms - since_ms)
