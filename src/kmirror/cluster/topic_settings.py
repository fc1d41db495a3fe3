"""Read the settings of topics (DescribeConfigs), of many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import topic_configs
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.topic_configs import DYNAMIC_TOPIC_CONFIG, TOPIC, TopicSettings

_TOPICS_AT_ONCE = 200


def topic_settings(
    cluster: ClusterClient,
    topics: Iterable[str],
    keys: Sequence[str] | None = None,
    timeout: float | None = None,
) -> dict[str, TopicSettings | int]:
    """Read the settings of topics, all or only `keys`, defaults included; an error code where they are not returned.

    A topic is UNKNOWN_TOPIC_OR_PARTITION only if no broker that answers knows it: one may not have heard of it yet.
    It is UNKNOWN_SERVER_ERROR if a broker returns nothing and no error: every topic has settings.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found: dict[str, TopicSettings | int] = {}
    rest = iter(topics)
    while some := list(islice(rest, _TOPICS_AT_ONCE)):
        for topic, code, settings in cluster.ask_any(topic_configs.exchange(some, keys), timeout=timeout):
            found[topic] = code or settings or int(Code.UNKNOWN_SERVER_ERROR)
    unknown = [topic for topic, one in found.items() if one == Code.UNKNOWN_TOPIC_OR_PARTITION]
    while some := unknown[:_TOPICS_AT_ONCE]:
        del unknown[:_TOPICS_AT_ONCE]
        brokers = cluster.metadata([], timeout=timeout).brokers.values()
        for answer in cluster.ask_each(brokers, topic_configs.exchange(some, keys), timeout=timeout):
            found.update({topic: settings for topic, code, settings in answer or () if settings})
    return found


def topic_defaults(cluster: ClusterClient, topic: str) -> dict[str, str]:
    """Read the settings that topics of a cluster have by default; without those that the broker does not return.

    Any topic will do: where it overrides a setting, the default is the broker's key with the same unit.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    from kafka.protocol.admin import DescribeConfigsRequest

    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = cluster.ask_any(request, highest=topic_configs.VERSION)
    defaults: dict[str, str] = {}
    for result in answer.results:
        for entry in result.configs:
            values = [(entry.name, entry.config_source, entry.value)]
            values += [(one.name, one.source, one.value) for one in entry.synonyms or ()]
            name, _, value = next((one for one in values if one[1] != DYNAMIC_TOPIC_CONFIG), ("", 0, None))
            if value is not None and name.endswith(entry.name):
                defaults[entry.name] = value
    return defaults
