"""Find the end of the filler at the start of a log.

Brokers checkpoint log starts once a minute: after a kill before that, trimmed filler is back.
"""

from __future__ import annotations

from collections.abc import Generator

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.filler import is_filler
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.engine.histories.stretches import Read, Section, Sections


def find_filler_end(start: int, end: int, own: int) -> Generator[Read, Sections, int]:
    """Return the offset after the filler that producer id `own` wrote at `start` of the destination, at most `end`.

    That is `start` if there is none. Filler precedes everything else, so its end is found by binary search. Yields what
    to read, a byte being enough, and is sent what was read.
    """
    found, middle, high = start, start, end
    while found < high:
        after = _after_filler((yield Read(middle, None)).destination, own)
        if after is not None:
            found = after
        elif found == start:
            return start
        else:
            high = middle
        middle = (found + high) // 2
    return found


def _after_filler(section: Section | None, own: int) -> int | None:
    """Return the offset after the first batch of a section if it is our filler."""
    if section is None:
        return None
    header = next((one for one in batch_headers(section.data) if one.next_offset > section.offset), None)
    if header is None or header.producer_id != own:
        return None
    data = section.data[header.position : header.position + header.size_in_bytes]
    return header.next_offset if is_filler(data) else None


def filler_end(client: ClusterClient, partition: TopicPartition, start: int, end: int, own: int) -> int:
    """Find the end of the filler in one log, as `find_filler_end`. Blocking.

    Raises:
        KmirrorError, OutcomeUnknown: the partition cannot be read.
    """
    reader, search = PartitionReader(client, partition), find_filler_end(start, end, own)
    try:
        offset = next(search).destination or 0
        while True:
            found = reader.read_known(offset, max_bytes=1)
            if isinstance(found, Batches):
                section = Section(offset, found.data, found.aborted_transactions)
            else:
                section = Section(offset, memoryview(b""), nothing_until=found.until)
            offset = search.send(Sections(section, None)).destination or 0
    except StopIteration as done:
        return int(done.value)
