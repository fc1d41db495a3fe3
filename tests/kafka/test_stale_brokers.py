"""A broker that is cut off from the controllers answers from what it last knew: topics may exist all the same."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.cluster.security.client_config import client_config
from kmirror.ops.gone import gone_topics
from kmirror.sandbox.cluster import Broker, SandboxCluster
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord
from tests.support.clusters import freeze, unique_topic
from tests.support.waiting import wait_until


def client(broker: Broker) -> ClusterClient:
    return ClusterClient(client_config({"bootstrap.servers": f"{broker.host}:{broker.port}"}))


def controller(cluster: SandboxCluster) -> int:
    """Return the node of the active controller, by what a node has written down of its vote."""
    stored = Path(cluster.brokers[0].log_dir, "__cluster_metadata-0", "quorum-state")
    return int(json.loads(stored.read_text(encoding="utf-8"))["leaderId"])


def create(broker: Broker, topic: str) -> None:
    """Create a topic whose only replica is on this broker."""
    admin = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}"})
    new = NewTopic(topic, 1, replica_assignment=[[broker.node_id]])
    admin.create_topics([new], request_timeout=60)[topic].result(70)


@contextmanager
def cut_off(cluster: SandboxCluster, topic: str) -> Iterator[tuple[Broker, Broker]]:
    """Create a topic that one broker does not know and cannot learn of; yield that broker, and one that knows it."""
    knowing = next(broker for broker in cluster.brokers if broker.node_id == controller(cluster))
    stale, third = (broker for broker in cluster.brokers if broker.node_id != knowing.node_id)
    freeze(cluster, stale.node_id)
    with client(knowing) as asked:  # until then clients may take the frozen one for the controller
        wait_until(lambda: stale.node_id not in asked.metadata([]).brokers)
    create(knowing, topic)
    for broker in (knowing, third):
        freeze(cluster, broker.node_id)
    cluster.signal(stale.node_id, signal.SIGCONT)
    try:
        yield stale, knowing
    finally:
        for broker in (knowing, third):
            cluster.signal(broker.node_id, signal.SIGCONT)


def record(topic: str, topic_id: bytes | None) -> TopicRecord:
    printed = format_topic_id(topic_id) if topic_id else None
    return TopicRecord("m", topic, topic, "source-id", printed, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)


def test_a_topic_is_not_gone_because_one_broker_does_not_know_it(three_brokers: SandboxCluster) -> None:
    topic, other = unique_topic(), unique_topic("old")
    create(three_brokers.brokers[0], other)
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([other]).topics[other].error_code == 0)
        other_id = asked.metadata([other]).topics[other].topic_id
        asked.delete_topics([other])
        wait_until(lambda: asked.metadata([other]).topics[other].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION)
        # once every broker says so, it is gone
        assert gone_topics(asked, [record(other, other_id)], asked.metadata([other]).topics) == {other}
    with cut_off(three_brokers, topic) as (stale, knowing), client(stale) as asked:
        found = asked.metadata([topic, other]).topics
        # nobody can tell a new topic from a deleted one here
        assert [found[name].error_code for name in (topic, other)] == [Code.BROKER_NOT_AVAILABLE] * 2
        assert set(asked.topic_errors([other_id]).values()) == {Code.BROKER_NOT_AVAILABLE}
        assert not gone_topics(asked, [record(other, other_id)], found)
        three_brokers.signal(knowing.node_id, signal.SIGCONT)
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        topic_id = asked.metadata([topic]).topics[topic].topic_id
        assert asked.topic_errors([topic_id]) == {topic_id: 0}
        assert not gone_topics(asked, [record(topic, topic_id)], asked.metadata([topic]).topics)


def test_an_older_topic_of_the_name_on_a_stale_broker_does_not_make_the_mirror_topic_gone(
    three_brokers: SandboxCluster,
) -> None:
    topic = unique_topic()
    create(three_brokers.brokers[0], topic)
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        found = asked.metadata([topic]).topics
        now = found[topic].topic_id
        assert not gone_topics(asked, [record(topic, now)], found)
        # the record names a topic id that no broker has: deleted and created again
        assert gone_topics(asked, [record(topic, bytes(15) + b"\x07")], found) == {topic}
        # metadata from before the topic was created again: only its id decides
        older = {topic: type(found[topic])(topic, 0, bytes(15) + b"\x07", False, found[topic].partitions)}
        assert not gone_topics(asked, [record(topic, now)], older)
