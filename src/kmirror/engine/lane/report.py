"""What a lane says of its partitions: one row each, with the rate since the last time. For one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRow

_RATE_SECONDS = 0.5
#: Over so long the growth of the source's end is measured, at least: it is reported when nothing newer is known.
_GROWTH_SECONDS = 5.0


class Reports:
    """Make rows. `seen_at` tells when the source was last asked about a partition, None if never."""

    def __init__(self, seen_at: Callable[[PartitionCopy], float | None]) -> None:
        self._seen_at = seen_at
        #: By partition, when its bytes were last counted, how many they were, and the rate then.
        self._rates: dict[PartitionCopy, tuple[float, int, float]] = {}
        #: By partition, when its source's end was last noted, where it was, and how fast it grew until then.
        self._growth: dict[PartitionCopy, tuple[float, int, float | None]] = {}
        #: What the clock of moments has to be moved by to tell the time, in milliseconds.
        self._epoch_ms = now_ms() - now() * 1000

    def rows(self, partitions: Iterable[PartitionCopy]) -> list[ProgressRow]:
        """Return the state of these partitions; of two copies of one partition only the later one."""
        at = now()
        rates: dict[PartitionCopy, tuple[float, int, float]] = {}
        growth: dict[PartitionCopy, tuple[float, int, float | None]] = {}
        rows: dict[tuple[str, int], ProgressRow] = {}
        for partition in partitions:
            grown = self._grown(partition)
            if grown is not None:
                growth[partition] = grown
            then, copied, rate = self._rates.get(partition, (at, partition.progress.bytes_copied, 0.0))
            if at - then >= _RATE_SECONDS:
                rate = (partition.progress.bytes_copied - copied) / (at - then)
                then, copied = at, partition.progress.bytes_copied
            rates[partition] = then, copied, rate
            rows[partition.assignment.destination] = row_of(partition, float(int(rate)))._replace(
                source_seen_ms=self._source_seen_ms(partition, at), records_per_second=grown[2] if grown else None
            )
        self._rates, self._growth = rates, growth
        return list(rows.values())

    def _grown(self, partition: PartitionCopy) -> tuple[float, int, float | None] | None:
        """Return when the source's end was noted, where it was, and how many offsets a second it grew until then.

        Time counts only while the source is seen: one that does not answer has not stopped growing.
        """
        seen, before = self._seen_at(partition), self._growth.get(partition)
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

    def _source_seen_ms(self, partition: PartitionCopy, at: float) -> int | None:
        """Return when the source was last asked about a partition; None within the last moments, or never."""
        seen = self._seen_at(partition)
        return None if seen is None or at - seen < FRESH_SECONDS else int(self._epoch_ms + seen * 1000)


def row_of(copy: PartitionCopy, bytes_per_second: float = 0.0) -> ProgressRow:
    """Describe a partition's state; when its source was seen, and how it grows, is left open."""
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
        bytes_per_second=bytes_per_second,
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
    )
