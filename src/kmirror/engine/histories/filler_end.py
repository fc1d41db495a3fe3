"""Find the end of the filler at the start of a log.

Brokers checkpoint log starts once a minute: after a kill before that, trimmed filler is back.
"""

from __future__ import annotations

from collections.abc import Generator

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import BatchHeader, batch_headers
from kmirror.cluster.protocol.filler import FILLER_KEY, is_filler
from kmirror.cluster.protocol.isolation import BatchKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.engine.histories.stretches import Read, Section, Sections, StoredBatch

#: Some fourteen full batches.
_READ_BYTES = 1 << 20


def find_filler_end(start: int, end: int, own: int) -> Generator[Read, Sections, int]:
    """Return the offset after the filler that producer id `own` wrote at `start` of the destination, at most `end`.

    That is `start` if there is none. Every batch up to there is checked: what looks like filler may also be a record of
    the source, which any client can write, and that is copied under the same producer id. Yields what to read, a byte
    being enough, and is sent what was read.
    """
    found = start
    while found < end:
        section = (yield Read(found, None)).destination
        unread = [one for one in batch_headers(section.data) if one.next_offset > found] if section else []
        for header in unread:
            if section is None or not _is_ours(section, header, own):
                return found
            found = min(header.next_offset, end)
        if not unread:
            break
    return found


def _is_ours(section: Section, header: BatchHeader, own: int) -> bool:
    """Return whether a batch of a section is filler of ours; a cleaner may have left some of its records."""
    if header.producer_id != own:
        return False
    data = section.data[header.position : header.position + header.size_in_bytes]
    if is_filler(data):
        return True
    if header.is_control or not header.record_count or not header.has_holes:
        return False
    remnant = StoredBatch("destination", data, header, BatchKind.DATA)
    return all(one.key == FILLER_KEY and one.value is None for one in remnant.iter_records())


def filler_end(client: ClusterClient, partition: TopicPartition, start: int, end: int, own: int) -> int:
    """Find the end of the filler in one log, as `find_filler_end`. Blocking.

    Raises:
        KmirrorError, OutcomeUnknown: the partition cannot be read.
    """
    reader, search = PartitionReader(client, partition), find_filler_end(start, end, own)
    try:
        offset = next(search).destination or 0
        while True:
            found = reader.read_known(offset, max_bytes=_READ_BYTES)
            if isinstance(found, Batches):
                section = Section(offset, found.data, found.aborted_transactions)
            else:
                section = Section(offset, memoryview(b""), nothing_until=found.until)
            offset = search.send(Sections(section, None)).destination or 0
    except StopIteration as done:
        return int(done.value)
