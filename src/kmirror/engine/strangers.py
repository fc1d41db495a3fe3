"""Who else wrote to a mirror partition, and how much. Blocking; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.batch import batch_headers
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.metadata import TopicPartition
from kmirror.cluster.reader import read_batches

#: More than this is not read to count; what was counted is then a lower bound.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Strangers:
    """What stands from one offset of a mirror partition on.

    `first_producer_id` wrote the first records there, None where there are none. `records` of other writers than the
    mirror were counted, the first of them by `producer_id`; not all of them where `is_complete` is false.
    """

    first_producer_id: int | None = None
    records: int = 0
    producer_id: int | None = None
    is_complete: bool = True


def strangers_in(client: ClusterClient, partition: TopicPartition, low: int, high: int, own: int) -> Strangers:
    """Count the records from `low` to before `high` that `own` did not write; markers are nobody's.

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
            return Strangers(first, records, producer, is_complete=False)
    return Strangers(first, records, producer)
