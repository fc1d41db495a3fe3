"""MirrorMaker 2, in the brokers' version and dedicated mode, tuned to copy as fast as it can on two cores.

Large fetches and polls, large batches, five requests in flight (Connect's default is one), the throughput collector.
Everything that only costs is off: heartbeats, checkpoints, offset syncs, the syncs of settings and ACLs.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from bench.clusters import Pair
from bench.contenders import Load
from bench.processes import Running, start
from kmirror.java import find_java
from kmirror.java_properties import properties_text
from kmirror_sandbox.broker_config import logging_option, logging_properties
from kmirror_sandbox.jars import KafkaJars, kafka_jars

_JAVA_OPTIONS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseParallelGC")
_TUNED = {
    "tasks.max": "2",
    # reading: large answers to fetches, and as many records as they hold per poll
    "source.consumer.fetch.max.bytes": str(32 << 20),
    "source.consumer.max.partition.fetch.bytes": str(4 << 20),
    "source.consumer.max.poll.records": "4000",
}
_PRODUCER = {
    "acks": "all",
    "batch.size": str(512 << 10),
    "linger.ms": "20",
    "buffer.memory": str(128 << 20),
    "max.request.size": str(8 << 20),
    "max.in.flight.requests.per.connection": "5",
}
#: Sizes of socket buffers.
_LARGE, _KERNEL_SIZED = str(4 << 20), "-1"
_LOW_LATENCY = {"linger.ms": "0"}


def mirrormaker_jars() -> KafkaJars:
    """Return the jars that MirrorMaker 2 needs, downloading them the first time."""
    return kafka_jars(None, os.environ, print, extra=("connect-mirror", "kafka-tools"))


class MirrorMaker:
    """`connect-mirror-maker` in its own process, as its documentation starts it."""

    key = "mirrormaker"
    title = "MirrorMaker 2"
    apart = False

    def __init__(self, pair: Pair, folder: Path, *, over_a_distance: bool = False) -> None:
        """`over_a_distance` leaves the sizes of socket buffers to the kernel, which grows them with the path."""
        self._pair = pair
        self._folder = folder
        self._buffers = _KERNEL_SIZED if over_a_distance else _LARGE
        self._jars = mirrormaker_jars()
        self._java = find_java(os.environ)
        self._before: set[str] = set()

    def prepare(self, load: Load, *, for_latency: bool = False) -> None:
        """Create the topic, and write a configuration that shares nothing with earlier rounds."""
        self._topic = load.topic
        self._before = self._pair.destination.topics()
        self._pair.destination.create_topic(load.topic, load.amount.partitions)
        producer = {**_PRODUCER, "send.buffer.bytes": self._buffers, "compression.type": load.data_set.compression_type}
        settings = self._settings(load.topic, {**producer, **(_LOW_LATENCY if for_latency else {})})
        (self._folder / "mm2.properties").write_text(properties_text(settings), encoding="utf-8")
        logging = logging_properties(self._jars.major, self._folder / "mm2.log")
        (self._folder / "mm2-logging.properties").write_text(logging, encoding="utf-8")

    def start(self) -> Running:
        """Start it."""
        argv = [
            *(str(self._java), *_JAVA_OPTIONS),
            logging_option(self._jars.major, self._folder / "mm2-logging.properties"),
            *("-cp", self._jars.classpath, "org.apache.kafka.connect.mirror.MirrorMaker"),
            str(self._folder / "mm2.properties"),
        ]
        process = start(argv, self._folder / "mm2-console.log")
        return Running([process], self._folder / "mm2.log", ends_itself=False)

    def clean_up(self) -> None:
        """Delete the topic, and MirrorMaker's own topics."""
        own = {name for name in self._pair.destination.topics() - self._before if name.endswith(".internal")}
        self._pair.destination.delete_topics({self._topic, *own})

    def _settings(self, topic: str, producer: dict[str, str]) -> dict[str, str]:
        # Its own topics are named after the clusters: with a new name it remembers nothing.
        source = f"source{uuid.uuid4().hex[:8]}"
        flow = f"{source}->destination"
        switched_off = (
            *("emit.heartbeats.enabled", "emit.checkpoints.enabled", "emit.offset-syncs.enabled"),
            *("sync.topic.configs.enabled", "sync.topic.acls.enabled", "sync.group.offsets.enabled"),
            *("refresh.topics.enabled", "refresh.groups.enabled"),
        )
        return {
            "clusters": f"{source},destination",
            f"{source}.bootstrap.servers": self._pair.source.bootstrap_servers,
            "destination.bootstrap.servers": self._pair.destination.bootstrap_servers,
            f"{flow}.enabled": "true",
            f"{flow}.topics": topic,
            f"{flow}.replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            **{f"{flow}.{key}": "false" for key in switched_off},
            **dict.fromkeys(switched_off, "false"),
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
            "replication.factor": "1",
            **{f"{kind}.storage.replication.factor": "1" for kind in ("config", "offset", "status")},
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            **{f"{flow}.{key}": value for key, value in _TUNED.items()},
            f"{flow}.source.consumer.receive.buffer.bytes": self._buffers,
            **{f"destination.producer.{key}": value for key, value in producer.items()},
        }
