"""What a lane says of its partitions: one row each, with the rates since the last time. For one thread at a time.

Most partitions of a wide mirror stand still: those are not looked at before something happens with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRow

_RATE_SECONDS = 0.5
#: Over so long the growth of an end is measured, at least: it is reported when nothing newer is known.
_GROWTH_SECONDS = 5.0


class _Speed(NamedTuple):
    """How many bytes of a partition were copied at a moment, and how fast they grew until then."""

    at: float
    bytes_copied: int
    bytes_per_second: float = 0.0


class _Growth(NamedTuple):
    """Where a log ended at a moment, and how many offsets a second it grew until then; None before it is measured."""

    at: float
    end: int
    per_second: float | None = None

    def until(self, at: float, end: int) -> _Growth:
        """Return the growth at a later moment: a quarter of it is what it was before."""
        if end < self.end:
            return _Growth(at, end)
        if at - self.at < _GROWTH_SECONDS:
            return self
        measured = (end - self.end) / (at - self.at)
        return _Growth(at, end, round(measured if self.per_second is None else (self.per_second + 3 * measured) / 4, 1))


#: Whatever a partition's row is made of, but for what time alone changes; rates and counts follow what is copied.
_Print = tuple[object, ...]


class News(NamedTuple):
    """What is new since the last look: rows that have changed, and partitions that the lane has no more."""

    changed: Mapping[TopicPartition, ProgressRow]
    gone: frozenset[TopicPartition]

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)


@dataclass(slots=True)
class _Known:
    """What was last reported of a partition, and what its rates are measured from."""

    made_of: _Print
    row: ProgressRow
    speed: _Speed
    #: How its source's end grows, and its destination's; None before that is known.
    source_growth: _Growth | None
    growth: _Growth | None
    #: When its source was last seen to have no more than the destination.
    caught_up_at: float | None
    #: True while nothing but an event changes the row: it has all of its source, whose broker answers, and is still.
    is_settled: bool


class Reports:
    """Make rows. `seen_at` tells when the source was last asked about a partition, None if never.

    `answered_at` is the earliest moment at which any of the source's brokers was last asked that did answer.
    """

    def __init__(
        self, seen_at: Callable[[PartitionCopy], float | None], answered_at: Callable[[], float] = lambda: -inf
    ) -> None:
        self._seen_at = seen_at
        self._answered_at = answered_at
        self._known: dict[PartitionCopy, _Known] = {}
        #: Those whose row changes by itself, as time passes.
        self._unsettled: set[PartitionCopy] = set()
        #: By place, the copy that is reported on: of two copies of one partition only the later one.
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._partitions: Sequence[PartitionCopy] = ()
        #: When it was last looked, and what `answered_at` said then.
        self._looked_at = self._answered_then = 0.0
        #: What the clock of moments has to be moved by to tell the time, in milliseconds.
        self._epoch_ms = now_ms() - now() * 1000

    def look(self, partitions: Sequence[PartitionCopy], moved: Collection[PartitionCopy] | None = None) -> News:
        """Return what is new; of two copies of one partition only the later one counts.

        Nothing has happened since the last look with those that are not `moved`; None: that is not known.
        """
        at, copies, known = now(), self._copies, self._known
        # a broker that is silent makes its partitions' rows old, one by one
        answered_at = min(at, self._answered_at())
        may_rest = at - answered_at < FRESH_SECONDS
        is_same = partitions == self._partitions
        if not is_same:
            copies = {partition.assignment.destination: partition for partition in partitions}
        if is_same and may_rest and moved is not None:
            some = self._unsettled.union(moved)
            looked_at = {place: one for one in some if copies.get(place := one.assignment.destination) is one}
        else:
            looked_at = copies
        changed: dict[TopicPartition, ProgressRow] = {}
        for place, partition in looked_at.items():
            before, made_of = known.get(partition), _made_of(partition)
            if may_rest and before is not None and before.is_settled and before.made_of == made_of:
                continue
            now_known = known[partition] = self._look_at(partition, before, made_of, at)
            (self._unsettled.discard if now_known.is_settled else self._unsettled.add)(partition)
            if before is None or before.row != now_known.row or self._copies.get(place) is not partition:
                changed[place] = now_known.row
        gone = frozenset(() if is_same else self._copies.keys() - copies.keys())
        if len(known) > len(copies):
            current = set(copies.values())
            self._known = {partition: one for partition, one in known.items() if partition in current}
            self._unsettled &= current
        self._copies, self._partitions = copies, partitions
        self._looked_at, self._answered_then = at, answered_at
        return News(changed, gone)

    def _look_at(self, partition: PartitionCopy, before: _Known | None, made_of: _Print, at: float) -> _Known:
        if before is not None and before.is_settled:
            before = self._since_last_look(before)
        seen_at = self._seen_at(partition)
        speed = _speed(partition, before.speed if before else None, at)
        source_growth = _source_growth(partition, before.source_growth if before else None, seen_at)
        growth = _growth(partition, before.growth if before else None, at)
        is_caught_up = partition.caught_up
        caught_up_at = seen_at if is_caught_up else before.caught_up_at if before else None
        is_fresh = seen_at is not None and at - seen_at < FRESH_SECONDS
        row = row_of(partition)._replace(
            source_seen_ms=None if seen_at is None or is_fresh else self._epoch(seen_at),
            bytes_per_second=speed.bytes_per_second,
            records_per_second=source_growth.per_second if source_growth else None,
            offsets_per_second=growth.per_second if growth else None,
            caught_up_ms=None if is_caught_up or caught_up_at is None else self._epoch(caught_up_at),
        )
        is_still = speed.bytes_per_second == 0 == row.records_per_second == row.offsets_per_second
        is_settled = is_still and is_caught_up and is_fresh and not partition.source.is_put_off
        return _Known(made_of, row, speed, source_growth, growth, caught_up_at, is_settled)

    def _since_last_look(self, known: _Known) -> _Known:
        """Return what was known of a partition that stood still until the last look, as if it was looked at then."""
        looked_at, answered_at = self._looked_at, self._answered_then
        return replace(
            known,
            speed=known.speed._replace(at=looked_at),
            source_growth=known.source_growth._replace(at=answered_at) if known.source_growth else None,
            growth=known.growth._replace(at=looked_at) if known.growth else None,
            caught_up_at=answered_at,
        )

    def _epoch(self, at: float) -> int:
        return int(self._epoch_ms + at * 1000)


def _made_of(partition: PartitionCopy) -> _Print:
    source, progress, retry = partition.source, partition.progress, partition.retry
    return (
        partition.status,
        partition.facts,
        progress.acknowledged,
        source.last_stable_offset,
        source.high_watermark,
        source.log_start,
        source.is_put_off,
        retry.trouble,
        retry.failure,
        partition.log_start.target,
    )


def _speed(partition: PartitionCopy, before: _Speed | None, at: float) -> _Speed:
    """Return how fast a partition is copied, measured anew where that was some moments ago."""
    copied = partition.progress.bytes_copied
    if before is None:
        return _Speed(at, copied)
    seconds = at - before.at
    if seconds < _RATE_SECONDS:
        return before
    return _Speed(at, copied, float(int((copied - before.bytes_copied) / seconds)))


def _growth(partition: PartitionCopy, before: _Growth | None, at: float) -> _Growth | None:
    """Return how a partition's copy grows; None where nothing is copied yet."""
    end = partition.progress.acknowledged
    if end is None or not partition.progress.is_aligned:
        return None
    return _Growth(at, end) if before is None else before.until(at, end)


