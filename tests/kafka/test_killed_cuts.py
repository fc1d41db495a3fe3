"""The cut of a broker's two log directories is killed, as a process, after each of its steps; brokers judge the end.

A topic's partitions lie in both directories, and what goes reaches over several segments of each.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.ops.stop.failover import failover
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds
from tests.support.clusters import ClusterPair, new_cluster, unique_topic
from tests.support.engine import ROOT
from tests.support.killed import Moment, run_killed
from tests.support.log_batches import VisibleRecord
from tests.support.log_dirs import contents, own_files
from tests.support.mirrors import produce, selector
from tests.support.real_logs import write
from tests.support.round_trip import Trip, archives_of, make_old_topic, under_way
from tests.support.visible import assert_mirrored, bounds_of, shown

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PARTITIONS = 2
SHARED = 20
#: Rounds that begin a segment, and their records; two more are in the segment that is cut in two.
ROUNDS, A_ROUND = 2, 5
IN_THE_SAME_SEGMENT = 2
LOST = IN_THE_SAME_SEGMENT + ROUNDS * A_ROUND
#: A new segment begins whenever the records are a minute younger than its first.
MINUTE_MS = 60_000


@pytest.fixture
def two_dirs(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Return a cluster whose broker has two log directories."""
    folder = clusters_directory / f"two-{uuid.uuid4().hex[:8]}"
    data = folder / "node-1" / "data"
    cluster = new_cluster("two", folder, properties={"log.dirs": f"{data},{data.with_name('more')}"})
    with cluster:
        yield cluster


@dataclass(frozen=True, slots=True)
class Beyond:
    """A topic of A that holds more than B does, and the plan to cut it."""

    trip: Trip
    topic: str
    plan: Path
    #: What was never copied, by partition.
    lost: dict[int, list[VisibleRecord]]

    @property
    def dirs(self) -> list[Path]:
        (broker,) = self.trip.a.brokers
        return [broker.log_dir, broker.log_dir.with_name("more")]

    def plan_cut(self) -> None:
        """Have failback write the plan."""
        planned = self.trip.back(self.topic, strategy=Strategy.OFFLINE, plan=str(self.plan))
        assert planned.result.exit_code == 0, planned.result

    def come_back(self) -> None:
        """Start A, fail back: only what is new at B is copied, and both are the same."""
        trip = self.trip
        trip.a.start()
        trip.opened_again()
        for partition in range(PARTITIONS):
            assert bounds_of(trip.a, self.topic, partition) == (0, SHARED)
        done = trip.back(self.topic, strategy=Strategy.OFFLINE, plan=str(self.plan))
        assert done.result.exit_code == 0, done.result
        # the marker of the failover, and a local record
        assert {one["offsetsToCopy"] for one in done.evidence["forks"]} == {2}
        assert under_way(trip.at_a, trip.mirror) == []
        trip.copy_to_a()
        for partition in range(PARTITIONS):
            assert_mirrored(trip.b, trip.a, self.topic, partition)


@pytest.fixture
def beyond(two_dirs: SandboxCluster, cluster_pair: ClusterPair, tmp_path: Path) -> Iterator[Beyond]:
    with Trip(two_dirs, cluster_pair.destination) as trip:
        topic = unique_topic()
        make_old_topic(trip.a, topic, PARTITIONS, segment_ms="1000")
        now = int(time.time() * 1000)
        for partition in range(PARTITIONS):
            write(trip.a, topic, some_records(SHARED, now), partition)
        assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
        trip.copy_to_b()
        assert failover(trip.at_b, trip.mirror).result.exit_code == 0
        lost = {}
        for partition in range(PARTITIONS):
            write(trip.a, topic, some_records(IN_THE_SAME_SEGMENT, now), partition)
            for number in range(1, ROUNDS + 1):
                write(trip.a, topic, some_records(A_ROUND, now + number * MINUTE_MS), partition)
            produce(trip.b, topic, ["local"], partition)
            lost[partition] = shown(trip.a, topic, partition)[SHARED:]
        made = Beyond(trip, topic, tmp_path / "plan.json", lost)
        made.plan_cut()
        assert {cut.cut_offset for cut in read_plan(made.plan).partitions} == {SHARED}
        assert all(any(folder.glob(f"{topic}-*")) for folder in made.dirs), "one directory has none of the partitions"
        assert len(list(made.dirs[0].glob(f"{topic}-*/*.log"))) > len(list(made.dirs[0].glob(f"{topic}-*")))
        trip.a.stop()
        yield made


def some_records(count: int, timestamp: int) -> list[VisibleRecord]:
    return [VisibleRecord(0, timestamp, b"key-%d" % n, b"value-%d" % n) for n in range(count)]


