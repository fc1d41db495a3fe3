"""What it takes to fill offsets on a cluster with ACLs: markers, transactions without them, neither."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.authorized import marker_operations
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.writing.empty_transaction import EmptyTransactions
from kmirror.engine.lane.reports.state_log import STATE_PARTITION
from kmirror.engine.spec import filling_prefix, filling_transactional_ids
from kmirror.errors import BrokerError, Reason, RefusedError
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.acls import create_in_force
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.filling import begin_transactions
from tests.support.holes import FEW, assert_alike, write_holes
from tests.support.kafka_versions import of_long
from tests.support.lane import Mirror
from tests.support.leader import OWN_ID, create_topic, young
from tests.support.librdkafka import librdkafka
from tests.support.shared_clusters import GUARDED
from tests.support.waiting import wait_until


def allow(
    cluster: SandboxCluster,
    kind: ResourceType,
    name: str,
    *operations: str,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> None:
    """Give rights to the user `kmirror`."""
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    rules = [
        AclBinding(
            kind,
            name,
            pattern,
            "User:kmirror",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    create_in_force(admin, rules)


# -- by themselves -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[DEFAULT_KAFKA_VERSION, *of_long(("3.7.2", "3.8.1", "3.9.2"))])
def guarded_version(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster of a version with TLS, logins and ACLs."""
    if request.param == DEFAULT_KAFKA_VERSION:
        found: SandboxCluster = request.getfixturevalue("guarded_cluster")
        return found
    return make_cluster("guarded-other", kafka_version=request.param, **{**GUARDED, "token_seconds": None})


def test_markers_need_a_right_on_the_cluster_and_appending_does_not(guarded_version: SandboxCluster) -> None:
    guarded_cluster = guarded_version
    topic = create_topic(guarded_cluster)
    partition = TopicPartition(topic, 0)
    allow(guarded_cluster, ResourceType.TOPIC, topic, "WRITE", "READ", "DESCRIBE")
    with ClusterClient(client_config(guarded_cluster.client_properties("kmirror"))) as client:
        with OffsetAppender(client, partition, producer_id=OWN_ID) as out:
            assert out.append(records(0, 2)) == 2
            with pytest.raises(RefusedError, match="no right to write markers") as caught:
                out.append(records(5, 6))
            assert caught.value.reason is Reason.NOT_AUTHORIZED
            assert client.list_offsets({partition: LATEST}, log_end=True)[partition].offset == 2
        allow(guarded_cluster, ResourceType.BROKER, "kafka-cluster", "ALTER")
        operations = marker_operations(client)
        if "ALTER" not in operations:
            with OffsetAppender(client, partition, producer_id=OWN_ID) as out, pytest.raises(RefusedError):
                out.append(records(5, 6))
            allow(guarded_cluster, ResourceType.BROKER, "kafka-cluster", *operations)
        with OffsetAppender(client, partition, producer_id=OWN_ID) as out:
            assert out.append(records(5, 6)) == 6


def records(start: int, end: int) -> list[Record]:
    """Return records at these offsets."""
    return [Record(offset, young(), b"k", b"v") for offset in range(start, end)]


def test_empty_transactions_need_write_on_the_id_and_on_the_topic(guarded_cluster: SandboxCluster) -> None:
    topic, name = create_topic(guarded_cluster), unique_topic("mirror")
    partition = TopicPartition(topic, 0)
    allow(guarded_cluster, ResourceType.TOPIC, topic, "DESCRIBE")
    with ExitStack() as stack:
        config = client_config(guarded_cluster.client_properties("kmirror"))
        client = stack.enter_context(ClusterClient(config))
        transactions = stack.enter_context(closing(EmptyTransactions(client, [name])))
        with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            transactions.settle()
        allow(guarded_cluster, ResourceType.TRANSACTIONAL_ID, name, "WRITE")
        transactions.settle()
        with pytest.raises(BrokerError) as refused:
            transactions.fill({partition: 1})
        assert refused.value.code == Code.TOPIC_AUTHORIZATION_FAILED
        allow(guarded_cluster, ResourceType.TOPIC, topic, "WRITE")
        transactions.settle()
        transactions.fill({partition: 1})
        assert client.list_offsets({partition: LATEST}, log_end=True)[partition].offset == 1


