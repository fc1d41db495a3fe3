"""What a lane says of its partitions: one row each, with the rates since the last time. For one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

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


class Reports:
    """Make rows. `seen_at` tells when the source was last asked about a partition, None if never."""

    def __init__(self, seen_at: Callable[[PartitionCopy], float | None]) -> None:
        self._seen_at = seen_at
        self._speeds: dict[PartitionCopy, _Speed] = {}
        #: By partition, when its source was last seen to have no more than the destination.
        self._caught_up_at: dict[PartitionCopy, float] = {}
        #: By partition, how its source's end grows, and its destination's.
        self._source_growth: dict[PartitionCopy, _Growth] = {}
        self._growth: dict[PartitionCopy, _Growth] = {}
        #: What the clock of moments has to be moved by to tell the time, in milliseconds.
        self._epoch_ms = now_ms() - now() * 1000

    def rows(self, partitions: Iterable[PartitionCopy]) -> list[ProgressRow]:
        """Return the state of these partitions; of two copies of one partition only the later one."""
        at = now()
        speeds: dict[PartitionCopy, _Speed] = {}
        source_growth: dict[PartitionCopy, _Growth] = {}
        growth: dict[PartitionCopy, _Growth] = {}
        caught_up_at: dict[PartitionCopy, float] = {}
        rows: dict[tuple[str, int], ProgressRow] = {}
        for partition in partitions:
            seen_at = self._seen_at(partition)
            if (grown := self._source_grown(partition, seen_at)) is not None:
                source_growth[partition] = grown
            if (copied := self._grown(partition, at)) is not None:
                growth[partition] = copied
            speed = speeds[partition] = self._speed(partition, at)
            is_caught_up = partition.caught_up
            last = seen_at if is_caught_up else self._caught_up_at.get(partition)
            if last is not None:
                caught_up_at[partition] = last
            rows[partition.assignment.destination] = row_of(partition)._replace(
                source_seen_ms=None if seen_at is None or at - seen_at < FRESH_SECONDS else self._epoch(seen_at),
                bytes_per_second=speed.bytes_per_second,
                records_per_second=grown.per_second if grown else None,
                offsets_per_second=copied.per_second if copied else None,
                caught_up_ms=None if is_caught_up or last is None else self._epoch(last),
            )
        self._speeds, self._caught_up_at = speeds, caught_up_at
        self._source_growth, self._growth = source_growth, growth
        return list(rows.values())

    def _speed(self, partition: PartitionCopy, at: float) -> _Speed:
        """Return how fast a partition is copied, measured anew where that was some moments ago."""
        copied, before = partition.progress.bytes_copied, self._speeds.get(partition)
        if before is None:
            return _Speed(at, copied)
        seconds = at - before.at
        if seconds < _RATE_SECONDS:
            return before
        return _Speed(at, copied, float(int((copied - before.bytes_copied) / seconds)))

    def _grown(self, partition: PartitionCopy, at: float) -> _Growth | None:
        """Return how a partition's copy grows; None where nothing is copied yet."""
        end, before = partition.progress.acknowledged, self._growth.get(partition)
        if end is None or not partition.progress.is_aligned:
            return None
        return _Growth(at, end) if before is None else before.until(at, end)

    def _source_grown(self, partition: PartitionCopy, seen_at: float | None) -> _Growth | None:
        """Return how a partition's source grows.

        Time counts only while the source is seen: one that does not answer has not stopped growing.
        """
        end, before = partition.source.last_stable_offset, self._source_growth.get(partition)
        if seen_at is None or end is None:
            return before
        return _Growth(seen_at, end) if before is None else before.until(seen_at, end)

    def _epoch(self, at: float) -> int:
        return int(self._epoch_ms + at * 1000)


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
