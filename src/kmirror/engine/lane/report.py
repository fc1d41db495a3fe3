"""What a lane says of its partitions: one row each, with the rates since the last time. For one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRow

_RATE_SECONDS = 0.5
#: Over so long the growth of the source's end is measured, at least: it is reported when nothing newer is known.
_GROWTH_SECONDS = 5.0


class _Speed(NamedTuple):
    """What a partition's bytes and end were at a moment, and how fast they grew until then."""

    at: float
    bytes_copied: int
    end: int | None
    bytes_per_second: float = 0.0
    offsets_per_second: float = 0.0


class Reports:
    """Make rows. `seen_at` tells when the source was last asked about a partition, None if never."""

    def __init__(self, seen_at: Callable[[PartitionCopy], float | None]) -> None:
        self._seen_at = seen_at
        self._speeds: dict[PartitionCopy, _Speed] = {}
        #: By partition, when its source was last seen to have no more than the destination.
        self._caught_up_at: dict[PartitionCopy, float] = {}
        #: By partition, when its source's end was last noted, where it was, and how fast it grew until then.
        self._growth: dict[PartitionCopy, tuple[float, int, float | None]] = {}
        #: What the clock of moments has to be moved by to tell the time, in milliseconds.
        self._epoch_ms = now_ms() - now() * 1000

    def rows(self, partitions: Iterable[PartitionCopy]) -> list[ProgressRow]:
        """Return the state of these partitions; of two copies of one partition only the later one."""
        at = now()
        speeds: dict[PartitionCopy, _Speed] = {}
        growth: dict[PartitionCopy, tuple[float, int, float | None]] = {}
        caught_up_at: dict[PartitionCopy, float] = {}
        rows: dict[tuple[str, int], ProgressRow] = {}
        for partition in partitions:
            seen_at = self._seen_at(partition)
            grown = self._grown(partition, seen_at)
            if grown is not None:
                growth[partition] = grown
            speed = speeds[partition] = self._speed(partition, at)
            is_caught_up = partition.caught_up
            last = seen_at if is_caught_up else self._caught_up_at.get(partition)
            if last is not None:
                caught_up_at[partition] = last
            rows[partition.assignment.destination] = row_of(partition)._replace(
                source_seen_ms=None if seen_at is None or at - seen_at < FRESH_SECONDS else self._epoch(seen_at),
                bytes_per_second=speed.bytes_per_second,
                records_per_second=grown[2] if grown else None,
                offsets_per_second=speed.offsets_per_second,
                caught_up_ms=None if is_caught_up or last is None else self._epoch(last),
            )
        self._speeds, self._growth, self._caught_up_at = speeds, growth, caught_up_at
        return list(rows.values())

    def _speed(self, partition: PartitionCopy, at: float) -> _Speed:
        """Return how fast a partition is copied, measured anew where that was some moments ago."""
        progress = partition.progress
        end = progress.acknowledged if progress.is_aligned else None
        before = self._speeds.get(partition)
        if before is None:
            return _Speed(at, progress.bytes_copied, end)
        seconds = at - before.at
        if seconds < _RATE_SECONDS:
            return before
        offsets = 0 if end is None or before.end is None else max(0, end - before.end)
        copied = progress.bytes_copied - before.bytes_copied
        return _Speed(at, progress.bytes_copied, end, float(int(copied / seconds)), round(offsets / seconds, 1))

    def _grown(self, partition: PartitionCopy, seen: float | None) -> tuple[float, int, float | None] | None:
        """Return when the source's end was noted, where it was, and how many offsets a second it grew until then.

        Time counts only while the source is seen: one that does not answer has not stopped growing.
        """
        before = self._growth.get(partition)
        offset = partition.source.last_stable_offset
        if seen is None or offset is None:
            return before
        if before is None or offset < before[1]:
            return seen, offset, None
        then, from_offset, rate = before
        if seen - then < _GROWTH_SECONDS:
            return before
        now_rate = (offset - from_offset) / (seen - then)
        return seen, offset, round(now_rate if rate is None else (rate + now_rate) / 2, 1)

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
