"""The applications of a drill: producers at the source, and producers waiting until the destination accepts writes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from tests.support.librdkafka import librdkafka

_VALUE = bytes(100)
_ROUND_S = 0.02
_ANSWER_MS = 30_000


class Acknowledged(NamedTuple):
    """A record that a cluster has acknowledged: its offset and timestamp, and when it was acknowledged."""

    offset: int
    timestamp_ms: int
    at: float


class Load:
    """Write to all partitions in turn, at a fixed rate, until the source refuses or is gone.

    `acknowledged` is by partition; times are those of `time.monotonic`.
    """

    def __init__(self, properties: Mapping[str, str], partitions: Sequence[TopicPartition], rate: int) -> None:
        self.acknowledged: defaultdict[TopicPartition, list[Acknowledged]] = defaultdict(list)
        self.refused: set[str] = set()
        self._places = partitions
        self._rate = rate
        self._end = threading.Event()
        self._config = {**librdkafka(client_config(properties)), "acks": "all", "linger.ms": 0, "log_level": 0}
        self._config |= {"error_cb": lambda _: None}
        self._writer = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop writing; what is in flight is answered or times out."""
        self._end.set()
        self._writer.join()

    @property
    def records(self) -> int:
        """How many records were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def last_acknowledged(self, topic: str) -> float:
        """Return when the last write to a topic was acknowledged."""
        return max(ones[-1].at for partition, ones in self.acknowledged.items() if partition.topic == topic)

    def _write(self) -> None:
        from confluent_kafka import KafkaException, Producer

        producer = Producer(self._config)
        began, number = time.monotonic(), 0
        while not self._end.is_set():
            topic_partition = self._places[number % len(self._places)]
            if topic_partition.topic not in self.refused:
                try:
                    producer.produce(
                        topic_partition.topic, _VALUE, partition=topic_partition.partition, on_delivery=self._delivered
                    )
                except KafkaException as error:  # librdkafka forgets a topic once it is refused
                    self._failed(topic_partition.topic, error.args[0])
                except BufferError:
                    pass
            number += 1
            producer.poll(0)
            # at most at the given rate; if the CPU is too slow for it, as fast as possible
            if (ahead := began + number / self._rate - time.monotonic()) > 0:
                producer.poll(ahead)
        producer.flush(5)

    def _failed(self, topic: str, error: Any) -> None:
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            self.refused.add(topic)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed(message.topic(), error)
            return
        partition = TopicPartition(message.topic(), message.partition())
        self.acknowledged[partition].append(Acknowledged(message.offset(), message.timestamp()[1], time.monotonic()))


class Waiting:
    """Try to write one record to each of these partitions, repeatedly, until all are accepted.

    One broker leads all of them: a request contains all that are not accepted yet.
    """

    def __init__(self, properties: Mapping[str, str], partitions: Sequence[TopicPartition]) -> None:
        self._client = ClusterClient(client_config(properties))
        self._places = sorted(partitions)
        self._accepted: dict[TopicPartition, float] = {}
        self._end = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._writer.join()
        self._client.close()

    def wait(self, timeout_s: float) -> dict[TopicPartition, float]:
        """Return by partition when its first write was acknowledged.

        Raises:
            TimeoutError: not all were accepted in time.
        """
        self._writer.join(timeout_s)
        if len(self._accepted) < len(self._places):
            raise TimeoutError(f"{len(self._accepted)} of {len(self._places)} waiting producers were accepted")
        return self._accepted

    def _write(self) -> None:
        metadata = self._client.metadata(sorted({partition.topic for partition in self._places}))
        (broker,) = metadata.brokers.values()
        connection = self._client.connect(broker.node_id, broker.host, broker.port)
        version = connection.version_for(produce.API)
        while not self._end.is_set() and (left := [one for one in self._places if one not in self._accepted]):
            appends = [
                produce.Append(one.topic, metadata.topics[one.topic].topic_id, one.partition, _record()) for one in left
            ]
            number = connection.next_correlation_id()
            sent = produce.request(number, version, "drill", appends, acks=produce.ACKS_ALL, timeout_ms=_ANSWER_MS)
            answers, _ = produce.answer(connection.exchange_frame(sent, number, _ANSWER_MS / 1000), version)
            at = time.monotonic()
            names: dict[str | bytes, str] = {metadata.topics[one.topic].topic_id: one.topic for one in left}
            for answer in answers:
                if not answer.error_code:
                    topic = names.get(answer.topic, str(answer.topic))
                    self._accepted[TopicPartition(topic, answer.partition)] = at
            self._end.wait(_ROUND_S)


def _record() -> bytes:
    return bytes(make_batch([Record(0, time.time_ns() // 1_000_000, None, _VALUE)]))
