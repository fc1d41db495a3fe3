"""Fetch answers written by a second implementation of the protocol, and invalid ones."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from kmirror.cluster.protocol.fetch import AbortedTransaction, FetchAnswer, FetchedPartition
from kmirror.cluster.protocol.wire import FrameError
from tests.support.fetch_messages import A, B, PartitionAnswer, answer, full_answer, key, partition_answer, read


def test_an_answer_names_a_nearer_replica_unless_it_is_an_error() -> None:
    data = answer([(A, partition_answer(2, preferred_read_replica=7)), (A, partition_answer(3))])
    assert [part.preferred_read_replica for part in read(data).partitions] == [7, None]
    refused = answer([(A, partition_answer(2, error_code=6, preferred_read_replica=7))])
    assert read(refused).partitions[0].preferred_read_replica is None


def test_an_answer_with_nothing_new() -> None:
    assert read(answer(throttle=35)) == FetchAnswer(0, 35, [])


def test_an_answer_with_records() -> None:
    data = answer(
        [(A, partition_answer(2, high_watermark=9, last_stable_offset=7, log_start_offset=1, records=b"abc"))]
    )
    (part,) = read(data).partitions
    assert part == FetchedPartition(key(A, 2), 0, 9, 7, 1, (), memoryview(b"abc"), None)
    assert part.records.obj is data  # a view, never a copy


@pytest.mark.parametrize("records", [b"", None])
def test_no_records_and_null_records_are_both_empty(records: bytes | None) -> None:
    (part,) = read(answer([(A, partition_answer(0, records=records))])).partitions
    assert bytes(part.records) == b""
    assert part.high_watermark == 10


@pytest.mark.parametrize("aborted", [[], None])
def test_no_aborted_transactions(aborted: list[Any] | None) -> None:
    (part,) = read(answer([(A, partition_answer(0, aborted_transactions=aborted))])).partitions
    assert part.aborted_transactions == ()


def test_aborted_transactions_keep_the_brokers_order() -> None:
    aborted = [
        PartitionAnswer.AbortedTransaction(producer_id=p, first_offset=o) for p, o in [(7, 30), (1 << 40, 2), (7, 5)]
    ]
    (part,) = read(answer([(A, partition_answer(0, aborted_transactions=aborted, records=b"xy"))])).partitions
    assert part.aborted_transactions == (
        AbortedTransaction(7, 30),
        AbortedTransaction(1 << 40, 2),
        AbortedTransaction(7, 5),
    )
    assert bytes(part.records) == b"xy"


def test_a_diverging_epoch_with_and_without_a_new_leader() -> None:
    diverging = PartitionAnswer.EpochEndOffset(epoch=4, end_offset=120)
    leader = PartitionAnswer.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
    parts = [
        (A, partition_answer(0, diverging_epoch=diverging)),
        (A, partition_answer(1, current_leader=leader)),
        (A, partition_answer(2, current_leader=leader, diverging_epoch=diverging)),
        (B, partition_answer(0)),
    ]
    found = [p.diverging_epoch for p in read(answer(parts)).partitions]
    assert found == [(4, 120), None, (4, 120), None]


def test_a_partitions_error_hides_its_numbers() -> None:
    data = answer(
        [
            (A, partition_answer(0, error_code=1, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1)),
            (A, partition_answer(1, error_code=6, high_watermark=5)),
            (A, partition_answer(2, records=b"zz")),
        ]
    )
    found = [(p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset) for p in read(data).partitions]
    assert found == [(1, None, None, None), (6, None, None, None), (0, 10, 10, 0)]


def test_unknown_numbers_are_none() -> None:
    (part,) = read(
        answer([(A, partition_answer(0, high_watermark=-1, last_stable_offset=-1, log_start_offset=-1))])
    ).partitions
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (None, None, None)


def test_an_error_for_the_whole_answer() -> None:
    assert read(answer(error_code=70, session_id=0)).error_code == 70


def test_tagged_fields_we_do_not_know_are_skipped() -> None:
    snapshot = PartitionAnswer.SnapshotId(end_offset=4, epoch=2)
    data = answer([(A, partition_answer(0, snapshot_id=snapshot, records=b"ab")), (A, partition_answer(1))])
    assert [(p.key.partition, bytes(p.records)) for p in read(data).partitions] == [(0, b"ab"), (1, b"")]


@pytest.mark.slow
def test_random_answers_are_read_as_a_second_library_wrote_them() -> None:
    rng = random.Random(1)
    for _ in range(60):
        partitions = [
            (
                UUID(int=topic),
                partition_answer(
                    p,
                    error_code=rng.choice([0, 0, 0, 1, 6, 74, 100]),
                    high_watermark=rng.randrange(1 << 62),
                    last_stable_offset=rng.randrange(1 << 62),
                    log_start_offset=rng.randrange(1 << 62),
                    aborted_transactions=[
                        PartitionAnswer.AbortedTransaction(
                            producer_id=rng.randrange(99), first_offset=rng.randrange(99)
                        )
                        for _ in range(rng.choice([0, 0, 1, 3, 200]))
                    ],
                    records=rng.randbytes(rng.choice([0, 1, 126, 127, 20_000])),
                ),
            )
            for topic in range(1, rng.randrange(2, 5))
            for p in range(rng.choice([1, 2, 130]))
        ]
        found = read(answer(partitions)).partitions
        assert [(p.key, p.error_code, bytes(p.records)) for p in found] == [
            (key(t, p.partition_index), p.error_code, p.records) for t, p in partitions
        ]
        assert [[(t.producer_id, t.first_offset) for t in p.aborted_transactions] for p in found] == [
            [(t.producer_id, t.first_offset) for t in p.aborted_transactions] for _, p in partitions
        ]
        good = [(f, p) for f, (_, p) in zip(found, partitions, strict=True) if not f.error_code]
        for f, p in good:
            assert (f.high_watermark, f.last_stable_offset, f.log_start_offset) == (
                p.high_watermark,
                p.last_stable_offset,
                p.log_start_offset,
            )


# -- hostile bytes -----------------------------------------------------------------------------------------------------


def test_an_answer_cut_off_anywhere_is_a_frame_error() -> None:
    data = full_answer()
    # The last byte counts the tagged fields of the whole answer; none is of interest, so it is not read.
    for cut in range(len(data) - 1):
        with pytest.raises(FrameError):
            read(data[:cut])


def test_garbage_in_any_place_is_an_answer_or_a_frame_error() -> None:
    data = full_answer()
    rng = random.Random(2)
    refused = 0
    for position in range(4, len(data)):
        for garbage in (b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", rng.randbytes(8)):
            broken = bytearray(data)
            broken[position : position + len(garbage)] = garbage
            try:
                found = read(bytes(broken))
            except FrameError:
                refused += 1
            else:
                assert sum(len(p.records) for p in found.partitions) <= len(broken)
    assert refused > 100


def test_a_length_above_the_frames_is_a_frame_error() -> None:
    data = answer([(A, partition_answer(0, records=b"r" * 40))])
    where = data.index(b"r" * 40)
    assert data[where - 1] == 41
    with pytest.raises(FrameError, match="in the middle of its records"):
        read(data[: where - 1] + b"\xff\xff\xff\xff\x0f" + data[where:])
