"""Fetch requests and answers, held byte for byte against a second implementation of the protocol."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import (
    AbortedTransaction,
    FetchAnswer,
    FetchedPartition,
    FetchKey,
    FetchPosition,
    FetchSession,
)
from kmirror.cluster.protocol.wire import FrameError

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
SESSION = 0x1234567

_Topic = FetchRequest.FetchTopic
_Forgotten = FetchRequest.ForgottenTopic
_TopicAnswer = FetchResponse.FetchableTopicResponse
_PartitionAnswer = _TopicAnswer.PartitionData


def key(topic: UUID, partition: int) -> FetchKey:
    return FetchKey(topic.bytes, partition)


def at(offset: int, epoch: int = -1, leader_epoch: int = 0) -> FetchPosition:
    return FetchPosition(offset, epoch, leader_epoch, 1 << 20)


Wanted = Sequence[tuple[FetchKey, FetchPosition]]


def expected_request(
    correlation_id: int,
    session: tuple[int, int],
    wanted: Wanted = (),
    forgotten: Iterable[FetchKey] = (),
    isolation_level: int = 1,
    rack_id: str = "",
) -> bytes:
    """Encode the request with the second library."""
    message = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 << 20,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            _Topic(
                topic_id=topic_id,
                partitions=[
                    _Topic.FetchPartition(
                        partition=k.partition,
                        current_leader_epoch=p.current_leader_epoch,
                        fetch_offset=p.fetch_offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=p.partition_max_bytes,
                    )
                    for k, p in wanted
                    if k.topic_id == topic_id.bytes
                ],
            )
            for topic_id in dict.fromkeys(UUID(bytes=k.topic_id) for k, _ in wanted)
        ],
        forgotten_topics_data=[
            _Forgotten(topic_id=topic_id, partitions=[k.partition for k in forgotten if k.topic_id == topic_id.bytes])
            for topic_id in dict.fromkeys(UUID(bytes=k.topic_id) for k in forgotten)
        ],
        rack_id=rack_id,
        version=13,
    )
    message.with_header(correlation_id=correlation_id, client_id="kmirror")
    return bytes(message.encode(header=True, framed=True))


def answer(
    partitions: Iterable[tuple[UUID, Any]] = (), *, session_id: int = SESSION, error_code: int = 0, throttle: int = 0
) -> bytes:
    """Encode an answer with the second library, from its correlation id on."""
    by_topic: dict[UUID, list[Any]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    message = FetchResponse(
        throttle_time_ms=throttle,
        error_code=error_code,
        session_id=session_id,
        responses=[_TopicAnswer(topic_id=topic_id, partitions=found) for topic_id, found in by_topic.items()],
        version=13,
    )
    message.with_header(correlation_id=1)
    return bytes(message.encode(header=True))


def partition_answer(index: int, **fields: Any) -> Any:
    usual = {
        "error_code": 0,
        "high_watermark": 10,
        "last_stable_offset": 10,
        "log_start_offset": 0,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": b"",
    }
    return _PartitionAnswer(partition_index=index, **(usual | fields))


class Broker:
    """Send a session's requests, and hold each one against the second library's bytes."""

    def __init__(self, session: FetchSession | None = None) -> None:
        self.session = FetchSession("kmirror") if session is None else session
        self.correlation_id = 0

    def gets(self, session: tuple[int, int], wanted: Wanted = (), forgotten: Iterable[FetchKey] = ()) -> None:
        """Ask for the next request and compare it."""
        self.correlation_id += 1
        request = self.session.request(self.correlation_id, max_wait_ms=500, max_bytes=8 << 20)
        assert request == expected_request(self.correlation_id, session, wanted, forgotten)

    def answers(self, data: bytes | None = None) -> FetchAnswer:
        """Hand the session an answer; without one, an empty one of the usual session."""
        return self.session.answer(memoryview(answer() if data is None else data))


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_for_nothing() -> None:
    Broker().gets((0, 0))


def test_a_first_request_names_every_partition() -> None:
    broker = Broker()
    wanted = [(key(A, 0), at(5, 2, 7)), (key(A, 3), at(6)), (key(B, 0), at(1 << 40, 1 << 20, 3))]
    for k, position in wanted:
        broker.session.want(k, position)
    broker.gets((0, 0), wanted)
    assert len(broker.session) == 3


def test_a_request_with_many_topics_and_partitions() -> None:
    broker = Broker()
    wanted = [
        (key(UUID(int=topic), p), at(topic * p)) for topic in range(1, 300) for p in range(topic % 7 + 130 // topic)
    ]
    for k, position in wanted:
        broker.session.want(k, position)
    broker.gets((0, 0), wanted)


def test_read_uncommitted_can_be_asked_for() -> None:
    session = FetchSession("kmirror")
    request = session.request(4, max_wait_ms=500, max_bytes=8 << 20, read_committed=False)
    assert request == expected_request(4, (0, 0), isolation_level=0)


def test_our_rack_can_be_named() -> None:
    request = FetchSession("kmirror").request(4, max_wait_ms=500, max_bytes=8 << 20, rack="zone-é")
    assert request == expected_request(4, (0, 0), rack_id="zone-é")


def test_an_answer_names_a_nearer_replica_unless_it_is_an_error() -> None:
    data = answer([(A, partition_answer(2, preferred_read_replica=7)), (A, partition_answer(3))])
    assert [part.preferred_read_replica for part in read(data).partitions] == [7, None]
    refused = answer([(A, partition_answer(2, error_code=6, preferred_read_replica=7))])
    assert read(refused).partitions[0].preferred_read_replica is None


def test_later_requests_name_changes_only() -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    broker.session.want(key(A, 1), at(0))
    broker.gets((0, 0), [(key(A, 0), at(0)), (key(A, 1), at(0))])
    broker.answers()
    broker.gets((SESSION, 1))
    broker.answers()
    broker.session.want(key(A, 1), at(20))
    broker.session.want(key(B, 9), at(3))
    broker.gets((SESSION, 2), [(key(A, 1), at(20)), (key(B, 9), at(3))])
    broker.answers()
    broker.gets((SESSION, 3))


def test_of_several_changes_of_one_partition_the_last_counts() -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    broker.gets((0, 0), [(key(A, 0), at(0))])
    broker.answers()
    broker.session.want(key(A, 0), at(1))
    broker.session.want(key(A, 0), at(2))
    broker.gets((SESSION, 1), [(key(A, 0), at(2))])


def test_forgotten_partitions_are_named_once() -> None:
    broker = Broker()
    wanted = [(key(A, 0), at(0)), (key(A, 1), at(0)), (key(B, 0), at(0))]
    for k, position in wanted:
        broker.session.want(k, position)
    broker.gets((0, 0), wanted)
    broker.answers()
    for k, _ in wanted[:2]:
        broker.session.forget(k)
    broker.session.want(key(B, 0), at(8))
    broker.gets((SESSION, 1), [(key(B, 0), at(8))], forgotten=[key(A, 0), key(A, 1)])
    broker.answers()
    broker.gets((SESSION, 2))
    assert len(broker.session) == 1


def test_a_partition_forgotten_and_wanted_again_before_the_next_request_is_only_moved() -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    broker.gets((0, 0), [(key(A, 0), at(0))])
    broker.answers()
    broker.session.forget(key(A, 0))
    broker.session.want(key(A, 0), at(4))
    broker.gets((SESSION, 1), [(key(A, 0), at(4))])


def test_a_partition_forgotten_and_wanted_again_after_a_request_is_added_again() -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    broker.gets((0, 0), [(key(A, 0), at(0))])
    broker.answers()
    broker.session.forget(key(A, 0))
    broker.gets((SESSION, 1), forgotten=[key(A, 0)])
    broker.session.want(key(A, 0), at(4))  # while the request is under way
    broker.answers()
    broker.gets((SESSION, 2), [(key(A, 0), at(4))])


def test_a_partition_the_broker_never_heard_of_is_not_forgotten_by_name() -> None:
    broker = Broker()
    broker.gets((0, 0))
    broker.answers()
    broker.session.want(key(A, 0), at(0))
    broker.session.forget(key(A, 0))
    broker.session.forget(key(B, 0))
    broker.gets((SESSION, 1))


@pytest.mark.parametrize(
    "code",
    [Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH, Code.FETCH_SESSION_TOPIC_ID_ERROR],
)
def test_after_a_refused_session_everything_is_named_again(code: Code) -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    broker.session.want(key(A, 1), at(0))
    broker.session.want(key(A, 2), at(0))
    broker.gets((0, 0), [(key(A, i), at(0)) for i in range(3)])
    broker.answers()
    broker.session.want(key(A, 0), at(50))
    broker.session.forget(key(A, 1))
    broker.gets((SESSION, 1), [(key(A, 0), at(50))], forgotten=[key(A, 1)])
    broker.session.forget(key(A, 2))
    assert broker.answers(answer(session_id=0, error_code=code)).error_code == code
    broker.session.want(key(B, 1), at(2))
    broker.gets((0, 0), [(key(A, 0), at(50)), (key(B, 1), at(2))])
    broker.answers(answer(session_id=99))
    broker.gets((99, 1))


def test_a_broker_without_room_for_sessions_gets_everything_every_time() -> None:
    broker = Broker()
    broker.session.want(key(A, 0), at(0))
    for offset in (0, 10, 20):
        broker.session.want(key(A, 0), at(offset))
        broker.gets((0, 0), [(key(A, 0), at(offset))])
        broker.answers(answer(session_id=0))


def test_requests_that_stand_alone_leave_no_session_behind() -> None:
    broker = Broker(FetchSession("kmirror", incremental=False))
    broker.session.want(key(A, 0), at(0))
    for _ in range(2):
        broker.gets((0, -1), [(key(A, 0), at(0))])
        broker.answers(answer(session_id=0))


def test_the_session_epoch_starts_again_at_one() -> None:
    session = FetchSession("kmirror")
    broker = Broker(session)
    broker.gets((0, 0))
    session._session_epoch = 0x7FFFFFFE  # two thousand million requests later
    broker.answers()
    broker.gets((SESSION, 0x7FFFFFFF))
    broker.answers()
    broker.gets((SESSION, 1))


def test_a_session_of_many_random_steps_names_what_a_broker_must_know() -> None:
    """Keep the broker's view of the session by what the requests say; it must equal what was asked for."""
    for seed in range(30):
        rng = random.Random(seed)
        session = FetchSession("kmirror")
        known: dict[FetchKey, int] = {}
        wanted: dict[FetchKey, FetchPosition] = {}
        for step in range(60):
            for _ in range(rng.randrange(4)):
                k = key(rng.choice([A, B]), rng.randrange(4))
                if rng.random() < 0.4:
                    session.forget(k)
                    wanted.pop(k, None)
                else:
                    wanted[k] = at(rng.randrange(1000))
                    session.want(k, wanted[k])
            request = FetchRequest.decode(
                session.request(step, max_wait_ms=1, max_bytes=1), version=13, header=True, framed=True
            )
            if request.session_epoch == 0:
                known = {}
            for topic in request.forgotten_topics_data:
                for partition in topic.partitions:
                    del known[key(topic.topic_id, partition)]
            for topic in request.topics:
                for p in topic.partitions:
                    known[key(topic.topic_id, p.partition)] = p.fetch_offset
            assert known == {k: p.fetch_offset for k, p in wanted.items()}, (seed, step)
            code = rng.choice([0, 0, 0, 0, 70, 71])
            session.answer(memoryview(answer(session_id=0 if code else SESSION, error_code=code)))


