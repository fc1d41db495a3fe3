"""`run --all`: the lanes of all mirrors share a process for each core, and are restarted when these end."""

from __future__ import annotations

import os
import random
import resource
import signal
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Engine, Pair, limit_writes, under_way
from tests.support.processes import Process, wait_gone
from tests.support.waiting import PATIENCE_S, wait_until

MIRRORS = 4
RECORDS = 15_000
FEW_FILES = 1024


def made(make_pair: MakePair, source: SandboxCluster, destination: SandboxCluster) -> list[Pair]:
    """Return pairs with mirrors, of which nothing is copied yet."""
    pairs = [make_pair(source, destination, partitions=2) for _ in range(MIRRORS)]
    for pair in pairs:
        pair.fill(RECORDS)
        pair.create()
    return pairs


def hosts(engine: Engine) -> list[Process]:
    """Return the workers that host lanes: those with the threads of some."""
    return [one for one in engine.tree().workers if len(list(Path(f"/proc/{one.pid}/task").iterdir())) > 8]


def who_takes_sigcont(process: Process) -> int:
    """Return how many threads of a process do not block SIGCONT."""
    masks = [
        next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk:"))
        for task in Path(f"/proc/{process.pid}/task").iterdir()
    ]
    return sum(not int(mask.split()[1], 16) >> signal.SIGCONT - 1 & 1 for mask in masks)


def finish_all(pairs: list[Pair], engine: Engine) -> None:
    limit_writes(pairs[0].destination, None)
    for pair in pairs:
        pair.wait_until_equal(engine)
    assert engine.stop() == 0
    for pair in pairs:
        pair.assert_equal()


@pytest.mark.slow
def test_the_lanes_of_mirrors_share_processes_and_are_restarted_when_these_are_killed(
    source_cluster: SandboxCluster,
    slow_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    tmp_path: Path,
    engines: list[Engine],
) -> None:
    pairs = made(make_pair, source_cluster, slow_destination)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))  # as a login shell has it, for the engine
    try:
        engine = Engine(slow_destination, None, tmp_path / "all.out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    engines.append(engine)
    under_way(pairs[-1], engine, chance)
    found = hosts(engine)
    for process in (engine.process, *found):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] > FEW_FILES
    assert 1 <= len(found) <= (os.cpu_count() or 1)
    assert {who_takes_sigcont(one) for one in found} == {1}
    for process in found:
        process.kill()
    assert not wait_gone(found, PATIENCE_S)
    wait_until(lambda: "died and is restarted" in engine.output)
    finish_all(pairs, engine)


@pytest.mark.slow
def test_processes_that_are_frozen_are_replaced_and_send_nothing_when_they_are_continued(
    source_cluster: SandboxCluster,
    slow_destination: SandboxCluster,
    make_pair: MakePair,
    chance: random.Random,
    tmp_path: Path,
    engines: list[Engine],
) -> None:
    pairs = made(make_pair, source_cluster, slow_destination)
    first = Engine(slow_destination, None, tmp_path / "first.out")
    engines.append(first)
    under_way(pairs[-1], first, chance)
    # the engine replaces those that do not respond
    frozen = hosts(first)
    for process in frozen:
        process.send(signal.SIGSTOP)
    wait_until(lambda: not wait_gone(frozen, 1))
    under_way(pairs[-1], first, chance)
    # all of it is frozen, and another engine takes over
    tree = first.tree()
    for process in tree.all:
        process.send(signal.SIGSTOP)
    second = Engine(slow_destination, None, tmp_path / "second.out", "--take-over")
    engines.append(second)
    under_way(pairs[-1], second, chance)
    for process in tree.all:
        process.send(signal.SIGCONT)
    assert not wait_gone(tree.workers, PATIENCE_S), "a worker that was frozen lives on"
    finish_all(pairs, second)
