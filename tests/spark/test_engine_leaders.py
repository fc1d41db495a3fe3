"""Leaders die under a running copy, at the source and at the destination, on clusters of three brokers."""

from __future__ import annotations

import random

from kmirror.sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.clusters import MakeCluster
from tests.support.engine import finish, limit_writes, under_way

THREE = {"default.replication.factor": "3", "min.insync.replicas": "2"}


def test_destination_leader_killed(
    source_cluster: SandboxCluster, make_cluster: MakeCluster, make_pair: MakePair, chance: random.Random
) -> None:
    destination = make_cluster("three", brokers=3, properties=THREE)
    limit_writes(destination, 3 << 20)
    pair = make_pair(source_cluster, destination)
    pair.fill(120_000)
    pair.create()
    engine = pair.engine()
    for _ in range(2):
        under_way(pair, engine, chance)
        leader = pair.leader(destination)
        destination.kill(leader)
        pair.wait_until_copying(engine)
        destination.start_broker(leader)
        pair.wait_until_in_sync(destination, 3)
    assert engine.process.poll() is None, engine.output
    assert engine.stop() == 0
    finish(pair)
    for broker in destination.brokers:
        pair.assert_equal(destination_node=broker.node_id)


def test_source_leader_killed(
    destination_cluster: SandboxCluster, make_cluster: MakeCluster, make_pair: MakePair, chance: random.Random
) -> None:
    source = make_cluster("three", brokers=3, properties=THREE)
    limit_writes(destination_cluster, 3 << 20)
    pair = make_pair(source, destination_cluster, replication=3)
    pair.fill(120_000)
    pair.create()
    engine = pair.engine()
    under_way(pair, engine, chance)
    leader = pair.leader(source)
    source.kill(leader)
    pair.wait_until_copying(engine)
    source.start_broker(leader)
    pair.wait_until_in_sync(source, 3)
    assert engine.stop() == 0
    finish(pair)
