"""A secured sandbox cluster lets clients in over TLS with a login, and no one else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.oracle import console_consumer
from tests.support.shared_clusters import GUARDED_USERS


@pytest.fixture
def secured(guarded_cluster: SandboxCluster) -> SandboxCluster:
    return guarded_cluster


def login(cluster: SandboxCluster, user: str, password: str, mechanism: str, errors: list[Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": cluster.client_properties()["ssl.truststore.location"],
        "error_cb": errors.append,
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_the_right_password_opens_and_a_wrong_one_does_not(secured: SandboxCluster, mechanism: str) -> None:
    for user, password in (("kmirror", "kmirror-secret"), ("odd", GUARDED_USERS["odd"])):
        metadata = AdminClient(login(secured, user, password, mechanism, [])).list_topics(timeout=30)
        assert metadata.cluster_id == secured.cluster_id

    errors: list[KafkaError] = []
    intruder = AdminClient(login(secured, "kmirror", "wrong", mechanism, errors))
    with pytest.raises(KafkaException):
        intruder.list_topics(timeout=1)
    while not errors:
        intruder.poll(1)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


def test_there_is_no_way_in_without_tls_or_without_a_login(secured: SandboxCluster) -> None:
    authority = secured.client_properties()["ssl.truststore.location"]
    for protocol in ("PLAINTEXT", "SASL_PLAINTEXT", "SSL"):
        config = {**login(secured, "kmirror", "kmirror-secret", "PLAIN", []), "security.protocol": protocol}
        with pytest.raises(KafkaException):
            AdminClient({**config, "ssl.ca.location": authority}).list_topics(timeout=1)


@pytest.mark.slow
def test_java_clients_use_the_written_properties_and_rights_are_checked(
    secured: SandboxCluster, tmp_path: Path
) -> None:
    file = secured.write_client_properties(tmp_path / "client.properties", "odd", "PLAIN")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "security.protocol=SASL_SSL\n" in file.read_text()

    admin = AdminClient(login(secured, "admin", "admin-secret", "SCRAM-SHA-512", []))
    topic = unique_topic()
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    outcome: list[KafkaError | None] = []

    def write() -> KafkaError | None:
        producer = Producer(login(secured, "kmirror", "kmirror-secret", "SCRAM-SHA-512", []))
        producer.produce(topic, b"v", on_delivery=lambda error, message: outcome.append(error))
        assert producer.flush(30) == 0
        return outcome.pop()

    error = write()
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allowed = AclBinding(
        *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL),
        *("User:kmirror", "*", AclOperation.WRITE, AclPermissionType.ALLOW),
    )
    admin.create_acls([allowed])[allowed].result()
    while (error := write()) is not None:  # until the broker has heard of the new right
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert [record.value for record in console_consumer(secured, topic, max_messages=1)] == [b"v"]


@pytest.mark.long
def test_a_secured_cluster_of_three_starts_and_restarts(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, secured=True)
    cluster.stop_broker(2)
    cluster.start()
    config = login(cluster, "kmirror", "kmirror-secret", "SCRAM-SHA-256", [])
    assert set(AdminClient(config).list_topics(timeout=30).brokers) == {1, 2, 3}
