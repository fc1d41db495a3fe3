"""Read and change the settings of topics (DescribeConfigs, IncrementalAlterConfigs), of many at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import topic_configs
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.topic_configs import DYNAMIC_TOPIC_CONFIG, TOPIC, TopicSettings

_TOPICS_AT_ONCE = 200
#: AlterConfigOp.OpType.
_SET, _DELETE = 0, 1
#: Nothing was changed, or repeating it changes nothing more.
_PASSING = {
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.REQUEST_TIMED_OUT,
    Code.BROKER_NOT_AVAILABLE,
    Code.NETWORK_EXCEPTION,
    Code.NOT_CONTROLLER,
    Code.THROTTLING_QUOTA_EXCEEDED,
}
_STEP_S = 0.05


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


#: Brokers' keys that do not end with the topic's key.
_BROKERS_KEYS = {
    "max.message.bytes": "message.max.bytes",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
}


def topic_defaults(cluster: ClusterClient, topic: str) -> dict[str, str]:
    """Read the settings that topics of a cluster have by default; without those that the broker does not return.

    Any topic will do: where it overrides a setting, the default is the broker's key with the same unit.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    resource = kafka.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    request = kafka.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = cluster.ask_any(request, highest=topic_configs.VERSION)
    defaults: dict[str, str] = {}
    for result in answer.results:
        for entry in result.configs:
            values = [(entry.name, entry.config_source, entry.value)]
            values += [(one.name, one.source, one.value) for one in entry.synonyms or ()]
            name, _, value = next((one for one in values if one[1] != DYNAMIC_TOPIC_CONFIG), ("", 0, None))
            if value is not None and (name.endswith(entry.name) or name == _BROKERS_KEYS.get(entry.name)):
                defaults[entry.name] = value
    return defaults


def alteration(changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False) -> Any:
    """Return the request that sets some settings of topics; None resets to the brokers' default."""
    resource_type = kafka.IncrementalAlterConfigsRequest.AlterConfigsResource
    config_type = resource_type.AlterableConfig
    resources = [
        resource_type(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[
                config_type(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in settings.items()
            ],
        )
        for topic, settings in changes.items()
    ]
    return kafka.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def set_topic_settings(
    cluster: ClusterClient,
    changes: Mapping[str, Mapping[str, str | None]],
    timeout: float,
    *,
    validate_only: bool = False,
) -> dict[str, tuple[int, str | None]]:
    """Set some settings of topics with one request; return code and message of each topic.

    What may pass is tried again for `timeout` seconds. With `validate_only` the cluster only says whether it would.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    deadline = time.monotonic() + timeout
    left = dict(changes)
    found: dict[str, tuple[int, str | None]] = dict.fromkeys(changes, (int(Code.UNKNOWN_SERVER_ERROR), "no answer"))
    while left:
        answer = cluster.ask_any(
            alteration(left, validate_only=validate_only), timeout=max(deadline - time.monotonic(), _STEP_S)
        )
        found |= {one.resource_name: (one.error_code, one.error_message) for one in answer.responses}
        left = {topic: left[topic] for topic in left if found[topic][0] in _PASSING}
        if time.monotonic() > deadline:
            break
        if left:
            time.sleep(max((answer.throttle_time_ms or 0) / 1000, _STEP_S))
    return found
