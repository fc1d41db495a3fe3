"""What a mirror's lanes have copied since its engine started, including lanes that were restarted. Pure.

A lane counts from its own start, and for a partition from its assignment: a count that has become smaller, or comes
from another run, is added as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.records import NONE_YET, Latencies, ProgressRecord

_TOTALS = (
    "fetched_bytes",
    "throttled_ms",
    "batches_copied",
    "batches_taken_apart",
    "batches_merged",
    "offsets_filled",
)
#: A run of a lane: its generation and Spark's attempt.
_Run = tuple[int, int]


@dataclass(slots=True)
class Copied:
    """Records, and the bytes of their batches."""

    records: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Counters:
    """Sum up what the lanes of one engine report; for one thread."""

    #: By destination topic.
    copied: defaultdict[str, Copied] = field(default_factory=lambda: defaultdict(Copied))
    fetched_bytes: int = 0
    throttled_ms: int = 0
    batches_copied: int = 0
    batches_taken_apart: int = 0
    batches_merged: int = 0
    offsets_filled: int = 0
    fetch_latencies: Latencies = NONE_YET
    produce_latencies: Latencies = NONE_YET
    #: By lane, its latest run and that run's last report.
    _last: dict[int, tuple[_Run, ProgressRecord]] = field(default_factory=dict)
    #: By lane and partition, the run that last counted, and its records and bytes.
    _partitions: dict[tuple[int, TopicPartition], tuple[_Run, int, int]] = field(default_factory=dict)

    def take(self, record: ProgressRecord) -> None:
        """Take a report of one of the engine's lanes."""
        run = record.generation, record.attempt
        last_run, last = self._last.get(record.lane, (run, None))
        before = last if run == last_run else None
        # an older report has smaller sums; times do not tell, since a worker's clock may be set back
        if run < last_run or (before is not None and _totals(record) < _totals(before)):
            return
        self._last[record.lane] = run, record
        for name in _TOTALS:
            grown = getattr(record, name) - (getattr(before, name) if before else 0)
            setattr(self, name, getattr(self, name) + grown)
        fetches, appends = (before.fetch_latencies, before.produce_latencies) if before else (NONE_YET, NONE_YET)
        self.fetch_latencies = _sum(self.fetch_latencies, record.fetch_latencies, fetches)
        self.produce_latencies = _sum(self.produce_latencies, record.produce_latencies, appends)
        for row in record.rows:
            if row.bytes_copied:
                key = record.lane, TopicPartition(row.topic, row.partition)
                self._take_partition(key, run, row.records_copied, row.bytes_copied)

    def copy(self) -> Counters:
        """Return the sums as they are now."""
        copied = {topic: replace(found) for topic, found in self.copied.items()}
        return replace(self, copied=defaultdict(Copied, copied), _last={}, _partitions={})

    def _take_partition(self, key: tuple[int, TopicPartition], run: _Run, records: int, size: int) -> None:
        known, records_before, bytes_before = self._partitions.get(key, (run, 0, 0))
        if known == run and bytes_before == size:
            return
        if known != run or bytes_before > size:
            records_before = bytes_before = 0
        self._partitions[key] = run, records, size
        copied = self.copied[key[1].topic]
        copied.records += records - records_before
        copied.bytes += size - bytes_before


def _totals(record: ProgressRecord) -> list[int]:
    return [getattr(record, name) for name in _TOTALS]


def _sum(total: Latencies, now: Latencies, before: Latencies) -> Latencies:
    grown = zip(total.counts, now.counts, before.counts, strict=True)
    return Latencies(tuple(t + n - b for t, n, b in grown), total.seconds + now.seconds - before.seconds)
