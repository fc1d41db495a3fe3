"""Fixtures with real Kafka clusters, for every test that needs one; tests/conftest.py registers them with pytest.

`source_cluster` and `destination_cluster` are started together, once per run, when the first test asks for one. They
are shared: use your own topics (`unique_topic`). A test that harms its brokers, or needs other settings, asks
`make_cluster` for its own cluster.
"""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import delete_topics
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.jars import kafka_jars
from tests.support.class_archive import ClassArchive, java
from tests.support.reaper import reaped
from tests.support.waiting import wait_until

#: Options that make a broker start fast and cost little, at the price of its top speed.
QUICK_JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
#: Measure quotas over two seconds instead of eleven: a client over its quota is throttled for a moment, not for many
#: seconds after a burst.
STEADY_QUOTAS = {"quota.window.num": "2"}
#: An idle broker uses little CPU time, and many are idle while other tests run: controllers write to the metadata log
#: now and then, not twice a second (KIP-835), and few threads poll several times a second. The cleaner has memory for
#: 100,000 keys: allocating its default of 128 MB is a sixth of what a start costs.
IDLE = {
    "metadata.max.idle.interval.ms": "20000",
    "num.io.threads": "2",
    "num.network.threads": "1",
    "log.cleaner.dedupe.buffer.size": "4000000",
}
#: Halve the time until a killed broker's partitions get another leader and it may come back. A busy machine may take a
#: living broker for dead; where that would be a fault of the test, use the sandbox's own time.
QUICK_FAILOVER = {"broker.session.timeout.ms": "2000"}
#: A broker that no test kills need not send two heartbeats a second: that is a third of what an idle one costs.
UNHARMED = {"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000"}
#: Nothing is deleted for its age: a broker would check half a minute after its start, and then every five minutes.
NO_RETENTION = {"log.retention.check.interval.ms": "86400000", "log.initial.task.delay.ms": "86400000"}


class MakeCluster(Protocol):
    """Start a cluster that is removed when the test ends; takes the arguments of SandboxCluster."""

    def __call__(self, name: str = "own", *, start: bool = True, **settings: Any) -> SandboxCluster: ...


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """The two clusters that all tests share."""

    source: SandboxCluster
    destination: SandboxCluster


#: The pair that runs in this process, if one does.
_shared: list[ClusterPair] = []
#: Further clusters that run in this process and whose topics are deleted with the module that made them.
_crowded: list[SandboxCluster] = []
#: Topics of every module, and those of the brokers.
_LASTING = ("seed-", "__consumer_offsets", "__transaction_state", "__share_group_state")


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


def freeze(cluster: SandboxCluster, node_id: int) -> None:
    """Send a broker SIGSTOP, and return when none of its threads runs any more; SIGCONT resumes it."""
    process = cluster.signal(node_id, signal.SIGSTOP)
    wait_until(lambda: set(_thread_states(process.pid)) == {"T"})


def _thread_states(pid: int) -> Iterator[str]:
    """Yield the state of each thread, the word after the name in /proc/PID/task/TID/stat (proc_pid_stat(5))."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # threads come and go
            yield stat.read_text(errors="replace").rpartition(")")[2].split()[0]


def new_cluster(name: str, folder: Path, **settings: Any) -> SandboxCluster:
    """Return a cluster as tests use it, not started yet; takes the arguments of SandboxCluster."""
    properties = {**STEADY_QUOTAS, **IDLE, **settings.pop("properties", {})}
    java_options = (*QUICK_JAVA_OPTIONS, *archive_options(settings.get("kafka_version")))
    return SandboxCluster(name, folder, **{"java_options": java_options, "properties": properties, **settings})


@cache
def archive_options(kafka_version: str | None) -> tuple[str, ...]:
    """Return Java's options for a broker with a class archive; if there is none yet, run a broker to create it."""
    archive = ClassArchive.of("broker", kafka_jars(kafka_version, os.environ, lambda line: None))
    if not archive.options:
        with tempfile.TemporaryDirectory() as folder, archive.used() as making:
            java_options = (*QUICK_JAVA_OPTIONS, *making)
            with SandboxCluster("first", Path(folder), kafka_version=kafka_version, java_options=java_options) as first:
                _use(first)
                first.stop(grace_s=60)
    return archive.options


def put_quick_java_into(folder: Path) -> None:
    """Write a `java`, for the PATH, that starts brokers with the tests' options."""
    quick = " ".join((*QUICK_JAVA_OPTIONS, *archive_options(None)))
    script = folder / "java"
    script.write_text(f'#!/bin/sh\nexec {java()} {quick} "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def _use(cluster: SandboxCluster) -> None:
    """Have a broker do what most tests have it do."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("t", 1)])["t"].result(30)
    producer = Producer({**settings, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"v")
    producer.commit_transaction(30)


@pytest.fixture(scope="session", autouse=True)
def reaped_session() -> Iterator[None]:
    """End what the tests of this process start, also when it is killed."""
    with reaped():
        yield


@pytest.fixture(scope="session")
def clusters_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of all clusters of this run; after all tests no broker may be left in it."""
    directory = tmp_path_factory.mktemp("clusters")
    yield directory
    assert broker_processes(directory) == []


@pytest.fixture(scope="session")
def cluster_pair(clusters_directory: Path) -> Iterator[ClusterPair]:
    """Start the two clusters that all tests share, one broker each."""
    source, destination = (
        new_cluster(name, clusters_directory / name, properties={**NO_RETENTION, **UNHARMED})
        for name in ("source", "destination")
    )
    try:
        start_together([source, destination])
        _shared.append(pair := ClusterPair(source, destination))
        yield pair
    finally:
        _shared.clear()
        source.destroy()
        destination.destroy()


@pytest.fixture(scope="module", autouse=True)
def forgotten_mirrors() -> Iterator[None]:
    """Delete topics and mirrors of a module's tests on the shared clusters: every verb reads all mirrors there are.

    Each topic that is there costs a broker time, as long as it runs.
    """
    yield
    for cluster in (*(cluster for pair in _shared for cluster in (pair.source, pair.destination)), *_crowded):
        with ClusterClient(client_config(cluster.client_properties())) as client:
            _forget(client, [topic for topic in client.metadata().topics if not topic.startswith(_LASTING)])


def _forget(client: ClusterClient, topics: Collection[str]) -> None:
    """Delete topics; wait until brokers know it of kmirror's own, which a command would wait for."""
    delete_topics(client, topics)
    wait_until(lambda: client.metadata().topics.keys().isdisjoint((STATE_TOPIC, EVENTS_TOPIC)))


@pytest.fixture
def empty_destination(destination_cluster: SandboxCluster) -> SandboxCluster:
    """Return the shared destination cluster, with no mirrors: for engines of all mirrors there are."""
    with ClusterClient(client_config(destination_cluster.client_properties())) as client:
        _forget(client, [STATE_TOPIC, EVENTS_TOPIC])
    return destination_cluster


@contextmanager
def emptied(cluster: SandboxCluster) -> Iterator[None]:
    """Delete a cluster's topics after each module of the block."""
    _crowded.append(cluster)
    try:
        yield
    finally:
        _crowded.remove(cluster)


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
    """Yield a function that makes clusters, and remove them all at the end of the block."""
    made: list[SandboxCluster] = []

    def make(name: str = "own", *, start: bool = True, **settings: Any) -> SandboxCluster:
        cluster = new_cluster(name, directory / f"{name}-{uuid.uuid4().hex[:8]}", **settings)
        made.append(cluster)
        if start:
            cluster.start()
        return cluster

    try:
        yield make
    finally:
        for cluster in made:
            cluster.destroy()
