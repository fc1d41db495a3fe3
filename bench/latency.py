"""Measure how much later a record can be read at the destination than at the source: 200 single records a second.

A record carries its number and the time at which it was produced. The same kind of consumer waits at both clusters; the
copier adds, record by record, the difference between the two arrivals.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.clusters import Cluster, Pair
from bench.contenders import Contender, Load
from bench.data import DATA_SETS, PARTITIONS, Amount
from bench.measure import CopyFailedError
from bench.processes import Running, last_output
from kmirror.cluster.protocol.metadata import TopicPartition

_RATE = 200
#: Seconds at the start that do not count: the copier starts, and JVMs compile hot code.
_WARM_UP_S = 15
_MEASURED_S = 30
_FIRST_ARRIVAL_TIMEOUT_S = 120.0
#: For all records of a wide mirror, on a busy machine.
_ARRIVAL_TIMEOUT_S = 900.0
VALUE = struct.Struct(">qd")
_PADDING = bytes(1000 - VALUE.size)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a duration, in milliseconds."""

    p50: float
    p90: float
    p99: float
    highest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Percentiles:
        """Return them for these durations."""
        ordered = [1000 * value for value in sorted(seconds)]
        p50, p90, p99 = (ordered[len(ordered) * percent // 100] for percent in (50, 90, 99))
        return cls(p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Latency:
    """What was measured of one contender: from produce to readable at the source, and what the copy adds to that."""

    contender: str
    records: int
    source_ms: Percentiles
    added_ms: Percentiles


class Listener:
    """Reads partitions as they grow, and records when each record arrived."""

    def __init__(self, cluster: Cluster, partitions: Sequence[TopicPartition], *, from_end: bool = False) -> None:
        from confluent_kafka import OFFSET_END, Consumer
        from confluent_kafka import TopicPartition as Position

        self.arrivals: dict[int, float] = {}
        self._stop = threading.Event()
        with cluster.network():
            self._consumer: Any = Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "group.id": "bench-latency",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
            self._consumer.assign([Position(*partition, OFFSET_END if from_end else 0) for partition in partitions])
            self._thread = threading.Thread(target=self._listen, daemon=True)
            self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                number, sent = VALUE.unpack_from(message.value())
                self.arrivals[number] = time.monotonic() - sent

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def added_latency(
    pair: Pair, partitions: Sequence[TopicPartition], running: Running, rate: int, warm_s: float, measured_s: float
) -> Percentiles:
    """Return the latency that the copy adds while these partitions get `rate` records a second, one by one.

    Raises:
        CopyFailedError: records did not arrive.
    """
    from confluent_kafka import Producer

    listeners = [Listener(cluster, partitions, from_end=True) for cluster in (pair.source, pair.destination)]
    producer = Producer({"bootstrap.servers": pair.source.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    try:
        time.sleep(5)  # until the listeners know their ends
        began, total = time.monotonic(), int((warm_s + measured_s) * rate)
        for number in range(total):
            topic, partition = partitions[number % len(partitions)]
            producer.produce(topic, VALUE.pack(number, time.monotonic()), partition=partition)
            producer.poll(0)
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
        producer.flush(_ARRIVAL_TIMEOUT_S)
        deadline = time.monotonic() + _ARRIVAL_TIMEOUT_S
        while any(len(listener.arrivals) < total for listener in listeners):
            running.check()
            if time.monotonic() > deadline:
                raise CopyFailedError(f"of {total:,} records {[len(one.arrivals) for one in listeners]} arrived")
            time.sleep(0.05)
    finally:
        for listener in listeners:
            listener.close()
    at_source, at_destination = (listener.arrivals for listener in listeners)
    return Percentiles.of([at_destination[n] - at_source[n] for n in range(int(warm_s * rate), total)])


def measure_latency(pair: Pair, contender: Contender) -> Latency:
    """Start a contender on an empty topic and measure the latency that it adds.

    Raises:
        CopyFailedError: records did not arrive.
    """
    topic = "bench-latency"
    data_set = DATA_SETS["256k"]
    pair.source.create_topic(topic)
    contender.prepare(Load(topic, data_set, Amount(0, 0, 0), 0), for_latency=True)
    running: Running | None = None
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    listeners = [Listener(pair.source, partitions), Listener(pair.destination, partitions)]
    try:
        running = contender.start()
        total = _produce(pair.source, topic, running, listeners[1])
        _wait_for(listeners, total)
        running.end()
    finally:
        for listener in listeners:
            listener.close()
        if running is not None:
            running.kill()
    contender.clean_up()
    pair.source.delete_topics({topic})
    at_source, at_destination = (listener.arrivals for listener in listeners)
    counted = range(total - _RATE * _MEASURED_S, total)
    return Latency(
        contender.key,
        len(counted),
        Percentiles.of([at_source[number] for number in counted]),
        Percentiles.of([at_destination[number] - at_source[number] for number in counted]),
    )


def _produce(source: Cluster, topic: str, running: Running, destination: Listener) -> int:
    """Produce until the copy has run for the warm-up and the measured time; return the number of records."""
    from confluent_kafka import Producer

    with source.network():
        producer: Any = Producer(
            {"bootstrap.servers": source.bootstrap_servers, "linger.ms": 0, "acks": "all", "log_level": 0}
        )
    began = time.monotonic()
    end = began + _FIRST_ARRIVAL_TIMEOUT_S
    arrived = False
    number = 0
    while time.monotonic() < end:
        producer.produce(topic, VALUE.pack(number, time.monotonic()) + _PADDING, partition=number % PARTITIONS)
        number += 1
        if not arrived and destination.arrivals:
            arrived = True
            end = time.monotonic() + _WARM_UP_S + _MEASURED_S
        producer.poll(0)
        running.check()
        time.sleep(max(0.0, began + number / _RATE - time.monotonic()))
    producer.flush()
    if not arrived:
        raise CopyFailedError(
            f"no record arrived within {_FIRST_ARRIVAL_TIMEOUT_S:.0f} s; its last output:\n{last_output(running.log)}"
        )
    return number


def _wait_for(listeners: list[Listener], total: int) -> None:
    deadline = time.monotonic() + _FIRST_ARRIVAL_TIMEOUT_S
    while any(len(listener.arrivals) < total for listener in listeners):
        if time.monotonic() > deadline:
            raise CopyFailedError(f"of {total:,} records {[len(one.arrivals) for one in listeners]} arrived")
        time.sleep(0.05)
