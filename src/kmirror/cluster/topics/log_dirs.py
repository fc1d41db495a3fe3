"""The free space on brokers' disks, and the size of topics there (DescribeLogDirs, KIP-827)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition, by_topic
from kmirror.errors import KmirrorError, OutcomeUnknown

#: The first version with the sizes of disks.
_WITH_SIZES = 4
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes that each replica of some topics takes, by topic; bytes free on each of the brokers' disks."""

    replica_bytes: Mapping[str, Sequence[int]]
    free_bytes: tuple[int, ...]

    def lacking(self, total: int, largest: int) -> tuple[int, int] | None:
        """Return what replicas of `total` bytes may take on one disk, and what the fullest has free; None if they fit.

        Brokers place replicas by their number, not by what is free, so each disk may get an even share, or the largest.
        """
        least = min(self.free_bytes, default=0)
        needed = max(largest, total // max(1, len(self.free_bytes)))
        return (needed, least) if needed > least else None


def disk_use(client: ClusterClient, topics: Collection[str] = ()) -> DiskUse | None:
    """Return the disk use of topics; None if a broker does not return it (it needs DESCRIBE on the cluster).

    Raises:
        UnreachableError: no broker answers.
    """
    taken: dict[str, list[int]] = {topic: [] for topic in topics}
    free: list[int] = []
    for broker in client.metadata([]).brokers.values():
        try:
            connection = client.connect(broker.node_id, broker.host, broker.port)
            answer: Any = connection.request(
                kafka.DescribeLogDirsRequest(topics=None), lowest=_WITH_SIZES, highest=_WITH_SIZES
            )
        except (KmirrorError, OutcomeUnknown):
            return None
        if answer.error_code or any(found.error_code or found.usable_bytes < 0 for found in answer.results):
            return None
        # directories on the same disk report the same sizes
        disks = {(found.total_bytes, found.usable_bytes) for found in answer.results}
        free += [usable for _, usable in disks]
        for one in (one for found in answer.results for one in found.topics if one.name in taken):
            taken[one.name] += [partition.partition_size for partition in one.partitions]
    return DiskUse(taken, tuple(free))


def partition_sizes(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return how many bytes leaders store of each partition, as far as is known. Raises as `stored_sizes`."""
    return {partition: size for partition, (_, size) in stored_sizes(client, partitions).items() if size is not None}


def stored_sizes(
    client: ClusterClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Return how many bytes leaders store of each partition, and an error code where that is unknown.

    The code is CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster, and may be 0 where a log is still made.

    Raises:
        UnreachableError: no broker answers.
    """

    def build(led: list[TopicPartition], _: ClusterMetadata) -> Any:
        topic_type = kafka.DescribeLogDirsRequest.DescribableLogDirTopic
        topics = [topic_type(topic=topic, partitions=indexes) for topic, indexes in by_topic(led).items()]
        return kafka.DescribeLogDirsRequest(topics=topics)

    def read(answer: Any, led: list[TopicPartition]) -> Iterator[tuple[TopicPartition, int, int | None]]:
        sizes = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for result in answer.results
            for topic in result.topics
            for partition in topic.partitions
            if not partition.is_future_key
        }
        # before Kafka 3.2 there is no other sign of a missing right
        code = 0 if answer.results else int(Code.CLUSTER_AUTHORIZATION_FAILED)
        # partitions that are not returned are not asked for again
        yield from ((partition, code, sizes.get(partition)) for partition in led)

    return client.per_leader(partitions, build, read, timeout=_TIMEOUT_SECONDS)
