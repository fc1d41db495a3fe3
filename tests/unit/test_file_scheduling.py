"""How a run is distributed: longest files first, a file in one process, and a process that dies fails one test."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.file_scheduling import LongestFileFirst, Measured, files_for_worker
from tests.support.processes import tree
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
DYING = """
import os, signal, subprocess
from pathlib import Path

def test_before(): pass

def test_dies():
    if not Path("died").exists():
        left = subprocess.Popen(["sleep", "600"])
        Path("died").write_text(str(left.pid))
        os.kill(os.getpid(), signal.SIGKILL)

def test_after(): pass

def test_at_the_end(): pass
"""
LIVING = "".join(f"def test_{number}(): pass\n" for number in range(5))


def run_dying(folder: Path, *options: str) -> str:
    """Run three files, in one of which the process dies once; return what pytest says."""
    (folder / "test_dying.py").write_text(DYING)
    for name in ("first", "second"):
        (folder / f"test_{name}.py").write_text(LIVING)
    words = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "2", *options, str(folder)]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_process_that_dies_fails_the_test_it_was_running_and_no_other(tmp_path: Path) -> None:
    reported = run_dying(tmp_path)
    assert re.search(r"crashed while running '.*test_dying.py::test_dies'", reported), reported
    assert "1 failed, 13 passed" in reported, reported
    assert "flaky: 0\n" in reported, reported
    started = int((tmp_path / "died").read_text())
    wait_until(lambda: tree(started) == [])


@pytest.mark.slow
def test_a_test_that_is_tried_again_is_named(tmp_path: Path) -> None:
    reported = run_dying(tmp_path, "--reruns", "1")
    assert "14 passed, 1 rerun" in reported, reported
    assert re.search(r"^flaky: 1: \S*test_dying.py::test_dies$", reported, re.MULTILINE), reported


@dataclass(eq=False)
class Process:
    """What the scheduler sees of a process."""

    given: list[list[int]] = field(default_factory=list)
    shutting_down: bool = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given.append(indices)

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(config: pytest.Config, *nodes: Any, durations: dict[str, Measured], tests: list[str]) -> LongestFileFirst:
    scheduler = LongestFileFirst(config, len(nodes), durations)
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, tests)
    assert scheduler.collection_is_completed
    scheduler.schedule()
    return scheduler


def test_files_that_were_never_measured_come_first_and_then_the_longest(pytestconfig: pytest.Config) -> None:
    node = Process()
    tests = ["tests/short.py::a", "tests/long.py::a", "tests/new.py::a", "tests/long.py::b", "tests/new.py::b"]
    scheduler = scheduled(pytestconfig, node, durations={"short.py": Measured(1), "long.py": Measured(9)}, tests=tests)
    assert node.given == [[2, 4]]
    scheduler.mark_test_complete(node, 2)
    assert node.given == [[2, 4], [1, 3]]
    for test in (4, 1):
        scheduler.mark_test_complete(node, test)
    assert node.given[2:] == [[0]]
    assert (node.shutting_down, scheduler.tests_finished) == (False, False)
    scheduler.mark_test_complete(node, 3)
    assert (node.shutting_down, scheduler.tests_finished) == (True, True)
    assert scheduler.has_pending


def test_a_file_goes_to_the_process_that_is_free(pytestconfig: pytest.Config) -> None:
    one, other = Process(), Process()
    tests = [f"tests/{file}.py::{test}" for file in ("one", "two", "three") for test in "ab"]
    scheduler = scheduled(pytestconfig, one, other, durations={}, tests=tests)
    assert (one.given, other.given) == ([[0, 1]], [[2, 3]])
    scheduler.mark_test_complete(other, 2)
    assert other.given == [[2, 3], [4, 5]]


def test_files_that_share_a_cluster_go_to_the_process_that_has_it_while_there_are_others(
    pytestconfig: pytest.Config,
) -> None:
    one, other = Process(), Process()
    durations = {"a.py": Measured(9, ("c",)), "b.py": Measured(8, ("c",)), "d.py": Measured(7), "e.py": Measured(6)}
    tests = [f"tests/{file}::{test}" for file in durations for test in "xy"]
    scheduler = scheduled(pytestconfig, one, other, durations=durations, tests=tests)
    assert (one.given, other.given) == ([[0, 1]], [[4, 5]])
    scheduler.mark_test_complete(one, 0)
    assert one.given[1:] == [[2, 3]]
    scheduler.mark_test_complete(other, 4)
    assert other.given[1:] == [[6, 7]]
    # nothing else is left: better a cluster more than a process that waits
    again = scheduled(pytestconfig, one, other, durations=durations, tests=[*tests[:4]])
    assert again.tests_finished is False
    assert (one.given[-1], other.given[-1]) == ([0, 1], [2, 3])


def test_what_starts_the_fewest_clusters_again_goes_first(pytestconfig: pytest.Config) -> None:
    one, other = Process(), Process()
    durations = {"a.py": Measured(9, ("c", "d")), "b.py": Measured(8, ("c", "d")), "e.py": Measured(7, ("c",))}
    scheduled(pytestconfig, one, other, durations=durations, tests=[f"tests/{file}::x" for file in durations])
    assert (one.given, other.given) == ([[0], [1]], [[2]])


def test_a_file_that_shares_several_clusters_comes_first(pytestconfig: pytest.Config) -> None:
    node = Process()
    durations = {"long.py": Measured(9, ("c",)), "both.py": Measured(1, ("c", "d")), "short.py": Measured(2)}
    scheduler = scheduled(pytestconfig, node, durations=durations, tests=[f"tests/{file}::x" for file in durations])
    assert node.given == [[1], [0]]
    scheduler.mark_test_complete(node, 1)
    assert node.given[2:] == [[2]]


def test_processes_that_compile_begin_with_different_files_and_agree_on_the_order() -> None:
    each = [files_for_worker(f"gw{number}", 4) for number in range(4)]
    assert {tuple(sorted(files)) for files in each} == {tuple(each[0])}
    assert len({files[0] for files in each}) == 4
    assert all(len(set(files[: len(files) // 4]) & set(each[0][: len(files) // 4])) == 0 for files in each[1:])


def test_processes_that_have_collected_different_tests_are_refused(pytestconfig: pytest.Config) -> None:
    scheduler = LongestFileFirst(pytestconfig, 2, {})
    for node in (one := Process(), other := Process()):
        scheduler.add_node(node)
    scheduler.add_node_collection(one, ["a", "b"])
    with pytest.raises(ValueError, match="different tests: \\['b'\\]"):
        scheduler.add_node_collection(other, ["a"])
    with pytest.raises(ValueError, match="different orders"):
        scheduler.add_node_collection(other, ["b", "a"])
