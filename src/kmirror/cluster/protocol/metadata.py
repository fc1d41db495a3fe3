"""What a cluster says about itself: brokers, topics, partitions and their leaders, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id


class TopicPartition(NamedTuple):
    """Name one partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition's leader, None while there is none, and its replicas."""

    partition: int
    error_code: int
    leader_id: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic. `error_code` is 0, or why the broker says nothing more of it; `topic_id` is 16 bytes."""

    name: str
    error_code: int
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]

    @property
    def printed_topic_id(self) -> str | None:
        """The topic id as Kafka's tools print it; None where the broker has none."""
        return format_topic_id(self.topic_id)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One broker's answer to Metadata."""

    cluster_id: str | None
    controller_id: int | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    def leader(self, partition: TopicPartition) -> PartitionMetadata | None:
        """Return what is known of a partition that has a leader we can reach, else None."""
        topic = self.topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic else None
        return found if found and found.leader_id in self.brokers else None


def decode_metadata(answer: Any) -> ClusterMetadata:
    """Turn `kafka.protocol`'s MetadataResponse into plain data."""
    topics = {}
    for topic in answer.topics:
        partitions = {
            p.partition_index: PartitionMetadata(
                p.partition_index,
                p.error_code,
                p.leader_id if p.leader_id >= 0 else None,
                p.leader_epoch,
                tuple(p.replica_nodes),
                tuple(p.isr_nodes),
            )
            for p in topic.partitions
        }
        topic_id = topic.topic_id.bytes if topic.topic_id is not None else NO_TOPIC_ID
        topics[topic.name] = TopicMetadata(
            topic.name, topic.error_code, topic_id, bool(topic.is_internal), dict(sorted(partitions.items()))
        )
    brokers = {b.node_id: Broker(b.node_id, b.host, b.port) for b in answer.brokers}
    controller = answer.controller_id if answer.controller_id is not None and answer.controller_id >= 0 else None
    return ClusterMetadata(answer.cluster_id, controller, brokers, topics)
