"""A live topic with all that producers do, mirrored while it grows; Kafka's own tools and a second client judge it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.conftest import MakePair
from tests.support.engine import Pair
from tests.support.oracle import console_consumer, dump_log, librdkafka_records
from tests.support.waiting import PATIENCE_S, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = (None, b"", b"key", bytes(range(256)))
VALUES = (None, b"", b"value", b"\x00\xff" * 500)
HEADERS: tuple[list[tuple[str, bytes | None]], ...] = (
    [],
    [("h", b"1")],
    [("null", None), ("empty", b""), ("h", b"\xfe"), ("h", b"again")],
)


def produce_live(pair: Pair, codec: str, stop: threading.Event) -> int:
    """Produce every combination of key, value and headers over and over; a 900 KB record now and then."""
    producer = Producer(
        {
            "bootstrap.servers": pair.source.bootstrap_servers,
            "acks": "all",
            "compression.type": codec,
            "linger.ms": 5,
            "message.max.bytes": 1_048_588,
        }
    )
    number = 0
    while not stop.is_set():
        for key in KEYS:
            for value in VALUES:
                for headers in HEADERS:
                    number += 1
                    large = number % 2_000 == 250
                    producer.produce(
                        pair.topic,
                        key=key,
                        value=b"%08d " % number * 100_000 if large else value,
                        headers=list(headers),
                        partition=number % len(pair.partitions),
                    )
        producer.poll(0)
        stop.wait(0.2)
    assert producer.flush(60) == 0
    return number


@pytest.mark.slow
def test_live_topic_of_every_codec_and_a_lost_spark(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.create()
    stop = threading.Event()
    with ThreadPoolExecutor(len(CODECS)) as pool:
        producers = [pool.submit(produce_live, pair, codec, stop) for codec in CODECS]
        try:
            engine = pair.engine()
            start = pair.wait_until_copying(engine)
            while pair.destination_end() < start + 5_000:
                assert engine.process.poll() is None, engine.output
                stop.wait(0.2)
            # an engine that loses Spark in the middle ends, and leaves nothing that differs
            (jvm,) = engine.tree().jvm
            jvm.kill()
            assert engine.wait(PATIENCE_S) == 1
            assert "Spark's Java process ended unexpectedly" in engine.output
        finally:
            stop.set()
        produced = sum(producer.result() for producer in producers)
    last = pair.engine("--until-caught-up", "--timeout", "120s", with_spark=False)
    assert last.wait(150) == 0, last.output
    assert pair.destination_end() == produced

    pair.assert_equal()
    theirs = dump_log(pair.source, *pair.partitions[0])
    ours = dump_log(pair.destination, *pair.partitions[0])
    assert all(batch.is_valid for batch in ours)
    assert {b.compression.lower() for b in theirs} == {b.compression.lower() for b in ours} == set(CODECS)
    # what is large, or of a codec that is not worth it, is stored as it was
    stored = {(b.base_offset, b.last_offset, b.size) for b in theirs}
    assert all((b.base_offset, b.last_offset, b.size) in stored for b in ours if b.compression.lower() == "gzip")
    for partition in pair.partitions:
        assert librdkafka_records(pair.destination.bootstrap_servers, *partition) == librdkafka_records(
            pair.source.bootstrap_servers, *partition
        )
    read = console_consumer(pair.source, *pair.partitions[0], max_messages=500)
    assert len(read) == 500
    assert console_consumer(pair.destination, *pair.partitions[0], max_messages=500) == read


@pytest.mark.long
def test_partitions_added_at_the_source_are_followed(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster, partitions=2)
    pair.fill(2000)
    pair.create("refresh.interval.seconds=1")
    engine = pair.engine()
    pair.wait_until_copying(engine)
    pair.add_partitions(5)
    pair.fill(5000)
    pair.wait_until_equal(engine)
    wait_until(lambda: "3 more partitions" in engine.output)
    assert engine.stop() == 0
    pair.assert_equal()
