"""Consumers that record what they were given and what they committed, Java's and librdkafka's."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import Counter
from typing import Protocol, Self

from confluent_kafka import Consumer, KafkaException, Producer

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION, kafka_jars
from tests.support.class_archive import java
from tests.support.mirrors import properties_of

_VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
_BATCH = 200


class Member(Protocol):
    """A member of a group."""

    @property
    def values(self) -> Counter[str]:
        """The values of the records that it was given and finally committed."""

    def stop(self) -> None:
        """Commit what was given, and leave the group."""

    def destroy(self) -> None:
        """Clean up, also when the test has failed."""


class LibrdkafkaMember:
    """A librdkafka consumer that commits after each batch."""

    def __init__(self, cluster: SandboxCluster, group: str, topic: str, protocol: str = "classic") -> None:
        self.values: Counter[str] = Counter()
        settings = {
            **properties_of(cluster),
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self.trouble: list[str] = []
        self._thread = threading.Thread(target=self._consume)
        self._thread.start()

    def stop(self) -> None:
        """Commit what was given, and leave the group."""
        self._stop.set()
        self._thread.join(60)
        assert not self.trouble, self.trouble

    def destroy(self) -> None:
        """Clean up, also when the test has failed."""
        self._stop.set()
        self._thread.join(60)

    def _consume(self) -> None:
        try:
            while not self._stop.is_set():
                batch = self._consumer.consume(_BATCH, timeout=0.1)
                for message in batch:
                    if message.error():
                        self.trouble.append(str(message.error()))
                        return
                self.values.update(message.value().decode() for message in batch)
                if batch:
                    self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            self.trouble.append(str(error))
        finally:
            self._consumer.close()


class JavaMember:
    """Kafka's own verifiable consumer: it prints every record, and commits after each poll."""

    def __init__(self, cluster: SandboxCluster, group: str, topic: str, protocol: str = "consumer") -> None:
        self.values: Counter[str] = Counter()
        jars = kafka_jars(DEFAULT_KAFKA_VERSION, os.environ, lambda line: None, ["kafka-tools"])
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF"]
        arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--group-id", group]
        arguments += ["--verbose", "--group-protocol", protocol, "--reset-policy", "none"]
        self._process = subprocess.Popen(
            [java(), *options, "-cp", jars.classpath, _VERIFIABLE_CONSUMER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.reported: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def stop(self) -> None:
        """Commit what was given, and leave the group."""
        self._process.terminate()
        self._thread.join(60)
        self._process.wait(60)
        assert '"name":"shutdown_complete"' in self.reported[-1], self.reported[-3:]

    def destroy(self) -> None:
        """Clean up, also when the test has failed."""
        self._process.kill()
        self._thread.join(60)
        self._process.wait(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if '"name":"record_data"' in line:
                    self.values[json.loads(line)["value"]] += 1
                else:
                    self.reported = [*self.reported[-20:], line]


class Load:
    """A producer that writes until asked to stop; records carry numbers, from `first` on."""

    def __init__(self, cluster: SandboxCluster, topic: str, partitions: int, *, first: int = 0) -> None:
        self._first = self.sent = first
        self._partitions = partitions
        self._producer = Producer({**properties_of(cluster), "acks": "all"})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def stop(self) -> Counter[str]:
        """Return what was sent, once all of it has arrived."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return Counter(str(number) for number in range(self._first, self.sent))

    def _produce(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(20):
                self._producer.produce(self._topic, str(self.sent), partition=self.sent % self._partitions)
                self.sent += 1
            self._producer.poll(0)
