"""What is read ahead shows exactly the records that a consumer is shown, wherever answers begin and end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey
from kmirror.cluster.protocol.read_ahead import Range, ReadAhead, covered
from kmirror.cluster.protocol.read_up_to import batches_after, batches_of
from kmirror.engine.compare.visible_log import visible_batches
from tests.support.histories import Log
from tests.support.log_batches import VisibleRecord
from tests.unit.test_read_ahead import random_log


def answer(log: Log, offset: int, max_bytes: int) -> FetchedPartition:
    """Answer a fetch as a leader does."""
    section = log.read(offset, max_bytes, log.shown_end)
    aborted = tuple(section.aborted_transactions)
    return FetchedPartition(FetchKey(b"", 0, "t"), 0, log.end, log.shown_end, 0, aborted, section.data, None)


def records_of(part: FetchedPartition, offset: int, found: dict[int, VisibleRecord]) -> int:
    """Add what an answer shows from an offset on; return where it ends."""
    batches = batches_after(part, offset)
    assert batches is not None
    for batch in visible_batches(batches.data, batches.headers, batches.aborted_transactions, offset):
        for one in batch.records():
            assert one.offset not in found, "it is shown twice"
            found[one.offset] = VisibleRecord(one.offset, one.timestamp, one.key, one.value, one.headers)
    return batches.next_offset


SEEDS = pytest.mark.parametrize(
    "seed", [*range(50), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 200))]
)


@SEEDS
def test_batches_that_were_taken_already_end_their_transactions(seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(chance)
    found: dict[int, VisibleRecord] = {}
    offset = 0
    while offset < log.shown_end:
        asked = chance.randrange(max(0, offset - 20), offset + 1)
        part = answer(log, asked, chance.choice([300, 2000, 1 << 20]))
        if batches_of(part, offset) is None:
            part = answer(log, offset, 1)
        if batches_of(part, offset) is None:
            break  # what is left are holes
        offset = records_of(part, offset, found)
    assert found == log.shown()


@SEEDS
def test_ranges_in_any_order_show_what_a_consumer_is_shown(seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(chance)
    found: dict[int, VisibleRecord] = {}
    reading, asked = ReadAhead(600), list[Range]()
    first = answer(log, 0, 300)
    seen = covered(first.records)
    assert seen is not None
    reading.learn(seen)
    offset = records_of(first, 0, found)
    (*_, last) = batch_headers(first.records)
    epoch = last.partition_leader_epoch
    while offset < log.shown_end:
        while len(asked) < 5 and (one := reading.ask(offset, log.shown_end)):
            asked.append(one)
        if not asked:
            break
        one = asked.pop(chance.randrange(len(asked)))
        part = answer(log, one.offset, one.size)
        if not reading.arrived(one, part.records, part) and not one.is_guess:
            break  # what is left are holes
        while taken := reading.take(offset, epoch):
            assert isinstance(taken.response, FetchedPartition)
            assert taken.records is not None
            offset = records_of(replace(taken.response, records=taken.records), offset, found)
            (*_, last) = batch_headers(taken.records)
            epoch = last.partition_leader_epoch
    assert found == log.shown()
