"""Partitions without records for a while are fetched over another connection, and come back with the first one."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing

import pytest
from confluent_kafka import Producer

from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane import fetching
from kmirror.engine.lane.brokers.links import SourceLink
from kmirror.engine.lane.lane import Lane
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.lane import Mirror, assert_same, copy_of, fill
from tests.support.librdkafka import librdkafka
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.wire import FETCH, hang_up

PARTITIONS = 12


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MANY_PARTITIONS", 3)
    monkeypatch.setattr(fetching, "QUIET_SECONDS", 0.4)


def quiet(lane: Lane, topic: str) -> set[int]:
    """Return the partitions that are fetched over the connection for quiet ones."""
    return {index for index in range(PARTITIONS) if copy_of(lane, topic, index).source.role == "quiet"}


def test_the_first_record_brings_a_quiet_partition_back(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=PARTITIONS)
    lane = mirror.start()
    mirror.wait(lane, lambda: len(quiet(lane, topic)) == PARTITIONS)
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers})
    producer.produce(topic, b"v", partition=7)
    assert producer.flush(30) == 0
    mirror.wait(lane, lambda: quiet(lane, topic) == set(range(PARTITIONS)) - {7})
    mirror.wait_copied(lane)
    # one that stays alone is quiet again, but not before there are many
    producer.produce(topic, b"w", partition=7)
    producer.produce(topic, b"w", partition=8)
    assert producer.flush(30) == 0
    mirror.wait_copied(lane)
    assert quiet(lane, topic) == set(range(PARTITIONS)) - {7, 8}
    mirror.stop(lane)
    assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_partitions_that_come_and_go_are_copied_to_the_byte(mirror: Mirror) -> None:
    topic, rng = mirror.topic(partitions=PARTITIONS), random.Random(7)
    lane, moves, before = mirror.start(), 0, set[int]()
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "linger.ms": 1})
    until = time.monotonic() + 7
    while time.monotonic() < until or moves <= PARTITIONS:  # a busy machine has fewer turns
        for _ in range(rng.choice([1, 5, 200])):
            partitions = rng.sample(range(PARTITIONS), rng.choice([1, 2, 8]))
            for partition in partitions:
                producer.produce(topic, rng.randbytes(rng.randrange(3000)), partition=partition)
        assert producer.flush(30) == 0
        time.sleep(rng.choice([0, 0.2, 0.9]))
        now = quiet(lane, topic)
        moves, before = moves + len(now ^ before), now
    mirror.wait_copied(lane)
    result = mirror.stop(lane)
    assert (result.ended, result.clean) == ("STOPPED", True)
    assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_lost_connections_to_a_source_of_quiet_partitions(forgetful: ForgetfulCluster) -> None:
    wire = forgetful.wire
    with closing(Mirror(forgetful.behind_wire, forgetful.behind_wire)) as mirror:
        topic = mirror.topic(partitions=PARTITIONS)
        copy, lane = mirror.mirror_of(topic), mirror.start()
        producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers})
        for number in range(4):
            mirror.wait(lane, lambda: len(quiet(lane, copy)) > PARTITIONS - 4)
            wire.spoil(hang_up, api_key=FETCH)
            mirror.wait(lane, lambda: wire.all_fired)
            for partition in (number, 9):
                producer.produce(topic, b"v%d" % number, partition=partition)
            assert producer.flush(30) == 0
            mirror.wait_copied(lane)
        mirror.stop(lane)
        assert_same(mirror, topic, PARTITIONS)


@pytest.mark.slow
def test_a_destination_that_closes_idle_connections_is_no_trouble(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("hasty", properties={"connections.max.idle.ms": "2500"})
    with closing(Mirror(cluster, cluster)) as mirror:
        topic = mirror.topic()
        lane = mirror.start()
        copy = copy_of(lane, mirror.mirror_of(topic))

        def inspections() -> int:
            return sum("inspected" in line for line in copy.history)

        for _ in range(3):
            before = inspections()
            fill(mirror, topic, 1)
            mirror.wait_copied(lane)
            # each time the connection is closed the log is inspected again
            mirror.wait(lane, lambda before=before: inspections() > before)  # type: ignore[misc]
        assert not [line for line in copy.history if "interrupted" in line]
        mirror.stop(lane)
        assert {row.reason for one in mirror.progress() for row in one.rows} == {None}


def test_a_session_that_expires_interrupts_no_partition(
    guarded_cluster: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    with closing(Mirror(guarded_cluster, destination_cluster)) as mirror:
        topic, lane = mirror.topic(partitions=PARTITIONS), mirror.start()
        producer = Producer(librdkafka(client_config(guarded_cluster.client_properties())))
        seen: list[SourceLink] = []

        def renewed() -> bool:
            """Write a record, and return True once a connection of each kind was replaced."""
            producer.produce(topic, b"v", partition=7)
            producer.flush(30)
            seen.extend(link for link in lane._fetching._links.opened if link not in seen)
            return Counter(link.role for link in seen) >= Counter(main=2, quiet=2)

        mirror.wait(lane, renewed)
        mirror.wait_copied(lane)
        assert not [line for copy in lane.partitions for line in copy.history if "interrupted" in line]
        mirror.stop(lane)
