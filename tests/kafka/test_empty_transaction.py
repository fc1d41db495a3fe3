"""Offsets are filled by transactions without records where markers may not be written."""

from __future__ import annotations

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.empty_transaction import EmptyTransactions
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError
from kmirror.sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.late_wire import Fate, LateWire
from tests.support.leader import Leader, batch_of, create_topic
from tests.support.oracle import console_consumer, librdkafka_records

ADD_PARTITIONS, END, BEGIN = 24, 26, 22


@pytest.fixture
def cluster(wired: tuple[SandboxCluster, LateWire]) -> SandboxCluster:
    return wired[0]


def places_of(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(partitions)]


def ends(client: ClusterClient, partitions: list[TopicPartition]) -> list[int | None]:
    found = client.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
    return [found[partition].offset for partition in partitions]


@pytest.fixture
def transactions(client: ClusterClient) -> EmptyTransactions:
    made = EmptyTransactions(client, unique_topic("mirror"))
    made.settle()
    return made


def test_each_partition_gets_one_marker_that_consumers_never_see(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    topic = create_topic(cluster, partitions=3)
    partitions = places_of(topic, 3)
    with Leader(cluster, topic) as leader:
        assert leader.append(batch_of(2), 0) == (0, 0)
        for number in range(1, 4):
            transactions.fill_once(partitions)
            assert ends(client, partitions) == [2 + number, number, number]
        transactions.fill_once(partitions[1:])
        assert ends(client, partitions) == [5, 4, 4]
        assert leader.append(batch_of(1), 2) == (0, 5)
    for isolation in ("read_committed", "read_uncommitted"):
        records = librdkafka_records(cluster.bootstrap_servers, topic, 0, isolation)
        assert [record.offset for record in records] == [0, 1, 5]
        assert console_consumer(cluster, topic, 0, isolation) == records
        assert librdkafka_records(cluster.bootstrap_servers, topic, 1, isolation) == []


def test_many_partitions_in_one_transaction(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    partitions = places_of(create_topic(cluster, partitions=50), 50)
    for _ in range(4):
        transactions.fill_once(partitions)
    assert ends(client, partitions) == [4] * 50
    transactions.fill_once([])
    assert ends(client, partitions) == [4] * 50


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED, Fate.LATE])
def test_an_end_without_an_answer_is_asked_for_again(
    cluster: SandboxCluster, client: ClusterClient, wire: LateWire, transactions: EmptyTransactions, fate: Fate
) -> None:
    partitions = places_of(create_topic(cluster, partitions=2), 2)
    wire.plan(fate, api_key=END)
    transactions.fill_once(partitions)
    assert ends(client, partitions) == [1, 1]
    wire.deliver()
    assert ends(client, partitions) == [1, 1]
    transactions.fill_once(partitions)
    assert ends(client, partitions) == [2, 2]


@pytest.mark.parametrize(("fate", "written"), [(Fate.LOST, 0), (Fate.UNANSWERED, 1), (Fate.LATE, 0)])
def test_a_beginning_without_an_answer_is_settled_and_reported(
    cluster: SandboxCluster,
    client: ClusterClient,
    wire: LateWire,
    transactions: EmptyTransactions,
    fate: Fate,
    written: int,
) -> None:
    partitions = places_of(create_topic(cluster, partitions=2), 2)
    wire.plan(fate, api_key=ADD_PARTITIONS)
    with pytest.raises(OutcomeUnknown):
        transactions.fill_once(partitions)
    assert ends(client, partitions) == [written] * 2
    wire.deliver()  # shut out by then: it begins nothing
    transactions.fill_once(partitions)
    assert ends(client, partitions) == [written + 1] * 2


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.UNANSWERED])
def test_settling_without_an_answer_is_asked_for_again(
    cluster: SandboxCluster, client: ClusterClient, wire: LateWire, fate: Fate
) -> None:
    partitions = places_of(create_topic(cluster), 1)
    transactions = EmptyTransactions(client, unique_topic("mirror"))
    wire.plan(fate, api_key=BEGIN)
    transactions.settle()
    transactions.fill_once(partitions)
    assert ends(client, partitions) == [1]


def test_what_a_predecessor_left_open_is_ended_by_settling(
    cluster: SandboxCluster, client: ClusterClient, wire: LateWire, transactions: EmptyTransactions
) -> None:
    partitions = places_of(create_topic(cluster, partitions=2), 2)
    successor = EmptyTransactions(client, transactions._transactional_id)
    wire.plan(Fate.LOST, api_key=END)
    added = transactions._add

    def add_and_be_overtaken(*args: object) -> None:
        added(*args)  # type: ignore[arg-type]
        successor.settle()

    transactions._add = add_and_be_overtaken  # type: ignore[assignment]
    with pytest.raises(RefusedError, match="another client uses") as caught:
        transactions.fill_once(partitions)
    assert caught.value.reason is Reason.FENCED
    assert ends(client, partitions) == [1, 1]
    successor.fill_once(partitions)
    assert ends(client, partitions) == [2, 2]


def test_a_partition_that_is_not_there(
    cluster: SandboxCluster, client: ClusterClient, transactions: EmptyTransactions
) -> None:
    (partition,) = places_of(create_topic(cluster), 1)
    with pytest.raises(BrokerError) as caught:
        transactions.fill_once([partition, TopicPartition(partition.topic, 7)])
    assert caught.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION
    transactions.settle()
    assert ends(client, [partition]) == [0]
