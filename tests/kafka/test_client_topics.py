"""Topics created and deleted through ClusterClient, as engines do it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.log_dirs import DiskUse, disk_use
from kmirror.cluster.topics.topic_requests import create_partitions, create_topic, delete_topics
from kmirror.errors import BrokerError, OutcomeUnknown
from kmirror.ops.add.topic_admin import delete_topic
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.mirrors import produce, settings_of
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.stored import log_dir_of
from tests.support.waiting import wait_until


@pytest.fixture
def client(destination_cluster: SandboxCluster) -> Iterator[ClusterClient]:
    with ClusterClient(client_config(destination_cluster.client_properties())) as made:
        yield made


def topics(cluster: SandboxCluster) -> set[str]:
    """Return the topics there are, as librdkafka lists them."""
    return set(AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=30).topics)


def test_a_topic_is_created_as_asked(destination_cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = unique_topic()
    topic_id = create_topic(client, topic, 3, -1, {"retention.ms": "-1", "cleanup.policy": "delete"})
    ends = client.list_offsets({TopicPartition(topic, index): LATEST for index in range(3)})
    assert [end.offset for end in ends.values()] == [0, 0, 0]
    found = client.metadata([topic]).topics[topic]
    assert found.topic_id == topic_id
    assert len(found.partitions) == 3
    assert settings_of(destination_cluster, topic)["retention.ms"] == "-1"


def test_what_a_topic_takes_and_what_is_free(destination_cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = unique_topic()
    create_topic(client, topic, 2, 1, {})
    client.list_offsets({TopicPartition(topic, index): LATEST for index in range(2)})
    produce(destination_cluster, topic, [f"{number:010000}" for number in range(20)])
    log_dir = log_dir_of(destination_cluster)
    taken = sum(file.stat().st_size for file in log_dir.glob(f"{topic}-*/*.log"))
    found = disk_use(client, [topic])
    assert found is not None
    assert sorted(found.replica_bytes[topic]) == [0, taken]
    assert taken > 100
    (free,) = found.free_bytes
    assert 0.8 < free / shutil.disk_usage(log_dir).free < 1.2
    assert found.lacking(taken, taken) is None


@pytest.mark.parametrize(
    ("total", "largest", "free", "lacking"),
    [
        (90, 30, (30, 1000, 1000), None),
        (90, 30, (29, 1000, 1000), (30, 29)),
        # one partition may come to any of the disks
        (90, 90, (89, 1000, 1000), (90, 89)),
        # and many small ones come to all
        (90, 1, (29, 1000, 1000), (30, 29)),
        (0, 0, (0,), None),
    ],
)
def test_a_copy_must_fit_on_the_fullest_disk(
    total: int, largest: int, free: tuple[int, ...], lacking: tuple[int, int] | None
) -> None:
    assert DiskUse({}, free).lacking(total, largest) == lacking


def test_a_topic_that_is_there_is_refused(client: ClusterClient) -> None:
    topic = unique_topic()
    create_topic(client, topic, 1, 1, {})
    with pytest.raises(BrokerError) as caught:
        create_topic(client, topic, 1, 1, {})
    assert caught.value.code == Code.TOPIC_ALREADY_EXISTS
    assert topic in str(caught.value)


@pytest.mark.parametrize(
    ("name", "partitions", "settings", "reported"),
    [
        ("no/name", 1, {}, "no/name"),
        ("t", 0, {}, "partitions"),
        ("t", 1, {"no.such.setting": "1"}, "no.such.setting"),
    ],
)
def test_what_cannot_be_created_is_reported(
    client: ClusterClient, name: str, partitions: int, settings: dict[str, str], reported: str
) -> None:
    with pytest.raises(BrokerError, match=reported):
        create_topic(client, name, partitions, 1, settings)


def test_topics_are_deleted_by_name_and_by_id(destination_cluster: SandboxCluster, client: ClusterClient) -> None:
    by_name, by_id, stays = (unique_topic() for _ in range(3))
    ids = {name: create_topic(client, name, 1, 1, {}) for name in (by_name, by_id, stays)}
    delete_topics(client, [by_name, ids[by_id]])
    wait_until(lambda: topics(destination_cluster).isdisjoint({by_name, by_id}))
    assert stays in topics(destination_cluster)


def test_the_id_of_a_topic_that_was_created_again_deletes_nothing(
    destination_cluster: SandboxCluster, client: ClusterClient
) -> None:
    topic = unique_topic()
    old = create_topic(client, topic, 1, 1, {})
    delete_topics(client, [old])
    new = create_topic(client, topic, 1, 1, {})
    delete_topics(client, [old, unique_topic()])  # what is not there is fine
    delete_topics(client, [])
    client.list_offsets({TopicPartition(topic, 0): LATEST})
    assert client.metadata([topic]).topics[topic].topic_id == new
    assert topic in topics(destination_cluster)


@pytest.mark.long
def test_a_topic_that_may_not_be_deleted_is_reported(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("keeps", properties={"delete.topic.enable": "false"})
    with ClusterClient(client_config(cluster.client_properties())) as client:
        topic = unique_topic()
        create_topic(client, topic, 1, 1, {})
        with pytest.raises(BrokerError, match="deleting topic"):
            delete_topics(client, [topic])


def test_without_an_answer_the_outcome_is_unknown(
    destination_cluster: SandboxCluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    client.metadata([])
    ask = Connection.request

    def impatient(connection: Connection, message: object, **more: int) -> object:
        return ask(connection, message, **more, timeout=1e-6)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "request", impatient)
        with pytest.raises(OutcomeUnknown):
            create_topic(client, topic, 1, 1, {})
    wait_until(lambda: topic in topics(destination_cluster))


def test_offsets_are_looked_up_without_reading_metadata_again(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(client, "known-leaders", 2, 1, {})
    partitions = [TopicPartition("known-leaders", 0), TopicPartition("known-leaders", 1)]
    client.list_offsets(dict.fromkeys(partitions, LATEST))
    known = client.metadata(["known-leaders"])
    monkeypatch.setattr(client, "metadata", None)
    found = client.list_offsets(dict.fromkeys(partitions, LATEST), metadata=known)
    assert {partition: answer.offset for partition, answer in found.items()} == dict.fromkeys(partitions, 0)


@pytest.mark.slow
def test_the_name_of_a_deleted_topic_is_free_although_zookeeper_still_has_it(make_cluster: MakeCluster) -> None:
    old, topic = make_cluster("old", heap=SMALL_HEAP, kafka_version="2.8.2"), unique_topic()
    with ClusterClient(client_config(old.client_properties())) as client:
        for _ in range(10):
            topic_id = create_topic(client, topic, 3, 1, {})
            wait_until(lambda: client.metadata([topic]).topics[topic].error_code == 0)
            delete_topic(client, topic, format_topic_id(topic_id))


@pytest.mark.slow
def test_any_broker_leads_to_the_controller_that_zookeeper_has_chosen(make_cluster: MakeCluster) -> None:
    """With ZooKeeper brokers do not pass changes of topics on: two of three refuse them with NOT_CONTROLLER."""
    old = make_cluster("old", heap=SMALL_HEAP, kafka_version="2.8.2", brokers=3)

    def change(client: ClusterClient, topic: str) -> None:
        create_topic(client, topic, 1, 3, {}, validate_only=True)
        create_topic(client, topic, 1, 3, {})
        wait_until(lambda: client.metadata([topic]).topics[topic].error_code == 0)
        create_partitions(client, {topic: 2})
        wait_until(lambda: len(client.metadata([topic]).topics[topic].partitions) == 2)
        delete_topics(client, [topic])
        wait_until(lambda: client.metadata([topic]).topics[topic].error_code != 0)

    for address in old.bootstrap_servers.split(","):
        with ClusterClient(client_config({**old.client_properties(), "bootstrap.servers": address})) as client:
            change(client, unique_topic())