def command(plan: Path, dirs: list[Path], *flags: str) -> list[str]:
    """Spell the command out as an operator would."""
    folders = [word for folder in dirs for word in ("--log-dir", str(folder))]
    return [sys.executable, "-m", "kmirror", "truncate-logs", "--plan", str(plan), *folders, "--yes", *flags]


def run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def copied(dirs: list[Path], folder: Path) -> list[Path]:
    """Copy log directories, times and all."""
    return [Path(shutil.copytree(one, folder / one.name)) for one in dirs]


def held(dirs: list[Path]) -> list[dict[str, bytes]]:
    return [contents(one) for one in dirs]


def killed_cuts(beyond: Beyond, whole: list[Path], before: list[dict[str, bytes]], folder: Path) -> int:
    """Kill the cut after each step, run it again, and take it back; return how many steps it has."""
    for number in itertools.count(1):
        dirs = copied(beyond.dirs, folder / str(number))
        was_killed, _ = run_killed(Moment("step", number), command(beyond.plan, dirs))
        if not was_killed:
            return number - 1
        others = copied(dirs, folder / str(number) / "other")
        run(command(beyond.plan, dirs))
        assert held(dirs) == held(whole), number
        run(command(beyond.plan, others, "--undo"))
        assert held(others) == before, number
        assert [own_files(one) for one in others] == [[], []], number
        shutil.rmtree(folder / str(number))
    raise AssertionError


def killed_undos(beyond: Beyond, whole: list[Path], before: list[dict[str, bytes]], folder: Path) -> int:
    """Kill the undo after each step, and run it again; return how many steps it has."""
    for number in itertools.count(1):
        dirs = copied(whole, folder / str(number))
        was_killed, _ = run_killed(Moment("step", number), command(beyond.plan, dirs, "--undo"))
        if was_killed:
            run(command(beyond.plan, dirs, "--undo"))
        assert held(dirs) == before, number
        assert [own_files(one) for one in dirs] == [[], []], number
        if not was_killed:
            return number - 1
        shutil.rmtree(folder / str(number))
    raise AssertionError


def test_killed_after_each_step_and_run_again_or_undone(beyond: Beyond, tmp_path: Path) -> None:
    before = held(beyond.dirs)
    whole = copied(beyond.dirs, tmp_path / "whole")
    run(command(beyond.plan, whole))
    after = held(whole)
    steps = killed_cuts(beyond, whole, before, tmp_path / "cuts")
    # in each directory the journal's beginning and end; of each partition the files of some segments
    assert steps > 2 * 2 + PARTITIONS * ROUNDS * 3
    assert killed_undos(beyond, whole, before, tmp_path / "undos") > steps
    # and the broker's own, killed in the second directory
    was_killed, _ = run_killed(Moment("step", steps * 3 // 4), command(beyond.plan, beyond.dirs))
    assert was_killed
    run(command(beyond.plan, beyond.dirs))
    assert held(beyond.dirs) == after
    beyond.come_back()
    for partition, records in beyond.lost.items():
        assert_holds(beyond.trip.a, f"{beyond.topic}.kmirror-archive.1", records, partition=partition)


def test_a_broker_started_in_between_has_valid_logs_and_is_cut_again(beyond: Beyond) -> None:
    was_killed, _ = run_killed(Moment("step", 10), command(beyond.plan, beyond.dirs))
    assert was_killed
    trip = beyond.trip
    trip.a.start()
    trip.opened_again()
    ends = {partition: bounds_of(trip.a, beyond.topic, partition).end for partition in range(PARTITIONS)}
    whole = SHARED + LOST
    assert all(SHARED <= end <= whole for end in ends.values()), ends
    assert min(ends.values()) < whole, "nothing had been cut yet"
    for partition, end in ends.items():
        common = shown(trip.b, beyond.topic, partition)[:SHARED]
        everything = [*common, *beyond.lost[partition]]
        assert shown(trip.a, beyond.topic, partition) == everything[:end]
    trip.a.stop()
    late = subprocess.run(command(beyond.plan, beyond.dirs, "--undo"), capture_output=True, check=False, cwd=ROOT)
    assert late.returncode == ExitCode.REFUSED, "what the broker has seen cut cannot be put back any more"
    trip.a.start()
    trip.opened_again()
    planned = trip.back(beyond.topic, strategy=Strategy.OFFLINE, plan=str(beyond.plan))
    assert planned.result.exit_code == 0, planned.result
    assert archives_of(planned)[beyond.topic]["records"] == sum(end - SHARED for end in ends.values())
    trip.a.stop()
    run(command(beyond.plan, beyond.dirs))
    beyond.come_back()
    # what was cut first is in the first archive
    for partition, records in beyond.lost.items():
        assert_holds(trip.a, f"{beyond.topic}.kmirror-archive.1", records, partition=partition)
