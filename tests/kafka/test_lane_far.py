"""Over a long path partitions that are far behind are read ahead over many connections, and arrive as they are.

A wire to a real broker passes on answers later. Judged by what both sides have on disk, and by librdkafka's consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kmirror.engine.lane.lane import Lane
from kmirror.sandbox.cluster import SandboxCluster
from tests.support.far_logs import write
from tests.support.lane import Mirror, assert_same, fill
from tests.support.oracle import librdkafka_records
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.wire import FETCH, Wire, cut_to, hang_up, swallow

PARTITIONS = 3
MEGABYTES = 4


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Iterator[Wire]:
    """Return a wire whose round trip a test may lengthen."""
    yield forgetful.wire
    forgetful.wire.delay = 0.0


@pytest.fixture
def looped(forgetful: ForgetfulCluster, wire: Wire) -> Iterator[Mirror]:
    """Return a mirror from topics to topics of the same cluster, whose broker is reached through the wire only."""
    with closing(Mirror(forgetful.behind_wire, forgetful.behind_wire)) as made:
        yield made


def start_far_away(mirror: Mirror, wire: Wire) -> Lane:
    """Start a lane whose round trips take 40 ms and more from now on."""
    wire.delay = 0.04
    return mirror.start()


def read_ahead_bytes(lane: Lane) -> int:
    """Return how much arrived over connections that read ahead."""
    return sum(reach.received_bytes for reach in lane._fetching.ahead._reaches.values())


def test_a_backlog_is_read_ahead_and_copied_as_it_is(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write(looped.source, topic, MEGABYTES, partition)
    lane = start_far_away(looped, wire)
    looped.wait_copied(lane)
    assert read_ahead_bytes(lane) > PARTITIONS * 2 << 20
    fill(looped, topic, 10)
    looped.wait_copied(lane)
    assert looped.stop(lane).clean
    assert_same(looped, topic, PARTITIONS)


def test_transactions_are_shown_as_at_the_source(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic()
    write(looped.source, topic, MEGABYTES, 0, transactions=True)
    lane = start_far_away(looped, wire)
    looped.wait_copied(lane)
    assert read_ahead_bytes(lane) > 2 << 20
    assert looped.stop(lane).clean
    servers = looped.source.bootstrap_servers
    ours, theirs = (
        librdkafka_records(servers, name, 0, isolation="read_committed") for name in (looped.mirror_of(topic), topic)
    )
    assert ours == theirs
    assert len(librdkafka_records(servers, topic, 0)) > len(theirs)


@pytest.mark.slow
def test_lost_connections_and_broken_answers_cost_time_only(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write(looped.source, topic, MEGABYTES, partition)
    for _ in range(2):
        wire.spoil(hang_up, cut_to(100_000), swallow, cut_to(50), api_key=FETCH)
    lane = start_far_away(looped, wire)
    looped.wait_copied(lane)
    assert wire.all_fired
    assert read_ahead_bytes(lane) > 1 << 20
    assert looped.stop(lane).clean
    assert_same(looped, topic, PARTITIONS)


def test_new_records_are_fetched_by_requests_that_overlap(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic(partitions=PARTITIONS)
    lane = start_far_away(looped, wire)
    looped.wait(lane, lambda: all(p.caught_up for p in lane.partitions))
    producer = Producer({"bootstrap.servers": looped.source.bootstrap_servers, "acks": "all", "linger.ms": 0})
    for number in range(100):
        producer.produce(topic, b"value", b"%d" % number, number % PARTITIONS)
        producer.flush(30)
    looped.wait_copied(lane)
    assert read_ahead_bytes(lane) > 0
    assert looped.stop(lane).clean
    assert_same(looped, topic, PARTITIONS)


@pytest.mark.slow
def test_a_slow_path_makes_no_partition_silent(
    forgetful: ForgetfulCluster, wire: Wire, destination_cluster: SandboxCluster
) -> None:
    """A response that is full says nothing of the partitions that are not in it."""
    with closing(Mirror(forgetful.behind_wire, destination_cluster)) as mirror:
        mirror.connections = 1
        topic = mirror.topic(partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            write(mirror.source, topic, MEGABYTES, partition)
        wire.delay = 1.2
        lane = mirror.start()
        mirror.wait(lane, lambda: all(copy.progress.bytes_copied > 2 << 20 for copy in lane.partitions))
        roles = set(lane._state.sources)
        wire.delay = 0.0
        mirror.wait_copied(lane)
        assert roles == {(1, "main")}
        assert read_ahead_bytes(lane) == 0
        assert mirror.stop(lane).clean
        assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_a_broker_that_accepts_few_connections_is_copied_over_those(
    looped: Mirror, wire: Wire, forgetful: ForgetfulCluster
) -> None:
    topic = looped.topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write(looped.source, topic, MEGABYTES, partition)
    # its connection stays, so that it can set things right at the end
    admin = AdminClient({"bootstrap.servers": forgetful.cluster.bootstrap_servers})
    allow(admin, 20)
    try:
        lane = start_far_away(looped, wire)
        looped.wait_copied(lane)
        refused = lane.control.connections_refused
        assert looped.stop(lane).clean
    finally:
        allow(admin, None)
    assert "accepts no more than" in (refused or "")
    assert_same(looped, topic, PARTITIONS)


def allow(admin: AdminClient, connections: int | None) -> None:
    """Let the broker accept this many connections from an address."""
    operation = AlterConfigOpType.SET if connections else AlterConfigOpType.DELETE
    entry = ConfigEntry("max.connections.per.ip", str(connections), incremental_operation=operation)
    (done,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
    ).values()
    done.result(30)