def _source_growth(partition: PartitionCopy, before: _Growth | None, seen_at: float | None) -> _Growth | None:
    """Return how a partition's source grows.

    Time counts only while the source is seen: one that does not answer has not stopped growing.
    """
    end = partition.source.last_stable_offset
    if seen_at is None or end is None:
        return before
    return _Growth(seen_at, end) if before is None else before.until(seen_at, end)


def row_of(copy: PartitionCopy) -> ProgressRow:
    """Describe a partition's state; when its source was seen, and how both ends grow, is left open."""
    assignment, progress, source = copy.assignment, copy.progress, copy.source
    failed = copy.retry.failure
    why = failed or copy.retry.trouble
    state = PartitionState.LOG_ALIGNMENT
    if failed:
        state = PartitionState.FAILED
    elif progress.is_aligned and not copy.is_to_be_trimmed:
        state = PartitionState.MIRRORING
    lost_from, lost_until = progress.lost or (None, None)
    again_from, again_until = progress.again or (None, None)
    return ProgressRow(
        topic=assignment.topic,
        partition=assignment.partition,
        source_offset=source.last_stable_offset,
        source_high_watermark=source.high_watermark,
        source_log_start=source.log_start,
        destination_offset=progress.acknowledged if progress.is_aligned else None,
        last_timestamp_ms=progress.timestamp,
        state=state,
        reason=why.reason if why else None,
        message=why.message if why else None,
        begun=progress.begun,
        aligned_to=copy.log_start.aligned_to,
        lost_from=lost_from,
        lost_until=lost_until,
        again_from=again_from,
        again_until=again_until,
        last_epoch=progress.epoch if (progress.epoch or 0) >= 0 else None,
        retry_attempt=copy.retry.attempt,
        recovery=assignment.recovery.number if assignment.recovery else None,
        failed_offset=failed.offset if failed else None,
        records_copied=progress.records_copied,
        bytes_copied=progress.bytes_copied,
    )
