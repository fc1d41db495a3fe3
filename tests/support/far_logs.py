"""Logs that are large enough to be read ahead."""

from __future__ import annotations

import random

from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster

_BODY = random.Random(5).randbytes(1 << 20)


def write_large(cluster: SandboxCluster, topic: str, partitions: int, megabytes: int) -> None:
    """Write batches of about 900 KB, of unequal sizes, to each partition."""
    chance = random.Random(partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 1000, "batch.size": 1_000_000})
    for _ in range(megabytes):
        for partition in range(partitions):
            for _ in range(chance.randrange(85, 95)):
                start = chance.randrange(1 << 19)
                producer.produce(topic, _BODY[start : start + chance.randrange(9_500, 10_500)], partition=partition)
        assert producer.flush(60) == 0


def write_unequal(cluster: SandboxCluster, topic: str, megabytes: int) -> None:
    """Write batches of one record each to partition 0, by turns many small ones and a few of nearly 1 MB."""
    chance = random.Random(megabytes)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 1})
    written = 0
    while written < megabytes << 20:
        for size in [2_000] * chance.randrange(200) + [900_000] * chance.randrange(1, 8):
            producer.produce(topic, _BODY[:size], partition=0)
            written += size
        assert producer.flush(60) == 0


def write(
    cluster: SandboxCluster, topic: str, megabytes: int, partition: int = 0, *, transactions: bool = False
) -> None:
    """Write batches of all sizes up to 200 KB; with transactions, some are aborted and producers take turns."""
    chance = random.Random(partition)
    usual = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
    ids = [{"transactional.id": f"{topic}-{partition}-{number}"} for number in range(2)] if transactions else [{}]
    producers = [Producer(usual | more) for more in ids]
    for producer in producers if transactions else ():
        producer.init_transactions(30)
    written = 0
    while written < megabytes << 20:
        producer = chance.choice(producers)
        if transactions:
            producer.begin_transaction()
        for _ in range(chance.randrange(1, 8)):
            for _ in range(chance.choice((1, 10, 80))):
                size, start = chance.randrange(1, 5000), chance.randrange(1 << 20)
                producer.produce(topic, _BODY[start : start + size], b"%d" % written, partition)
                written += size
            assert producer.flush(30) == 0
        if transactions and chance.random() < 0.4:
            producer.abort_transaction(30)
        elif transactions:
            producer.commit_transaction(30)
