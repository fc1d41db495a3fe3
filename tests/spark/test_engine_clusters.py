"""The same copy on Spark clusters: a standalone master with two workers, local-cluster; `run` ships all they need."""

from __future__ import annotations

import random
import signal

import pytest

from kmirror.sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import catch_up, finish, under_way
from tests.support.processes import Process, tree, wait_gone
from tests.support.spark_standalone import StandaloneSpark
from tests.support.waiting import wait_until


def busy_executor(spark: StandaloneSpark) -> tuple[Process, list[Process]]:
    """Return the JVM of an executor in which lanes run, and its Python workers; an executor without any is left out."""
    executors = [tree(pid) for pid in spark.executor_pids()]
    jvm, _, *workers = next(processes for processes in executors if len(processes) > 2)
    return jvm, workers


@pytest.mark.long
def test_local_cluster(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.fill(20_000)
    pair.create()
    finish(pair, "--master", "local-cluster[2,1,1024]")


@pytest.mark.long
@pytest.mark.parametrize(
    ("whole", "said"),
    [
        pytest.param(True, "stopped responding and is replaced", id="with its workers"),
        # its worker copies on until Spark gives the executor up and starts the lane again elsewhere
        pytest.param(False, "died; another worker continues", id="its JVM alone"),
    ],
)
def test_executor_frozen_and_continued_after_its_successor_took_over(
    source_cluster: SandboxCluster,
    forgetful_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    standalone_spark: StandaloneSpark,
    whole: bool,
    said: str,
) -> None:
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(240_000, timestamp_ms=pair.days_ago(30))
    pair.create()
    engine = pair.engine("--master", standalone_spark.master_url)
    under_way(pair, engine, chance)
    jvm, workers = busy_executor(standalone_spark)
    frozen = [*workers, jvm] if whole else [jvm]
    for process in frozen:
        process.send(signal.SIGSTOP)
    wait_until(lambda: said in engine.output, 90)
    # that many take longer than the lease that a successor waits for: it writes by then
    enough = pair.destination_end() + 20_000
    wait_until(lambda: pair.destination_end() > enough, 90)
    pair.wait_until_all_partitions_move(engine, seconds=60)
    for process in frozen:
        process.send(signal.SIGCONT)
    assert not wait_gone(workers, 30), "a worker lives on whose successor took over"
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
    executor, workers = busy_executor(standalone_spark)
    standalone_spark.worker_of(executor.pid).kill()
    executor.kill()
    assert not wait_gone(workers, 10), "a worker outlives its executor"
    pair.wait_until_all_partitions_move(engine, seconds=60)
    assert "died; another worker continues" in engine.output
    catch_up(pair, engine)
