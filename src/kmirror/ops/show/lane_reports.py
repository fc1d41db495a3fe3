"""The last report of a mirror's lanes on each of its partitions. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.status.health import time_lag
from kmirror.state.records import FRESH_SECONDS, ProgressRecord, ProgressRow
from kmirror.state.snapshot import State


@dataclass(frozen=True, slots=True)
class Report:
    """A lane's last report on a partition, and the record that contains it."""

    record: ProgressRecord
    row: ProgressRow

    @property
    def time_ms(self) -> int:
        return self.record.time_ms

    @property
    def as_of_ms(self) -> int:
        """The latest time at which the source's reported values held."""
        seen_ms = self.row.source_seen_ms
        return self.time_ms - int(FRESH_SECONDS * 1000) if seen_ms is None else seen_ms

    @property
    def caught_up_ms(self) -> int | None:
        """When the destination last had all that the source has; None: never seen."""
        source_offset, destination_offset = self.row.source_offset, self.row.destination_offset
        if source_offset is not None and destination_offset is not None and destination_offset >= source_offset:
            return self.as_of_ms
        return self.row.caught_up_ms

    def time_lag(self, lag: int | None, now_ms: int) -> int | None:
        """Return an upper bound of the time in milliseconds for which the destination has been behind."""
        return time_lag(lag, self.row.last_timestamp_ms, self.caught_up_ms, self.time_ms, now_ms)


def reports_of(state: State, mirror: str) -> dict[TopicPartition, Report]:
    """Return the last report on each partition of a mirror."""
    found: dict[TopicPartition, Report] = {}
    for progress in state.progress(mirror):
        for row in progress.rows:
            partition = TopicPartition(row.topic, row.partition)
            if partition not in found or found[partition].time_ms < progress.time_ms:
                found[partition] = Report(progress, row)
    return found
