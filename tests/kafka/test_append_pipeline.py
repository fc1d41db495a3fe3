"""Many appends on their way at once: where they land, what is refused, and a network that loses requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from kmirror.cluster import append, pipeline
from kmirror.cluster.append import InvalidProduceOffsetError
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.pipeline_queue import AppendStoppedError, PendingAppend
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import BrokerError, HistoriesDifferError, KmirrorError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.late_wire import Fate, LateWire
from tests.support.leader import OWN_ID, create_topic, young
from tests.support.oracle import librdkafka_records


@pytest.fixture
def cluster(source_cluster: SandboxCluster) -> SandboxCluster:
    return source_cluster


@pytest.fixture
def out(cluster: SandboxCluster) -> Iterator[AppendPipeline]:
    with AppendPipeline(client_config(cluster.client_properties()), producer_id=OWN_ID) as made:
        yield made


def record(offset: int, value: bytes | None = None, *, age_ms: int = 0) -> Record:
    return Record(offset, young() - age_ms, b"k%d" % offset, b"v" * (offset % 50) if value is None else value)


def assert_shows(cluster: SandboxCluster, topic_partition: TopicPartition, wanted: list[Record]) -> None:
    seen = librdkafka_records(
        cluster.bootstrap_servers, topic_partition.topic, topic_partition.partition, "read_uncommitted"
    )
    assert [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in seen] == wanted


def test_each_record_lands_at_its_offset_in_every_partition(cluster: SandboxCluster, out: AppendPipeline) -> None:
    """Small ones by themselves, a hole, whole batches, and records that are too old for the leader's memory."""
    topic_partitions = [TopicPartition(create_topic(cluster, partitions=3), index) for index in range(3)]
    wanted: dict[TopicPartition, list[Record]] = {topic_partition: [] for topic_partition in topic_partitions}
    under_way: list[PendingAppend] = []
    for offset in range(400):
        for topic_partition in topic_partitions:
            two_days_old = topic_partition.partition == 2
            wanted[topic_partition].append(record(offset, age_ms=2 * 86_400_000 if two_days_old else 0))
            under_way.append(out.append(topic_partition, wanted[topic_partition][-1:]))
    for topic_partition in topic_partitions:
        batch = [record(offset) for offset in range(450, 455)]
        under_way.append(out.append(topic_partition, bytes(make_batch(batch, compression_type="zstd"))))
        wanted[topic_partition] += batch
        wanted[topic_partition].append(record(455))
        under_way.append(out.append(topic_partition, wanted[topic_partition][-1:]))
        assert out.log_end_offset(topic_partition) == 456
    out.flush()
    assert all(one.done() for one in under_way)
    assert [one.result(0) for one in under_way[:4]] == [1, 1, 1, 2]
    assert under_way[-1].result() == 456
    for topic_partition in topic_partitions:
        assert_shows(cluster, topic_partition, wanted[topic_partition])


def test_timestamps_that_the_broker_replaces_are_reported(cluster: SandboxCluster) -> None:
    stamped = TopicPartition(create_topic(cluster, settings={"message.timestamp.type": "LogAppendTime"}), 0)
    with AppendPipeline(client_config(cluster.client_properties()), producer_id=OWN_ID) as out:
        error = out.append(stamped, [record(0)]).exception()
        assert isinstance(error, HistoriesDifferError)
        assert "message.timestamp.type=CreateTime" in str(error.hint)
        assert out.resume(stamped) == 1


def test_what_follows_a_refused_append_is_not_tried(cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=2, settings={"max.message.bytes": "2000"})
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    values = [b"x" * 5000 if offset == 30 else b"small" for offset in range(60)]
    with AppendPipeline(client_config(cluster.client_properties()), producer_id=OWN_ID) as out:
        assert (out.log_end_offset(bad), out.log_end_offset(good)) == (0, 0)
        with out._changed:  # so that they are put together
            both = [
                [
                    out.append(partition, [record(offset, b"small" if partition == good else value)])
                    for partition in (bad, good)
                ]
                for offset, value in enumerate(values)
            ]
        assert [of_good.result() for _, of_good in both] == list(range(1, 61))
        errors = [of_bad.exception() for of_bad, _ in both]
        assert errors[:30] == [None] * 30
        assert isinstance(errors[30], BrokerError)
        assert errors[30].code == Code.MESSAGE_TOO_LARGE
        assert {type(error) for error in errors[31:]} == {AppendStoppedError}
        assert isinstance(errors[31], AppendStoppedError)
        assert errors[31].log_end_offset == 30
        with pytest.raises(AppendStoppedError, match="ends at offset 30"):
            out.append(bad, [record(60)])
        assert out.resume(bad) == 30
        assert out.append(bad, [record(30)]).result() == 31
        with pytest.raises(KmirrorError, match="has not stopped"):
            out.resume(bad)
        out.append(bad, [record(31, b"x" * 5000)])
        with pytest.raises(AppendStoppedError, match="ends at offset 31"):
            out.flush()
        assert out.resume(bad) == 31


