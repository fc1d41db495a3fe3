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
class _Voice:
    """When some partitions were last reported on, together: what a lane copies, as it last said all of that."""

    heard_at: float
    #: When it was heard the time before.
    heard_before: float
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class _Told:
    """What a lane says of a partition's source: where it ends, and when it said so; None: lately."""

    voice: _Voice
    end: int | None
    seen_at: float | None

    @property
    def known(self) -> tuple[float, int] | None:
        """When the source said where it ends, and where; None where that is not known."""
        if self.end is None:
            return None
        return (self.voice.heard_at - FRESH_SECONDS if self.seen_at is None else self.seen_at), self.end


@dataclass(slots=True)
class Health:
    """Remember when what was last reported. The source monitor's thread reads it too, one value at a time.

    A lane reports on all that it copies, and names what has changed: the others' rows are as old as its last report.
    """

    began: float
    #: The lanes that no worker reports on, and since when that is so.
    silent_lanes: Mapping[int, float] = field(default_factory=dict)
    silent_partitions: frozenset[TopicPartition] = frozenset()
    #: True while the lanes do not report where the source ends.
    wants_ends: bool = False
    #: By partition, when the source told the source monitor where it ends, and where.
    _ends: dict[TopicPartition, tuple[float, int]] = field(default_factory=dict)
    #: By partition, what its lane says of the source; by lane, its voice.
    _told: dict[TopicPartition, _Told] = field(default_factory=dict)
    _voices: dict[int, _Voice] = field(default_factory=dict)
    #: What is copied and whose lane has had no answer from the source lately.
    _unseen: set[TopicPartition] = field(default_factory=set)

    def hear(self, lane: int, at: float, *, says_all: bool) -> None:
        """Note that a lane reports; `says_all`: what it does not name with this report it does not copy."""
        if says_all or lane not in self._voices:
            self._voices[lane] = _Voice(at, at)
        else:
            voice = self._voices[lane]
            voice.heard_at, voice.heard_before = at, voice.heard_at

    def take_report(self, partition: TopicPartition, record: ProgressRecord, row: ProgressRow, at: float) -> None:
        """Take what a lane that was heard says of the source."""
        voice = self._voices.setdefault(record.lane, _Voice(at, at))
        seen_ms = row.source_seen_ms
        seen_at = None if seen_ms is None else at - max(0, record.time_ms - seen_ms) / 1000
        if (before := self._told.get(partition)) is not None:
            before.voice.partitions -= 1
            # a lane that hangs up forgets when a source that stood still was last asked, which it had said before
            if seen_at is not None and before.seen_at is None and before.end is not None:
                heard_at = voice.heard_before if before.voice is voice else before.voice.heard_at
                self.take_end(partition, before.end, heard_at - FRESH_SECONDS)
        voice.partitions += 1
        self._told[partition] = _Told(voice, row.source_offset, seen_at)
        if seen_ms is None or row.state is PartitionState.FAILED:
            self._unseen.discard(partition)
        else:
            self._unseen.add(partition)

    def take_end(self, partition: TopicPartition, offset: int, seen_at: float) -> None:
        """Take where the source ended at a moment."""
        known = self._ends.get(partition)
        if known is None or seen_at > known[0]:
            self._ends[partition] = seen_at, offset

    def _end(self, partition: TopicPartition) -> tuple[float, int] | None:
        """Return when the source last said where it ends, to the lane or to the source monitor, and where."""
        told, known = self._told.get(partition), self._ends.get(partition)
        heard = told.known if told is not None else None
        if heard is None or known is None:
            return heard or known
        return max(heard, known, key=lambda one: one[0])

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was said of partitions."""
        for partition in partitions:
            self._ends.pop(partition, None)
            if (told := self._told.pop(partition, None)) is not None:
                told.voice.partitions -= 1
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
        known = self._end(partition)
        if end is None or known is None or at - known[0] > KNOWN_SECONDS:
            return None
        return max(0, known[1] - end)

    def is_seen(self, partition: TopicPartition, at: float) -> bool:
        """Tell whether the lane of a partition reports, and sees where its source ends."""
        told = self._told.get(partition)
        is_fresh = told is not None and told.end is not None and told.seen_at is None
        return is_fresh and told is not None and at - told.voice.heard_at <= LATE_SECONDS

    def source_ends(self) -> dict[TopicPartition, tuple[float, int]]:
        """Return by partition when the source said where it ends, and where."""
        partitions = self._told.keys() | self._ends.keys()
        return {partition: known for partition in partitions if (known := self._end(partition)) is not None}

    def reported_at(self) -> dict[TopicPartition, float]:
        """Return by partition when its lane last reported."""
        return {partition: told.voice.heard_at for partition, told in self._told.items()}

    @property
    def reported(self) -> int:
        """How many partitions lanes report on now, rather than did before they released them."""
        return sum(voice.partitions for voice in self._voices.values())

    def known_at(self, partition: TopicPartition) -> float | None:
        """Return since when neither end of a copy is known any better; None: one of them was never known."""
        known, told = self._end(partition), self._told.get(partition)
        return None if known is None or told is None else min(known[0], told.voice.heard_at)


def no_workers_text(lanes: Iterable[int], silent_ms: int, master: str | None) -> str:
    """Return the sentence for lanes that no worker reports on, and what to do."""
    named = ", ".join(map(str, sorted(lanes)))
    where = f"the workers of Spark master {master}" if master else "the Spark workers"
    whose = f"lanes {named}" if "," in named else f"lane {named}"
    return f"no worker has reported on {whose} for {format_duration(silent_ms // 1000 * 1000)}; check {where}"
