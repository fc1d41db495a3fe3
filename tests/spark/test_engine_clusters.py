"""The same copy on Spark clusters: a standalone master with two workers, local-cluster; `run` ships all they need."""

from __future__ import annotations

import os
import random
import signal

import pytest

from kmirror.sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import catch_up, finish, under_way
from tests.support.spark_standalone import StandaloneSpark


def test_local_cluster(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.fill(20_000)
    pair.create()
    finish(pair, "--master", "local-cluster[2,1,1024]")


@pytest.mark.long
def test_executor_frozen_and_continued_after_its_successor_took_over(
    source_cluster: SandboxCluster,
    forgetful_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    standalone_spark: StandaloneSpark,
) -> None:
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(80_000, timestamp_ms=pair.days_ago(30))
    pair.create()
    engine = pair.engine("--master", standalone_spark.master_url)
    under_way(pair, engine, chance)
    frozen = standalone_spark.executor_pids()[0]
    os.kill(frozen, signal.SIGSTOP)
    pair.wait_until_all_partitions_move(engine, seconds=120)
    os.kill(frozen, signal.SIGCONT)
    under_way(pair, engine, chance)
    catch_up(pair, engine)


@pytest.mark.long
def test_standalone_cluster_with_a_worker_killed_in_the_middle(
    source_cluster: SandboxCluster,
    slow_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    standalone_spark: StandaloneSpark,
) -> None:
    """Nothing comes after this one: the cluster has lost a machine."""
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(80_000)
    pair.create()
    engine = pair.engine("--master", standalone_spark.master_url)
    under_way(pair, engine, chance)
    executor = standalone_spark.executor_pids()[0]
    standalone_spark.worker_of(executor).kill()
    os.kill(executor, signal.SIGKILL)
    pair.wait_until_copying(engine)
    catch_up(pair, engine)
