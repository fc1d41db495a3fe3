"""What a lane says of its partitions: one row each, with the rate since the last time. For one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane_partition import PartitionCopy
from kmirror.state.records import FRESH_SECONDS, PartitionState, ProgressRow

_RATE_SECONDS = 0.5


class Reports:
    """Make rows. `seen_at` tells when the source was last asked about a partition, None if never."""

    def __init__(self, seen_at: Callable[[PartitionCopy], float | None]) -> None:
        self._seen_at = seen_at
        #: By partition, when its bytes were last counted, how many they were, and the rate then.
        self._rates: dict[PartitionCopy, tuple[float, int, float]] = {}
        #: What the clock of moments has to be moved by to tell the time, in milliseconds.
        self._epoch_ms = now_ms() - now() * 1000

    def rows(self, partitions: Iterable[PartitionCopy]) -> list[ProgressRow]:
        """Return how these partitions stand; of two copies of one partition only the later one."""
        at = now()
        rates: dict[PartitionCopy, tuple[float, int, float]] = {}
        rows: dict[tuple[str, int], ProgressRow] = {}
        for partition in partitions:
            then, copied, rate = self._rates.get(partition, (at, partition.bytes_copied, 0.0))
            if at - then >= _RATE_SECONDS:
                rate = (partition.bytes_copied - copied) / (at - then)
                then, copied = at, partition.bytes_copied
            rates[partition] = then, copied, rate
            report, recovery = partition.report(int(rate)), partition.assignment.recovery
            rows[report.topic, report.partition] = ProgressRow(
                report.topic,
                report.partition,
                report.source_offset,
                report.source_high_watermark,
                report.source_log_start,
                report.destination_offset,
                report.last_timestamp,
                PartitionState(report.state),
                report.reason,
                report.message,
                float(report.rate),
                report.begun,
                report.aligned_to,
                report.lost_from,
                report.lost_until,
                report.again_from,
                report.again_until,
                report.last_epoch,
                self._source_seen_ms(partition, at),
                report.retry_attempt,
                recovery.number if recovery else None,
            )
        self._rates = rates
        return list(rows.values())

    def _source_seen_ms(self, partition: PartitionCopy, at: float) -> int | None:
        """Return when the source was last asked about a partition; None within the last moments, or never."""
        seen = self._seen_at(partition)
        return None if seen is None or at - seen < FRESH_SECONDS else int(self._epoch_ms + seen * 1000)
