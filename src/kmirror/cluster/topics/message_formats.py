"""Message formats before 2, which brokers before Kafka 3.0 can be told to store (KIP-724 ended that).

They hold neither producer ids nor headers. A broker refuses our batches for such a topic
(UNSUPPORTED_FOR_MESSAGE_FORMAT), so nothing is ever converted; but nothing is copied either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.topic_configs import TopicSettings

TOPIC_FORMAT, BROKER_FORMAT = "message.format.version", "log.message.format.version"
_PROTOCOL = "inter.broker.protocol.version"
OLD_TOPIC_HINT = f"remove {TOPIC_FORMAT} from the topic, with kafka-configs and its --delete-config"
#: The first version with format 2, and the first protocol between brokers with which the settings have no effect.
_FORMAT_2, _WITHOUT_EFFECT = (0, 11), (3, 0)
_VERSION = re.compile(r"(\d+)\.(\d+)")


def old_broker_formats(client: ClusterClient) -> Mapping[int, str | None] | None:
    """Return the brokers with which the settings have an effect, each with its message format if that is too old.

    None if there are none, as far as they say.
    """
    found = client.broker_configs(client.metadata([]).brokers, [BROKER_FORMAT, _PROTOCOL])
    acting = {node: own for node, own in found.items() if _is_before(own.get(_PROTOCOL), _WITHOUT_EFFECT)}
    formats = {node: own.get(BROKER_FORMAT) for node, own in acting.items()}
    return {node: value if _is_before(value, _FORMAT_2) else None for node, value in formats.items()} or None


def old_topic_format(settings: TopicSettings) -> str | None:
    """Return the message format that a topic has, by itself or by its brokers, if it is too old."""
    setting = settings.get(TOPIC_FORMAT)
    return setting.value if setting is not None and _is_before(setting.value, _FORMAT_2) else None


def refused_formats(client: ClusterClient, topics: Mapping[str, TopicSettings]) -> dict[str, str]:
    """Return the formats of topics whose brokers refuse the batches of a copy. Raises UnreachableError."""
    formats = {topic: value for topic, own in topics.items() if (value := old_topic_format(own)) is not None}
    return formats if formats and old_broker_formats(client) is not None else {}


def _is_before(version: str | None, limit: tuple[int, int]) -> bool:
    found = _VERSION.match(version or "")
    return found is not None and (int(found[1]), int(found[2])) < limit
