"""Read the settings of topics (DescribeConfigs), of many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import topic_configs
from kmirror.cluster.protocol.exchange import Exchange
from kmirror.cluster.protocol.topic_setting import TopicSettings

_TOPIC = 2
_DYNAMIC_TOPIC_CONFIG = 1
_TOPICS_AT_ONCE = 200
#: Later versions tell nothing more of topics.
_HIGHEST = 4


def topic_settings(
    cluster: ClusterClient,
    topics: Iterable[str],
    keys: Sequence[str] | None = None,
    timeout: float | None = None,
) -> dict[str, TopicSettings | int]:
    """Read the settings of topics, all or only `keys`, defaults included; an error code where they are not returned.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found: dict[str, TopicSettings | int] = {}
    rest = iter(topics)
    while some := list(islice(rest, _TOPICS_AT_ONCE)):
        request = Exchange(
            topic_configs.API_KEY,
            "DescribeConfigs",
            topic_configs.VERSION,
            topic_configs.VERSION,
            partial(topic_configs.request, topics=some, keys=keys),
            topic_configs.answer,
        )
        for topic, code, settings in cluster.ask_any(request, timeout=timeout):
            found[topic] = code or settings
    return found


def topic_defaults(cluster: ClusterClient, topic: str) -> dict[str, str]:
    """Read what topics of a cluster have that do not set it themselves; nothing where the broker does not return it.

    Any topic tells: of what it sets itself the broker's own key in the same unit.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    from kafka.protocol.admin import DescribeConfigsRequest

    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=None
    )
    answer = cluster.ask_any(DescribeConfigsRequest(resources=[resource], include_synonyms=True), highest=_HIGHEST)
    defaults: dict[str, str] = {}
    for result in answer.results:
        for entry in result.configs:
            told = [(entry.name, entry.config_source, entry.value)]
            told += [(one.name, one.source, one.value) for one in entry.synonyms or ()]
            name, _, value = next((one for one in told if one[1] != _DYNAMIC_TOPIC_CONFIG), ("", 0, None))
            if value is not None and name.endswith(entry.name):
                defaults[entry.name] = value
    return defaults