def test_what_cannot_be_appended_there_is_refused_at_once(cluster: SandboxCluster, out: AppendPipeline) -> None:
    partition = TopicPartition(create_topic(cluster), 0)
    under_way = out.append(partition, [record(offset) for offset in range(5)])
    with pytest.raises(InvalidProduceOffsetError, match="ends at offset 5"):
        out.append(partition, [record(4)])
    for broken in ([], [record(5), record(7)], b"no batch"):
        with pytest.raises(CorruptBatchError):
            out.append(partition, broken)
    with out._changed:
        late = [out.append(partition, [one]) for one in (record(5), record(6, "text"), record(7))]  # type: ignore[arg-type]
    assert under_way.result() == 5
    assert late[0].result() == 6
    with pytest.raises(CorruptBatchError):
        late[1].result()
    with pytest.raises(AppendStoppedError):
        late[2].result()
    assert out.resume(partition) == 6


def test_another_writer_is_noticed(cluster: SandboxCluster, out: AppendPipeline) -> None:
    partition = TopicPartition(create_topic(cluster), 0)
    assert out.append(partition, [record(0)]).result() == 1
    other = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    other.produce(partition.topic, b"another's", partition=0)
    assert other.flush(30) == 0
    with pytest.raises(HistoriesDifferError):
        out.append(partition, [record(1)]).result()
    with pytest.raises(AppendStoppedError, match="ends at offset 3"):
        out.append(partition, [record(2)])
    assert out.resume(partition) == 3


@pytest.mark.parametrize(
    "fates",
    [
        pytest.param([Fate.LOST], marks=pytest.mark.slow),
        pytest.param([Fate.UNANSWERED], marks=pytest.mark.slow),
        pytest.param([Fate.ANSWERED, Fate.ANSWERED, Fate.LOST, Fate.UNANSWERED], marks=pytest.mark.slow),
        [Fate.ANSWERED, Fate.UNANSWERED, Fate.LATE, Fate.ANSWERED, Fate.LOST],
    ],
    ids=lambda fates: "-".join(fate.value for fate in fates),
)
def test_a_network_that_loses_requests_loses_and_repeats_nothing(
    wired: tuple[SandboxCluster, LateWire],
    wire: LateWire,
    fates: list[Fate],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (append, pipeline):
        monkeypatch.setattr(module, "SETTLE_S", 0.5)
    partitions = [TopicPartition(create_topic(wired[0], partitions=2), index) for index in range(2)]
    wanted: dict[TopicPartition, list[Record]] = {partition: [] for partition in partitions}
    config = client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"})
    with AppendPipeline(config, producer_id=OWN_ID) as out:
        for partition in partitions:
            out.log_end_offset(partition)
        wire.plan(*fates, api_key=PRODUCE)
        for offset in range(300):
            for partition in partitions:
                wanted[partition].append(record(offset))
                out.append(partition, wanted[partition][-1:])
            time.sleep(0.0005)  # several requests
        out.flush()
        assert len(wire.deliver()) == fates.count(Fate.LATE)
        for partition in partitions:
            wanted[partition].append(record(300))
            assert out.append(partition, wanted[partition][-1:]).result() == 301
    for partition in partitions:
        assert_shows(wired[0], partition, wanted[partition])


@pytest.mark.slow
def test_leaders_that_die_and_move_lose_and_repeat_nothing(
    three_brokers: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed with requests on their way; its partitions continue at the others, the others' do all the while."""
    for module in (append, pipeline):
        monkeypatch.setattr(module, "SETTLE_S", 0.5)
    topic = create_topic(
        three_brokers, partitions=3, replicas=[[1, 2], [2, 3], [3, 2]], settings={"min.insync.replicas": "1"}
    )
    wanted: dict[TopicPartition, list[Record]] = {TopicPartition(topic, index): [] for index in range(3)}
    config = client_config({**three_brokers.client_properties(), "request.timeout.ms": "5000"})
    under_way: list[PendingAppend] = []
    with AppendPipeline(config, producer_id=OWN_ID) as out:
        for offset in range(3000):
            for partition, records in wanted.items():
                records.append(record(offset, b"small"))
                under_way.append(out.append(partition, records[-1:]))
            if offset == 1500:
                three_brokers.kill(2)
        out.flush()
    assert [one.result() for one in under_way[-3:]] == [3000, 3000, 3000]
    for partition, records in wanted.items():
        assert_shows(three_brokers, partition, records)
