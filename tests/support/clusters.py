"""Fixtures with real Kafka clusters, for every test that needs one; tests/conftest.py makes them known to pytest.

`source_cluster` and `destination_cluster` are started once for the whole run, together, when the first test asks for
one. They are shared: use topics of your own (`unique_topic`). A test that harms its brokers, or needs other settings,
asks `make_cluster` for a cluster of its own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from kmirror.sandbox.cluster import SandboxCluster, start_together

#: What makes a broker start soonest and cost least, at the price of its top speed.
QUICK_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class MakeCluster(Protocol):
    """Start a cluster that is removed when the test ends; takes the arguments of SandboxCluster."""

    def __call__(self, name: str = "own", *, start: bool = True, **settings: Any) -> SandboxCluster: ...


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """The two clusters that all tests share."""

    source: SandboxCluster
    destination: SandboxCluster


def unique_topic(prefix: str = "t") -> str:
    """Return a topic name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def broker_processes(directory: Path) -> list[int]:
    """Return the pids of all processes whose command line names a path below this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = entry.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(f"{directory}/") in command_line:
            found.append(int(entry.parent.name))
    return found


@pytest.fixture(scope="session")
def clusters_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of all clusters of this run; when all tests are over, no broker may be left in it."""
    directory = tmp_path_factory.mktemp("clusters")
    yield directory
    assert broker_processes(directory) == []


@pytest.fixture(scope="session")
def cluster_pair(clusters_directory: Path) -> Iterator[ClusterPair]:
    """Start the two clusters that all tests share, one broker each."""
    source = SandboxCluster("source", clusters_directory / "source", java_options=QUICK_JAVA_OPTIONS)
    destination = SandboxCluster("destination", clusters_directory / "destination", java_options=QUICK_JAVA_OPTIONS)
    try:
        start_together([source, destination])
        yield ClusterPair(source, destination)
    finally:
        source.destroy()
        destination.destroy()


@pytest.fixture(scope="session")
def source_cluster(cluster_pair: ClusterPair) -> SandboxCluster:
    """Return the shared source cluster."""
    return cluster_pair.source


@pytest.fixture(scope="session")
def destination_cluster(cluster_pair: ClusterPair) -> SandboxCluster:
    """Return the shared destination cluster."""
    return cluster_pair.destination


@pytest.fixture
def make_cluster(clusters_directory: Path) -> Iterator[MakeCluster]:
    """Return a function that starts a cluster for this test alone."""
    with made_clusters(clusters_directory) as make:
        yield make


@pytest.fixture(scope="module")
def make_module_cluster(clusters_directory: Path) -> Iterator[MakeCluster]:
    """Return a function that starts a cluster for the tests of one module."""
    with made_clusters(clusters_directory) as make:
        yield make


@contextmanager
def made_clusters(directory: Path) -> Iterator[MakeCluster]:
    """Give a function that makes clusters, and remove them all at the end of the block."""
    made: list[SandboxCluster] = []

    def make(name: str = "own", *, start: bool = True, **settings: Any) -> SandboxCluster:
        folder = directory / f"{name}-{uuid.uuid4().hex[:8]}"
        cluster = SandboxCluster(name, folder, **{"java_options": QUICK_JAVA_OPTIONS, **settings})
        made.append(cluster)
        if start:
            cluster.start()
        return cluster

    try:
        yield make
    finally:
        for cluster in made:
            cluster.destroy()
