"""ZooKeeper for brokers before Kafka 3.3: one process, from Kafka's own jars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kmirror_sandbox.broker_config import zookeeper_properties
from kmirror_sandbox.jars import KafkaJars
from kmirror_sandbox.java_server import JavaServer
from kmirror_sandbox.cluster_spec import ClusterSpec

_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ZooKeeper(JavaServer):
    """The ZooKeeper of one cluster."""

    def __init__(self, cluster: ClusterSpec, cluster_directory: Path) -> None:
        super().__init__(cluster, cluster_directory / "zookeeper", f"ZooKeeper of cluster {cluster.name}")
        self._properties = self.directory / "zookeeper.properties"

    @property
    def port(self) -> int:
        """Return the port to which brokers connect."""
        return self.cluster.zookeeper_port

    def start(self, java: Path, jars: KafkaJars, environ: Mapping[str, str]) -> None:
        """Start it without waiting until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(zookeeper_properties(self.port, self.data), encoding="utf-8")
        self.launch(java, jars, environ, _OPTIONS, [_MAIN_CLASS, str(self._properties)])
