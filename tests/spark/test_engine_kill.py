"""The engine is killed at random moments, in every way, and started again at once: the copy stays exact.

A produce quota at the destination keeps the copy under way long enough; each kill first proves that it is.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Pair, catch_up, finish, under_way
from tests.support.processes import EngineTree, Process, wait_gone
from tests.support.waiting import PATIENCE_S

#: In the long campaigns; the others kill in each way once. `make test` has the demo, which kills its engine half-way.
LONG_KILLS = 20
RECORDS = 80_000


def kill_driver(tree: EngineTree) -> None:
    assert tree.driver is not None
    tree.driver.kill()


def kill_workers(tree: EngineTree) -> None:
    for worker in tree.workers:
        worker.kill()


def kill_daemon_then_driver(tree: EngineTree) -> None:
    for daemon in tree.daemon:
        daemon.kill()
    kill_driver(tree)


def kill_everything(tree: EngineTree) -> None:
    for process in tree.all:
        process.kill()


WAYS: dict[str, Callable[[EngineTree], None]] = {
    "driver": kill_driver,
    "workers": kill_workers,
    "daemon, then driver": kill_daemon_then_driver,
    "everything": kill_everything,
}


def campaign(pair: Pair, kills: int, chance: random.Random, age_days: int = 0) -> None:
    """Kill `kills` times, each way in turn, starting again at once."""
    old: list[Process] = []
    for number in range(kills):
        if pair.source_end() - pair.destination_end() < RECORDS // 2:
            pair.fill(RECORDS // 2, timestamp_ms=pair.days_ago(age_days))
        name, way = list(WAYS.items())[number % len(WAYS)]
        engine = pair.engine()
        under_way(pair, engine, chance)
        tree = engine.tree()
        assert tree.workers, f"no workers found:\n{engine.output[-2000:]}"
        way(tree)
        if name == "workers":
            # The driver lives: Spark replaces them, and the copy resumes by itself.
            assert not wait_gone(tree.workers, PATIENCE_S)
            pair.wait_until_copying(engine)
            tree = engine.tree()
            kill_everything(tree)
        engine.process.wait(PATIENCE_S)
        old += tree.all
    assert not wait_gone(old, PATIENCE_S), "workers outlive their driver"


@pytest.mark.long
def test_killed_at_random_moments(
    source_cluster: SandboxCluster, slow_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(RECORDS)
    pair.create()
    campaign(pair, len(WAYS), chance)
    finish(pair)


@pytest.mark.long
def test_killed_while_copying_history_older_than_the_brokers_memory(
    source_cluster: SandboxCluster, forgetful_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    """The sequence check has expired for these records: lease, deadlines and single steps have to do."""
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(RECORDS, timestamp_ms=pair.days_ago(30))
    pair.create()
    campaign(pair, len(WAYS), chance, age_days=30)
    finish(pair)


@pytest.mark.long
@pytest.mark.parametrize("age", [0, 30], ids=["new records", "records 30 days old"])
def test_engine_frozen_and_continued_after_its_successor_took_over(
    source_cluster: SandboxCluster,
    forgetful_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    age: int,
) -> None:
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(RECORDS, timestamp_ms=pair.days_ago(age))
    pair.create()
    first = pair.engine()
    under_way(pair, first, chance)
    tree = first.tree()
    for process in tree.all:
        process.send(signal.SIGSTOP)
    second = pair.engine("--take-over")
    under_way(pair, second, chance)
    for process in tree.all:
        process.send(signal.SIGCONT)
    assert not wait_gone(tree.workers, PATIENCE_S), "a worker that was frozen lives on"
    assert first.wait(PATIENCE_S) == 3
    assert "took over" in first.output
    catch_up(pair, second)


@pytest.mark.long
def test_worker_frozen_and_continued_after_its_successor_took_over(
    source_cluster: SandboxCluster, forgetful_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(RECORDS, timestamp_ms=pair.days_ago(30))
    pair.create()
    engine = pair.engine()
    under_way(pair, engine, chance)
    workers = engine.tree().workers
    for worker in workers:
        worker.send(signal.SIGSTOP)
    pair.wait_until_all_partitions_move(engine, seconds=60)
    assert "stopped responding" in engine.output
    for worker in workers:
        worker.send(signal.SIGCONT)
    assert not wait_gone(workers, PATIENCE_S), "a worker that was frozen lives on"
    catch_up(pair, engine)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_long_campaign(
    source_cluster: SandboxCluster, slow_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, slow_destination)
    pair.fill(RECORDS)
    pair.create()
    campaign(pair, LONG_KILLS, chance)
    finish(pair)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_long_campaign_on_old_history(
    source_cluster: SandboxCluster, forgetful_destination: SandboxCluster, make_pair: MakePair, chance: random.Random
) -> None:
    pair = make_pair(source_cluster, forgetful_destination)
    pair.fill(RECORDS, timestamp_ms=pair.days_ago(30))
    pair.create()
    campaign(pair, LONG_KILLS, chance, age_days=30)
    finish(pair)
