"""Reading stored batches and their records, as librdkafka and Java write them and as other consumers see them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers, crc_of
from kmirror.cluster.protocol.batch_records import Record, read_records
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchKey, FetchPosition, FetchSession, decode_answer
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import AtEnd, Batches, Silence
from kmirror.cluster.reader import PartitionReader, SilentLogError, read_batch_at
from kmirror.engine.compare import visible_log
from kmirror.engine.compare.visible_log import VisibleLog
from kmirror.errors import BrokerError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.leader import Leader, batch_of, create_topic, delete_topic
from tests.support.producers import whole_batches
from tests.support.wire import Wire, hang_up

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def cluster(source_cluster: SandboxCluster) -> SandboxCluster:
    return source_cluster


def produce(cluster: SandboxCluster, topic: str, codec: str) -> list[Record]:
    """Let librdkafka write four batches of all kinds of records; return what was written."""
    rng = random.Random(codec)
    producer = whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec})
    written = []
    for number in range(60):
        record = Record(
            number,
            1_700_000_000_000 + rng.randrange(-5000, 5000),
            rng.choice([None, b"", b"key", rng.randbytes(30)]),
            b"value" * 100 if number % 15 == 0 else rng.choice([None, b"", b"value" * 100, rng.randbytes(5000)]),
            rng.choice([(), (("h", b"x"),), (("h", None), ("h", b""), ("ключ", b"\xff"))]),
        )
        written.append(record)
        producer.produce(topic, record.value, record.key, 0, headers=list(record.headers), timestamp=record.timestamp)
        if number % 15 == 14:
            assert producer.flush(30) == 0
    return written


def consume(cluster: SandboxCluster, topic: str, count: int) -> list[Record]:
    """Read with librdkafka's consumer."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([Place(topic, 0, 0)])
    found: list[Record] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=30)
        assert messages, f"only {len(found)} came"
        for m in messages:
            assert m.error() is None, m.error()
            headers = tuple((name, value) for name, value in m.headers() or ())
            found.append(Record(m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    consumer.close()
    return found


def read_all(client: ClusterClient, topic: str, end: int) -> tuple[list[Record], list[str]]:
    """Return the records and each batch's codec."""
    records: list[Record] = []
    codecs: list[str] = []
    expected = 0
    for found in PartitionReader(client, TopicPartition(topic, 0)).batches(0, end):
        data = found.data
        for header in found.headers:
            assert header.base_offset == expected
            assert not header.has_holes
            batch = data[header.position : header.position + header.size_in_bytes]
            assert crc_of(batch) == header.crc
            codecs.append(header.compression_type)
            records += read_records(data, header)
            expected = header.next_offset
        assert found.next_offset == expected
    return records, codecs


@pytest.mark.parametrize("codec", CODECS)
def test_what_librdkafka_writes_is_read(client: ClusterClient, cluster: SandboxCluster, codec: str) -> None:
    topic = create_topic(cluster)
    written = produce(cluster, topic, codec)
    assert read_all(client, topic, 60) == (written, [codec] * 4)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_java_writes_is_read(client: ClusterClient, cluster: SandboxCluster, codec: str) -> None:
    """A topic with a codec of its own has its batches written by the broker."""
    topic = create_topic(cluster, settings={"compression.type": codec})
    written = produce(cluster, topic, "none")
    assert read_all(client, topic, 60) == (written, [codec] * 4)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_made_here_is_read_by_librdkafka(cluster: SandboxCluster, codec: str) -> None:
    from kmirror.cluster.protocol.batch_records import make_batch

    records = [
        Record(0, 1_700_000_000_000, b"k", b"v" * 70_000, (("h", b"x"), ("n", None))),
        Record(1, 1_700_000_000_009, None, b""),
        Record(2, 1_700_000_000_001, b"", None),
    ]
    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        assert leader.append_as_is(make_batch(records, compression_type=codec)).error_code == 0
    assert consume(cluster, topic, 3) == records


def test_the_same_records_as_librdkafka_sees(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    produce(cluster, topic, "lz4")
    assert read_all(client, topic, 60)[0] == consume(cluster, topic, 60)


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_batches(cluster: SandboxCluster) -> Iterator[Leader]:
    """Return a topic with batches at offsets 0 to 3, 4 to 5, and 6."""
    with Leader(cluster, create_topic(cluster)) as leader:
        for count in (4, 2, 1):
            assert leader.append_as_is(batch_of(count)).error_code == 0
        yield leader


def test_a_fetch_may_begin_before_the_offset_asked_for(three_batches: Leader) -> None:
    part = three_batches.fetch(5)
    assert [h.base_offset for h in batch_headers(part.records)] == [4, 6]
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (7, 7, 0)


def test_a_fetch_may_end_in_the_middle_of_a_batch(three_batches: Leader) -> None:
    first = next(batch_headers(three_batches.fetch(0).records))
    part = three_batches.fetch(0, max_bytes=first.size_in_bytes + 20)
    assert len(part.records) == first.size_in_bytes + 20
    assert [h.base_offset for h in batch_headers(part.records)] == [0]


def test_a_fetch_brings_at_least_one_whole_batch(three_batches: Leader) -> None:
    part = three_batches.fetch(0, max_bytes=1)
    assert [h.base_offset for h in batch_headers(part.records)] == [0]


@pytest.mark.parametrize(("offset", "base"), [(0, 0), (3, 0), (4, 4), (5, 4), (6, 6)])
def test_the_batch_that_holds_an_offset(three_batches: Leader, offset: int, base: int) -> None:
    batch = read_batch_at(three_batches.client, three_batches.partition, offset)
    assert batch is not None
    (header,) = batch_headers(batch)
    assert (header.base_offset, header.size_in_bytes) == (base, len(batch))


@pytest.mark.parametrize("offset", [7, 8, 1 << 40])
def test_an_offset_that_is_not_there_has_no_batch(three_batches: Leader, offset: int) -> None:
    assert read_batch_at(three_batches.client, three_batches.partition, offset) is None


def test_an_offset_that_was_deleted_has_no_batch(three_batches: Leader, cluster: SandboxCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.delete_records([Place(three_batches.partition.topic, 0, 5)]).values():
        future.result(30)
    assert read_batch_at(three_batches.client, three_batches.partition, 3) is None
    assert read_batch_at(three_batches.client, three_batches.partition, 5) is not None


def test_a_range_is_read_to_its_end(three_batches: Leader) -> None:
    def read(start: int, end: int) -> list[int]:
        return [
            header.base_offset
            for found in PartitionReader(three_batches.client, three_batches.partition).batches(start, end)
            for header in found.headers
        ]

    assert read(0, 7) == [0, 4, 6]
    assert read(4, 7) == [4, 6]
    assert read(7, 7) == []


def test_offsets_out_of_range_are_reported(three_batches: Leader) -> None:
    part = three_batches.fetch(8)
    assert (part.error_code, part.high_watermark, part.log_start_offset) == (Code.OFFSET_OUT_OF_RANGE, None, None)
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE") as caught:
        PartitionReader(three_batches.client, three_batches.partition).read(8)
    assert caught.value.code == Code.OFFSET_OUT_OF_RANGE


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_a_topic_created_again_is_not_read_by_its_old_id(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    reader = PartitionReader(client, TopicPartition(topic, 0))
    assert reader.read(0) == AtEnd(0, 0)
    delete_topic(cluster, topic)
    create_topic(cluster, name=topic)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_ID") as caught:
        reader.read(0)
    assert caught.value.code == Code.UNKNOWN_TOPIC_ID


def test_a_connection_lost_in_the_middle_is_made_good(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        leader.append_as_is(batch_of(3))
        broker = leader.broker
    wire = Wire(broker.host, broker.port)
    try:
        reader = PartitionReader(client, TopicPartition(topic, 0))
        reader.read(0)
        reader._leader = reader._find_leader()._replace(host=wire.host, port=wire.port)
        wire.spoil(lambda handshake: handshake, hang_up)
        found = reader.read(0)
        assert isinstance(found, Batches)
        assert [header.next_offset for header in found.headers] == [3]
        assert wire.all_fired
    finally:
        wire.close()


@pytest.mark.parametrize("read_committed", [True, False])
def test_an_answer_that_does_not_say_where_the_log_ends_is_not_its_end(
    three_batches: Leader, monkeypatch: pytest.MonkeyPatch, read_committed: bool
) -> None:
    """As AutoMQ answers a fetch that may not wait, for records that are not in its cache: no error, and no ends."""
    reader = PartitionReader(three_batches.client, three_batches.partition, read_committed=read_committed)
    fetch = reader._fetch

    def fetch_cold(offset: int, max_bytes: int, max_wait_ms: int) -> Any:
        connection, leader, part, is_throttled = fetch(offset, max_bytes, max_wait_ms)
        if max_wait_ms == 0:
            nothing = memoryview(b"")
            part = replace(part, records=nothing, high_watermark=None, last_stable_offset=None, log_start_offset=None)
        return connection, leader, part, is_throttled

    monkeypatch.setattr(reader, "_fetch", fetch_cold)
    assert isinstance(reader.read(0), Silence)
    found = reader.read_on(0)
    assert isinstance(found, Batches)
    assert found.next_offset == 7


def test_a_leader_that_ends_before_the_newest_one_does_not_keep_a_comparison_for_ever(
    three_batches: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is cut off from the others: it still answers, and its log ends earlier."""
    with ThreadPoolExecutor(1) as executor:
        log = VisibleLog(three_batches.client, three_batches.partition, 0, 7, executor)
        monkeypatch.setattr(log._reader, "read_on", lambda offset, **_: AtEnd(offset, offset))
        with pytest.raises(SilentLogError, match="although its log ends at 7: the leader that was read from ends at 0"):
            list(log.batches())


def test_a_transaction_that_ends_while_the_ends_are_looked_up_is_read(
    three_batches: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_log, "_PATIENCE_S", 0.0)
    with ThreadPoolExecutor(1) as executor:
        log = VisibleLog(three_batches.client, three_batches.partition, 0, 7, executor)
        read_on, hidden = log._reader.read_on, [AtEnd(0, 0)]
        monkeypatch.setattr(
            log._reader, "read_on", lambda offset, **how: hidden.pop() if hidden else read_on(offset, **how)
        )
        assert [len(list(batch.records())) for batch in log.batches()] == [4, 2, 1]


@pytest.mark.parametrize(("incremental", "kept"), [(True, True), (False, False)])
def test_a_fetch_without_a_session_leaves_none_at_the_broker(
    cluster: SandboxCluster, incremental: bool, kept: bool
) -> None:
    with Leader(cluster, create_topic(cluster)) as leader:
        session = FetchSession("kmirror", 13, incremental=incremental)
        session.want(FetchKey(leader.topic_id, 0, leader.partition.topic), FetchPosition(0, -1, -1, 1000))
        correlation_id = leader.connection.next_correlation_id()
        request = session.request(correlation_id, max_wait_ms=0, max_bytes=1000)
        _, session_id = decode_answer(
            leader.connection.exchange_frame([request], correlation_id, 30), {}, by_name=False
        )
        assert (session_id != 0) is kept


def test_an_incremental_session_returns_only_news(cluster: SandboxCluster) -> None:
    """The broker remembers wanted partitions; forgotten ones are omitted; a lost session is started again."""
    topic = create_topic(cluster, partitions=3)
    with Leader(cluster, topic) as leader:
        session = FetchSession("kmirror", 13)
        keys = [FetchKey(leader.topic_id, index, leader.partition.topic) for index in range(3)]

        def ask() -> dict[int, int]:
            correlation_id = leader.connection.next_correlation_id()
            request = session.request(correlation_id, max_wait_ms=0, max_bytes=100_000)
            answer = session.answer(leader.connection.exchange_frame([request], correlation_id, 30))
            assert not any(p.error_code for p in answer.partitions)
            return {p.key.partition: len(p.records) for p in answer.partitions} if not answer.error_code else {}

        for key in keys:
            session.want(key, FetchPosition(0, -1, -1, 1000))
        assert ask() == {0: 0, 1: 0, 2: 0}
        assert ask() == {}
        size = len(batch_of(2))
        leader.append_as_is(batch_of(2))
        assert ask() == {0: size}
        assert ask() == {0: size}  # until another place is asked for
        session.want(keys[0], FetchPosition(2, -1, -1, 1000))
        assert ask() == {}
        session.forget(keys[0])
        leader.append_as_is(batch_of(2))
        assert ask() == {}
        session.want(keys[0], FetchPosition(2, -1, -1, 1000))
        assert ask() == {0: size}
        session._session_id += 1  # as if the broker had thrown it away
        assert ask() == {}
        assert ask() == {0: size, 1: 0, 2: 0}


def test_an_unknown_topic_is_reported(client: ClusterClient) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        PartitionReader(client, TopicPartition(unique_topic("missing"), 0)).read(0)
