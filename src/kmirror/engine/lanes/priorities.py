"""Which topics are copied before all others: those in `priority.topics`, while they are behind and progress. Pure.

One that makes no progress, for whatever reason, delays no other. `at` is in seconds of the engine's own clock; how long
a partition has been behind is computed from the clock of its lane alone.
"""

from __future__ import annotations

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import ProgressRecord, ProgressRow

#: A partition that had caught up within this time is not behind: records arrive all the time.
BEHIND_MS = 5_000
#: Topics that have made no progress for this long do not delay others.
STUCK_SECONDS = 10.0


class Priorities:
    """Follow the partitions of one mirror's priority topics."""

    def __init__(self) -> None:
        self._chosen = TopicSelector()
        #: By source topic, whether it has priority.
        self._matches: dict[str, bool] = {}
        #: By partition that is behind, the end of its copy and since when it is there.
        self._behind: dict[TopicPartition, tuple[int | None, float]] = {}

    def choose(self, chosen: TopicSelector) -> None:
        """Take which source topics have priority from now on."""
        if chosen != self._chosen:
            self._chosen = chosen
            self._matches.clear()
            self._behind.clear()

    def take(self, source_topic: str, record: ProgressRecord, row: ProgressRow, at: float) -> None:
        """Take a lane's row on a partition."""
        if not self._chosen.patterns:
            return
        if source_topic not in self._matches:
            self._matches[source_topic] = self._chosen.matches(source_topic)
        if not self._matches[source_topic]:
            return
        partition = TopicPartition(row.topic, row.partition)
        if not _is_behind(record, row):
            self._behind.pop(partition, None)
            return
        before = self._behind.get(partition)
        if before is None or before[0] != row.destination_offset:
            self._behind[partition] = row.destination_offset, at

    def topics(self, at: float) -> tuple[str, ...]:
        """Return the names of the mirror topics that all others must wait for now."""
        return tuple(sorted({p.topic for p, (_, since) in self._behind.items() if at - since < STUCK_SECONDS}))


def _is_behind(record: ProgressRecord, row: ProgressRow) -> bool:
    if row.reason is not None or row.source_offset is None or row.source_offset <= (row.destination_offset or 0):
        return False
    return row.caught_up_ms is None or record.time_ms - row.caught_up_ms > BEHIND_MS
