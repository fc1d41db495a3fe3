"""Distribute test files over the processes of pytest-xdist: the longest first, each to the next free process.

A file stays in one process, where its tests share fixtures, and files that share clusters go to the same process as
long as it is not the last to end. When a process dies, the test it was running has failed; the rest of its files goes
to the process that replaces it. (With `--dist loadfile` such a run never ends.)
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from xdist.workermanage import WorkerController

from tests.support.browser import has_chromium

#: How long each file took, and which shared clusters it used. `pytest --record-durations` writes it; CI does not.
DURATIONS_FILE = Path(__file__).parent.parent / "durations.json"
#: Where pytest caches the bytecode of most of the tests; a fresh clone has none.
COMPILED = DURATIONS_FILE.parent / "kafka" / "__pycache__"
#: A process starts a test when it knows the next one: fixtures that that does not need are torn down in between.
_ALWAYS_KNOWN = 2


def file_of(nodeid: str) -> str:
    """Return a test's file, below `tests`."""
    return nodeid.partition("::")[0].removeprefix("tests/")


def files_for_worker(worker: str, workers: int) -> list[str]:
    """Return all test files, starting with another one for each process (`gw0`, `gw1`, …).

    A fresh clone's files are compiled as they are collected: what one process has compiled, the others reuse.
    pytest does not apply `collect_ignore` to files that it is given by name.
    """
    files = sorted(str(path) for path in DURATIONS_FILE.parent.rglob("test_*.py"))
    files = [path for path in files if has_chromium() or not path.endswith("test_browser.py")]
    first = int(worker.removeprefix("gw")) % workers * len(files) // workers
    return files[first:] + files[:first]


class Measured(NamedTuple):
    """What is known of a file: the seconds its tests took, and the clusters that it shares with others."""

    seconds: float
    clusters: tuple[str, ...] = ()


def known_durations() -> dict[str, Measured]:
    """Return the recorded facts, by file."""
    if not DURATIONS_FILE.exists():
        return {}
    recorded = json.loads(DURATIONS_FILE.read_text(encoding="utf-8"))
    return {file: Measured(seconds, tuple(clusters)) for file, (seconds, *clusters) in recorded.items()}


def record_durations(measured: Mapping[str, Measured]) -> None:
    """Replace what is known of the files that have run; drop files that no longer exist."""
    merged = {**known_durations(), **measured}
    kept = {file: merged[file] for file in sorted(merged) if (DURATIONS_FILE.parent / file).exists()}
    lines = (f" {json.dumps(file)}: {json.dumps([round(one.seconds, 1), *one.clusters])}" for file, one in kept.items())
    DURATIONS_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


class LongestFileFirst:
    """A scheduler as pytest-xdist calls it (`xdist.scheduler.protocol.Scheduling`)."""

    def __init__(self, config: pytest.Config, node_count: int, durations: Mapping[str, Measured]) -> None:
        #: pytest-rerunfailures looks for it here.
        self.config = config
        self._node_count = node_count
        self._durations = durations
        #: The tests, as every process has collected them; identified by their index.
        self._collection: list[str] | None = None
        self._ready: list[WorkerController] = []
        self._queue: deque[list[int]] = deque()
        #: The clusters that each process has started, as far as is known.
        self._clusters: dict[WorkerController, set[str]] = {}
        #: What each process was given and has not finished, in the order in which it runs.
        self._given: dict[WorkerController, deque[int]] = {}
        self._scheduled = False

    @property
    def nodes(self) -> list[WorkerController]:
        """The running processes."""
        return list(self._given)

    @property
    def collection_is_completed(self) -> bool:
        """Whether all initial processes have collected."""
        return self._scheduled or len(self._ready) >= self._node_count

    @property
    def tests_finished(self) -> bool:
        """Whether the processes may end once they have run what they were given."""
        given = self._given.values()
        return self._scheduled and not self._queue and all(len(tests) < _ALWAYS_KNOWN for tests in given)

    @property
    def has_pending(self) -> bool:
        """Whether tests are left."""
        return bool(self._queue) or any(self._given.values())

    def add_node(self, node: WorkerController) -> None:
        """Add a new process, which has not collected yet."""
        self._given[node] = deque()
        self._clusters[node] = set()

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Take what a process has collected. Raises ValueError if it differs from the others."""
        if self._collection is None:
            self._collection = list(collection)
        if differing := {*self._collection} ^ {*collection}:
            raise ValueError(f"the processes have collected different tests: {sorted(differing)}")
        if self._collection != list(collection):
            raise ValueError("the processes have collected the same tests in different orders")
        self._ready.append(node)

    def schedule(self) -> None:
        """Give every process that is ready its first files."""
        if not self._scheduled:
            self._scheduled = True
            self._queue.extend(self._files())
        for node in self._ready:
            self._feed(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Record that a process has finished a test."""
        self._given[node].remove(item_index)
        self._feed(node)

    def mark_test_pending(self, item: str) -> None:
        """Run a test again."""
        assert self._collection is not None
        self._queue.appendleft([self._collection.index(item)])

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        """Never called: it is the answer to a request that this scheduler does not make."""
        raise NotImplementedError

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a process that has ended; return the test that it was running, if it died of one."""
        self._ready = [one for one in self._ready if one is not node]
        left = self._given.pop(node)
        del self._clusters[node]
        if not left:
            return None
        assert self._collection is not None
        died_of = self._collection[left.popleft()]
        if left:
            self._queue.appendleft(list(left))
        return died_of

    def _files(self) -> list[list[int]]:
        """Return each file's tests; a file that was never measured comes first.

        Before all others come files that share several clusters: last, each would start all of them where it runs.
        """
        files: dict[str, list[int]] = {}
        for index, nodeid in enumerate(self._collection or ()):
            files.setdefault(file_of(nodeid), []).append(index)
        never_run = Measured(float("inf"))

        def place(file: str) -> tuple[bool, float]:
            measured = self._durations.get(file, never_run)
            return len(measured.clusters) < 2, -measured.seconds

        return [files[file] for file in sorted(files, key=place)]

    def _clusters_of(self, tests: Sequence[int]) -> set[str]:
        assert self._collection is not None
        known = self._durations.get(file_of(self._collection[tests[0]]))
        return set(known.clusters) if known else set()

    def _next_for(self, node: WorkerController) -> list[int]:
        """Take the longest file that needs no cluster which another process has and this one has not, or the fewest."""
        mine = self._clusters[node]
        others = set().union(*(clusters for one, clusters in self._clusters.items() if one is not node)) - mine
        chosen = min(self._queue, key=lambda tests: len(self._clusters_of(tests) & others))
        self._queue.remove(chosen)
        mine |= self._clusters_of(chosen)
        return chosen

    def _feed(self, node: WorkerController) -> None:
        while not node.shutting_down and len(self._given[node]) < _ALWAYS_KNOWN:
            if not self._queue:
                node.shutdown()
                return
            tests = self._next_for(node)
            self._given[node].extend(tests)
            node.send_runtest_some(tests)
