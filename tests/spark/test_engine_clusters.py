"""The same copy on Spark clusters: a standalone master with two workers, local-cluster; `run` ships all they need."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Pair, catch_up, finish, typed, under_way
from tests.support.processes import Process, tree, wait_gone
from tests.support.slow_python import slow_python
from tests.support.spark_standalone import StandaloneSpark, running_standalone_spark
from tests.support.waiting import PATIENCE_S, wait_until


def busy_executor(spark: StandaloneSpark) -> tuple[Process, list[Process]]:
    """Return the JVM of an executor in which lanes run, and its Python workers; an executor without any is omitted."""
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
    assert not wait_gone(workers, PATIENCE_S), "a worker lives on whose successor took over"
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
    assert not wait_gone(workers, PATIENCE_S), "a worker outlives its executor"
    pair.wait_until_all_partitions_move(engine, seconds=60)
    assert "died; another worker continues" in engine.output
    catch_up(pair, engine)


def workers_of(pair: Pair) -> set[str]:
    """Return where lanes run that report on a partition."""
    described = typed(pair.destination, "describe", "--mirror", pair.mirror, "--json")
    return {row["worker"] for row in json.loads(described.stdout) if row["worker"]}


@pytest.mark.long
def test_lanes_go_to_a_worker_that_joins_leave_one_that_dies_and_do_not_wait_for_a_slow_one(
    source_cluster: SandboxCluster,
    destination_cluster: SandboxCluster,
    make_pair: MakePair,
    tmp_path: Path,
) -> None:
    with running_standalone_spark(tmp_path / "cluster") as spark:
        pair = make_pair(source_cluster, destination_cluster)
        pair.fill(2_000)
        pair.create("copy.lanes=4")
        engine = pair.engine("--master", spark.master_url)
        pair.wait_until_copying(engine)
        wait_until(lambda: len(workers_of(pair)) == 2, 120)

        joined = spark.start_worker()
        wait_until(lambda: len(workers_of(pair)) == 3, 120)
        assert "moves from" in engine.output
        pair.fill(2_000)
        pair.wait_until_equal(engine)
        spark.kill_worker(joined)
        pair.fill(2_000)
        pair.wait_until_equal(engine)
        wait_until(lambda: len(workers_of(pair)) == 2, 60)

        # a lane of two partitions there would need ten minutes for what comes now
        spark.start_worker(slow_python(tmp_path / "slow", 10_000))
        wait_until(lambda: len(workers_of(pair)) == 3, 120)
        pair.fill(24_000)
        pair.wait_until_equal(engine, 200)
        assert "which is ahead" in engine.output
        assert engine.stop() == 0
        pair.assert_equal()
