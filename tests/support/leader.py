"""Single requests to one partition's leader: for tests of what brokers do with them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol import fetch, produce
from kmirror.cluster.protocol.batch import set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey, FetchPosition, FetchSession
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import Append, AppendAnswer, ProducerState
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.kafka_versions import is_older
from tests.support.librdkafka import librdkafka

#: Settings of mirror topics: batches are kept unchanged, whatever their timestamps.
MIRROR_SETTINGS = {
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "retention.ms": "-1",
}
OWN_ID = (1 << 62) + 77

_NEWER_SETTINGS = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")


def create_topic(
    cluster: SandboxCluster,
    *,
    partitions: int = 1,
    name: str | None = None,
    replicas: Sequence[Sequence[int]] | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Create a topic with a mirror topic's settings, but for these; return its name.

    Its leaders are ready when this returns.
    """
    topic = name or unique_topic()
    config = MIRROR_SETTINGS | dict(settings or {})
    if is_older(cluster.kafka_version, "3.6"):  # one setting for both sides then, and endless by default (KIP-937)
        config = {key: value for key, value in config.items() if key not in _NEWER_SETTINGS}
    place = {"replica_assignment": [list(ids) for ids in replicas]} if replicas else {"replication_factor": 1}
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    for future in admin.create_topics([NewTopic(topic, partitions, config=config, **place)]).values():
        future.result(30)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        ends = client.list_offsets({TopicPartition(topic, index): LATEST for index in range(partitions)})
        assert all(end.offset == 0 for end in ends.values()), ends
    return topic


def delete_topic(cluster: SandboxCluster, topic: str) -> None:
    """Delete a topic and wait until the broker says so."""
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def batch_of(
    count: int = 1, *, timestamp: int = 1_700_000_000_000, key: bytes | None = b"k", value: bytes | None = b"v"
) -> bytearray:
    """Make a batch to be appended."""
    return make_batch([Record(i, timestamp, key, value) for i in range(count)])


class Leader:
    """A connection to the leader of one partition."""

    def __init__(self, cluster: SandboxCluster, topic: str, partition: int = 0) -> None:
        self.partition = TopicPartition(topic, partition)
        self.client = ClusterClient(client_config(cluster.client_properties()))
        self.client.list_offsets({self.partition: LATEST})  # waits until the leader knows that it is
        metadata = self.client.metadata([topic])
        leader = metadata.leader(self.partition)
        assert leader is not None
        assert leader.leader_id is not None
        self.topic_id = metadata.topics[topic].topic_id
        self.leader_epoch = leader.leader_epoch
        self.broker = metadata.brokers[leader.leader_id]
        self.connection = self.client.connect(leader.leader_id, self.broker.host, self.broker.port)
        self.produce_version = self.connection.version_for(produce.API)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()

    def as_is(self, *appends: Append, acks: int = -1) -> list[AppendAnswer]:
        """Send one Produce request."""
        connection, version = self.connection, self.produce_version
        correlation_id = connection.next_correlation_id()
        request = produce.request(correlation_id, version, "kmirror", appends, acks=acks, timeout_ms=10_000)
        frame = connection.exchange_frame(request, correlation_id, 30)
        answers, throttle_time_ms = produce.answer(frame, version)
        connection.note_throttle(throttle_time_ms)
        return answers

    def append_as_is(self, batch: bytes | bytearray, *, topic_id: bytes | None = None) -> AppendAnswer:
        """Append exactly these bytes."""
        topic, partition = self.partition
        (answer,) = self.as_is(Append(topic, topic_id or self.topic_id, partition, batch))
        return answer

    def append(self, batch: bytearray, sequence: int, *, producer_id: int = OWN_ID, epoch: int = 0) -> tuple[int, int]:
        """Append under a producer id and sequence; return error code and base offset."""
        set_producer(memoryview(batch), producer_id, epoch, sequence)
        answer = self.append_as_is(batch)
        return answer.error_code, answer.base_offset

    def fetch(
        self,
        offset: int,
        *,
        last_fetched_epoch: int = -1,
        leader_epoch: int = -1,
        topic_id: bytes | None = None,
        max_bytes: int = 1 << 20,
    ) -> FetchedPartition:
        """Send one Fetch request without a session."""
        version = self.connection.version_for(fetch.API)
        session = FetchSession("kmirror", version, incremental=False)
        position = FetchPosition(offset, last_fetched_epoch, leader_epoch, max_bytes)
        session.want(FetchKey(topic_id or self.topic_id, self.partition.partition, self.partition.topic), position)
        correlation_id = self.connection.next_correlation_id()
        request = session.request(correlation_id, max_wait_ms=0, max_bytes=max_bytes, read_committed=False)
        (part,) = session.answer(self.connection.exchange_frame([request], correlation_id, 30)).partitions
        return part

    @property
    def log_end(self) -> int:
        """The true log end."""
        found = self.client.list_offsets({self.partition: LATEST}, log_end=True)[self.partition]
        assert found.offset is not None
        return found.offset

    def producer(self, producer_id: int = OWN_ID) -> ProducerState | None:
        """Return the leader's state of a producer."""
        producers = describe_producers(self.client, [self.partition])[self.partition].producers
        return next((p for p in producers if p.producer_id == producer_id), None)


def young() -> int:
    """Return the timestamp of a record that is written now."""
    return time.time_ns() // 1_000_000
