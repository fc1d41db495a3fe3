"""Topics whose source gets more partitions while they are mirrored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.mirrors import make_topic, produce, properties_of
from tests.support.waiting import wait_until


def grow(cluster: SandboxCluster, topic: str, count: int) -> None:
    """Raise a topic to this many partitions, and wait until they have leaders."""
    admin = AdminClient(properties_of(cluster))
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    wait_until(lambda: len(ends_of(cluster, topic)) == count)


def ends_of(cluster: SandboxCluster, topic: str) -> dict[int, int]:
    """Return the log end of each partition of a topic that has a leader."""
    with ClusterClient(client_config(properties_of(cluster))) as client:
        partitions = [TopicPartition(topic, p) for p in client.metadata([topic]).topics[topic].partitions]
        found = client.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
    return {p.partition: answer.offset for p, answer in found.items() if answer.offset is not None}


def grow_and_fill(cluster: SandboxCluster, topic: str, count: int, values: Sequence[str]) -> None:
    """Raise a topic of one partition to this many, and write to each that was added."""
    grow(cluster, topic, count)
    for partition in range(1, count):
        produce(cluster, topic, values, partition)


@contextmanager
def partitions_refused(cluster: SandboxCluster) -> Iterator[None]:
    """Have a cluster refuse kmirror to add partitions: the quota of changes is used up."""
    used = unique_topic()
    make_topic(cluster, used)
    _limit_changes(cluster, 0.01)
    try:
        # a quota lets the first change pass that exceeds it
        with ClusterClient(client_config(properties_of(cluster))) as client:
            client.create_partitions({used: 20})
        yield
    finally:
        _limit_changes(cluster, None)


def _limit_changes(cluster: SandboxCluster, per_second: float | None) -> None:
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    quota = entry.OpData(key="controller_mutation_rate", value=per_second or 0.0, remove=per_second is None)
    entity = entry.EntityData(entity_type="client-id", entity_name="kmirror")
    request = AlterClientQuotasRequest(entries=[entry(entity=[entity], ops=[quota])], validate_only=False)
    with ClusterClient(client_config(properties_of(cluster))) as client:
        answer = client.ask_any(request)
    assert all(one.error_code == 0 for one in answer.entries), answer
