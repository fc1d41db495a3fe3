"""The real logs that judge mirrors hold what they should: brokers, producers and Kafka Streams have really made it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import dump_log
from tests.support.real_logs import NEVER_COMPACTED, CompactedTopic, start_at, write
from tests.support.streams import INPUT, OUTPUT, WordCount
from tests.support.topics import set_topic
from tests.support.transactions import KEPT, OpenTransaction, TransactionWriters
from tests.support.visible import (
    COMMITTED,
    UNCOMMITTED,
    Bounds,
    bounds_of,
    difference,
    latest_values,
    shown,
)
from tests.support.waiting import wait_until


@pytest.fixture
def busy(busy_cluster: SandboxCluster) -> SandboxCluster:
    return busy_cluster


@pytest.mark.slow
def test_a_compacted_topic_has_holes_tombstones_and_emptied_batches(busy: SandboxCluster) -> None:
    made = CompactedTopic(busy, unique_topic("compacted"), {})
    made.write_and_clean(transactions=True)
    made.freeze()
    batches = dump_log(busy, made.topic)
    assert any(0 < batch.count < batch.last_offset - batch.base_offset + 1 for batch in batches)
    assert any(batch.count == 0 for batch in batches)
    assert any(batch.delete_horizon_ms is not None and not batch.is_control for batch in batches)
    assert {batch.compression.lower() for batch in batches if batch.count} == {"none", "gzip", "snappy", "lz4", "zstd"}
    records = shown(busy, made.topic)
    assert any(record.value is None for record in records)
    assert len(records) < made.rounds * 200 // 2
    made.write_round()
    assert difference(records, shown(busy, made.topic)[: len(records)]) is None  # nothing is cleaned any more


def test_tombstones_are_deleted_when_their_time_is_over(busy: SandboxCluster) -> None:
    made = CompactedTopic(busy, unique_topic("tombstones"), {"delete.retention.ms": "100"})
    made.write_and_clean()
    first = made.write_round()
    made.wait_until_cleaned(first)
    made.wait_until_cleaned(made.write_round())
    made.freeze()
    records = shown(busy, made.topic)
    assert all(record.value is not None for record in records if record.offset < 6 * 200)
    assert 100 < len(latest_values(records)) <= 300


def test_compact_and_delete(busy: SandboxCluster) -> None:
    # Deleted before anything is compacted: the cleaner joins small segments, and old ones joined to young ones stay.
    retention = {"cleanup.policy": "compact,delete", "retention.ms": str(5 * 86_400_000)}
    made = CompactedTopic(busy, unique_topic("compact-delete"), {**retention, **NEVER_COMPACTED})
    for _ in range(3):
        made.write_round(days_old=10)
    made.write_round()
    wait_until(lambda: bounds_of(busy, made.topic).start == 600)
    set_topic(busy, made.topic, {"min.compaction.lag.ms": "0"})
    made.write_and_clean()
    made.freeze()
    assert 100 < len(shown(busy, made.topic)) < 8 * 200 // 2


@pytest.mark.slow
def test_transactions_of_several_producers(busy: SandboxCluster) -> None:
    topic = unique_topic("transactions")
    create_topics(busy, {topic: {}}, partitions=3)
    with TransactionWriters(busy, topic, 3, 100) as writers:
        written = writers.wait(120)
    for partition in range(3):
        records = shown(busy, topic, partition)
        assert len(records) == written.kept[partition]
        assert all(str(record.value).startswith(f"b'{KEPT.decode()} ") for record in records)
    assert sum(len(shown(busy, topic, partition, UNCOMMITTED)) for partition in range(3)) == (
        sum(written.kept.values()) + written.dropped
    )
    assert written.dropped > 20
    producers = [batch.producer_id for batch in dump_log(busy, topic)]
    changes = sum(one != other for one, other in pairwise(producers))
    assert changes > 2 * len(set(producers))  # interleaved


@pytest.mark.slow
def test_a_transaction_is_held_open(busy: SandboxCluster) -> None:
    topics = {end: unique_topic(f"held-{end}") for end in ("commit", "abort", "kill")}
    create_topics(busy, {topic: {} for topic in topics.values()})
    for end, topic in topics.items():
        write(busy, topic, 5)
        with OpenTransaction(busy, topic, timeout_ms=2000 if end == "kill" else 60_000) as transaction:
            write(busy, topic, 5)
            assert bounds_of(busy, topic) == Bounds(0, 20)
            assert bounds_of(busy, topic, isolation=COMMITTED) == Bounds(0, 5)
            {"commit": transaction.commit, "abort": transaction.abort, "kill": transaction.kill}[end]()
            wait_until(lambda topic=topic: bounds_of(busy, topic, isolation=COMMITTED) == Bounds(0, 21))  # type: ignore[misc]
        assert len(shown(busy, topic)) == (20 if end == "commit" else 10)


@pytest.mark.parametrize("start", [10, 1_000_000])
def test_a_log_that_starts_later(busy: SandboxCluster, start: int) -> None:
    topic = unique_topic("late")
    create_topics(busy, {topic: {"retention.ms": "-1"}})
    start_at(busy, topic, start, 30)
    assert bounds_of(busy, topic) == Bounds(start, start + 30)
    assert [record.offset for record in shown(busy, topic)] == list(range(start, start + 30))


@pytest.mark.slow
def test_kafka_streams_output_is_transactional(busy: SandboxCluster, tmp_path: Path) -> None:
    words = [VisibleRecord(0, 1_700_000_000_000, None, b"the quick brown fox jumps over the lazy dog")] * 200
    with WordCount(busy, tmp_path) as application:
        application.start()
        write(busy, INPUT, words)
        wait_until(lambda: bounds_of(busy, OUTPUT, isolation=COMMITTED).end >= 500, 60)
        application.kill()
        application.start()
        write(busy, INPUT, words)
        wait_until(lambda: latest_values(shown(busy, OUTPUT)).get(b"fox") == (400).to_bytes(8), 60)
        application.stop()
        assert len(application.topics()) == 3
        assert any(batch.is_transactional and batch.is_control for batch in dump_log(busy, OUTPUT))
