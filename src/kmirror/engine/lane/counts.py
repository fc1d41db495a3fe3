"""What a lane counts over all its partitions, for those who watch: written by its sending thread, read by any."""

from __future__ import annotations

from bisect import bisect_left

from kmirror.state.records import LATENCY_BOUNDS, Latencies


class RequestTimes:
    """Count requests by how long they took."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0

    def took(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        self._seconds += seconds

    @property
    def so_far(self) -> Latencies:
        return Latencies(tuple(self._counts), round(self._seconds, 3))


class Counts:
    """Count since the lane began."""

    __slots__ = ("appends", "batches_copied", "batches_merged", "batches_taken_apart", "fetches", "offsets_filled")

    def __init__(self) -> None:
        self.batches_copied = 0
        #: Batches of the source that could not be sent as they were: of old formats, with offsets to fill.
        self.batches_taken_apart = 0
        #: Batches of the source that were put into one with their neighbours.
        self.batches_merged = 0
        self.offsets_filled = 0
        self.fetches = RequestTimes()
        self.appends = RequestTimes()
