"""Asking whole clusters: metadata, offsets of every kind, producers, settings; leaders that move, brokers gone."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, OffsetAnswer, require
from kmirror.cluster.connection import Connection
from kmirror.cluster.producers import ProducersAnswer, describe_producers
from kmirror.cluster.protocol import metadata
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import Append
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import BrokerError, UnreachableError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import freeze, unique_topic
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic, young
from tests.support.waiting import wait_until
from tests.support.wire import Wire, closed_port

FIRST = 1_700_000_000_000


@pytest.fixture
def cluster(destination_cluster: SandboxCluster) -> SandboxCluster:
    return destination_cluster


# -- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_of_named_topics(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=3)
    missing = unique_topic("missing")
    found = client.metadata([topic, missing])
    assert found.cluster_id == cluster.cluster_id
    assert found.controller_id == 1
    assert {(b.node_id, b.port) for b in found.brokers.values()} == {(1, cluster.brokers[0].port)}
    known = found.topics[topic]
    assert (known.error_code, known.is_internal, list(known.partitions)) == (0, False, [0, 1, 2])
    assert parse_topic_id(str(known.printed_topic_id)) == known.topic_id
    for index in range(3):
        partition = found.leader(TopicPartition(topic, index))
        assert partition is not None
        assert (partition.leader_id, partition.replicas, partition.in_sync_replicas) == (1, (1,), (1,))
    assert found.topics[missing].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert found.topics[missing].printed_topic_id is None
    assert found.leader(TopicPartition(missing, 0)) is None
    assert found.leader(TopicPartition(topic, 3)) is None


def test_metadata_of_no_topics_and_of_all(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    assert client.metadata([]).topics == {}
    assert topic in client.metadata().topics


def test_the_topic_id_is_the_one_other_clients_see(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    from confluent_kafka import TopicCollection

    described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    # librdkafka prints the plain base64 alphabet, Kafka's tools the one for URLs.
    other = str(described.topic_id).replace("+", "-").replace("/", "_")
    assert client.metadata([topic]).topics[topic].printed_topic_id == other


def test_partitions_added_later_are_seen(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    client.metadata([topic])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_until(lambda: client.metadata([topic]).leader(TopicPartition(topic, 1)))


# -- offsets ---------------------------------------------------------------------------------------------------------


def test_offsets_by_place_and_by_time(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Leader(cluster, topic) as leader:
        for number in range(3):
            assert leader.append_as_is(batch_of(2, timestamp=FIRST + number * 1000)).error_code == 0

    def offsets(where: int, **how: Any) -> list[int | None]:
        found = client.list_offsets({one: where, other: where}, **how)
        assert {answer.error_code for answer in found.values()} == {0}
        return [found[one].offset, found[other].offset]

    assert offsets(EARLIEST) == [0, 0]
    assert offsets(LATEST) == [6, 0]
    assert offsets(LATEST, read_committed=True) == [6, 0]
    assert offsets(LATEST, log_end=True) == [6, 0]
    assert offsets(FIRST + 1000) == [2, None]
    assert offsets(FIRST + 1001) == [4, None]
    assert offsets(FIRST + 2001) == [None, None]


def test_the_start_moves_when_records_are_deleted(client: ClusterClient, cluster: SandboxCluster) -> None:
    from confluent_kafka import TopicPartition as Place

    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        leader.append_as_is(batch_of(9))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.delete_records([Place(topic, 0, 4)]).values():
        future.result(30)
    partition = TopicPartition(topic, 0)
    assert client.list_offsets({partition: EARLIEST})[partition].offset == 4


def test_an_open_transaction_holds_the_last_stable_offset(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    partition = TopicPartition(topic, 0)
    with Leader(cluster, topic) as leader:
        leader.append_as_is(batch_of(2))
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(30) == 0
    assert client.list_offsets({partition: LATEST})[partition].offset == 3
    assert client.list_offsets({partition: LATEST}, read_committed=True)[partition].offset == 2
    (open_one,) = describe_producers(client, [partition])[partition].producers
    assert open_one.current_txn_start_offset == 2
    producer.commit_transaction(30)
    wait_until(lambda: client.list_offsets({partition: LATEST}, read_committed=True)[partition].offset == 4)
    (closed,) = describe_producers(client, [partition])[partition].producers
    assert closed.current_txn_start_offset is None


def test_many_partitions_in_one_round(client: ClusterClient, cluster: SandboxCluster) -> None:
    topics = [create_topic(cluster, partitions=20) for _ in range(3)]
    wanted = {TopicPartition(topic, index): LATEST for topic in topics for index in range(20)}
    assert client.list_offsets(wanted) == dict.fromkeys(wanted, OffsetAnswer(0, 0, 0))
    assert client.list_offsets({}) == {}


def test_a_broker_that_has_left_the_cluster_has_no_settings(client: ClusterClient) -> None:
    (here,) = client.metadata([]).brokers
    assert client.broker_configs([here, here + 1000], ["message.max.bytes"]).keys() == {here}


def test_what_does_not_exist_has_its_error_code(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    missing, beyond = TopicPartition(unique_topic("missing"), 0), TopicPartition(topic, 5)
    wanted = [missing, beyond, TopicPartition(topic, 0)]
    found = client.list_offsets(dict.fromkeys(wanted, LATEST), timeout=0.5)
    assert found[missing] == OffsetAnswer(Code.UNKNOWN_TOPIC_OR_PARTITION, None, -1)
    assert (found[beyond].error_code != 0, found[beyond].offset) == (True, None)
    assert found[TopicPartition(topic, 0)].offset == 0
    assert describe_producers(client, [missing], timeout=0.5)[missing] == ProducersAnswer(3, ())


# -- producers and settings ------------------------------------------------------------------------------------------


def test_producers_are_described_as_the_leader_remembers_them(client: ClusterClient, cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    now = young()
    with Leader(cluster, topic) as leader:
        assert leader.append(batch_of(3, timestamp=now - 5), 7, epoch=2)[0] == 0
        assert leader.append(batch_of(1, timestamp=now), 10, epoch=2)[0] == 0
    found = describe_producers(client, [one, other])
    assert found[other] == ProducersAnswer(0, ())
    (state,) = found[one].producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (OWN_ID, 2, 10)
    assert (state.last_timestamp, state.current_txn_start_offset) == (now, None)


def test_broker_settings_by_name(client: ClusterClient) -> None:
    found = client.broker_configs([1], ["producer.id.expiration.ms", "log.retention.hours"])
    assert found == {1: {"producer.id.expiration.ms": "86400000", "log.retention.hours": "168"}}


def test_an_error_code_is_raised_with_what_was_asked() -> None:
    require(0, "anything")
    with pytest.raises(BrokerError, match=r"adding t-1: TOPIC_AUTHORIZATION_FAILED \(29\): not you") as caught:
        require(29, "adding t-1", "not you")
    assert caught.value.code == 29


# -- brokers that are gone -------------------------------------------------------------------------------------------


def test_an_unreachable_cluster_is_reported_at_once() -> None:
    nowhere = client_config({"bootstrap.servers": f"127.0.0.1:{closed_port()}"})
    with ClusterClient(nowhere) as client, pytest.raises(UnreachableError, match="cannot connect"):
        client.metadata()


def test_one_bootstrap_server_that_answers_is_enough(cluster: SandboxCluster) -> None:
    servers = f"127.0.0.1:{closed_port()},127.0.0.1:{closed_port()},{cluster.bootstrap_servers}"
    with ClusterClient(client_config({"bootstrap.servers": servers})) as client:
        assert client.metadata([]).cluster_id == cluster.cluster_id


def test_a_connection_that_broke_is_opened_again(client: ClusterClient, cluster: SandboxCluster) -> None:
    found = client.metadata([])
    broker = found.brokers[1]
    first = client.connect(1, broker.host, broker.port)
    assert client.connect(1, broker.host, broker.port) is first
    first.close()
    second = client.connect(1, broker.host, broker.port)
    assert second is not first
    assert client.metadata([]) == found
    client.close()
    assert client.metadata([]) == found


def test_a_connection_that_the_other_side_closed_is_not_used_again(cluster: SandboxCluster) -> None:
    """As load balancers do when nothing was sent for a while: every second sync of group offsets failed for it."""
    wire = Wire(cluster.brokers[0].host, cluster.brokers[0].port)
    address = wire.host, wire.port
    config = client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"})
    with closing(wire), ClusterClient(config) as client:
        kept: list[Callable[[], Connection]] = [lambda: client.connect(1, *address), client.any_connection]
        for connection_of in kept:
            connection_of()
            wire.cut()
            assert connection_of().request(metadata.exchange([])).cluster_id == cluster.cluster_id
        connection = client.spare_connections.take(*address)
        client.spare_connections.give_back(connection)
        wire.cut()
        with closing(client.spare_connections.take(*address)) as another:
            assert another is not connection


def test_the_log_end_is_not_the_high_watermark(three_brokers: SandboxCluster) -> None:
    """While a follower is frozen, what it does not have yet is at the leader, and hidden from consumers."""
    topic = create_topic(three_brokers, replicas=[[1, 2]])
    partition = TopicPartition(topic, 0)
    with Leader(three_brokers, topic) as leader:
        assert leader.append(batch_of(4, timestamp=young()), 0) == (0, 0)
        freeze(three_brokers, 2)
        try:
            append = Append(topic, leader.topic_id, 0, batch_of(3))
            ((answer,), client) = (leader.as_is(append, acks=1), leader.client)
            assert (answer.error_code, answer.base_offset) == (0, 4)
            assert client.list_offsets({partition: LATEST})[partition].offset == 4
            assert client.list_offsets({partition: LATEST}, log_end=True)[partition].offset == 7
            assert leader.fetch(4).high_watermark == 4
            assert len(leader.fetch(4).records) == 0
        finally:
            three_brokers.signal(2, signal.SIGCONT)
        wait_until(lambda: client.list_offsets({partition: LATEST})[partition].offset == 7)


@pytest.mark.slow
def test_a_leader_that_moved_is_found_again(three_brokers: SandboxCluster) -> None:
    topic = create_topic(three_brokers, replicas=[[2, 1]])
    partition = TopicPartition(topic, 0)
    with Leader(three_brokers, topic) as leader:
        client = leader.client
        assert leader.broker.node_id == 2
        assert leader.append(batch_of(4, timestamp=young()), 0) == (0, 0)
        three_brokers.kill(2)
        try:
            assert client.list_offsets({partition: LATEST}, log_end=True)[partition].offset == 4
            moved = client.metadata([topic]).leader(partition)
            assert moved is not None
            assert (moved.leader_id, moved.leader_epoch > leader.leader_epoch) == (1, True)
            assert describe_producers(client, [partition])[partition].producers[0].last_sequence == 3
        finally:
            three_brokers.start_broker(2)


@pytest.mark.slow
def test_a_frozen_leader_is_a_missing_answer_and_no_more(three_brokers: SandboxCluster) -> None:
    topic = create_topic(three_brokers, partitions=2, replicas=[[1], [2]])
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    config = replace(client_config(three_brokers.client_properties()), request_timeout_ms=2000, connect_timeout_ms=500)
    with ClusterClient(config) as client:
        assert client.list_offsets({one: LATEST, other: LATEST})[other].offset == 0
        freeze(three_brokers, 2)
        try:
            found = client.list_offsets({one: LATEST, other: LATEST}, timeout=6.0)
            assert found[one].offset == 0
            assert found[other] in {
                OffsetAnswer(Code.BROKER_NOT_AVAILABLE, None, -1),
                OffsetAnswer(Code.LEADER_NOT_AVAILABLE, None, -1),
            }
        finally:
            three_brokers.signal(2, signal.SIGCONT)
        wait_until(lambda: client.list_offsets({other: LATEST})[other].offset == 0)
