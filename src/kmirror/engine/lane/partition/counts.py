"""Counters of a lane over all its partitions, for metrics: written by its sending thread, read by any."""

from __future__ import annotations

from bisect import bisect_left

from kmirror.state.records import LATENCY_BOUNDS, Latencies


class RequestTimes:
    """A histogram of request durations."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0

    def took(self, seconds: float) -> None:
        """Count one request."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._seconds += seconds

    @property
    def so_far(self) -> Latencies:
        return Latencies(tuple(self._counts), round(self._seconds, 3))


class Counts:
    """Counters since the lane started."""

    __slots__ = ("appends", "batches_copied", "batches_merged", "batches_taken_apart", "fetches", "offsets_filled")

    def __init__(self) -> None:
        self.batches_copied = 0
        #: Source batches that could not be sent unchanged: of old formats, or with offsets to fill.
        self.batches_taken_apart = 0
        #: Source batches that were merged with their neighbours.
        self.batches_merged = 0
        self.offsets_filled = 0
        self.fetches = RequestTimes()
        self.appends = RequestTimes()
