"""Transactions of our own writer on a real broker, behind a wire that loses requests and answers."""

from __future__ import annotations

import random
import string
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import produce, transactions
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.writing import transactional_writer
from kmirror.cluster.writing.transactional_writer import CommitInDoubtError, FencedError, TransactionalWriter
from kmirror.errors import BrokerError, UnreachableError
from kmirror.state.waiting import Deadline
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.wire import Wire, closed_port, hang_up

INIT = 22
#: What a request meets on its way, by its kind: nothing must be lost or doubled by any of it.
KINDS = {"begin": INIT, "add": transactions.ADD_PARTITIONS, "append": produce.API_KEY, "commit": transactions.END}


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Iterator[Wire]:
    yield forgetful.wire
    forgetful.wire.calm()


@pytest.fixture
def topics(forgetful: ForgetfulCluster) -> list[str]:
    names = [unique_topic("a"), unique_topic("b")]
    create_topics(forgetful.cluster, {name: {} for name in names}, 1)
    return names


@contextmanager
def writer(wire: Wire, name: str, topics: list[str], *, seconds: float = 30) -> Iterator[TransactionalWriter]:
    client = ClusterClient(client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"}))
    made = TransactionalWriter(client, name, transaction_timeout_ms=10_000)
    try:
        made.begin(topics, left(seconds), patiently=True)
        yield made
    finally:
        client.close()


def left(seconds: float = 30) -> Callable[[], float]:
    deadline = Deadline(seconds)
    return lambda: deadline.remaining


def give(topics: list[str], *values: str) -> dict[TopicPartition, list[tuple[bytes, bytes | None]]]:
    return {TopicPartition(topic, 0): [(value.encode(), value.encode()) for value in values] for topic in topics}


def committed(cluster: SandboxCluster, topic: str) -> list[str]:
    """Return the values that another library's consumer is shown."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    from confluent_kafka import TopicPartition as Place

    consumer.assign([Place(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(message.value().decode())
    consumer.close()
    return found


def test_transactions_are_written_whole(forgetful: ForgetfulCluster, wire: Wire, topics: list[str]) -> None:
    with writer(wire, topics[0], topics) as one:
        for value in "abc":
            one.commit(give(topics, value, value * 2), left())
    for topic in topics:
        assert committed(forgetful.cluster, topic) == ["a", "aa", "b", "bb", "c", "cc"]


def test_a_transaction_takes_three_turns(wire: Wire, topics: list[str]) -> None:
    with writer(wire, topics[0], topics) as one:
        one.commit(give(topics, "a"), left())
        seen: list[int] = []

        def noting(kind: int) -> Callable[[bytes], bytes]:
            def note(frame: bytes) -> bytes:
                seen.append(kind)
                return frame

            return note

        for kind in (*KINDS.values(), 3, 10):
            wire.rewrite(kind, noting(kind))
        one.commit(give(topics, "b"), left())
    asked = [kind for at, kind in enumerate(seen) if not at or seen[at - 1] != kind]  # markers may still be written
    assert asked == [KINDS["add"], KINDS["append"], KINDS["commit"]]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("is_heard", [True, False], ids=["answer lost", "request lost"])
def test_nothing_is_lost_or_doubled_where_a_request_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
    forgetful: ForgetfulCluster,
    wire: Wire,
    topics: list[str],
    kind: int,
    is_heard: bool,
) -> None:
    monkeypatch.setattr(transactional_writer, "_ANSWER_S", 0.5)
    lost: list[bytes] = []

    def lose(frame: bytes) -> bytes:
        if lost:
            return frame
        lost.append(frame)
        return b""

    with writer(wire, topics[0], topics) as one:
        one.commit(give(topics, "before"), left())
        if kind == INIT:
            # a new epoch is taken after trouble only
            wire.spoil(hang_up, api_key=KINDS["append"])
        if is_heard:
            wire.spoil(hang_up, api_key=kind)
        else:
            wire.rewrite(kind, lose)
        one.commit(give(topics, "a", "b"), left())
        one.commit(give(topics, "after"), left())
    assert wire.all_fired
    assert is_heard or lost
    for topic in topics:
        assert committed(forgetful.cluster, topic) == ["before", "a", "b", "after"]


def test_who_begins_fences_the_one_before_at_every_step(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    with writer(wire, topics[0], topics) as first, writer(wire, topics[0], topics) as second:
        with pytest.raises(FencedError):
            first.commit(give(topics, "first"), left())
        second.commit(give(topics, "second"), left())
    for step in ("_append", "_commit"):
        with writer(wire, topics[0], topics) as first:
            real = getattr(first, step)

            def overtaken(*arguments: object, real: Callable[..., object] = real) -> object:
                with writer(wire, topics[0], topics) as second:
                    second.commit(give(topics, f"before {real.__name__}"), left())
                return real(*arguments)

            setattr(first, step, overtaken)
            with pytest.raises(FencedError):
                first.commit(give(topics, "first"), left())
    for topic in topics:
        assert committed(forgetful.cluster, topic) == ["second", "before _append", "before _commit"]


def test_what_another_has_begun_meanwhile_ends_a_retry(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    with writer(wire, topics[0], topics) as first:
        real = first._start_over

        def overtaken(remaining: Callable[[], float]) -> None:
            with writer(wire, topics[0], topics) as second:
                second.commit(give(topics, "second"), left())
            real(remaining)

        first._start_over = overtaken  # type: ignore[method-assign]
        wire.spoil(hang_up, api_key=KINDS["append"])
        with pytest.raises(FencedError):
            first.commit(give(topics, "first"), left())
    for topic in topics:
        assert committed(forgetful.cluster, topic) == ["second"]


def test_a_commit_without_any_answer_is_in_doubt_and_names_a_record(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    with writer(wire, topics[0], topics) as one:
        wire.lie(KINDS["commit"], hang_up)
        with pytest.raises(CommitInDoubtError) as doubt:
            one.commit(give(topics, "a"), left(2))
    assert doubt.value.place in {(topic, 0) for topic in topics}
    assert committed(forgetful.cluster, topics[0]) == ["a"]


def test_before_the_commit_a_missing_answer_leaves_no_doubt(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    with writer(wire, topics[0], topics) as one:
        wire.lie(KINDS["append"], hang_up)
        with pytest.raises(UnreachableError):
            one.commit(give(topics, "a"), left(2))
        wire.calm()
    with writer(wire, topics[0], topics) as one:
        one.commit(give(topics, "b"), left())
    assert committed(forgetful.cluster, topics[0]) == ["b"]


@pytest.mark.slow
def test_much_is_written_in_batches_that_a_topic_accepts(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    letters = random.Random(1)
    values = ["".join(letters.choices(string.ascii_letters, k=400_000)) for _ in range(6)]
    with writer(wire, topics[0], topics) as one:
        one.commit(give(topics, *values), left())
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            one.commit(give(topics, "".join(values)), left())
    with writer(wire, topics[0], topics) as one:
        one.commit(give(topics, "after"), left())
    assert committed(forgetful.cluster, topics[1]) == [*values, "after"]


def test_a_cluster_that_cannot_be_reached_is_waited_for_only_patiently() -> None:
    client = ClusterClient(client_config({"bootstrap.servers": f"127.0.0.1:{closed_port()}"}))
    one = TransactionalWriter(client, "x", transaction_timeout_ms=10_000)
    asked: list[float] = []

    def remaining() -> float:
        asked.append(1.0)
        return 1.0 if len(asked) < 50 else 0.0

    with pytest.raises(UnreachableError):
        one.begin(["a"], remaining, patiently=False)
    assert len(asked) < 5
    with pytest.raises(UnreachableError):
        one.begin(["a"], remaining, patiently=True)
    assert len(asked) >= 50


def test_a_coordinator_that_fails_on_a_commit_is_asked_again(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    """Kafka 4.3 does so where a commit meets another writer's beginning; whether it was carried out is unknown then."""

    def failed(frame: bytes) -> bytes:
        return frame[:-3] + b"\xff\xff" + frame[-1:]

    with writer(wire, topics[0], topics) as one:
        wire.spoil(failed, api_key=KINDS["commit"])
        one.commit(give(topics, "a"), left())
        wire.lie(KINDS["commit"], failed)
        with pytest.raises(CommitInDoubtError):
            one.commit(give(topics, "b"), left(1))
    assert wire.all_fired
    assert committed(forgetful.cluster, topics[0]) == ["a", "b"]


def test_an_answer_that_leaves_out_a_partition_is_no_success(
    forgetful: ForgetfulCluster, wire: Wire, topics: list[str]
) -> None:
    asked: list[bytes] = []

    def note(frame: bytes) -> bytes:
        asked.append(frame)
        return frame

    def without_the_last_topic(frame: bytes) -> bytes:
        # size, correlation id, tags, count of topics; then name, one partition of 33 bytes, and tags for each
        start = frame.index(topics[1].encode()) - 1
        rest = frame[4:9] + bytes([frame[9] - 1]) + frame[10:start] + frame[start + len(topics[1]) + 36 :]
        return len(rest).to_bytes(4, "big") + rest

    with writer(wire, topics[0], topics) as one:
        wire.rewrite(KINDS["append"], note)
        wire.spoil(without_the_last_topic, api_key=KINDS["append"])
        one.commit(give(topics, "a"), left())
    assert wire.all_fired
    assert len(asked) == 2, "what it says nothing of is appended again, in another transaction"
    for topic in topics:
        assert committed(forgetful.cluster, topic) == ["a"]


def test_a_commit_waits_for_a_broker_that_is_away(forgetful: ForgetfulCluster, wire: Wire, topics: list[str]) -> None:
    def leave(_: bytes) -> None:
        host, port = wire._target
        wire.lead_to("127.0.0.1", closed_port())
        threading.Timer(1.0, wire.lead_to, (host, port)).start()

    with writer(wire, topics[0], topics) as one:
        wire.spoil(leave, api_key=KINDS["append"])
        one.commit(give(topics, "a"), left())
    assert wire.all_fired
    assert committed(forgetful.cluster, topics[0]) == ["a"]
