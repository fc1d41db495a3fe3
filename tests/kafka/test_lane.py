"""A lane between two real clusters: equal to the byte over whatever network, and obedient to its claims."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from kmirror.cluster.protocol.batch import batch_headers
from kmirror.engine.clock import now
from kmirror.state.records import EngineState, Incarnation, PartitionState, ProgressRecord
from tests.support.lane import Mirror, assert_same, claims_connection, copy_of, fill
from tests.support.leader import Leader, batch_of
from tests.support.oracle import librdkafka_records
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.visible import shown
from tests.support.wire import FETCH, PRODUCE, Fault, Wire, cut_to, hang_up

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


# -- the copy ----------------------------------------------------------------------------------------------------------


def keep_producing(bootstrap_servers: str, topic: str, codec: str, until: threading.Event) -> None:
    """Write all kinds of records to eight partitions with librdkafka, and one of 900 KB now and then."""
    rng = random.Random(codec)
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "compression.type": codec, "acks": "all", "linger.ms": 2}
    )
    number = 0
    while not until.is_set() or number < 400:
        value = rng.choice([None, b"", b"text " * rng.randrange(300), rng.randbytes(rng.randrange(2000))])
        producer.produce(
            topic,
            rng.randbytes(900_000) if number % 150 == 149 else value,
            rng.choice([None, b"", b"key-%d" % number]),
            number % 8,
            headers=rng.choice([[], [("h", b"x"), ("h", None)], [("ключ", b"")]]),
        )
        number += 1
        producer.poll(0)
        if number % 20 == 0:
            time.sleep(0.01)
    assert producer.flush(60) == 0


def test_a_growing_topic_with_every_codec_is_copied_to_the_byte(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=8)
    enough = threading.Event()
    servers = mirror.source.bootstrap_servers
    writers = [threading.Thread(target=keep_producing, args=(servers, topic, codec, enough)) for codec in CODECS]
    for writer in writers:
        writer.start()
    try:
        lane = mirror.start()
        mirror.wait(lane, lambda: sum(mirror.destination_ends().values()) > 500)
    finally:
        enough.set()
        for writer in writers:
            writer.join(60)
    mirror.wait_copied(lane)
    result = mirror.stop(lane)
    assert (result.ended, result.clean) == ("STOPPED", True)
    assert_same(mirror, topic, 8)
    for partition in (0, 5):
        ours = librdkafka_records(mirror.destination.bootstrap_servers, topic, partition)
        assert ours == librdkafka_records(servers, topic, partition)
        assert len(ours) == copy_of(lane, topic, partition).progress.acknowledged


def test_batches_larger_than_a_fetch_asks_for_are_carried_too(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=6, settings={"max.message.bytes": "4000000"})
    for partition in range(6):
        with Leader(mirror.source, topic, partition) as leader:
            for size in (3_000_000, 10, 1_500_000, 2_500_000):
                value = random.Random(size).randbytes(size)
                assert leader.append_as_is(batch_of(value=value)).error_code == 0
    lane = mirror.start()
    mirror.wait_copied(lane)
    mirror.stop(lane)
    assert_same(mirror, topic, 6)


def test_a_lane_continues_where_another_ended(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=2)
    fill(mirror, topic, 500)
    first = mirror.start()
    mirror.wait_copied(first)
    assert mirror.stop(first).clean
    fill(mirror, topic, 500)
    fill(mirror, topic, 5, partition=1)
    mirror.claim()
    # if the broker knows our producer nothing is waited for; otherwise, as long as a predecessor may write
    second = mirror.start(attempt=0, predecessor_may_write=True, ttl_ms=2000)
    mirror.wait_copied(second)
    assert mirror.stop(second).clean
    assert_same(mirror, topic, 2)
    assert [p.progress.acknowledged for p in second.partitions] == [1000, 5]


def test_progress_is_written_for_the_driver(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=2)
    fill(mirror, topic, 7)
    lane = mirror.start()
    mirror.wait_copied(lane)
    found = mirror.rows_at_stop(lane)
    last = mirror.progress()[-1]
    assert (last.lane, last.lease_id, last.generation, last.attempt) == (0, mirror.lease, 1, 0)
    rows = {(row.topic, row.partition): row for row in last.rows}
    assert (rows[topic, 0].destination_offset, rows[topic, 0].source_offset) == (7, 7)
    assert (rows[topic, 1].destination_offset, rows[topic, 1].state) == (0, PartitionState.MIRRORING)
    assert [(r.partition, r.destination_offset, r.reason) for r in found] == [(0, 7, None), (1, 0, None)]


# -- claims ------------------------------------------------------------------------------------------------------------


def another_engine(mirror: Mirror) -> None:
    mirror.claim(lease="lease-2")


def a_later_generation(mirror: Mirror) -> None:
    mirror.claim(lanes={0: Incarnation(2, 0)})


def a_later_attempt(mirror: Mirror) -> None:
    mirror.write(ProgressRecord(mirror.name, 0, mirror.lease, 1, 1, "there", 1, 0, ()))


def the_end(mirror: Mirror) -> None:
    mirror.claim(state=EngineState.STOPPING)


def no_lane_any_more(mirror: Mirror) -> None:
    mirror.claim(lanes={})


@pytest.mark.parametrize(
    ("claim", "ended"),
    [
        (another_engine, "FENCED"),
        (a_later_generation, "SUPERSEDED"),
        (a_later_attempt, "SUPERSEDED"),
        (the_end, "STOPPED"),
        (no_lane_any_more, "STOPPED"),
    ],
)
def test_a_lane_ends_when_its_claim_does(mirror: Mirror, claim: Callable[[Mirror], None], ended: str) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 10)
    lane = mirror.start()
    mirror.wait_copied(lane)
    claim(mirror)
    assert mirror.result(lane).ended == ended
    fill(mirror, topic, 10)
    assert mirror.destination_ends() == {f"{topic}-0": 10}


@pytest.mark.parametrize("claim", [another_engine, a_later_generation, a_later_attempt, the_end])
def test_a_lane_without_a_claim_of_its_own_writes_nothing(mirror: Mirror, claim: Callable[[Mirror], None]) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 10)
    mirror.claim()
    claim(mirror)
    lane = mirror.start(claim=False)
    mirror.result(lane)
    assert mirror.destination_ends() == {f"{topic}-0": 0}


def test_claims_of_others_are_nothing_to_a_lane(mirror: Mirror) -> None:
    topic = mirror.topic()
    lane = mirror.start()
    for other in (
        ProgressRecord(mirror.name, 1, mirror.lease, 9, 9, "there", 1, 0, ()),
        ProgressRecord(mirror.name, 0, "lease-0", 9, 9, "there", 1, 0, ()),
        ProgressRecord(f"{mirror.name}-other", 0, mirror.lease, 9, 9, "there", 1, 0, ()),
    ):
        mirror.write(other)
    fill(mirror, topic, 10)
    mirror.wait_copied(lane)


# -- a bad network -----------------------------------------------------------------------------------------------------


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Wire:
    return forgetful.wire


@pytest.fixture
def looped(forgetful: ForgetfulCluster) -> Iterator[Mirror]:
    """Return a mirror from topics to topics of the same cluster, whose broker is reached through a wire only."""
    with closing(Mirror(forgetful.behind_wire, forgetful.behind_wire)) as made:
        yield made
    assert forgetful.wire.all_fired


def test_records_that_compaction_removed_are_missing_in_the_mirror_too(looped: Mirror) -> None:
    topic = looped.topic(
        settings={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    )
    with Leader(looped.source, topic) as leader:
        leader.append_as_is(batch_of(1, key=b"only"))
        leader.append_as_is(batch_of(4, key=b"same"))  # of which the last will stay
        at = time.time_ns() // 1_000_000
        holes = False
        while not holes:
            at += 1000
            leader.append_as_is(batch_of(1, key=b"%d" % at, timestamp=at))  # a new segment, sooner or later
            time.sleep(0.1)
            headers = list(batch_headers(leader.fetch(0).records))
            holes = any(header.has_holes for header in headers)
        assert (headers[1].base_offset, headers[1].has_holes) == (1, True)
    lane = looped.start()
    looped.wait_copied(lane)
    assert shown(looped.destination, looped.mirror_of(topic)) == shown(looped.source, topic)
    assert looped.rows_at_stop(lane)[0].state == "MIRRORING"


def fetch_error(code: int) -> Fault:
    """Return the fault of a Fetch answer that is nothing but an error."""
    no_tags, throttle_time_ms, session_id, no_topics = 0, 0, 0, 1
    body = struct.pack(">BihiBB", no_tags, throttle_time_ms, code, session_id, no_topics, no_tags)
    return lambda frame: struct.pack(">i", 4 + len(body)) + frame[4:8] + body


@pytest.mark.parametrize("code", [70, 71, 106, -1])
def test_an_error_for_a_whole_fetch_answer_is_survived(looped: Mirror, wire: Wire, code: int) -> None:
    topic = looped.topic(partitions=3)
    fill(looped, topic, 10)
    lane = looped.start()
    looped.wait_copied(lane)
    wire.spoil(*[fetch_error(code)] * 4, api_key=FETCH)
    looped.wait(lane, lambda: wire.all_fired)
    fill(looped, topic, 10, partition=2)
    looped.wait_copied(lane)
    assert looped.stop(lane).ended == "STOPPED"
    assert_same(looped, topic, 3)


@pytest.mark.slow
def test_whatever_the_network_does_the_copy_is_equal(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic(partitions=4)
    producer = Producer({"bootstrap.servers": looped.source.bootstrap_servers, "batch.num.messages": 20})
    rng = random.Random(9)
    for number in range(6000):
        producer.produce(topic, rng.randbytes(300), b"%d" % number, number % 4)
    assert producer.flush(30) == 0
    hasty = {**looped.source.client_properties(), "request.timeout.ms": "1000"}  # many answers will never be whole
    lane = looped.start(source_properties=hasty, destination_properties=hasty)
    looped.wait(lane, lambda: lane.control.deadline)
    torn: list[Fault] = [
        hang_up,
        cut_to(8),
        cut_to(14),
        lambda frame: frame[: len(frame) // 2],
        lambda frame: frame[:4] + b"\xff" * 4 + frame[8:],
        lambda frame: struct.pack(">i", -1) + frame[4:],
        lambda frame: frame[:8] + rng.randbytes(len(frame) - 8),
    ]
    wire.spoil(*[hang_up] * 6, api_key=PRODUCE)
    wire.spoil(*torn, api_key=PRODUCE)
    wire.spoil(*torn, api_key=FETCH)
    wire.spoil_at_random(rng, 0.05, [hang_up])
    looped.wait(lane, lambda: wire.all_fired)
    wire.spoil_at_random(rng, 0.0, [])
    looped.wait_copied(lane)
    assert looped.stop(lane).ended == "STOPPED"
    assert wire.spoiled >= 20
    assert_same(looped, topic, 4)


def test_past_its_deadline_a_lane_writes_nothing(looped: Mirror, wire: Wire) -> None:
    """A successor relies on it: a lane that cannot read the claims may write only for so long."""
    topic = looped.topic()
    fill(looped, topic, 10)
    lane = looped.start(ttl_ms=1500)
    looped.wait_copied(lane)
    connection = claims_connection(lane)
    with Leader(looped.source, topic) as leader:
        wire.freeze(connection.socket.getsockname())  # new connections too; existing ones continue
        try:
            looped.wait(lane, lambda: now() > lane.control.deadline)
            assert leader.append_as_is(batch_of(5)).base_offset == 10
            looped.wait(lane, lambda: copy_of(lane, looped.mirror_of(topic)).queue)
            for _ in range(10):
                time.sleep(0.1)
                assert looped.destination_ends() == {f"{looped.mirror_of(topic)}-0": 10}
                assert lane.control.ended is None
        finally:
            wire.thaw()
    looped.wait_copied(lane)
    assert looped.stop(lane).ended == "STOPPED"
