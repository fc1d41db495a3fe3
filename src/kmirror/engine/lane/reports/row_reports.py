"""What a lane reports of its partitions: one row each, with rates. For one thread at a time.

Most partitions of a wide mirror are idle: their rows are not computed again before something happens to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRow

_RATE_SECONDS = 0.5
#: The shortest time over which the growth of a log end is measured.
_GROWTH_SECONDS = 5.0
#: If brokers take longer than `FRESH_SECONDS` to answer, but less than this, a report says so of all rows at once: of
#: thousands of rows none has to be written again for that.
_LATE_SECONDS = 6.0
#: Fewer offsets to fill are not reported: that takes less than a second, or a few without the right to write markers.
_MANY_OFFSETS = 10_000


class _Speed(NamedTuple):
    """The bytes copied of a partition up to a time, and their rate until then."""

    at: float
    bytes_copied: int
    bytes_per_second: float = 0.0


class _Growth(NamedTuple):
    """The end of a log at a time, and its growth in offsets per second until then; None before it is measured."""

    at: float
    end: int
    per_second: float | None = None
    #: True while the log is filled below its start, which is much faster than anything else.
    is_filler: bool = False

    def until(self, at: float, end: int) -> _Growth:
        """Return the growth at a later time, smoothed: a quarter of it is the earlier value."""
        if end < self.end:
            return self._replace(at=at, end=end, per_second=None)
        if at - self.at < _GROWTH_SECONDS:
            return self
        measured = (end - self.end) / (at - self.at)
        smoothed = measured if self.per_second is None else (self.per_second + 3 * measured) / 4
        return self._replace(at=at, end=end, per_second=round(smoothed, 1))


#: A wall clock that differs by more from what was measured before was set: it may be wrong when an engine starts.
_CLOCK_STEP_MS = 1000

#: Everything that determines a partition's row except time; rates and counts follow what is copied.
_Fingerprint = tuple[object, ...]


class RowChanges(NamedTuple):
    """What changed since the last call: changed rows, and partitions that the lane no longer has.

    Rows without a time of their own say what the source returned within the last `seen_within` seconds.
    """

    changed: Mapping[TopicPartition, ProgressRow]
    gone: frozenset[TopicPartition]
    seen_within: float = FRESH_SECONDS

    def __bool__(self) -> bool:
        return bool(self.changed or self.gone)


@dataclass(slots=True)
class _Known:
    """What was last reported of a partition, and the basis of its rates."""

    fingerprint: _Fingerprint
    row: ProgressRow
    speed: _Speed
    #: The growth of its source's end, and of its destination's; None while unknown.
    source_growth: _Growth | None
    growth: _Growth | None
    #: When its source last had no more than the destination.
    caught_up_at: float | None
    #: True while only an event can change the row: caught up, idle, and its source broker responds.
    is_settled: bool


class Reports:
    """Compute rows. `seen_at` returns when the source was last asked about a partition, None if never.

    `answered_at` returns the earliest of the times at which each source broker was last asked and responded.
    """

    def __init__(
        self, seen_at: Callable[[PartitionCopy], float | None], answered_at: Callable[[], float] = lambda: -inf
    ) -> None:
        self._seen_at = seen_at
        self._answered_at = answered_at
        self._known: dict[PartitionCopy, _Known] = {}
        #: Those whose row changes as time passes.
        self._unsettled: set[PartitionCopy] = set()
        #: The copy that is reported for each partition: of two copies of one partition only the later one.
        self._copies: dict[TopicPartition, PartitionCopy] = {}
        self._partitions: Sequence[PartitionCopy] = ()
        #: When `changes` was last called, and what `answered_at` returned then.
        self._called_at = self._answered_then = 0.0
        self._seen_within, self._may_rest = FRESH_SECONDS, False
        #: What to add to the monotonic clock to get epoch milliseconds.
        self._epoch_ms = -inf

    def changes(
        self, partitions: Sequence[PartitionCopy], touched: Collection[PartitionCopy] | None = None
    ) -> RowChanges:
        """Return what changed; of two copies of one partition only the later one counts.

        Nothing has happened since the last call to partitions that are not `touched`; None: unknown.
        """
        at, copies, known = now(), self._copies, self._known
        measured = now_ms() - at * 1000
        if abs(measured - self._epoch_ms) > _CLOCK_STEP_MS:
            self._epoch_ms = measured
        # if a broker does not respond, the rows of its partitions age one by one
        answered_at = min(at, self._answered_at())
        age = at - answered_at
        self._seen_within = ceil(age) + 1.0 if FRESH_SECONDS <= age < _LATE_SECONDS - 1 else FRESH_SECONDS
        self._may_rest = may_rest = age < self._seen_within
        is_same = partitions == self._partitions
        if not is_same:
            copies = {partition.assignment.destination: partition for partition in partitions}
        if is_same and may_rest and touched is not None:
            some = self._unsettled.union(touched)
            observed = {
                topic_partition: one for one in some if copies.get(topic_partition := one.assignment.destination) is one
            }
        else:
            observed = copies
        changed: dict[TopicPartition, ProgressRow] = {}
        for topic_partition, partition in observed.items():
            before, fingerprint = known.get(partition), _fingerprint_of(partition)
            if may_rest and before is not None and before.is_settled and before.fingerprint == fingerprint:
                continue
            now_known = known[partition] = self._observe(partition, before, fingerprint, at)
            (self._unsettled.discard if now_known.is_settled else self._unsettled.add)(partition)
            if before is None or before.row != now_known.row or self._copies.get(topic_partition) is not partition:
                changed[topic_partition] = now_known.row
        gone = frozenset(() if is_same else self._copies.keys() - copies.keys())
        if len(known) > len(copies):
            current = set(copies.values())
            self._known = {partition: one for partition, one in known.items() if partition in current}
            self._unsettled &= current
        self._copies, self._partitions = copies, partitions
        self._called_at, self._answered_then = at, answered_at
        return RowChanges(changed, gone, self._seen_within)

    def _observe(self, partition: PartitionCopy, before: _Known | None, fingerprint: _Fingerprint, at: float) -> _Known:
        if before is not None and before.is_settled:
            before = self._as_of_last_call(before)
        seen_at = self._seen_at(partition)
        speed = _speed(partition, before.speed if before else None, at)
        source_growth = _source_growth(partition, before.source_growth if before else None, seen_at)
        growth = _growth(partition, before.growth if before else None, at)
        is_caught_up = partition.caught_up
        caught_up_at = seen_at if is_caught_up else before.caught_up_at if before else None
        is_fresh = seen_at is not None and at - seen_at < self._seen_within
        lost_at = partition.source.lost_at
        is_lost = lost_at is not None and seen_at is not None and lost_at >= seen_at
        row = row_of(partition)._replace(
            source_seen_ms=None if seen_at is None or (is_fresh and not is_lost) else self._epoch(seen_at),
            source_lost_ms=self._epoch(lost_at) if lost_at is not None and is_lost else None,
            bytes_per_second=speed.bytes_per_second,
            records_per_second=source_growth.per_second if source_growth else None,
            offsets_per_second=growth.per_second if growth else None,
            caught_up_ms=None if is_caught_up or caught_up_at is None else self._epoch(caught_up_at),
        )
        if (known := partition.assignment.source_seen) is not None and partition.source.last_stable_offset is None:
            row = row._replace(
                source_offset=known.last_stable_offset,
                source_high_watermark=known.high_watermark,
                source_log_start=known.log_start,
                source_seen_ms=known.time_ms,
                source_lost_ms=known.lost_ms,
                records_per_second=known.records_per_second,
            )
        is_still = speed.bytes_per_second == 0 == row.records_per_second == row.offsets_per_second
        is_settled = is_still and is_caught_up and is_fresh and not partition.source.is_deferred and self._may_rest
        return _Known(fingerprint, row, speed, source_growth, growth, caught_up_at, is_settled)

    def _as_of_last_call(self, known: _Known) -> _Known:
        """Return what was known of a settled partition, as if it had been observed in the last call."""
        called_at, answered_at = self._called_at, self._answered_then
        return replace(
            known,
            speed=known.speed._replace(at=called_at),
            source_growth=known.source_growth._replace(at=answered_at) if known.source_growth else None,
            growth=known.growth._replace(at=called_at) if known.growth else None,
            caught_up_at=answered_at,
        )

    def _epoch(self, at: float) -> int:
        return int(self._epoch_ms + at * 1000)


def _fingerprint_of(partition: PartitionCopy) -> _Fingerprint:
    source, progress, retry = partition.source, partition.progress, partition.retry
    return (
        partition.status,
        partition.facts,
        progress.acknowledged,
        source.last_stable_offset,
        source.high_watermark,
        source.log_start,
        source.is_deferred,
        source.silence,
        retry.trouble,
        retry.failure,
        partition.log_start.target,
        partition.filling,
    )


def _speed(partition: PartitionCopy, before: _Speed | None, at: float) -> _Speed:
    """Return how fast a partition is copied, measured again if the last time is long enough ago."""
    copied = partition.progress.bytes_copied
    if before is None:
        return _Speed(at, copied)
    seconds = at - before.at
    if seconds < _RATE_SECONDS:
        return before
    return _Speed(at, copied, float(int((copied - before.bytes_copied) / seconds)))


def _growth(partition: PartitionCopy, before: _Growth | None, at: float) -> _Growth | None:
    """Return the growth of a partition's copy; None while nothing is copied or filled."""
    filling = partition.filling
    end = filling[0] if filling else partition.progress.acknowledged
    if end is None or not (filling or partition.progress.is_aligned):
        return None
    is_filler = partition.log_start.fill_to is not None
    if before is None or before.is_filler is not is_filler:
        return _Growth(at, end, is_filler=is_filler)
    return before.until(at, end)


def _source_growth(partition: PartitionCopy, before: _Growth | None, seen_at: float | None) -> _Growth | None:
    """Return the growth of a partition's source.

    Time counts only while the source responds: one that does not has not stopped growing.
    """
    end = partition.source.last_stable_offset
    if seen_at is None or end is None:
        return before
    return _Growth(seen_at, end) if before is None else before.until(seen_at, end)


def row_of(copy: PartitionCopy) -> ProgressRow:
    """Return the row of a partition without rates and when its source was seen and lost."""
    assignment, progress, source = copy.assignment, copy.progress, copy.source
    failed = copy.retry.failure
    why = failed or copy.retry.trouble or source.silence
    state = PartitionState.LOG_ALIGNMENT
    if failed:
        state = PartitionState.FAILED
    elif progress.is_aligned and not copy.is_to_be_trimmed:
        state = PartitionState.MIRRORING
    lost_from, lost_until = progress.lost or (None, None)
    again_from, again_until = progress.again or (None, None)
    filled_to, fill_end = copy.filling or (0, 0)
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
        offsets_to_fill=fill_end - filled_to if fill_end - filled_to >= _MANY_OFFSETS else None,
    )
