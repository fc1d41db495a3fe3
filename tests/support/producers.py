"""Producers whose batches are exactly those that a test expects.

librdkafka sends what it has when `linger.ms` is over, 5 ms by default: on a busy machine the first record may well go
alone. It may also when records wait for the topic's partitions to become known: these get them one by one, and a flush
that has begun sends what is there. And a batch that compression does not shrink is sent uncompressed. So tests that
count batches, or check their codec, write compressible records with such a producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer

from tests.support.waiting import wait_until


def whole_batches(topic: str, config: Mapping[str, Any]) -> Producer:
    """Return a producer that writes to one topic: what is produced between two flushes is one batch per partition.

    It is several if they are full, by librdkafka's settings. `config` is added to the producer's own.
    """
    producer = Producer({"acks": "all", "linger.ms": 30_000, **config})

    def is_known() -> bool:
        found = producer.list_topics(topic, timeout=30).topics[topic]
        return found.error is None and all(one.leader >= 0 for one in found.partitions.values())

    wait_until(is_known)
    return producer
