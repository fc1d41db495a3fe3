"""The two clusters of a bench: real brokers on this machine, with the heap and the collector of Kafka's own scripts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.data import PARTITIONS
from bench.measure import DESTINATION, SOURCE
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.reports.state_log import append_to
from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.cluster_spec import NodeSpec, nodes_on, ports_needed
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.librdkafka import librdkafka
from tests.support.reaper import reaped

_HEAP = "1g"
_JAVA_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
#: Delete a topic's files at once; by default that happens a minute later, in the middle of the next measurement.
_PROPERTIES = {
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "1000",
    # `transactions` writes transactional batches without a coordinator, so brokers must not ask it
    "transaction.partition.verification.enable": "false",
}
_SETTLE_TIMEOUT_S = 90.0
#: What any tool would set on a topic that holds another cluster's records.
_COPY_SETTINGS = {"compression.type": "producer", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cluster is: the address that its brokers advertise, and how a thread gets into its network."""

    host: str
    network: Callable[[], AbstractContextManager[None]]


class Cluster:
    """One of the two clusters, with the operations that the bench needs."""

    def __init__(
        self,
        name: str,
        directory: Path,
        brokers: int = 1,
        users: Mapping[str, str] | None = None,
        *,
        place: Place | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._place = place
        ports = free_ports(ports_needed(brokers, users is not None)) if place else None
        self.sandbox = SandboxCluster(
            name,
            directory,
            brokers=brokers,
            ports=ports,
            heap=_HEAP,
            java_options=_JAVA_OPTIONS,
            properties={**_PROPERTIES, **(properties or {})},
            node_properties=_advertised(place.host, nodes_on(ports, brokers, False)) if place and ports else None,
            secured=users is not None,
            authorizer=users is not None,
            users=users,
            report=print,
        )

    def open(self) -> None:
        """Connect to the running brokers."""
        from confluent_kafka.admin import AdminClient

        self.bootstrap_servers = self.sandbox.bootstrap_servers
        if self._place:
            self.bootstrap_servers = self.bootstrap_servers.replace(LOOPBACK, self._place.host)
        properties = {**self.sandbox.client_properties(), "bootstrap.servers": self.bootstrap_servers}
        config = client_config(properties)
        # librdkafka would log that the brokers are gone when they are stopped.
        self._admin: Any = AdminClient({**librdkafka(config), "log_level": 0})
        self._client = ClusterClient(config)

    @property
    def placed(self) -> bool:
        """Return whether it is in a network of its own."""
        return self._place is not None

    def network(self) -> AbstractContextManager[None]:
        """Move this thread into the brokers' network, with what it starts there."""
        return self._place.network() if self._place else nullcontext()

    def close(self) -> None:
        """Close the connections, if any."""
        if hasattr(self, "_client"):
            self._client.close()

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        """Create a topic, by default with the shape of the data sets."""
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(name, partitions, 1, config=_COPY_SETTINGS)
        for created in self._admin.create_topics([topic]).values():
            created.result(timeout=60)
        self.log_ends(name, partitions)

    def topics(self) -> set[str]:
        """Return the names of all topics."""
        return set(self._client.metadata().topics)

    def delete_topics(self, names: set[str]) -> None:
        """Delete topics and wait until their files are gone from the brokers' disks."""
        present = names & self.topics()
        if present:
            for deleted in self._admin.delete_topics(sorted(present)).values():
                deleted.result(timeout=60)
        _wait_until(lambda: not self._files_of(names), f"the files of {', '.join(sorted(names))} are still there")

    def log_end(self, topic: str) -> int:
        """Return the sum of the true log ends of the topic's partitions."""
        return sum(self.log_ends(topic, PARTITIONS))

    def log_ends(self, topic: str, partitions: int) -> list[int]:
        """Return the true log end of each partition."""
        wanted = {TopicPartition(topic, index): LATEST for index in range(partitions)}
        with self.network():
            answers = self._client.list_offsets(wanted, log_end=True)
        return [answers[partition].offset or 0 for partition in wanted]

    def partitions_by_leader(self, topic: str) -> list[list[int]]:
        """Return the topic's partitions, grouped by the broker that leads them."""
        metadata = self._client.metadata([topic])
        found: dict[int | None, list[int]] = {}
        for partition in sorted(metadata.topics[topic].partitions):
            leader = metadata.leader(TopicPartition(topic, partition))
            found.setdefault(leader.leader_id if leader else None, []).append(partition)
        return list(found.values())

    def log_start(self, topic: str) -> int:
        """Return where the log of partition 0 starts."""
        partition = TopicPartition(topic, 0)
        return self._client.list_offsets({partition: EARLIEST})[partition].offset or 0

    def last_stable(self, topic: str) -> int:
        """Return the sum of the last stable offsets of the topic's partitions."""
        wanted = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
        return sum(answer.offset or 0 for answer in self._client.list_offsets(wanted, read_committed=True).values())

    def append(self, topic: str, batch: memoryview) -> int:
        """Append a batch to partition 0 and return its base offset."""
        return append_to(self._client, TopicPartition(topic, 0), batch)

    def delete_records(self, topic: str, offset: int) -> None:
        """Move the start of partition 0's log."""
        from confluent_kafka import TopicPartition as Place

        partition = Place(topic, 0, offset)
        self._admin.delete_records([partition])[partition].result(timeout=60)

    def _files_of(self, names: set[str]) -> bool:
        folders = [entry for broker in self.sandbox.brokers for entry in os.listdir(broker.log_dir)]
        return any(folder.startswith(f"{name}-") for name in names for folder in folders) or any(
            folder.endswith("-delete") for folder in folders
        )


class Pair:
    """Source and destination: `with Pair(folder) as pair`; the brokers stop at the end, or with this process.

    With `users` (passwords by name) they use TLS and logins, and enforce ACLs.
    """

    def __init__(
        self,
        directory: Path,
        brokers: int = 1,
        users: Mapping[str, str] | None = None,
        *,
        source: Place | None = None,
        destination: Place | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.source = Cluster("source", directory / "source", brokers, users, place=source, properties=properties)
        self.destination = Cluster(
            "destination", directory / "destination", brokers, users, place=destination, properties=properties
        )
        self._reaped = ExitStack()

    @property
    def pids(self) -> dict[str, int]:
        """Return the pid of each cluster's broker, by the cluster's name."""
        found = {SOURCE: self.source.sandbox.brokers[0].pid, DESTINATION: self.destination.sandbox.brokers[0].pid}
        return {name: pid for name, pid in found.items() if pid is not None}

    def __enter__(self) -> Self:
        self._reaped.enter_context(reaped())
        try:
            clusters = (self.source, self.destination)
            if any(cluster.placed for cluster in clusters):
                for cluster in clusters:
                    with cluster.network():
                        cluster.sandbox.start()
            else:
                start_together([cluster.sandbox for cluster in clusters])
            for cluster in clusters:
                with cluster.network():
                    cluster.open()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for cluster in (self.source, self.destination):
            cluster.close()
            cluster.sandbox.destroy()
        self._reaped.close()


def _advertised(host: str, nodes: Sequence[NodeSpec]) -> dict[int, dict[str, str]]:
    """Return the settings of nodes that clients reach by this address."""
    found = {}
    for node in nodes:
        controller = f",CONTROLLER://{LOOPBACK}:{node.controller_port}" if node.controller_port else ""
        found[node.node_id] = {
            "listeners": f"PLAINTEXT://0.0.0.0:{node.port}{controller}",
            "advertised.listeners": f"PLAINTEXT://{host}:{node.port}",
        }
    return found


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} after {_SETTLE_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
