"""Fetch requests and their sessions, held byte for byte against a second implementation of the protocol."""

from __future__ import annotations

import random
from collections.abc import Iterable
from uuid import UUID

import pytest
from kafka.protocol.consumer.fetch import FetchRequest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchKey, FetchPosition, FetchSession
from kmirror.cluster.protocol.wire import FrameError
from tests.support.fetch_messages import SESSION, A, B, Wanted, answer, at, expected_request, full_answer, key


class Broker:
    """Send a session's requests, and hold each one against the second library's bytes."""

    def __init__(self, session: FetchSession | None = None) -> None:
        self.session = FetchSession("kmirror", 13) if session is None else session
        self.correlation_id = 0

    def gets(self, session: tuple[int, int], wanted: Wanted = (), forgotten: Iterable[FetchKey] = ()) -> None:
        """Ask for the next request and compare it."""
        self.correlation_id += 1
        request = self.session.request(self.correlation_id, max_wait_ms=500, max_bytes=8 << 20)
        assert request == expected_request(self.correlation_id, session, wanted, forgotten)

    def answers(self, data: bytes | None = None) -> FetchAnswer:
        """Hand the session an answer; without one, an empty one of the usual session."""
        return self.session.answer(memoryview(answer() if data is None else data))


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
    session = FetchSession("kmirror", 13)
    request = session.request(4, max_wait_ms=500, max_bytes=8 << 20, read_committed=False)
    assert request == expected_request(4, (0, 0), isolation_level=0)


def test_our_rack_can_be_named() -> None:
    request = FetchSession("kmirror", 13).request(4, max_wait_ms=500, max_bytes=8 << 20, rack="zone-é")
    assert request == expected_request(4, (0, 0), rack_id="zone-é")


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


def test_a_partition_that_is_not_in_the_session_is_not_forgotten_by_name() -> None:
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


def test_single_requests_leave_no_session_behind() -> None:
    broker = Broker(FetchSession("kmirror", 13, incremental=False))
    broker.session.want(key(A, 0), at(0))
    for _ in range(2):
        broker.gets((0, -1), [(key(A, 0), at(0))])
        broker.answers(answer(session_id=0))


def test_the_session_epoch_starts_again_at_one() -> None:
    session = FetchSession("kmirror", 13)
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
        session = FetchSession("kmirror", 13)
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


def test_an_answer_that_cannot_be_read_leaves_the_session_alone() -> None:
    broker = Broker()
    broker.gets((0, 0))
    broker.answers()
    with pytest.raises(FrameError):
        broker.answers(full_answer()[:30])
    broker.gets((SESSION, 1))
