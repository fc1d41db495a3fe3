"""How far behind in time the copy of a partition is. Pure: no I/O, no clock.

A record that is not copied yet arrived at the source after the newest one that is, and after the time at which the copy
had last caught up. The later of the two bounds how far behind the copy is: that is right after an idle hour too, and
for records with old timestamps.
"""

from __future__ import annotations

#: How far a producer's clock may be ahead of ours; the timestamp of a later record says nothing of its arrival.
CLOCK_SKEW_MS = 60_000


def time_lag(
    lag: int | None, last_timestamp_ms: int | None, caught_up_ms: int | None, reported_ms: int, now_ms: int
) -> int | None:
    """Return for how many milliseconds at most the destination has lacked a record; None if that is unknown.

    `last_timestamp_ms` is that of the last record copied, `caught_up_ms` when the copy had last caught up; both were
    reported at `reported_ms`.
    """
    if lag is None or lag == 0:
        return lag
    since_ms = caught_up_ms
    if last_timestamp_ms is not None and 0 <= last_timestamp_ms <= reported_ms + CLOCK_SKEW_MS:
        arrived_ms = min(last_timestamp_ms, reported_ms)
        since_ms = arrived_ms if since_ms is None else max(since_ms, arrived_ms)
    return None if since_ms is None else max(0, now_ms - since_ms)
