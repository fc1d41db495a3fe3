"""Find where the source's records end in a mirror partition. Needs the destination only.

Usually they end at the log end. If another client wrote to the mirror topic, they end at its first record. A mirror
writes under producer ids that brokers never assign, so a batch's producer id shows who wrote it. Only offsets that no
lane has confirmed are read: up to there the log was compared with its source.

Nothing has to be read in two cases: a lane has confirmed the whole log; or the last sequence number that the leader
knows of the mirror's producer matches the log end. Sequence numbers are offsets
(`engine/lane/partition/partition_copy.py`), and records of other clients would have moved the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from kmirror.cluster.client import EARLIEST, ClusterClient
from kmirror.cluster.protocol.batch import SEQUENCE_MASK, BatchHeader
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.words import counted

#: Limits on reading, so that a stop does not wait long: time for all partitions, bytes of each partition.
_READING_S = 4.0
_PATIENCE_S = 1.0
_MOST_BYTES = 64 << 20
#: Factor by which the distance from the end grows while searching for a batch of ours.
_FARTHER = 4


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a mirror partition that ends at `log_end`; unknown numbers are None.

    `confirmed` is the end of what its lane confirmed as the source's. `failed_offset` is where an inspection found
    records of another client. `last_sequence` is the last one that the leader knows of the mirror's producer.
    """

    log_end: int
    confirmed: int | None = None
    failed_offset: int | None = None
    last_sequence: int | None = None
    #: Its first records are older than the mirror: they have other producer ids, and equal the source's.
    is_adopted: bool = False


@dataclass(frozen=True, slots=True)
class MirroredEnd:
    """Where the source's records end, and how many records of other clients follow; the first is by `producer_id`.

    With `trouble` the log could not be read, and `offset` is the best that is known.
    """

    offset: int
    foreign_records: int = 0
    producer_id: int | None = None
    is_complete: bool = True
    trouble: str | None = None


def mirrored_ends(
    client: ClusterClient, partitions: Mapping[TopicPartition, Evidence]
) -> dict[TopicPartition, MirroredEnd]:
    """Return where the source's records end in each of these partitions."""
    until = time.monotonic() + _READING_S
    found = {
        partition: MirroredEnd(evidence.log_end) for partition, evidence in partitions.items() if _is_all_ours(evidence)
    }
    left = [partition for partition in partitions if partition not in found]
    try:
        starts = client.list_offsets(dict.fromkeys(left, EARLIEST), timeout=_READING_S) if left else {}
    except (KmirrorError, OutcomeUnknown) as error:
        return found | {partition: _unread(partitions[partition], str(error)) for partition in left}
    for partition in left:
        start = starts[partition].offset
        if start is None or time.monotonic() > until:
            found[partition] = _unread(partitions[partition], "its leader did not answer in time")
            continue
        try:
            found[partition] = _read_end(client, partition, partitions[partition], start)
        except (KmirrorError, OutcomeUnknown) as error:
            found[partition] = _unread(partitions[partition], str(error))
    return found


def _is_all_ours(evidence: Evidence) -> bool:
    """Return whether all of the log is known to be the source's, without reading it."""
    end = evidence.log_end
    if evidence.failed_offset is not None:
        return False
    if not end or evidence.confirmed == end:
        return True
    last = evidence.last_sequence
    return last is not None and (last + 1 - end) & SEQUENCE_MASK == 0


def _unread(evidence: Evidence, trouble: str) -> MirroredEnd:
    known = evidence.log_end if evidence.failed_offset is None else min(evidence.failed_offset, evidence.log_end)
    return MirroredEnd(known, trouble=f"the writer of its last records is unknown: {trouble}")


def _read_end(client: ClusterClient, partition: TopicPartition, evidence: Evidence, start: int) -> MirroredEnd:
    """Find the end by reading what no lane has confirmed."""
    end = evidence.log_end
    low = evidence.confirmed
    reader = PartitionReader(client, partition, patience_s=_PATIENCE_S)
    if low is None and evidence.is_adopted and evidence.failed_offset is None:
        # what other clients wrote before it was adopted is the source's: only a last batch of ours is proof
        low = _last_fitting(reader, end, max(start, end - 1))
        if low is None:
            return _unread(evidence, "no engine has checked them since the topic was adopted")
    elif low is None:
        low = _last_fitting(reader, end, start) or start
    if evidence.failed_offset is not None:
        low = min(low, evidence.failed_offset)
    first: int | None = None
    records, seen = 0, 0
    producer: int | None = None
    for section in reader.batches(max(low, start), end):
        for header in section.headers:
            if not _is_foreign(header) or header.next_offset <= low or header.base_offset >= end:
                continue
            if first is None:
                first, producer = max(header.base_offset, low), header.producer_id
            records += min(header.record_count, min(header.next_offset, end) - max(header.base_offset, low))
        seen += len(section.data)
        if seen > _MOST_BYTES:
            if first is None:
                return _unread(evidence, f"{counted(end - low, 'offset')} would have to be read")
            return MirroredEnd(first, records, producer, is_complete=False)
    if first is None:
        return MirroredEnd(end if evidence.failed_offset is None else min(end, evidence.failed_offset))
    return MirroredEnd(first, records, producer)


def _last_fitting(reader: PartitionReader, end: int, start: int) -> int | None:
    """Return the end of the last batch of a mirror whose sequence number matches its offset; None if there is none.

    Records of other clients shift what follows them, and so do our markers: those are then read one by one.
    """
    distance = 1
    while start < end:
        offset = max(start, end - distance)
        found = reader.read_known(offset)
        headers = [h for h in found.headers if h.base_offset < end] if isinstance(found, Batches) else []
        ours = [h for h in headers if not h.is_control and not _is_foreign(h)]
        fitting = [h.next_offset for h in ours if (h.base_offset - h.base_sequence) & SEQUENCE_MASK == 0]
        if fitting:
            return min(max(fitting), end)
        if offset == start:
            break
        distance *= _FARTHER
    return None


def _is_foreign(header: BatchHeader) -> bool:
    """Return whether another client wrote a batch; for markers that is unknown, and False is returned."""
    return not header.is_control and header.producer_id < FIRST_OWN_PRODUCER_ID