# -- in a lane ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def restricted(guarded_cluster: SandboxCluster) -> Iterator[Mirror]:
    """Return a mirror written by the user `kmirror`, who may not write markers."""
    guarded = guarded_cluster
    properties: dict[str, Any] = {"destination_properties": {**guarded.client_properties("kmirror")}}
    with closing(Mirror(guarded, guarded, **properties, retry_timeout_ms=1500)) as made:
        allow(guarded, ResourceType.TOPIC, STATE_PARTITION.topic, "READ", "WRITE")
        yield made


def topic_of(mirror: Mirror, partitions: int, first: int = 0) -> str:
    """Make a topic with holes, and so many offsets without a record before them."""
    topic = mirror.topic(partitions)
    allow(mirror.destination, ResourceType.TOPIC, mirror.mirror_of(topic), "READ", "WRITE")
    for partition in range(partitions):
        write_holes(mirror.source, topic, partition, stretches=[(first + at, count) for at, count in FEW])
    return topic


def allow_transactions(mirror: Mirror) -> None:
    prefix = filling_prefix(mirror.name)
    kind, pattern = ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED
    allow(mirror.destination, kind, prefix, "WRITE", "DESCRIBE", pattern=pattern)


@pytest.mark.slow
def test_without_the_right_to_write_markers_holes_are_filled_by_transactions(restricted: Mirror) -> None:
    topic = topic_of(restricted, 2)
    allow_transactions(restricted)
    lane = restricted.start()
    restricted.wait(lane, lambda: any(record.fills_by_transactions for record in restricted.progress()))
    restricted.wait_copied(lane, 120)
    assert restricted.stop(lane).clean
    assert_alike(restricted, topic, 2)
    # the next one first ends what this one may have left open
    write_holes(restricted.source, topic, stretches=[*FEW, (2000, 1)])
    lane = restricted.start(unsettled_lanes=(0,))
    restricted.wait_copied(lane, 120)
    restricted.stop(lane)
    assert_alike(restricted, topic, 2)


def used_ids(mirror: Mirror) -> set[str]:
    """Return the transactional ids of the mirror that coordinators know."""
    from kafka.protocol.admin import ListTransactionsRequest

    found: set[str] = set()
    with ClusterClient(client_config(mirror.destination.client_properties())) as client:
        for broker in client.metadata([]).brokers.values():
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
            answer = client.connect(broker.node_id, broker.host, broker.port).request(request, highest=0)
            assert not answer.error_code
            found |= {one.transactional_id for one in answer.transaction_states}
    return {name for name in found if name.startswith(filling_prefix(mirror.name))}


def test_small_gaps_take_no_more_transactional_ids_than_offsets(restricted: Mirror) -> None:
    topic = restricted.topic(2)
    allow(restricted.destination, ResourceType.TOPIC, restricted.mirror_of(topic), "READ", "WRITE")
    gaps = ((5, 10), (16, 30), (49, 4))
    for partition in range(2):
        write_holes(restricted.source, topic, partition, stretches=gaps)
    allow_transactions(restricted)
    lane = restricted.start()
    restricted.wait_copied(lane, 120)
    assert restricted.stop(lane).clean
    assert_alike(restricted, topic, 2, least=sum(count for _, count in gaps))
    assert 0 < len(used_ids(restricted)) <= 5


@pytest.mark.slow
def test_a_lane_that_dies_within_a_transaction_leaves_nothing_that_shifts_the_log(restricted: Mirror) -> None:
    """Its successor ends the transactions before it looks at any log."""
    names = filling_transactional_ids(restricted.name, 0)
    topic = topic_of(restricted, 1, first=len(names))
    allow_transactions(restricted)
    with (
        ClusterClient(client_config(restricted.destination.client_properties("kmirror"))) as client,
        closing(EmptyTransactions(client, names)) as died,
    ):
        died.settle()
        begin_transactions(client, died, [TopicPartition(restricted.mirror_of(topic), 0)])
    lane = restricted.start(unsettled_lanes=(0,))
    restricted.wait_copied(lane, 120)
    restricted.stop(lane)
    assert_alike(restricted, topic)


@pytest.mark.slow
def test_with_neither_right_the_partition_fails_and_names_what_is_missing(restricted: Mirror) -> None:
    topic_of(restricted, 1)
    lane = restricted.start()
    wait_until(lambda: lane.partitions[0].retry.failure)
    failure = lane.partitions[0].retry.failure
    assert failure is not None
    assert failure.reason is Reason.NOT_AUTHORIZED
    for words in (
        "ALTER on the cluster",
        "WRITE on the transactional id",
        filling_prefix(restricted.name),
    ):
        assert words in failure.message
    assert restricted.rows_at_stop(lane)[0].state == "FAILED"
