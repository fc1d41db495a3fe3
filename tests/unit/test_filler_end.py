"""Where the filler at the start of a log ends, also where the source's records look like filler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.filler import FILLER_KEY
from kmirror.engine.histories.filler_end import find_filler_end
from kmirror.engine.histories.stretches import Sections
from tests.support.histories import EPOCH_MS, FOREIGN_ID, OWN_ID, WHOLE, Log, batch, marker, without
from tests.support.log_batches import LogBatch, VisibleRecord


def planted(first: int, count: int, producer_id: int = OWN_ID) -> LogBatch:
    """Make what a mirror's filler and a copy of a client's batch of such records have in common: everything."""
    records = tuple(VisibleRecord(o, EPOCH_MS, FILLER_KEY, None, ()) for o in range(first, first + count))
    return LogBatch(first, first + count - 1, records, EPOCH_MS, codec="zstd", producer_id=producer_id)


def ours(first: int, count: int) -> LogBatch:
    return batch(first, count, producer_id=OWN_ID)


def end_of_filler(log: Log, section_bytes: int = WHOLE) -> int:
    search = find_filler_end(log.start, log.end, OWN_ID)
    try:
        wanted = next(search)
        while True:
            assert wanted.destination is not None
            section = log.read(wanted.destination, section_bytes, log.end)
            wanted = search.send(Sections(section, None))
    except StopIteration as done:
        return int(done.value)


@pytest.mark.parametrize("section_bytes", [1, WHOLE])
def test_filler_ends_where_the_first_other_batch_begins(section_bytes: int) -> None:
    assert end_of_filler(Log([planted(0, 300), planted(300, 200)]), section_bytes) == 500
    for after in (ours(500, 3), marker(500), planted(500, 3, FOREIGN_ID)):
        assert end_of_filler(Log([planted(0, 300), planted(300, 200), after]), section_bytes) == 500
    assert end_of_filler(Log([planted(40, 10), ours(50, 1)], start=40), section_bytes) == 50
    assert end_of_filler(Log([ours(0, 500)]), section_bytes) == 0
    assert end_of_filler(Log(start=70), section_bytes) == 70


@pytest.mark.parametrize("section_bytes", [1, WHOLE])
def test_no_record_is_below_the_end_of_the_filler(section_bytes: int) -> None:
    """A client of the source wrote the same bytes, in the middle or last, and they were copied like other records."""
    copied = [ours(1, 498), planted(499, 22), ours(521, 479)]
    assert end_of_filler(Log([planted(0, 1), *copied]), section_bytes) == 1
    assert end_of_filler(Log([planted(0, 100), ours(100, 1), planted(101, 900)]), section_bytes) == 100


@pytest.mark.parametrize("section_bytes", [1, WHOLE])
def test_what_a_cleaner_left_of_filler_is_filler(section_bytes: int) -> None:
    """All of it has one key, so that a compacted topic may keep only the last record of a segment."""
    left = without(planted(300, 200), *range(300, 499))
    assert end_of_filler(Log([left, planted(500, 10), ours(510, 1)]), section_bytes) == 510
    other = replace(left, records=(left.records[0]._replace(key=b"k"),))
    assert end_of_filler(Log([other, planted(500, 10)]), section_bytes) == 0
    emptied = without(ours(300, 200), *range(300, 500))
    assert end_of_filler(Log([emptied, planted(500, 10)]), section_bytes) == 0
