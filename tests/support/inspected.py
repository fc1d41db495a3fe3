"""Topics on a source and their copies on a destination, made by hand, and an inspector of both."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import markers
from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now_ms
from kmirror.engine.histories.inspection import Inspector
from kmirror.engine.histories.judge import Facts, Fail, Verdict, judge
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.leader import OWN_ID, Leader, create_topic
from tests.support.oracle import librdkafka_records
from tests.support.producers import whole_batches
from tests.support.waiting import wait_until

_RECORDS_A_BATCH = 7


class Pair:
    """Topics on a source and their copies on a destination, made by hand, and an inspector of both."""

    def __init__(self, source: SandboxCluster, destination: SandboxCluster, client_id: str = "kmirror") -> None:
        self.source, self.destination = source, destination
        self.at_source = ClusterClient(client_config({**source.client_properties(), "client.id": client_id}))
        self.at_destination = ClusterClient(client_config(destination.client_properties()))
        self.inspector = Inspector(self.at_source, self.at_destination)

    def close(self) -> None:
        self.at_source.close()
        self.at_destination.close()

    def topic(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """Create a topic on both sides; on one cluster the copy has another name."""
        topic = create_topic(self.source, partitions=partitions, settings=settings)
        create_topic(self.destination, partitions=partitions, name=self.copy_of(topic), settings=settings)
        return topic

    def copy_of(self, topic: str) -> str:
        return topic if self.source is not self.destination else f"copy-of-{topic}"

    def assignment(self, topic: str, partition: int = 0) -> Assignment:
        return Assignment(
            topic=self.copy_of(topic),
            partition=partition,
            source_topic=topic,
            source_topic_id=None,
            destination_topic_id=None,
            producer_id=OWN_ID,
        )

    def inspect(self, topic: str) -> tuple[Facts, Verdict]:
        """Inspect partition 0, and judge it."""
        assignment = self.assignment(topic)
        (facts,) = self.inspector.inspect([assignment])
        return facts, judge(assignment, None, facts)

    def at(self, topic: str, partition: int = 0) -> Leader:
        return Leader(self.source, topic, partition)

    def at_copy(self, topic: str, partition: int = 0) -> Leader:
        return Leader(self.destination, self.copy_of(topic), partition)

    def copy(self, topic: str, end: int | None = None) -> int:
        """Append what consumers see, and markers where they see nothing, up to `end`; return how many markers."""
        shown = [
            Record(r.offset, r.timestamp, r.key, r.value, r.headers)
            for r in librdkafka_records(self.source.bootstrap_servers, topic, 0, "read_committed")
            if end is None or r.offset < end
        ]
        with (
            self.at_copy(topic) as leader,
            OffsetAppender(self.at_destination, leader.partition, producer_id=OWN_ID) as out,
        ):
            begin = out.log_end_offset
            missing = [record for record in shown if record.offset >= begin]
            while missing:
                first = missing[0].offset
                run = [r for i, r in enumerate(missing[:_RECORDS_A_BATCH]) if r.offset == first + i]
                out.append(run)
                del missing[: len(run)]
            if end is not None:
                mark(leader, end - leader.log_end)
            return leader.log_end - begin - sum(record.offset >= begin for record in shown)


def mark(leader: Leader, number: int) -> None:
    """Append this many of our markers."""
    if not number:
        return
    known = leader.producer()
    epoch = known.coordinator_epoch + 1 if known else 0
    fill = markers.Fill(*leader.partition, OWN_ID, 0, number, epoch)
    connection = leader.connection
    version = connection.version_for(markers.API)
    correlation_id = connection.next_correlation_id()
    request = markers.request(correlation_id, version, "kmirror", [fill])
    answer = markers.answer(connection.exchange_frame([request], correlation_id, 30), version)
    assert answer == {tuple(leader.partition): 0}


def fill(leader: Leader, end: int) -> None:
    """Append filler up to `end`."""
    while (at := leader.log_end) < end:
        batch = filler_batch(min(end - at, FILLER_RECORDS), now_ms(), base_offset=at)
        assert leader.append(batch, at & SEQUENCE_MASK) == (0, at)


def produce(
    cluster: SandboxCluster, topic: str, number: int, name: str = "v", partition: int = 0, **config: str
) -> None:
    """Write records with librdkafka, forty in a batch."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, **settings})
    for index in range(number):
        producer.produce(topic, f"{name}-{index}".encode() * 9, b"%d" % index, partition, headers=[("h", None)])
        if index % 40 == 39:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def transact(cluster: SandboxCluster, topic: str, number: int, *, commit: bool = True) -> None:
    """Write records in a transaction of their own, in one batch."""
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"t-{time.time_ns()}"}
    producer = whole_batches(topic, config)
    producer.init_transactions(30)
    producer.begin_transaction()
    for index in range(number):
        producer.produce(topic, b"in-transaction-%d" % index, b"k", 0)
    producer.flush(30)
    with Leader(cluster, topic) as leader:
        before = leader.log_end
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        wait_until(lambda: leader.log_end == before + 1)  # its marker is written a moment later


def delete_records(cluster: SandboxCluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for done in admin.delete_records([Place(topic, 0, offset)]).values():
        done.result(30)


def failure(verdict: Verdict) -> tuple[Reason, int]:
    assert isinstance(verdict, Fail), verdict
    return verdict.reason, verdict.offset
