"""Kafka Streams' own word count, exactly once: a process that reads one topic and writes others in transactions."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient

from kmirror.java import find_java
from kmirror.java_properties import properties_text
from kmirror_sandbox.broker_config import logging_option, logging_properties
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from tests.support.installed_logs import create_topics
from tests.support.waiting import PATIENCE_S

#: The names that the example has built in.
INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
_IN_MEMORY = "org.apache.kafka.streams.state.BuiltInDslStoreSuppliers$InMemoryDslStoreSuppliers"
_MAIN = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"


class WordCount:
    """The application; it may be started again after its end, in the same folder, and resumes.

    Its topics are there for the `with` block.
    """

    def __init__(self, cluster: SandboxCluster, folder: Path) -> None:
        """Create its topics; the application does not run yet."""
        self.cluster = cluster
        self._folder = folder
        self._application = f"wordcount-{uuid.uuid4().hex[:8]}"
        self._jars = kafka_jars(cluster.kafka_version, os.environ, lambda line: None, extra=("kafka-streams-examples",))
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "application.id": self._application,
            "bootstrap.servers": cluster.bootstrap_servers,
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": "50",
            "repartition.purge.interval.ms": "3600000",
            "replication.factor": "1",
            "consumer.auto.offset.reset": "earliest",
            "dsl.store.suppliers.class": _IN_MEMORY,
            "state.dir": str(folder / "state"),
            # as a member that comes back, it need not wait until the one that was killed is missed
            "consumer.group.instance.id": "one",
            "producer.transaction.timeout.ms": "3000",
        }
        (folder / "streams.properties").write_text(properties_text(settings))
        logging = logging_properties(self._jars.major, folder / "streams.log")
        (folder / "streams-logging.properties").write_text(logging)
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        create_topics(cluster, {INPUT: {"retention.ms": "-1"}, OUTPUT: {"cleanup.policy": "compact"}})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        for deleted in self._admin.delete_topics([INPUT, *self.topics()]).values():
            deleted.result(30)

    def start(self) -> None:
        """Start it."""
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options.append(logging_option(self._jars.major, self._folder / "streams-logging.properties"))
        command = [str(find_java(os.environ)), *options, "-cp", self._jars.classpath, _MAIN]
        with (self._folder / "streams-console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [*command, str(self._folder / "streams.properties")], stdout=console, stderr=console
            )

    def stop(self) -> None:
        """End it with SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End it with SIGKILL, in the middle of a transaction if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def topics(self) -> Sequence[str]:
        """Return the topics it writes: its output and those it keeps for itself."""
        known = self._admin.list_topics(timeout=30).topics
        return sorted(topic for topic in known if topic == OUTPUT or topic.startswith(self._application))
