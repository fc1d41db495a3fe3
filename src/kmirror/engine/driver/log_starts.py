"""Which mirror logs must be trimmed because their sources deleted records. Pure: no I/O, no clock.

A source does not announce that it deletes records; its log just starts at a higher offset when it is read again. The
mirror follows after a delay, during which records that were deleted by mistake can still be recovered from it. Log
starts are kept in memory only: after a restart of the engine the delay starts again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from kmirror.cluster.protocol.metadata import TopicPartition


class LogStarts:
    """Remember the log starts of sources, and since when. Times in seconds of one clock."""

    def __init__(self, delay: float) -> None:
        #: Seconds; may be changed.
        self.delay = delay
        self._starts: dict[TopicPartition, deque[tuple[float, int]]] = {}
        self._trimmed: dict[TopicPartition, int] = {}

    def observe(self, starts: Mapping[TopicPartition, int], now: float) -> None:
        """Take the current log starts. A log that starts at a lower offset than before is another log."""
        for partition, start in starts.items():
            known = self._starts.setdefault(partition, deque())
            if known and start < known[-1][1]:
                known.clear()
                self._trimmed.pop(partition, None)
            if not known or start > known[-1][1]:
                known.append((now, start))

    def due(self, ends: Mapping[TopicPartition, int], now: float) -> dict[TopicPartition, int]:
        """Return the offsets to trim to now, of the logs that end at `ends`.

        A log that ends before its source starts is not trimmed: it has records that the source has lost.
        """
        found = {}
        for partition, end in ends.items():
            known = self._starts.get(partition, deque())
            while len(known) > 1 and now - known[1][0] >= self.delay:
                known.popleft()
            if not known or now - known[0][0] < self.delay:
                continue
            start = known[0][1]
            if known[-1][1] <= end and start > self._trimmed.get(partition, 0):
                found[partition] = start
        return found

    def trimmed(self, partition: TopicPartition, start: int) -> None:
        """Note that a mirror log starts at this offset or after it."""
        self._trimmed[partition] = start
