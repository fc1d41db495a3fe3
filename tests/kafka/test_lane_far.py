"""Over a long path many connections are used: to read partitions ahead that are far behind, and to append.

A wire to a real broker passes on answers later. Judged by what both sides have on disk, and by librdkafka's consumer.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from math import inf
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.protocol.read_ahead import Covered
from kmirror.cluster.rights.client_quotas import alter_quotas
from kmirror.engine.clock import now
from kmirror.engine.lane.ahead import Ahead
from kmirror.engine.lane.brokers.links import DestinationLink, LinkKind
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.far_logs import write, write_large, write_unequal
from tests.support.lane import Mirror, assert_same, claims_connection, fill
from tests.support.oracle import librdkafka_records
from tests.support.shared_clusters import ForgetfulCluster, cluster_behind_wires
from tests.support.waiting import polls
from tests.support.wire import FETCH, PRODUCE, Wire, cut_to, hang_up, swallow

PARTITIONS = 3
MEGABYTES = 4


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Iterator[Wire]:
    """Return a wire whose round trip a test may lengthen."""
    yield forgetful.wire
    forgetful.wire.delay = 0.0
    forgetful.wire.bytes_per_second = forgetful.wire.answered_bytes_per_second = inf


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


@pytest.mark.slow
def test_a_backlog_is_read_ahead_and_copied_as_it_is(
    looped: Mirror, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: dict[PartitionCopy, tuple[int, int]] = {}
    begins = Ahead.begins

    def begins_noted(self: Ahead, partition: PartitionCopy, found: Covered, fetched_with: int, at: float) -> bool:
        learned.setdefault(partition, (found.next_offset, partition.intake.next_offset))
        return begins(self, partition, found, fetched_with, at)

    monkeypatch.setattr(Ahead, "begins", begins_noted)
    topic = looped.topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        write(looped.source, topic, MEGABYTES, partition)
    lane = start_far_away(looped, wire)
    looped.wait_copied(lane)
    assert read_ahead_bytes(lane) > PARTITIONS * 2 << 20
    # taking batches in changes them: how large they are is learned before
    assert len(learned) == PARTITIONS
    assert all(end == taken for end, taken in learned.values()), learned
    fill(looped, topic, 10)
    looped.wait_copied(lane)
    assert looped.stop(lane).clean
    assert_same(looped, topic, PARTITIONS)


@pytest.mark.slow
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


@pytest.mark.slow
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
@pytest.mark.parametrize("quota", [None, pytest.param(10e6, marks=pytest.mark.slow)])
def test_many_partitions_with_large_batches_are_hardly_fetched_twice(
    looped: Mirror, wire: Wire, quota: float | None
) -> None:
    """Also where a quota throttles, that is, brokers answer with nothing now and then."""
    partitions, megabytes = 30, 3
    topic = looped.topic(partitions=partitions)
    write_large(looped.source, topic, partitions, megabytes)
    before = wire.answered_bytes
    with limited(looped, quota):
        lane = start_far_away(looped, wire)
        looped.wait_copied(lane)
    copied = sum(copy.progress.bytes_copied for copy in lane.partitions)
    sent = wire.answered_bytes - before
    roles = {role for (_, role), _ in lane._state.sources.items()}
    assert looped.stop(lane).clean
    assert_same(looped, topic, partitions)
    assert copied > 0.8 * (partitions * megabytes << 20)
    assert "silent" not in roles
    assert sent < 1.35 * copied, f"{sent / copied:.2f}"


@pytest.mark.slow
def test_a_buffer_full_of_what_follows_a_gap_stops_nothing(looped: Mirror, wire: Wire) -> None:
    """Ranges are guessed by the mean size of a batch: where these differ much, some bytes between two are missing."""
    looped.buffer_bytes = 8 << 20
    topic = looped.topic()
    write_unequal(looped.source, topic, 10 * MEGABYTES)
    lane = start_far_away(looped, wire)
    looped.wait_copied(lane)
    assert looped.stop(lane).clean
    assert_same(looped, topic)


@pytest.mark.slow
def test_a_limit_holds_for_what_is_read_ahead(looped: Mirror, wire: Wire) -> None:
    lane, topic = start_reading_ahead(looped, wire)
    looped.claim(throttle={0: 100_000})
    looped.wait(lane, lambda: lane.control.bytes_per_second == 100_000)
    wire.answered_bytes_per_second = inf
    # what was asked for before arrives yet
    looped.wait(lane, lambda: stays_the_same(lambda: read_ahead_bytes(lane) >> 20))
    assert lane.partitions[0].source.role == "ahead"
    assert read_ahead_bytes(lane) < 4 * MEGABYTES << 20
    looped.claim()
    looped.wait_copied(lane)
    assert looped.stop(lane).clean
    assert_same(looped, topic)


@pytest.mark.slow
def test_what_is_read_ahead_waits_for_topics_with_priority(looped: Mirror, wire: Wire) -> None:
    lane, topic = start_reading_ahead(looped, wire)
    looped.claim(first_topics=("another",))
    (copy,) = lane.partitions
    looped.wait(lane, lambda: copy.source.is_deferred and not copy.queue and not copy.in_flight)
    assert stays_the_same(lambda: copy.progress.bytes_copied)
    assert not copy.caught_up
    wire.answered_bytes_per_second = inf
    looped.claim()
    looped.wait_copied(lane)
    assert looped.stop(lane).clean
    assert_same(looped, topic)


def start_reading_ahead(mirror: Mirror, wire: Wire) -> tuple[Lane, str]:
    """Start a lane far away, over connections of 1 MB/s; return it when it reads its only partition ahead."""
    topic = mirror.topic()
    write(mirror.source, topic, 6 * MEGABYTES)
    wire.answered_bytes_per_second = 1e6
    lane = start_far_away(mirror, wire)
    mirror.wait(lane, lambda: lane.partitions[0].source.role == "ahead")
    return lane, topic


@contextmanager
def limited(mirror: Mirror, bytes_per_second: float | None) -> Iterator[None]:
    """Limit what kmirror reads from the source, if that is not None."""
    quota = Quota((("client-id", "kmirror"),), "consumer_byte_rate", bytes_per_second or 0.0)
    if bytes_per_second is not None:
        assert not alter_quotas(mirror.at_source, [quota], [])
    try:
        yield
    finally:
        if bytes_per_second is not None:
            assert not alter_quotas(mirror.at_source, [], [quota])


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
        roles = {key for key, _ in lane._state.sources.items()}
        wire.delay = 0.0
        mirror.wait_copied(lane)
        assert roles == {(1, "main")}
        assert read_ahead_bytes(lane) == 0
        assert mirror.stop(lane).clean
        assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_a_broker_that_accepts_few_connections_is_copied_over_those(
    make_cluster: MakeCluster, destination_cluster: SandboxCluster
) -> None:
    with (
        # connections of other tests count too
        cluster_behind_wires(make_cluster, "few") as few,
        closing(Mirror(few.behind_wire, destination_cluster)) as mirror,
    ):
        topic = mirror.topic(partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            write(mirror.source, topic, 5 * MEGABYTES, partition)
        # these connections stay: to see how far the copy is, and to set things right at the end
        mirror.source_ends()
        admin = AdminClient({"bootstrap.servers": few.cluster.bootstrap_servers})
        allow(admin, 16)
        # so that more connections carry more, also where the machine is busy
        few.wire.answered_bytes_per_second = 1e6
        lane = start_far_away(mirror, few.wire)
        mirror.wait(lane, lambda: lane.control.connections_refused is not None)
        few.wire.answered_bytes_per_second = inf
        mirror.wait_copied(lane)
        assert "accepts no more than" in str(lane.control.connections_refused)
        assert mirror.stop(lane).clean
        allow(admin, None)
        assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_a_broker_that_accepts_no_more_connections_is_seldom_asked_for_others(
    make_cluster: MakeCluster, destination_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New records alone, without a backlog, use several connections too."""
    with (
        cluster_behind_wires(make_cluster, "full") as full,
        closing(Mirror(full.behind_wire, destination_cluster)) as mirror,
    ):
        topic = mirror.topic()
        admin = AdminClient({"bootstrap.servers": full.cluster.bootstrap_servers})
        producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "acks": "all", "linger.ms": 0})
        producer.produce(topic, b"value", partition=0)
        assert producer.flush(60) == 0
        lane = start_far_away(mirror, full.wire)
        mirror.wait_copied(lane)
        asked: list[LinkKind] = []
        requests, reach = lane._state.background_requests, lane._fetching.ahead._reaches[1]
        connect = requests.connect
        mirror.wait(lane, lambda: reach.open_links and len(reach.open_links) == len(reach.links.items()))
        # other connections that are open now stay open
        allow(admin, 1)
        mirror.wait(lane, lambda: is_refused(full.cluster.bootstrap_servers))

        def counted_connect(kind: LinkKind, *others: Any) -> None:
            asked.append(kind)
            connect(kind, *others)

        def lose_links(_: float) -> None:
            for link in reach.open_links:
                reach.links.lose(link, "for a test")

        monkeypatch.setattr(requests, "connect", counted_connect)
        lane._state.loop.post(lose_links)
        mirror.wait(lane, lambda: not reach.open_links)
        for _ in range(100):
            producer.produce(topic, b"value", partition=0)
            assert producer.flush(60) == 0
        mirror.wait_copied(lane)
        # once a minute as many as its fetches take
        assert 0 < asked.count("ahead") < 50
        assert not reach.open_links
        allow(admin, None)
        assert mirror.stop(lane).clean
        assert_same(mirror, topic)


