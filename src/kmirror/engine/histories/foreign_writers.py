"""Find who else wrote to a mirror partition, and how much. Blocking."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import read_batches
from kmirror.engine.histories.judge import ForeignWriters

#: The most bytes read for counting; the count is a lower bound if there are more.
_MOST_BYTES = 64 << 20


def foreign_writers_in(
    client: ClusterClient, partition: TopicPartition, low: int, high: int, own: int
) -> ForeignWriters:
    """Count the records from `low` to `high` (exclusive) that producer id `own` did not write, without markers.

    Raises:
        KmirrorError, OutcomeUnknown: the partition cannot be read.
    """
    first = producer = None
    records = seen = 0
    for section, _ in read_batches(client, partition, low, high):
        for header in batch_headers(section):
            if header.is_control or header.next_offset <= low or header.base_offset >= high:
                continue
            first = header.producer_id if first is None else first
            if header.producer_id != own:
                inside = min(header.next_offset, high) - max(header.base_offset, low)
                records += min(header.record_count, inside)
                producer = header.producer_id if producer is None else producer
        seen += len(section)
        if seen > _MOST_BYTES:
            return ForeignWriters(first, records, producer, is_complete=False)
    return ForeignWriters(first, records, producer)
