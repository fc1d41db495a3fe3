"""How much room brokers have on their disks, and how much of it a topic takes (DescribeLogDirs, KIP-827)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown

#: From here on brokers tell the size of their disks.
_WITH_SIZES = 4


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes that all replicas of a topic take, and that are free on all brokers' disks together."""

    topic_bytes: int
    free_bytes: int


def disk_use(client: ClusterClient, topic: str) -> DiskUse | None:
    """Return it as far as brokers tell; None where one of them does not (it needs DESCRIBE on the cluster).

    Raises:
        UnreachableError: no broker answers.
    """
    from kafka.protocol.admin import DescribeLogDirsRequest

    taken = free = 0
    for broker in client.metadata([]).brokers.values():
        try:
            connection = client.connect(broker.node_id, broker.host, broker.port)
            answer: Any = connection.request(
                DescribeLogDirsRequest(topics=None), lowest=_WITH_SIZES, highest=_WITH_SIZES
            )
        except (KmirrorError, OutcomeUnknown):
            return None
        if answer.error_code or any(found.error_code or found.usable_bytes < 0 for found in answer.results):
            return None
        # directories on one disk tell the same of it
        disks = {(found.total_bytes, found.usable_bytes) for found in answer.results}
        free += sum(usable for _, usable in disks)
        taken += sum(
            partition.partition_size
            for found in answer.results
            for one in found.topics
            if one.name == topic
            for partition in one.partitions
        )
    return DiskUse(taken, free)


def partition_sizes(client: ClusterClient, topics: Collection[str]) -> dict[TopicPartition, int]:
    """Return the bytes that the largest replica of each partition takes, as far as brokers tell.

    Raises:
        UnreachableError: no broker answers.
    """
    from kafka.protocol.admin import DescribeLogDirsRequest

    sizes: dict[TopicPartition, int] = {}
    for broker in client.metadata([]).brokers.values():
        try:
            connection = client.connect(broker.node_id, broker.host, broker.port)
            answer: Any = connection.request(DescribeLogDirsRequest(topics=None), highest=_WITH_SIZES)
        except (KmirrorError, OutcomeUnknown):
            continue
        for found in answer.results:
            for one in found.topics:
                if one.name in topics:
                    for partition in one.partitions:
                        place = TopicPartition(one.name, partition.partition_index)
                        sizes[place] = max(sizes.get(place, 0), partition.partition_size)
    return sizes
