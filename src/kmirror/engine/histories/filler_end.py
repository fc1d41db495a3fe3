"""Find the end of the filler at the start of a log. Blocking.

Brokers checkpoint log starts once a minute: after a kill before that, trimmed filler is back.
"""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.filler import is_filler
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader


def filler_end(client: ClusterClient, partition: TopicPartition, start: int, end: int, own: int) -> int | None:
    """Return the offset after the filler that producer id `own` wrote at `start`, at most `end`; None without filler.

    Filler precedes everything else, so its end is found by binary search.

    Raises:
        KmirrorError, OutcomeUnknown: the partition cannot be read.
    """
    reader = PartitionReader(client, partition)
    found = _filler_at(reader, start, own)
    if found is None:
        return None
    high = end
    while found < high:
        middle = (found + high) // 2
        after = _filler_at(reader, middle, own)
        if after is None:
            high = middle
        else:
            found = after
    return found


def _filler_at(reader: PartitionReader, offset: int, own: int) -> int | None:
    """Return the offset after the batch with `offset`; None if that is no filler."""
    found = reader.read_known(offset)
    if not isinstance(found, Batches):
        return None
    header = found.headers[0]
    data = found.data[header.position : header.position + header.size_in_bytes]
    return header.next_offset if header.producer_id == own and is_filler(data) else None
