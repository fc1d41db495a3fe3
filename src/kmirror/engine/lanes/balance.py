"""Which partitions move to another lane, because their lane will need far longer than that one for its backlog. Pure.

The criterion is the time that a lane needs for its backlog at its recent rate: it is long on a slow worker, and if one
lane got more bytes than another. Nothing moves while all lanes keep up. A move stalls a partition for a moment, and
does not help if the lane was not the bottleneck: so the difference must be large, both lanes must have had the same
work for a while, and a partition that was moved stays for minutes, twice as long each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from kmirror.cluster.protocol.metadata import TopicPartition

#: How often positions are sampled, and over how many samples a rate is measured.
SAMPLE_SECONDS = 2.0
_SAMPLES = 6
_PARTITIONS_PER_SECOND = 2_000
#: A backlog that a lane copies within this time is not worth a move.
_LONG_SECONDS = 20.0
#: A lane gets more only if it will be done, new work included, in this part of the other's time.
_WORTH = 0.6
#: After a move a partition stays this long where it is; twice as long after each further one.
_STAY_SECONDS = 300.0
_LONGEST_STAY_SECONDS = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Position:
    """How far the copy of a partition is: its end, the offsets left, and the mean bytes per offset."""

    end: int
    lag: int
    bytes_per_offset: float


@dataclass(frozen=True, slots=True)
class LanePace:
    """The bytes that a lane has left, and its recent rate in bytes a second."""

    left: float
    rate: float

    @property
    def seconds(self) -> float:
        """How long it needs for what is left."""
        if not self.left:
            return 0.0
        return self.left / self.rate if self.rate else inf

    @property
    def is_behind(self) -> bool:
        return self.seconds >= _LONG_SECONDS


class Balance:
    """Follow the lanes of one mirror; moments are seconds of the engine's own clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[TopicPartition, Position]]] = deque(maxlen=_SAMPLES)
        #: By lane, its partitions, and since when it has these.
        self._held: dict[int, tuple[frozenset[TopicPartition], float]] = {}
        #: By lane, its highest rate in bytes a second.
        self.best: dict[int, float] = {}
        #: By partition that was moved, until when it stays, and how long that is in all.
        self._stays: dict[TopicPartition, tuple[float, float]] = {}
        #: By lane, its backlog and rate, if they are known.
        self.paces: dict[int, LanePace] = {}

    def is_due(self, at: float, partitions: int) -> bool:
        """Return whether to take a sample: less often with very many partitions, as each costs microseconds."""
        pause = max(SAMPLE_SECONDS, partitions / _PARTITIONS_PER_SECOND)
        return not self._samples or at - self._samples[-1][0] >= pause

    def take(
        self, held: Mapping[int, Collection[TopicPartition]], positions: Mapping[TopicPartition, Position], at: float
    ) -> None:
        """Take the lanes' partitions, and the positions of partitions that are copied and whose two ends are known."""
        self._samples.append((at, dict(positions)))
        for lane in self._held.keys() - held.keys():
            del self._held[lane]
            self.best.pop(lane, None)
        for lane, partitions in held.items():
            now = frozenset(partitions)
            if lane not in self._held or self._held[lane][0] != now:
                self._held[lane] = now, at
        self._stays = {p: stay for p, stay in self._stays.items() if at < stay[0] + stay[1]}
        self.paces = {}
        began = self._samples[0][0]
        if len(self._samples) == _SAMPLES:
            for lane, (partitions, since) in self._held.items():
                if since <= began:
                    # the others have nothing left and copied nothing, as far as we know
                    known = partitions & positions.keys() if positions else ()
                    pace = LanePace(sum(self._left(p) for p in known), sum(self.rate(p) for p in known))
                    self.paces[lane] = pace
                    self.best[lane] = max(self.best.get(lane, 0.0), pace.rate)

    def rate(self, partition: TopicPartition) -> float:
        """Return a partition's recent rate in bytes a second; 0 if it is unknown."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        then, now = first.get(partition), last.get(partition)
        if then is None or now is None or now.end <= then.end:
            return 0.0
        return (now.end - then.end) * now.bytes_per_offset / (ended - began)

    def _left(self, partition: TopicPartition) -> float:
        """Return the bytes left of a partition that had some left in all samples; otherwise 0."""
        seen = [positions.get(partition) for _, positions in self._samples]
        last = seen[-1]
        if last is None or not all(position is not None and position.lag for position in seen):
            return 0.0
        return last.lag * last.bytes_per_offset

    def moves(self, at: float) -> dict[TopicPartition, int]:
        """Return the partitions to move, each with its new lane; most often none."""
        if len(self.paces) < 2:
            return {}
        slow = max(self.paces, key=lambda lane: (self.paces[lane].seconds, self.paces[lane].left))
        fast = min(self.paces, key=lambda lane: (self.paces[lane].seconds, self.paces[lane].rate))
        behind, ahead = self.paces[slow], self.paces[fast]
        speed = self._speed(fast)
        if not behind.is_behind or not speed:
            return {}
        # with this much less, both would be done at the same time
        surplus = (behind.left * speed - ahead.left * behind.rate) / (behind.rate + speed)
        movable = sorted(
            (left, partition)
            for partition in self._held[slow][0]
            if (left := self._left(partition)) and at >= self._stays.get(partition, (0.0, 0.0))[0]
        )
        if len(self._held[slow][0]) == len(movable):
            movable = movable[1:]  # a lane without any would end
        found: list[TopicPartition] = []
        moved = 0.0
        for left, partition in reversed(movable):
            if moved + left <= surplus:
                found.append(partition)
                moved += left
        if not found and movable:
            moved, partition = movable[0]
            found = [partition]
        if not found or (ahead.left + moved) / speed > _WORTH * behind.seconds:
            return {}
        for partition in found:
            _, before = self._stays.get(partition, (0.0, 0.0))
            stay = min(2 * before or _STAY_SECONDS, _LONGEST_STAY_SECONDS)
            self._stays[partition] = at + stay, stay
        return dict.fromkeys(found, fast)

    def _speed(self, lane: int) -> float:
        """Return how fast a lane will copy more work; for one that keeps up, its capacity can only be estimated."""
        pace = self.paces[lane]
        if pace.is_behind:
            return pace.rate
        most = max(self.best.values())
        return max(most - pace.rate, most / 2)
