"""Whether a mirror's records flow, as its engine knows: what its lanes report, and what its source last said. Pure.

A lane reports every two seconds. One that has not for `LANE_SILENCE_SECONDS` copies nothing as far as is known,
whatever its partitions' last rows say; and what the source said longer ago than `KNOWN_SECONDS` says nothing of how far
behind a copy is. Lanes report the source's end as they fetch; the source monitor asks for it where they do not.

Moments are seconds of the engine's own clock: a worker's clock is only compared with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.settings.durations import format_duration
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRecord, ProgressRow

LANE_SILENCE_SECONDS = 10.0
KNOWN_SECONDS = 10.0
#: While a lane is late by so much, the source monitor asks for the source's ends.
LATE_SECONDS = 4.0


@dataclass(slots=True)
class Health:
    """Remember when what was last reported. The source monitor's thread reads it too, one value at a time."""

    began: float
    #: The lanes that no worker reports on, and since when that is so.
    silent_lanes: Mapping[int, float] = field(default_factory=dict)
    silent_partitions: frozenset[TopicPartition] = frozenset()
    #: True while the lanes do not report where the source ends.
    wants_ends: bool = False
    #: By partition, when the source said where it ends, and where.
    _ends: dict[TopicPartition, tuple[float, int]] = field(default_factory=dict)
    #: By partition, when its lane last reported where the copy ends.
    _reported: dict[TopicPartition, float] = field(default_factory=dict)
    #: What is copied and whose lane has had no answer from the source lately.
    _unseen: set[TopicPartition] = field(default_factory=set)

    def take_report(self, partition: TopicPartition, record: ProgressRecord, row: ProgressRow, at: float) -> None:
        """Take what a lane says of the source."""
        self._reported[partition] = at
        fresh = row.source_seen_ms is None
        age = FRESH_SECONDS if row.source_seen_ms is None else max(0, record.time_ms - row.source_seen_ms) / 1000
        if row.source_offset is not None:
            self.take_end(partition, row.source_offset, at - age)
        if fresh or row.state is PartitionState.FAILED:
            self._unseen.discard(partition)
        else:
            self._unseen.add(partition)

    def take_end(self, partition: TopicPartition, offset: int, seen_at: float) -> None:
        """Take where the source ended at a moment."""
        known = self._ends.get(partition)
        if known is None or seen_at > known[0]:
            self._ends[partition] = seen_at, offset

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was said of partitions."""
        for partition in partitions:
            self._ends.pop(partition, None)
            self._reported.pop(partition, None)
            self._unseen.discard(partition)

    def judge(self, silent: Mapping[int, float | None], partitions: Iterable[TopicPartition], *, late: bool) -> bool:
        """Take which lanes with work have not reported for long, and what they are to copy; tell whether that is news.

        `late`: some lane has not reported for a few seconds.
        """
        is_news = silent.keys() != self.silent_lanes.keys()
        self.silent_lanes = {lane: self.began if heard is None else heard for lane, heard in silent.items()}
        self.silent_partitions = frozenset(partitions)
        self.wants_ends = late or bool(self._unseen)
        return is_news

    def silence(self, at: float) -> float:
        """Return for how many seconds the lane that is silent longest has not reported."""
        return at - min(self.silent_lanes.values(), default=at)

    def lag(self, partition: TopicPartition, end: int | None, at: float) -> int | None:
        """Return how far a copy that ends there is behind what the source said lately; None: not known."""
        seen_at, source_end = self._ends.get(partition, (0.0, 0))
        if end is None or partition not in self._ends or at - seen_at > KNOWN_SECONDS:
            return None
        return max(0, source_end - end)

    def source_ends(self) -> dict[TopicPartition, tuple[float, int]]:
        """Return by partition when the source said where it ends, and where."""
        return self._ends.copy()

    def reported_at(self) -> dict[TopicPartition, float]:
        """Return by partition when its lane last reported."""
        return self._reported.copy()

    def known_at(self, partition: TopicPartition) -> float | None:
        """Return since when neither end of a copy is known any better; None: one of them was never known."""
        seen, reported_at = self._ends.get(partition), self._reported.get(partition)
        return None if seen is None or reported_at is None else min(seen[0], reported_at)


def no_workers_text(lanes: Iterable[int], silent_ms: int, master: str | None) -> str:
    """Return the sentence for lanes that no worker reports on, and what to do."""
    named = ", ".join(map(str, sorted(lanes)))
    where = f"the workers of Spark master {master}" if master else "the Spark workers"
    whose = f"lanes {named}" if "," in named else f"lane {named}"
    return f"no worker has reported on {whose} for {format_duration(silent_ms // 1000 * 1000)}; check {where}"
