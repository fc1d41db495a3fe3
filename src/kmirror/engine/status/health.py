"""Whether a mirror's records flow, from what its lanes report and what its source last answered. Pure.

A lane reports every two seconds. One that has not for `LANE_SILENCE_SECONDS` counts as copying nothing, whatever its
partitions' last rows say; and a source end that is older than `KNOWN_SECONDS` says nothing of how far behind a copy is.
Lanes report the source's end as they fetch; if they do not, the source monitor reads it.

Times are in seconds of the engine's own clock: a worker's clock is only compared with itself.

How far behind in time a copy is: a record that is not copied yet arrived at the source after the newest one that is,
and after the time at which the copy had last caught up. The later of the two bounds how far behind the copy is: that is
right after an idle hour too, and for records with old timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import PartitionState, ProgressRecord, ProgressRow
from kmirror.status.engine_health import LANE_SILENCE_MS

LANE_SILENCE_SECONDS = LANE_SILENCE_MS / 1000
KNOWN_SECONDS = 10.0
#: While a lane is late by this much, the source monitor reads the source's ends.
LATE_SECONDS = 4.0


@dataclass(slots=True)
class _Lane:
    """When a lane last reported, on all its partitions together; a complete report starts a new _Lane."""

    reported_at: float
    #: Since when at least what it reported of the source held; and the same of the report before that.
    seen_at: float
    seen_before: float
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class _LaneEnd:
    """The source end of a partition that its lane reports, and when the source returned it; None: lately."""

    lane: _Lane
    end: int | None
    seen_at: float | None

    @property
    def known(self) -> tuple[float, int] | None:
        """When the source returned its end, and the end; None if it is unknown."""
        if self.end is None:
            return None
        return (self.lane.seen_at if self.seen_at is None else self.seen_at), self.end


@dataclass(slots=True)
class MirrorHealth:
    """Know when everything was last reported. The source monitor's thread reads it too, one value at a time.

    A lane's report is about all its partitions, and has the rows that changed: the other rows are confirmed by it.
    """

    began: float
    #: The lanes that no worker reports on, and since when.
    silent_lanes: Mapping[int, float] = field(default_factory=dict)
    #: True while the lanes do not report the source's ends.
    wants_ends: bool = False
    #: By partition, when the source monitor read the source's end, and the end.
    _ends: dict[TopicPartition, tuple[float, int]] = field(default_factory=dict)
    #: By partition, the source end that its lane reports; and by number, the lanes.
    _lane_ends: dict[TopicPartition, _LaneEnd] = field(default_factory=dict)
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    #: Partitions whose lane has had no answer from the source lately.
    _unseen: set[TopicPartition] = field(default_factory=set)

    def take_lane(self, report: ProgressRecord, at: float, *, is_complete: bool) -> None:
        """Note that a lane reports; if that `is_complete`, it does not copy what the report does not name."""
        seen_at = at - report.seen_within_ms / 1000
        if is_complete or report.lane not in self._lanes:
            self._lanes[report.lane] = _Lane(at, seen_at, seen_at)
        else:
            known = self._lanes[report.lane]
            known.reported_at, known.seen_at, known.seen_before = at, seen_at, known.seen_at

    def take_row(self, partition: TopicPartition, record: ProgressRecord, row: ProgressRow, at: float) -> None:
        """Take what a lane's row says of the source."""
        if record.lane not in self._lanes:
            self.take_lane(record, at, is_complete=True)
        lane, seen_ms = self._lanes[record.lane], row.source_seen_ms
        seen_at = None if seen_ms is None else at - max(0, record.time_ms - seen_ms) / 1000
        if (before := self._lane_ends.get(partition)) is not None:
            before.lane.partitions -= 1
            # a lane that disconnects no longer knows when it last asked an idle source, which its last row said
            if seen_at is not None and before.seen_at is None and before.end is not None:
                self.take_end(partition, before.end, lane.seen_before if before.lane is lane else before.lane.seen_at)
        lane.partitions += 1
        self._lane_ends[partition] = _LaneEnd(lane, row.source_offset, seen_at)
        if seen_ms is None or row.state is PartitionState.FAILED:
            self._unseen.discard(partition)
        else:
            self._unseen.add(partition)

    def take_end(self, partition: TopicPartition, offset: int, seen_at: float) -> None:
        """Take the source's end at a time."""
        known = self._ends.get(partition)
        if known is None or seen_at > known[0]:
            self._ends[partition] = seen_at, offset

    def end_of(self, partition: TopicPartition) -> tuple[float, int] | None:
        """Return when the source last returned its end, to the lane or to the source monitor, and the end."""
        of_lane, read = self._lane_ends.get(partition), self._ends.get(partition)
        reported = of_lane.known if of_lane is not None else None
        if reported is None or read is None:
            return reported or read
        return max(reported, read, key=lambda one: one[0])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions."""
        for partition in partitions:
            self._ends.pop(partition, None)
            if (end := self._lane_ends.pop(partition, None)) is not None:
                end.lane.partitions -= 1
            self._unseen.discard(partition)

    def take_silence(self, silent: Mapping[int, float | None], *, late: bool) -> bool:
        """Take which lanes are silent; return whether other lanes were silent before.

        `late`: some lane has not reported for a few seconds.
        """
        has_changed = silent.keys() != self.silent_lanes.keys()
        self.silent_lanes = {lane: self.began if at is None else at for lane, at in silent.items()}
        self.wants_ends = late or bool(self._unseen)
        return has_changed

    def silence(self, at: float) -> float:
        """Return for how many seconds the longest silent lane has not reported."""
        return at - min(self.silent_lanes.values(), default=at)

    def lag(self, partition: TopicPartition, end: int | None, at: float) -> int | None:
        """Return how far a copy that ends at `end` is behind the source's end; None if either is unknown or old."""
        known = self.end_of(partition)
        if end is None or known is None or at - known[0] > KNOWN_SECONDS:
            return None
        return max(0, known[1] - end)

    def is_end_reported(self, partition: TopicPartition, at: float) -> bool:
        """Return whether a partition's lane reports its source's end now."""
        end = self._lane_ends.get(partition)
        if end is None or end.end is None or end.seen_at is not None:
            return False
        return at - end.lane.reported_at <= LATE_SECONDS

    def source_ends(self) -> dict[TopicPartition, tuple[float, int]]:
        """Return by partition when the source last returned its end, and the end."""
        partitions = self._lane_ends.keys() | self._ends.keys()
        return {partition: known for partition in partitions if (known := self.end_of(partition)) is not None}

    @property
    def lanes_seen_at(self) -> list[float]:
        """Since when at least what each lane reported of the source holds."""
        return [lane.seen_at for lane in self._lanes.values() if lane.partitions]

    def reported_at(self) -> dict[TopicPartition, float]:
        """Return by partition when its lane last reported."""
        return {partition: end.lane.reported_at for partition, end in self._lane_ends.items()}

    @property
    def reported(self) -> int:
        """How many partitions lanes report on now; those that were released do not count."""
        return sum(lane.partitions for lane in self._lanes.values())

    def reported_at_of(self, partition: TopicPartition) -> float | None:
        """Return when a partition's lane last reported; None for never."""
        end = self._lane_ends.get(partition)
        return None if end is None else end.lane.reported_at
