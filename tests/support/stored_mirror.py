"""A mirror made without an engine: its records written to the state topic, its topics filled by a test."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.reports.state_log import append_to
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.base.context import Destination
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.ops.verify.verify_results import VerifyOutcome
from kmirror.state.lock import transact
from kmirror.state.records import DesiredState, MirrorRecord, PartitionRecord, PartitionState, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.work import WorkView
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic


class Side:
    """One cluster, and ways to write to it."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self.cluster_id = cluster.cluster_id
        self.properties = {"bootstrap.servers": cluster.bootstrap_servers}
        self.client = ClusterClient(client_config(self.properties))
        self.admin = AdminClient(self.properties)
        self.created: list[str] = []

    def create(self, topic: str, partitions: int = 1) -> str:
        """Create a topic and return its id."""
        config = {"compression.type": "producer", "retention.ms": "-1"}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
        self.created.append(topic)
        # asked again until every leader has taken office
        answers = self.client.list_offsets({TopicPartition(topic, index): LATEST for index in range(partitions)})
        assert all(answer.offset == 0 for answer in answers.values())
        return self.client.metadata([topic]).topics[topic].printed_topic_id or ""

    def append(self, topic: str, log: list[Record], *, partition: int = 0, codec: str = "none") -> None:
        """Append records in batches of 50."""
        for first in range(0, len(log), 50):
            batch = [replace(one, offset=i) for i, one in enumerate(log[first : first + 50])]
            data = memoryview(make_batch(batch, compression_type=codec))
            append_to(self.client, TopicPartition(topic, partition), data)

    def delete_records(self, topic: str, before: int) -> None:
        """Move the log start of partition 0."""
        partition = ClientPartition(topic, 0, before)
        self.admin.delete_records([partition])[partition].result(30)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(30)
        self.created.remove(topic)

    def close(self) -> None:
        """Delete what was created."""
        for topic in list(self.created):
            self.delete(topic)
        self.client.close()


@dataclass
class StoredMirror:
    """A mirror as the state topic knows it; the test makes the copies by hand."""

    source: Side
    destination: Side
    name: str = field(default_factory=lambda: f"m-{uuid.uuid4().hex[:8]}")
    topics: list[TopicRecord] = field(default_factory=list)
    partitions: list[PartitionRecord] = field(default_factory=list)
    views: list[WorkView] = field(default_factory=list)

    def topic(
        self, name: str, *, partitions: int = 1, there: int | None = None, desired: DesiredState = DesiredState.ACTIVE
    ) -> str:
        """Create a topic on both sides and make it a mirror topic; `there` is the source's number of partitions."""
        topic = f"{unique_topic('verify')}-{name}"
        source_id = self.source.create(topic, there or partitions)
        destination_id = self.destination.create(topic, partitions)
        origin = TopicOrigin.CREATED
        self.topics.append(TopicRecord(self.name, topic, topic, source_id, destination_id, desired, partitions, origin))
        return topic

    def known(self, topic: str, source_topic: str, desired: DesiredState = DesiredState.ACTIVE) -> None:
        """Make an existing topic a mirror topic of an existing one."""
        source_id, destination_id = (
            side.client.metadata([name]).topics[name].printed_topic_id
            for side, name in ((self.source, source_topic), (self.destination, topic))
        )
        origin = TopicOrigin.CREATED
        self.topics.append(TopicRecord(self.name, topic, source_topic, source_id, destination_id, desired, 1, origin))

    def stopped_at(self, topic: str, last_mirrored_offset: int) -> None:
        """Store where the mirroring of partition 0 stopped."""
        state = PartitionState.STOPPED
        record = PartitionRecord(self.name, topic, 0, state, 0, last_mirrored_offset=last_mirrored_offset)
        self.partitions.append(record)

    def save(self, cluster_id: str | None = None) -> None:
        """Write all of it to the state topic."""
        mirror = MirrorRecord(self.name, self.source.properties, {}, cluster_id or self.source.cluster_id, "test", 0)
        with Destination.open(self.destination.properties) as destination:
            changes = Changes((mirror, *self.topics, *self.partitions))
            transact(destination.store, self.name, lambda _: changes)

    def forget(self) -> None:
        """Remove the mirror's records."""

        def decide(state: State) -> Changes:
            return Changes(tombstones=state.keys_of(self.name))

        with Destination.open(self.destination.properties) as destination:
            transact(destination.store, self.name, decide)

    def verify(self, master: str = "local[*]", log_file: Path | None = None, **request: Any) -> VerifyOutcome:
        """Run the verb."""
        self.views.clear()
        asked = VerifyRequest(self.name, spark=SparkChoice(master, log_file=log_file), **request)
        with Destination.open(self.destination.properties) as destination:
            return verify(destination, asked, self.views.append)
