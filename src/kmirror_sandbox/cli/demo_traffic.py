"""The traffic of `demo`: a producer that writes steadily, single batches, and a counter of a topic's records.

These are ordinary librdkafka producers with `acks=all`; they count what brokers have acknowledged.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Self

from kmirror.errors import KmirrorError, TimedOutError

#: Receives librdkafka's complaints that brokers go away, as they do in each demo.
_logger = logging.getLogger("kmirror.demo")
_logger.addHandler(logging.NullHandler())

_RECORD_BYTES = 500
_PAUSE_S = 0.02
_FLUSH_S = 60.0
_TIMEOUT_S = 10.0


def make_topic(bootstrap_servers: str, topic: str, partitions: int, *, if_missing: bool = False) -> None:
    """Create a topic with one replica."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_logger)
    try:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_FLUSH_S)
    except KafkaException as error:
        if not if_missing or error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete a topic, and return when brokers do not know it any more."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_logger)
    admin.delete_topics([topic])[topic].result(_FLUSH_S)
    deadline = time.monotonic() + _FLUSH_S
    while topic in admin.list_topics(timeout=_TIMEOUT_S).topics and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def delete_records(bootstrap_servers: str, topic: str, before: int) -> None:
    """Delete the records of a topic's only partition before an offset."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    partition = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_logger)
    admin.delete_records([partition])[partition].result(_FLUSH_S)


def log_ends(bootstrap_servers: str, topic: str) -> tuple[int, int]:
    """Return where the log of a topic's only partition begins and ends."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "kmirror-demo"}, logger=_logger)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_TIMEOUT_S)
        return low, high
    finally:
        consumer.close()


def write_records(bootstrap_servers: str, topic: str, count: int) -> None:
    """Write `count` records, and return when all are acknowledged.

    Raises:
        KmirrorError: a record was not acknowledged.
    """
    with LiveProducer(bootstrap_servers, topic, 0) as producer:
        producer.burst(count)
        producer.close()


class LiveProducer:
    """Write records to a topic at a steady rate until closed, and bursts on request."""

    def __init__(self, bootstrap_servers: str, topic: str, records_per_second: int) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "linger.ms": 5,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 100_000,
            },
            logger=_logger,
        )
        self._topic = topic
        self._rate = records_per_second
        self._values = [random.Random(seed).randbytes(_RECORD_BYTES) for seed in range(64)]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._number = 0
        self._acknowledged = 0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._trickle, name="kmirror-demo-producer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()

    def burst(self, count: int) -> None:
        """Write `count` records as fast as the source accepts them."""
        for _ in range(count):
            if self._stop.is_set():
                return
            self._write()

    def close(self) -> int:
        """Stop writing, wait until all records are acknowledged, and return their number.

        Raises:
            KmirrorError: a record was not acknowledged.
        """
        self._stop.set()
        self._thread.join()
        if self._producer.flush(_FLUSH_S) or self._error:
            raise KmirrorError(f"the demo's own producer lost records: {self._error or 'not acknowledged in time'}")
        return self._acknowledged

    def _trickle(self) -> None:
        began, written = time.monotonic(), 0
        while not self._stop.wait(_PAUSE_S):
            due = int((time.monotonic() - began) * self._rate)
            for _ in range(due - written):
                self._write()
            written = due

    def _write(self) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        value = self._values[number % len(self._values)]
        headers = [("number", str(number).encode())]
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    self._topic, value, f"order-{number}", headers=headers, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(0.05)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: Any, _: Any) -> None:
        with self._lock:
            if error is not None:
                self._error = error.str()
            else:
                self._acknowledged += 1


class Watcher:
    """Count the records of a topic, one offset each."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "kmirror-demo"}, logger=_logger)
        self._partitions = [TopicPartition(topic, partition) for partition in range(partitions)]

    def total(self) -> int:
        """Return how many records there are."""
        return sum(self._consumer.get_watermark_offsets(one, timeout=_TIMEOUT_S)[1] for one in self._partitions)

    def wait_for(self, total: int, seconds: float) -> None:
        """Wait until there are `total` records.

        Raises:
            TimedOutError: there are fewer after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (found := self.total()) < total:
            if time.monotonic() > deadline:
                raise TimedOutError(f"only {found:,} of {total:,} records arrived within {seconds:g} s")
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
