"""Whether a mirror topic was deleted by its owner: then there is nothing to stop or to keep.

One broker's answer is not enough: one that is cut off from the controllers, or behind them, does not know existing
topics, and shows deleted ones with their old id. `ClusterClient.metadata` asks all brokers about a name that one does
not know; `gone_topics`, for actions that rely on the deletion, also asks them about the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import UnsupportedVersionError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.topics.topic_requests import topic_errors
from kmirror.errors import KmirrorError
from kmirror.state.records import TopicRecord
from kmirror.status.observed import is_gone


def gone_topics(
    client: ClusterClient, topics: Iterable[TopicRecord], found: Mapping[str, TopicMetadata]
) -> frozenset[str]:
    """Return which mirror topics of the destination were deleted; `found` is `client.metadata`'s answer for them.

    Raises:
        UnreachableError: no broker answers.
    """
    ids = {t.topic: t.destination_topic_id for t in topics if is_gone(t, found.get(t.topic))}
    binary = {name: parse_topic_id(topic_id) for name, topic_id in ids.items() if topic_id is not None}
    try:
        codes = topic_errors(client, binary.values())
    except UnsupportedVersionError:  # brokers before Kafka 3.1 answer by name only
        return frozenset(binary)
    return frozenset(name for name, topic_id in binary.items() if codes.get(topic_id) == Code.UNKNOWN_TOPIC_ID)


def described_topic(client: ClusterClient, topic: str) -> TopicMetadata | None:
    """Return a topic as the brokers describe it, None if there is none. Raises KmirrorError: they do not say."""
    found = client.metadata([topic]).topics[topic]
    if found.error_code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION):
        raise not_described(found)
    return None if found.error_code else found


def is_there(client: ClusterClient, topic: str, topic_id: str | None) -> bool:
    """Return whether the topic with this id exists; another one of its name, created later, does not count.

    Raises KmirrorError: the brokers do not say.
    """
    found = described_topic(client, topic)
    if found is not None and found.printed_topic_id is None and topic_id is not None:
        raise KmirrorError(f"the destination shows topic {topic} without its topic id", "run the command again")
    return found is not None and found.printed_topic_id == topic_id


def not_described(topic: TopicMetadata) -> KmirrorError:
    """Return the error for a topic whose existence the destination does not report."""
    why = f"the destination does not describe {topic.name}: {code_name(topic.error_code)}"
    if topic.error_code != Code.BROKER_NOT_AVAILABLE:
        return KmirrorError(why)
    return KmirrorError(
        f"{why}; one broker does not know the topic, and not every other broker answers",
        "run the command again once all of the destination's brokers answer",
    )
