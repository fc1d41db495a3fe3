"""The witnesses that judge copies agree with what was written, and with each other."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.new_topics import create_and_wait
from tests.support.oracle import ReadRecord, console_consumer, dump_log, librdkafka_records, raw_log_bytes
from tests.support.producers import whole_batches
from tests.support.waiting import wait_until

ALL_BYTES = bytes(range(256))
RECORDS = [
    ReadRecord(0, "CreateTime", 1_600_000_000_001, b"key", b"value", ()),
    ReadRecord(1, "CreateTime", 1_600_000_000_002, None, None, ()),
    ReadRecord(2, "CreateTime", 1_600_000_000_003, b"", b"", (("h", b""),)),
    ReadRecord(3, "CreateTime", 1_600_000_000_004, ALL_BYTES, ALL_BYTES * 4, (("h", ALL_BYTES), ("h", None))),
    ReadRecord(4, "CreateTime", 1_600_000_000_005, b"\\x41", b"a\tb\nc", (("\u00fc", b"a:b"),)),
]


def make_topic(cluster: SandboxCluster, **settings: str) -> str:
    topic = unique_topic("oracle")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    create_and_wait(admin, NewTopic(topic, 1, config=settings))
    return topic


def write(cluster: SandboxCluster, topic: str, records: list[ReadRecord], **config: Any) -> None:
    producer = whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, **config})
    for record in records:
        headers = list(record.headers)
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp, headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_both_consumers_give_back_every_byte(source_cluster: SandboxCluster) -> None:
    topic = make_topic(source_cluster)
    write(source_cluster, topic, RECORDS)

    assert librdkafka_records(source_cluster.bootstrap_servers, topic) == RECORDS
    assert console_consumer(source_cluster, topic) == RECORDS


def test_consumers_distinguish_log_append_time(source_cluster: SandboxCluster) -> None:
    topic = make_topic(source_cluster, **{"message.timestamp.type": "LogAppendTime"})
    write(source_cluster, topic, RECORDS)

    by_librdkafka = librdkafka_records(source_cluster.bootstrap_servers, topic)
    assert {record.timestamp_type for record in by_librdkafka} == {"LogAppendTime"}
    assert console_consumer(source_cluster, topic, max_messages=len(RECORDS)) == by_librdkafka


def test_the_dump_describes_the_stored_bytes(source_cluster: SandboxCluster) -> None:
    topic = make_topic(source_cluster, **{"segment.bytes": str(1 << 20)})
    filler = [ReadRecord(0, "CreateTime", 1_600_000_000_000, None, b"x" * 500_000, ())] * 5
    write(source_cluster, topic, filler, **{"enable.idempotence": True, "batch.size": 600_000})
    write(source_cluster, topic, RECORDS, **{"compression.type": "zstd"})

    dumped = dump_log(source_cluster, topic)
    stored = raw_log_bytes(source_cluster, topic)

    assert [(batch.base_offset, batch.last_offset) for batch in dumped] == [
        *((offset, offset) for offset in range(5)),
        (5, 9),
    ]
    assert [batch.compression for batch in dumped] == ["none"] * 5 + ["zstd"]
    assert [batch.base_sequence for batch in dumped] == [0, 1, 2, 3, 4, -1]
    assert len({batch.segment for batch in dumped}) > 1
    assert all(batch.is_valid and batch.magic == 2 and not batch.is_control for batch in dumped)
    assert sum(batch.size for batch in dumped) == len(stored)
    assert int.from_bytes(stored[17:21]) == dumped[0].crc
    assert dumped[-1].max_timestamp == RECORDS[-1].timestamp


def test_transactions_show_in_the_dump_and_are_judged_by_the_consumers(source_cluster: SandboxCluster) -> None:
    topic = make_topic(source_cluster)
    producer = Producer({"bootstrap.servers": source_cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        end()

    # the coordinator answers before its marker is in the log
    expected = [(True, False), (True, True), (True, False), (True, True)]
    wait_until(lambda: [(one.is_transactional, one.is_control) for one in dump_log(source_cluster, topic)] == expected)
    bootstrap_servers = source_cluster.bootstrap_servers
    for isolation, values in (("read_committed", [b"kept"]), ("read_uncommitted", [b"kept", b"dropped"])):
        by_librdkafka = librdkafka_records(bootstrap_servers, topic, 0, isolation)
        assert [record.value for record in by_librdkafka] == values
        by_console = console_consumer(source_cluster, topic, 0, isolation, max_messages=len(values))
        assert by_console == by_librdkafka
