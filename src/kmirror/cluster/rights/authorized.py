"""What we are authorized to do on a cluster, according to its brokers (KIP-430). Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from uuid import UUID

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import OPERATION_CODES
from kmirror.cluster.protocol.codes import Code

_TOPICS_AT_ONCE = 200
_FIND_COORDINATOR = 10
_TIMEOUT_MS = 10_000
#: Kafka's AclOperation codes by name.
OPERATIONS: Mapping[str, int] = {operation.value: code for operation, code in OPERATION_CODES.items()}


def cluster_operations(client: ClusterClient) -> frozenset[int]:
    """Return our operations on the cluster; empty without DESCRIBE on it, which brokers require."""
    answer = client.ask_any(kafka.DescribeClusterRequest(include_cluster_authorized_operations=True))
    return frozenset(answer.authorized_operations or ())


def marker_operations(client: ClusterClient) -> tuple[str, ...]:
    """Return which operations on the cluster allow us to write transaction markers, the lesser one first.

    ALTER does from Kafka 3.8 on (KIP-1037), whose brokers offer FindCoordinator 5. Raises UnreachableError.
    """
    return ("ALTER", "CLUSTER_ACTION") if client.highest_version(_FIND_COORDINATOR) >= 5 else ("CLUSTER_ACTION",)


def missing_rights(cluster: ClusterClient, topics: Iterable[str], needed: Sequence[str]) -> dict[str, list[str]]:
    """Return which of the operations `needed` we lack, by topic; topics without missing ones are left out.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    topic_type = kafka.MetadataRequest.MetadataRequestTopic
    lacking: dict[str, list[str]] = {}
    rest = iter(topics)
    while some := list(islice(rest, _TOPICS_AT_ONCE)):
        request = kafka.MetadataRequest(
            topics=[topic_type(topic_id=UUID(int=0), name=name) for name in some],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        for topic in cluster.ask_any(request, highest=12).topics:
            if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
                lacking[topic.name] = ["DESCRIBE", *needed]
            elif not topic.error_code and (missing := missing_operations(topic.authorized_operations, needed)):
                lacking[topic.name] = missing
    return lacking


def missing_operations(authorized_operations: Collection[int] | None, needed: Sequence[str]) -> list[str]:
    """Return the operations needed that are not among the authorized ones; none if the broker returned no list."""
    if not authorized_operations:
        return []
    return [name for name in needed if OPERATIONS[name] not in authorized_operations]


def groups_lacking(client: ClusterClient, groups: Collection[str], needed: str) -> list[str]:
    """Return the groups, which need not exist, on which we lack a right. Raises UnreachableError."""
    if not groups:
        return []
    request = kafka.DescribeGroupsRequest(groups=sorted(groups), include_authorized_operations=True)
    # later versions return no operations for groups that do not exist
    answer = client.ask_any(request, highest=5)
    return [
        one.group_id
        for one in answer.groups
        if one.error_code == Code.GROUP_AUTHORIZATION_FAILED
        or (not one.error_code and missing_operations(operations_of(one.authorized_operations), (needed,)))
    ]


def operations_of(field: Iterable[int] | int | None) -> frozenset[int]:
    """Return authorized operations as codes; empty if the broker does not return them."""
    return frozenset(field) if isinstance(field, Iterable) else frozenset()


def may_write_transactions(client: ClusterClient, transactional_id: str) -> bool:
    """Return whether WRITE on an unused transactional id is granted. Changes nothing.

    It ends a transaction that never began: without the right the broker refuses before it looks the transaction up.
    """
    request = kafka.EndTxnRequest(transactional_id=transactional_id, producer_id=0, producer_epoch=0, committed=False)
    answer = client.ask_any(request, highest=4)
    return bool(answer.error_code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def may_delete(client: ClusterClient, topic: str) -> bool:
    """Return whether DELETE on a topic that does not exist is granted. Changes nothing.

    It deletes no records: without the right a broker refuses before it looks the topic up. Raises UnreachableError.
    """
    topic_type = kafka.DeleteRecordsRequest.DeleteRecordsTopic
    partition = topic_type.DeleteRecordsPartition(partition_index=0, offset=0)
    request = kafka.DeleteRecordsRequest(
        topics=[topic_type(name=topic, partitions=[partition])], timeout_ms=_TIMEOUT_MS
    )
    (found,) = client.ask_any(request).topics
    return all(one.error_code != Code.TOPIC_AUTHORIZATION_FAILED for one in found.partitions)