@pytest.mark.slow
def test_a_broker_that_is_restarted_is_not_said_to_accept_few_connections(
    make_cluster: MakeCluster, destination_cluster: SandboxCluster
) -> None:
    with (
        cluster_behind_wires(make_cluster, "restarted") as restarted,
        closing(Mirror(restarted.behind_wire, destination_cluster)) as mirror,
    ):
        topic = mirror.topic(partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            write(mirror.source, topic, 5 * MEGABYTES, partition)
        restarted.wire.answered_bytes_per_second = 1e6
        lane = start_far_away(mirror, restarted.wire)
        reaches = lane._fetching.ahead._reaches
        mirror.wait(lane, lambda: any(len(reach.open_links) > 1 for reach in reaches.values()))
        restarted.cluster.stop_broker(1)
        mirror.wait(lane, lambda: not reaches[1].readings)  # none could be opened
        restarted.cluster.start_broker(1)
        restarted.wire.answered_bytes_per_second = inf
        mirror.wait_copied(lane)
        assert lane.control.connections_refused is None
        assert mirror.stop(lane).clean
        assert_same(mirror, topic, PARTITIONS)


def is_refused(address: str) -> bool:
    """Return True if a broker closes a new connection at once."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 30) as made:
        made.settimeout(1)
        try:
            return made.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def allow(admin: AdminClient, connections: int | None) -> None:
    """Let the broker accept this many connections from an address."""
    operation = AlterConfigOpType.SET if connections else AlterConfigOpType.DELETE
    entry = ConfigEntry("max.connections.per.ip", str(connections), incremental_operation=operation)
    (done,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])]
    ).values()
    done.result(30)


# -- appending ---------------------------------------------------------------------------------------------------------


def start_with_slow_connections(mirror: Mirror, wire: Wire, topics: int, **spec: Any) -> tuple[Lane, list[str]]:
    """Start a lane far away over connections that carry 2 MB/s each; return it once it appends over several."""
    names = [mirror.topic() for _ in range(topics)]
    for name in names:
        write(mirror.source, name, MEGABYTES, 0)
    wire.bytes_per_second = 2e6
    wire.delay = 0.04
    lane = mirror.start(**spec)
    mirror.wait(lane, lambda: len(appending(lane)) >= 3)
    return lane, names


def appending(lane: Lane) -> list[DestinationLink]:
    """Return the connections to the destination with requests in flight."""
    return [link for link in lane._state.destinations.opened if link.in_flight]


def stays_the_same(value: Callable[[], object]) -> bool:
    """Return True if a value stays the same for a second, within a few."""
    before, since = value(), now()
    until = since + 10
    for _ in polls():
        if (after := value()) != before:
            before, since = after, now()
        if now() - since > 1:
            return True
        if now() > until:
            return False
    raise AssertionError


@pytest.mark.slow
def test_partitions_are_spread_over_connections_and_appended_in_order(looped: Mirror, wire: Wire) -> None:
    lane, topics = start_with_slow_connections(looped, wire, 8)
    looped.wait_copied(lane)
    # a batch that overtakes another one is refused, and the partition inspected again
    assert {sum("inspected" in line for line in partition.history) for partition in lane.partitions} == {1}
    assert len({partition.destination_number for partition in lane.partitions}) >= 3
    assert looped.stop(lane).clean
    for topic in topics:
        assert_same(looped, topic)


@pytest.mark.slow
def test_a_lost_connection_to_append_costs_time_only(looped: Mirror, wire: Wire) -> None:
    lane, topics = start_with_slow_connections(looped, wire, 6)
    wire.spoil(hang_up, cut_to(20), swallow, api_key=PRODUCE)
    looped.wait_copied(lane)
    assert wire.all_fired
    assert looped.stop(lane).ended == "STOPPED"
    for topic in topics:
        assert_same(looped, topic)


@pytest.mark.slow
def test_partitions_are_released_whatever_connection_they_are_appended_over(looped: Mirror, wire: Wire) -> None:
    lane, topics = start_with_slow_connections(looped, wire, 6)
    released, kept = topics[:3], topics[3:]
    looped.change(1, released)
    looped.wait(lane, lambda: looped.progress()[-1].given_up == 1)
    ends = looped.destination_ends()
    mirrors = [f"{looped.mirror_of(topic)}-0" for topic in released]
    looped.wait(lane, lambda: {**looped.source_ends(), **{m: ends[m] for m in mirrors}} == looped.destination_ends())
    assert all(ends[m] < looped.source_ends()[m] for m in mirrors)
    assert looped.stop(lane).clean
    for topic in kept:
        assert_same(looped, topic)


@pytest.mark.slow
def test_a_lane_that_stops_appends_over_no_connection(looped: Mirror, wire: Wire) -> None:
    lane, _ = start_with_slow_connections(looped, wire, 6)
    assert looped.stop(lane).ended == "STOPPED"
    assert lane._state.destinations.items() == []
    assert stays_the_same(looped.destination_ends)
    assert looped.destination_ends() != looped.source_ends()


@pytest.mark.slow
def test_past_its_deadline_a_lane_appends_over_no_connection(looped: Mirror, wire: Wire) -> None:
    lane, _ = start_with_slow_connections(looped, wire, 6, ttl_ms=1500)
    connection = claims_connection(lane)
    wire.freeze(connection.socket.getsockname())  # new connections too; existing ones continue
    try:
        looped.wait(lane, lambda: now() > lane.control.deadline and not appending(lane))
        # what is on its way yet may arrive
        assert stays_the_same(looped.destination_ends)
        assert looped.destination_ends() != looped.source_ends()
        # where all that took half a minute, the lane has given its engine up
        assert lane.control.ended is None or lane.control.ended[0] == "LOST_ENGINE"
    finally:
        wire.thaw()
