"""`client.rack` (KIP-392): records are fetched from the replica in our rack, from the leader when that replica dies."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest
from confluent_kafka import Producer

from kmirror.engine.lane.brokers.links import SourceLink
from kmirror.engine.lane.fetching import Fetching
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.lane import Mirror
from tests.support.leader import create_topic
from tests.support.visible import shown

LEADER, FOLLOWER = 1, 2
SIZE = 10_000


def fill(cluster: SandboxCluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(topic, b"%d" % number * SIZE, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.slow
def test_records_come_from_the_follower_in_our_rack_and_from_the_leader_when_it_dies(
    three_brokers: SandboxCluster, destination_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = three_brokers
    received: Counter[int] = Counter()
    fetched = Fetching.answered

    def counted(fetching: Fetching, link: SourceLink, view: memoryview) -> None:
        received[link.node_id] += len(view)
        fetched(fetching, link, view)

    monkeypatch.setattr(Fetching, "answered", counted)
    topic = create_topic(source, replicas=[[LEADER, FOLLOWER]])
    create_topic(destination_cluster, name=topic)
    fill(source, topic, 200)
    properties = {**source.client_properties(), "request.timeout.ms": "3000"}
    with closing(Mirror(source, destination_cluster)) as mirror:
        mirror.connections = 1  # what is read ahead on a busy machine would not be counted
        mirror.add(topic, topic)
        lane = mirror.start(source_properties={**properties, "client.rack": f"rack-{FOLLOWER}"})
        mirror.wait_copied(lane)
        assert received[FOLLOWER] > 200 * SIZE
        assert received[LEADER] < SIZE
        before = received[LEADER]
        source.kill(FOLLOWER)
        fill(source, topic, 100)
        mirror.wait_copied(lane)
        assert received[LEADER] - before > 100 * SIZE
        assert mirror.rows_at_stop(lane)[0].state == "MIRRORING"
        assert shown(destination_cluster, topic) == shown(source, topic)
