"""What tests of the verbs share: mirrors between the two shared clusters, topics with records in them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.mirrors.create import create
from kmirror.settings.patterns import TopicSelector
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.leader import create_topic
from tests.support.new_topics import create_and_wait
from tests.support.producers import whole_batches


def properties_of(cluster: SandboxCluster) -> dict[str, str]:
    """Return the properties to connect to a cluster without logins."""
    return {"bootstrap.servers": cluster.bootstrap_servers}


def new_mirror(destination: Destination, source: SandboxCluster, **settings: str) -> str:
    """Create a mirror with a unique name; settings with `_` for `.`."""
    name = f"m-{uuid.uuid4().hex[:8]}"
    given = {key.replace("_", "."): value for key, value in settings.items()}
    assert create(destination, name, {**properties_of(source), **given}).exit_code == 0
    return name


def selector(*patterns: str) -> TopicSelector:
    """Return the patterns as `--topics` would give them."""
    return TopicSelector.parse([",".join(patterns)])


def make_topic(cluster: SandboxCluster, topic: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic; settings with `_` for `.`."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin = AdminClient(properties_of(cluster))
    create_and_wait(admin, NewTopic(topic, partitions, 1, config=config))


def delete_topic(cluster: SandboxCluster, topic: str) -> None:
    """Delete a topic, and wait until no broker knows it any more."""
    admin = AdminClient(properties_of(cluster))
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    while topic in admin.list_topics(timeout=30).topics:
        pass


def create_again(cluster: SandboxCluster, topic: str, settings: Mapping[str, str] | None = None) -> None:
    """Create a topic with a mirror topic's settings, replacing one that may exist."""
    if topic in AdminClient(properties_of(cluster)).list_topics(timeout=30).topics:
        delete_topic(cluster, topic)
    create_topic(cluster, name=topic, settings=settings)


def produce(cluster: SandboxCluster, topic: str, values: Sequence[str], partition: int = 0) -> None:
    """Append records whose key and timestamp follow from their value, so that two clusters can hold the same ones."""
    producer = whole_batches(topic, properties_of(cluster))
    for value in values:
        producer.produce(topic, value, key=value, partition=partition, timestamp=1_700_000_000_000 + len(value))
    assert producer.flush(30) == 0


def settings_of(
    cluster: SandboxCluster, topic: str, client_properties: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the settings of a topic, defaults included."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient(dict(client_properties or properties_of(cluster)))
    return {key: entry.value for key, entry in admin.describe_configs([resource])[resource].result(30).items()}


def outcomes(result: VerbResult) -> dict[str | None, str]:
    """Return the results by topic."""
    return {row.topic: row.result.value for row in result.results}
