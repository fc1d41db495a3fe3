"""Leaders die under a running copy, at the source and at the destination, on clusters of three brokers."""

from __future__ import annotations

import random

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.clusters import QUICK_FAILOVER, MakeCluster
from tests.support.engine import catch_up, limit_writes, under_way


@pytest.fixture(scope="module")
def three(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster of three brokers; each test leaves all of them running and in sync."""
    properties = {"default.replication.factor": "3", "min.insync.replicas": "2", **QUICK_FAILOVER}
    return make_module_cluster("three", brokers=3, properties=properties)


@pytest.mark.long
def test_destination_leader_killed(
    source_cluster: SandboxCluster, three: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    limit_writes(three, 1 << 20)
    pair = make_pair(source_cluster, three)
    pair.fill(200_000)
    pair.create()
    engine = pair.engine()
    for _ in range(2):
        under_way(pair, engine, chance)
        leader = pair.leader(three)
        three.kill(leader)
        pair.wait_until_all_partitions_move(engine, seconds=60)
        three.start_broker(leader)
        pair.wait_until_in_sync(three, 3)
    assert engine.process.poll() is None, engine.output
    catch_up(pair, engine)
    for broker in three.brokers:
        pair.assert_equal(destination_node=broker.node_id)


@pytest.mark.long
def test_source_leader_killed(
    three: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    limit_writes(destination_cluster, 3 << 20)
    pair = make_pair(three, destination_cluster, replication=3)
    pair.fill(120_000)
    pair.create()
    engine = pair.engine()
    under_way(pair, engine, chance)
    leader = pair.leader(three)
    three.kill(leader)
    pair.wait_until_all_partitions_move(engine, seconds=60)
    three.start_broker(leader)
    pair.wait_until_in_sync(three, 3)
    catch_up(pair, engine)
