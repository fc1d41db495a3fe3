"""Which batches of an answer an application is shown."""

from __future__ import annotations

import random
import struct

import pytest

from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from tests.support.log_batches import ABORT, COMMIT, LogBatch, VisibleRecord, control_record, encode

DATA, ABORTED, CONTROL = BatchKind.DATA, BatchKind.ABORTED, BatchKind.CONTROL


def plain(offset: int, producer_id: int = -1) -> LogBatch:
    return LogBatch(offset, offset, (VisibleRecord(offset, 5, b"k", b"v"),), 5, producer_id=producer_id)


def sent(offset: int, producer_id: int, *, last: int | None = None) -> LogBatch:
    end = offset if last is None else last
    records = tuple(VisibleRecord(o, 5, b"k", b"v") for o in range(offset, end + 1))
    return LogBatch(offset, end, records, 5, producer_id=producer_id, producer_epoch=0, transaction=1)


def ended(offset: int, producer_id: int, marker: str, *, emptied: bool = False) -> LogBatch:
    record = () if emptied else (control_record(offset, 5, marker, 0),)
    return LogBatch(offset, offset, record, 5, producer_id=producer_id, producer_epoch=0, transaction=1, marker=marker)


def kinds(batches: list[LogBatch], *aborted: tuple[int, int]) -> list[BatchKind]:
    """Sort out one answer; `aborted` has first offset and producer id."""
    isolation = Isolation(AbortedTransaction(producer_id, first) for first, producer_id in aborted)
    return [isolation.kind(memoryview(encode(batch))) for batch in batches]


def test_without_transactions_all_is_shown() -> None:
    assert kinds([plain(0), plain(1, producer_id=7)], (0, 7)) == [DATA, DATA]


def test_a_committed_and_an_aborted_transaction_side_by_side() -> None:
    log = [sent(0, 7), sent(1, 8), plain(2), ended(3, 7, ABORT), sent(4, 8), ended(5, 8, COMMIT)]
    assert kinds(log, (0, 7)) == [ABORTED, DATA, DATA, CONTROL, DATA, CONTROL]


def test_one_producer_aborts_and_commits_by_turns() -> None:
    log = [sent(0, 7), ended(1, 7, COMMIT), sent(2, 7), ended(3, 7, ABORT), sent(4, 7), ended(5, 7, COMMIT)]
    assert kinds(log, (2, 7)) == [DATA, CONTROL, ABORTED, CONTROL, DATA, CONTROL]
    log = [sent(0, 7), ended(1, 7, ABORT), sent(2, 7), ended(3, 7, ABORT)]
    assert kinds(log, (2, 7), (0, 7)) == [ABORTED, CONTROL, ABORTED, CONTROL]


def test_the_brokers_list_is_in_no_order_and_may_exceed_the_answer() -> None:
    log = [sent(0, 7), sent(1, 8), sent(2, 9), ended(3, 8, ABORT), ended(4, 7, ABORT), sent(5, 7), sent(6, 8)]
    shown = [ABORTED, ABORTED, DATA, CONTROL, CONTROL, DATA, ABORTED]
    assert kinds(log, (90, 9), (6, 8), (0, 7), (80, 7), (1, 8)) == shown


def test_a_transaction_may_have_begun_before_the_answer_and_end_behind_it() -> None:
    assert kinds([sent(100, 7), sent(101, 7)], (3, 7)) == [ABORTED, ABORTED]


def test_a_transaction_may_begin_inside_a_batch_that_lost_its_first_records() -> None:
    assert kinds([sent(10, 7, last=19), ended(20, 7, ABORT)], (12, 7)) == [ABORTED, CONTROL]


def test_an_emptied_marker_ends_what_was_of_its_producer() -> None:
    log = [ended(3, 7, ABORT, emptied=True), sent(4, 7), ended(5, 7, COMMIT)]
    assert kinds(log, (1, 7)) == [CONTROL, DATA, CONTROL]


def test_a_commit_does_not_end_an_aborted_transaction() -> None:
    assert kinds([ended(3, 7, COMMIT), sent(4, 7)], (3, 7)) == [CONTROL, ABORTED]


def test_old_formats_have_no_transactions() -> None:
    old = LogBatch(0, 0, (VisibleRecord(0, -1, None, b"v"),), -1, magic=0)
    assert kinds([old], (0, 0)) == [DATA]


@pytest.mark.parametrize("cut", [61, 62, 64, 67])
def test_a_marker_that_cannot_be_read_is_corrupt(cut: int) -> None:
    marker = bytearray(encode(ended(0, 7, ABORT)))
    with pytest.raises(CorruptBatchError, match="offset 0"):
        Isolation([]).kind(memoryview(marker[:cut]))
    marker[65:66] = struct.pack(">b", 2)  # a key of one byte
    with pytest.raises(CorruptBatchError, match="key is too short"):
        Isolation([]).kind(memoryview(marker))


def test_random_interleaved_transactions() -> None:
    """Many producers, each with a transaction open or not; any part of the log is sorted out as the whole."""
    for seed in range(300):
        chance = random.Random(seed)
        log: list[LogBatch] = []
        wanted: list[BatchKind] = []
        open_at: dict[int, list[int]] = {}
        aborted: list[tuple[int, int, int]] = []
        for offset in range(60):
            producer_id = chance.randrange(5)
            if producer_id in open_at and chance.random() < 0.3:
                abort = chance.random() < 0.5
                indexes = open_at.pop(producer_id)
                log.append(ended(offset, producer_id, ABORT if abort else COMMIT))
                wanted.append(CONTROL)
                if abort:
                    aborted.append((log[indexes[0]].base_offset, producer_id, offset))
                    for index in indexes:
                        wanted[index] = ABORTED
            elif chance.random() < 0.2:
                log.append(plain(offset))
                wanted.append(DATA)
            else:
                open_at.setdefault(producer_id, []).append(offset)
                log.append(sent(offset, producer_id))
                wanted.append(DATA)
        first, end = sorted(chance.sample(range(61), 2))
        named = [(at, producer_id) for at, producer_id, marker in aborted if marker >= first]
        chance.shuffle(named)
        assert kinds(log[first:end], *named) == wanted[first:end], seed
