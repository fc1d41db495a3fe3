"""Small batches are merged: fewer batches at the destination, the same records for every consumer.

Judged by librdkafka's consumer and Kafka's own log dump.
"""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.lane import Mirror, assert_same, copy_of
from tests.support.leader import Leader, create_topic
from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.oracle import dump_log, librdkafka_records
from tests.support.visible import assert_sound, difference, shown

NOW = 1_700_000_000_000
COUNT = 400


def small_batches(codec: str, count: int, seed: int = 1) -> list[bytes]:
    """Return batches of one to three records; times go back now and then."""
    chance, made = random.Random(seed), []
    for number in range(count):
        records = []
        for offset in range(chance.choice((1, 1, 2, 3))):
            time = NOW + number * 1000 - chance.choice((0, 0, 0, 2500))
            value = chance.choice((None, b"", b"text " * chance.randrange(60), chance.randbytes(300)))
            key = b"k%d-%d" % (number, offset)
            records.append(VisibleRecord(offset, time, key, value, (("h", b"x"), ("n", None))))
        latest = max(record.timestamp for record in records)
        made.append(encode(LogBatch(0, len(records) - 1, tuple(records), latest, codec=codec)))
    return made


def write(mirror: Mirror, topic: str, batches: list[bytes], partition: int = 0) -> None:
    with Leader(mirror.source, topic, partition) as leader:
        for batch in batches:
            assert leader.append_as_is(batch).error_code == 0


def offsets_at(servers: str, topic: str, partition: int, times: list[int]) -> list[int]:
    """Return the offsets that a consumer gets for each of these times."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "times"})
    try:
        found = []
        for time in times:
            (one,) = consumer.offsets_for_times([TopicPartition(topic, partition, time)], timeout=30)
            found.append(one.offset)
        return found
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "codec", ["none", "lz4", "gzip", *(pytest.param(codec, marks=pytest.mark.slow) for codec in ("snappy", "zstd"))]
)
def test_readers_find_the_same_records_in_fewer_batches(mirror: Mirror, codec: str) -> None:
    topic = mirror.topic()
    write(mirror, topic, small_batches(codec, COUNT))
    lane = mirror.start(merges=True)
    mirror.wait_copied(lane)
    counts = lane.control.counts
    assert mirror.stop(lane).clean
    source, destination = mirror.source.bootstrap_servers, mirror.destination.bootstrap_servers
    ours = librdkafka_records(destination, topic, 0)
    assert ours == librdkafka_records(source, topic, 0)
    assert len(ours) == copy_of(lane, topic).progress.records_copied
    batches = dump_log(mirror.destination, topic)
    assert {batch.compression.lower() for batch in batches} == {codec}
    if codec == "gzip":
        assert len(batches) == COUNT == counts.batches_copied
        assert counts.batches_merged == 0
    else:
        assert len(batches) == counts.batches_copied < COUNT / 20
        assert counts.batches_merged > COUNT * 0.9
    assert_sound(mirror.destination, topic)
    times = [NOW - 1, NOW, *(NOW + number * 1000 + more for number in range(0, COUNT, 37) for more in (-1, 0, 1))]
    assert offsets_at(destination, topic, 0, times) == offsets_at(source, topic, 0, times)


def test_batches_too_large_when_merged_are_sent_one_by_one(mirror: Mirror) -> None:
    topic = create_topic(mirror.source)
    create_topic(mirror.destination, name=topic, settings={"max.message.bytes": "2000"})
    mirror.add(topic, topic)
    write(mirror, topic, small_batches("none", 60))
    lane = mirror.start(merges=True)
    mirror.wait_copied(lane)
    partition = copy_of(lane, topic)
    assert any("batches are sent unmerged" in line for line in partition.history)
    assert mirror.stop(lane).clean
    assert_same(mirror, topic)


def test_a_lane_that_merges_continues_after_one_that_did_not(mirror: Mirror) -> None:
    topic = mirror.topic()
    batches = small_batches("lz4", 300)
    write(mirror, topic, batches[:100])
    for merges, upto in ((False, 200), (True, 300)):
        lane = mirror.start(merges=merges)
        mirror.wait_copied(lane)
        write(mirror, topic, batches[upto - 100 : upto])
        mirror.wait_copied(lane)
        assert mirror.stop(lane).clean
    assert difference(shown(mirror.source, topic), shown(mirror.destination, topic)) is None
    assert_sound(mirror.destination, topic)