# -- answers ----------------------------------------------------------------------------------------------------------


def read(data: bytes) -> FetchAnswer:
    return FetchSession("kmirror").answer(memoryview(data))


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
        _PartitionAnswer.AbortedTransaction(producer_id=p, first_offset=o) for p, o in [(7, 30), (1 << 40, 2), (7, 5)]
    ]
    (part,) = read(answer([(A, partition_answer(0, aborted_transactions=aborted, records=b"xy"))])).partitions
    assert part.aborted_transactions == (
        AbortedTransaction(7, 30),
        AbortedTransaction(1 << 40, 2),
        AbortedTransaction(7, 5),
    )
    assert bytes(part.records) == b"xy"


def test_a_diverging_epoch_with_and_without_a_new_leader() -> None:
    diverging = _PartitionAnswer.EpochEndOffset(epoch=4, end_offset=120)
    leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
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
    snapshot = _PartitionAnswer.SnapshotId(end_offset=4, epoch=2)
    data = answer([(A, partition_answer(0, snapshot_id=snapshot, records=b"ab")), (A, partition_answer(1))])
    assert [(p.key.partition, bytes(p.records)) for p in read(data).partitions] == [(0, b"ab"), (1, b"")]


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
                        _PartitionAnswer.AbortedTransaction(
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


# -- hostile bytes ----------------------------------------------------------------------------------------------------


def full_answer() -> bytes:
    tags = {
        "diverging_epoch": _PartitionAnswer.EpochEndOffset(epoch=4, end_offset=120),
        "current_leader": _PartitionAnswer.LeaderIdAndEpoch(leader_id=3, leader_epoch=9),
    }
    aborted = [_PartitionAnswer.AbortedTransaction(producer_id=7, first_offset=1)]
    return answer(
        [
            (A, partition_answer(0, records=b"r" * 40)),
            (A, partition_answer(1, aborted_transactions=aborted, **tags)),
            (B, partition_answer(0)),
        ]
    )


def test_an_answer_cut_off_anywhere_is_a_frame_error() -> None:
    data = full_answer()
    # The last byte counts the tagged fields of the whole answer; none is of interest, so it is not read.
    for cut in range(len(data) - 1):
        with pytest.raises(FrameError):
            read(data[:cut])


def test_an_answer_that_cannot_be_read_leaves_the_session_alone() -> None:
    broker = Broker()
    broker.gets((0, 0))
    broker.answers()
    with pytest.raises(FrameError):
        broker.answers(full_answer()[:30])
    broker.gets((SESSION, 1))


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


def test_a_length_beyond_the_frame_is_a_frame_error() -> None:
    data = answer([(A, partition_answer(0, records=b"r" * 40))])
    where = data.index(b"r" * 40)
    assert data[where - 1] == 41
    with pytest.raises(FrameError, match="in the middle of its records"):
        read(data[: where - 1] + b"\xff\xff\xff\xff\x0f" + data[where:])
