"""Which mirror logs are due to be trimmed, as their sources have trimmed themselves. Pure: no I/O, no clock.

A source that deletes records does not say so; its log just starts further on when it is looked at. The mirror follows
after a delay, in which whatever the source has lost by mistake is still to be had. What was seen is not kept
after the engine's end: after a restart the delay begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from kmirror.cluster.protocol.metadata import TopicPartition


class LogStarts:
    """Remember where the sources' logs were seen to start, and since when. Times in seconds of one clock."""

    def __init__(self, delay: float) -> None:
        #: Seconds; may be changed.
        self.delay = delay
        self._seen: dict[TopicPartition, deque[tuple[float, int]]] = {}
        self._trimmed: dict[TopicPartition, int] = {}

    def seen(self, starts: Mapping[TopicPartition, int], now: float) -> None:
        """Take note of where the logs start now. A log that starts lower than before is another one."""
        for partition, start in starts.items():
            known = self._seen.setdefault(partition, deque())
            if known and start < known[-1][1]:
                known.clear()
                self._trimmed.pop(partition, None)
            if not known or start > known[-1][1]:
                known.append((now, start))

    def due(self, ends: Mapping[TopicPartition, int], now: float) -> dict[TopicPartition, int]:
        """Return up to where logs are to be trimmed now, of those that hold records up to `ends`.

        A log that ends before its source starts is left as it is: it has what the source has lost.
        """
        found = {}
        for partition, end in ends.items():
            known = self._seen.get(partition, deque())
            while len(known) > 1 and now - known[1][0] >= self.delay:
                known.popleft()
            if not known or now - known[0][0] < self.delay:
                continue
            start = known[0][1]
            if known[-1][1] <= end and start > self._trimmed.get(partition, 0):
                found[partition] = start
        return found

    def trimmed(self, partition: TopicPartition, start: int) -> None:
        """Note that a mirror log starts there, or further on."""
        self._trimmed[partition] = start
