"""Create and delete topics, add partitions, and look up topics by their ids.

Each change is sent once: OutcomeUnknown says that it may have been executed. Only one that certainly was not is sent
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient, require
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import Broker
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id
from kmirror.errors import BrokerError, OutcomeUnknown, UnreachableError
from kmirror.words import visible

_RETRY_PAUSE = 0.1
#: The first version of Metadata that takes topic ids; nothing of later ones is needed.
_METADATA_BY_ID = 12
#: How long changes wait for the quota of changes, unless said otherwise.
QUOTA_WAIT_S = 120.0
_THROTTLED = Code.THROTTLING_QUOTA_EXCEEDED
#: The first version of CreateTopics that returns the new topic's id.
_CREATE_TOPICS_WITH_ID = 7
#: The first version of DeleteTopics that takes topic ids.
_DELETE_TOPICS_BY_ID = 6
#: What to do where topics cannot be deleted.
DELETION_DISABLED = "set delete.topic.enable=true for the cluster's controllers and brokers, and restart them"
_GONE = {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a `replication_factor` of -1 is the brokers' default."""

    name: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that was created, or would be; without the rest where we may not read its settings."""

    #: 16 bytes, or zeros.
    topic_id: bytes
    replication_factor: int | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)


def create_partitions(client: ClusterClient, counts: Mapping[str, int], *, quota_wait_s: float = QUOTA_WAIT_S) -> None:
    """Increase topics to these partition counts; a topic that has them already is left as it is.

    Raises:
        BrokerError: the first refusal; THROTTLING_QUOTA_EXCEEDED only if the quota allows it too late.
        OutcomeUnknown: not answered.
    """
    topic_type = kafka.CreatePartitionsRequest.CreatePartitionsTopic
    wanted = {name: topic_type(name=name, count=count, assignments=None) for name, count in counts.items()}
    request = partial(kafka.CreatePartitionsRequest, validate_only=False)
    found = _change(client, wanted, request, attrgetter("results"), "adding partitions", 0, quota_wait_s)
    for name, (code, message, _) in found.items():
        if code != Code.INVALID_PARTITIONS:
            require(code, f"adding partitions to {name}", message)


def create_topic(
    client: ClusterClient,
    name: str,
    partitions: int,
    replication_factor: int,
    settings: Mapping[str, str],
    *,
    validate_only: bool = False,
    quota_wait_s: float = QUOTA_WAIT_S,
) -> bytes:
    """Create a topic and return its id, 16 bytes or zeros; as `create_topics`.

    Raises:
        BrokerError: refused (TOPIC_ALREADY_EXISTS among others); nothing was created.
        OutcomeUnknown: not answered in time; it may exist now, or soon.
        UnreachableError: no broker answers; nothing was sent.
    """
    new = NewTopic(name, partitions, replication_factor, settings)
    found = create_topics(client, [new], validate_only=validate_only, quota_wait_s=quota_wait_s)[name]
    if isinstance(found, BrokerError):
        raise found
    return found.topic_id


def create_topics(
    client: ClusterClient,
    topics: Iterable[NewTopic],
    *,
    validate_only: bool = False,
    quota_wait_s: float = QUOTA_WAIT_S,
) -> dict[str, CreatedTopic | BrokerError]:
    """Create topics; return what was created, or why it was not.

    Brokers see them one after the other: `list_offsets` waits until their leaders are ready. With `validate_only`
    the cluster only says whether it would.

    Raises:
        OutcomeUnknown: not answered in time; they may exist now, or soon.
        UnreachableError: no broker answers; nothing was sent.
    """
    topic_type = kafka.CreateTopicsRequest.CreatableTopic
    config_type = topic_type.CreatableTopicConfig

    wanted = {
        topic.name: topic_type(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=[],
            configs=[config_type(name=key, value=value) for key, value in topic.settings.items()],
        )
        for topic in topics
    }
    request, topics_of = partial(kafka.CreateTopicsRequest, validate_only=validate_only), attrgetter("topics")
    found = _change(client, wanted, request, topics_of, "creating topics", _CREATE_TOPICS_WITH_ID, quota_wait_s)
    created: dict[str, CreatedTopic | BrokerError] = {}
    for name, (code, message, result) in found.items():
        if code:
            created[name] = BrokerError(code, code_name(code), f"creating topic {name}", visible(message or ""))
        else:
            created[name] = CreatedTopic(
                _id_of(result),
                result.replication_factor if result.replication_factor > 0 else None,
                {config.name: config.value for config in result.configs or ()},
            )
    return created


def delete_topics(client: ClusterClient, topics: Iterable[str | bytes]) -> None:
    """Delete topics, each given by its name, or by its id of 16 bytes; one that does not exist is ignored.

    An id is safe where another client may have deleted the topic and created one of the same name.

    Raises:
        BrokerError: the first refusal; the other topics are deleted.
        OutcomeUnknown: not answered in time; they may be gone now, or soon.
        UnreachableError: no broker answers; nothing was sent.
    """
    state_type = kafka.DeleteTopicsRequest.DeleteTopicState
    no_id = UUID(int=0)
    wanted: dict[str | bytes, Any] = {
        topic: state_type(name=topic, topic_id=no_id)
        if isinstance(topic, str)
        else state_type(name=None, topic_id=UUID(bytes=topic))
        for topic in topics
    }

    responses, by_id = attrgetter("responses"), _DELETE_TOPICS_BY_ID
    found = _change(client, wanted, kafka.DeleteTopicsRequest, responses, "deleting topics", by_id, QUOTA_WAIT_S)
    for topic, (code, message, _) in found.items():
        if code not in _GONE:
            name = topic if isinstance(topic, str) else format_topic_id(topic)
            hint = DELETION_DISABLED if code == Code.TOPIC_DELETION_DISABLED else message
            require(code, f"deleting topic {name}", hint)


def _change(
    client: ClusterClient,
    items: Mapping[Any, Any],
    request: Callable[..., Any],
    results_of: Callable[[Any], Iterable[Any]],
    what: str,
    lowest: int,
    quota_wait_s: float,
) -> dict[Any, tuple[int, str | None, Any]]:
    """Send changes to the controller, through any broker; return code, message and result of each topic.

    A change is repeated only if it certainly was not executed: by a broker that is not the controller and, as all with
    ZooKeeper, does not pass it on (KIP-590), or when the quota of changes (KIP-599) allows it, if that is within
    `quota_wait_s`.
    """
    controller: Broker | None = None  # at first any broker: most pass changes on
    began = time.monotonic()
    left, done = dict(items), dict[Any, tuple[int, str | None, Any]]()
    while left:
        connection = client.any_connection() if controller is None else _connection_to(client, controller)
        asked = request(topics=list(left.values()), timeout_ms=client.config.request_timeout_ms)
        answer = connection.request(asked, lowest=lowest)
        pause = max((answer.throttle_time_ms or 0) / 1000, _RETRY_PAUSE)
        if connection.is_throttled:
            # the broker reads nothing from it meanwhile; other requests must not wait for that
            connection.close()
        results = {_id_of(one) if _id_of(one) in items else one.name: one for one in results_of(answer)}
        codes = {result.error_code for result in results.values()}
        waited = time.monotonic() - began
        if Code.REQUEST_TIMED_OUT in codes:
            raise OutcomeUnknown(f"{what}: the controller did not finish in time")
        if codes == {Code.NOT_CONTROLLER} and waited < client.config.request_timeout_ms / 1000:
            time.sleep(_RETRY_PAUSE)
            known = client.metadata([])
            controller = known.brokers.get(-1 if known.controller_id is None else known.controller_id)
            continue
        done |= {key: (result.error_code, result.error_message, result) for key, result in results.items()}
        left = {key: left[key] for key, result in results.items() if result.error_code == _THROTTLED}
        if left and waited + pause > quota_wait_s:
            quota = "this client's quota of changes (controller_mutation_rate) is used up"
            why = f"{quota} for another {pause:.0f} s"
            return done | dict.fromkeys(left, (_THROTTLED, why, None))
        if left:
            time.sleep(pause)
    return done


def _connection_to(client: ClusterClient, controller: Broker) -> Connection:
    """Return a connection to the controller, or to any broker if it has just gone: the next one is known soon."""
    try:
        return client.connect(controller.node_id, controller.host, controller.port)
    except UnreachableError:
        return client.any_connection()


def _id_of(result: Any) -> bytes:
    topic_id = getattr(result, "topic_id", None)
    return NO_TOPIC_ID if topic_id is None else bytes(topic_id.bytes)


def topic_errors(
    client: ClusterClient, topic_ids: Iterable[bytes], *, timeout: float | None = None
) -> dict[bytes, int]:
    """Ask for topics by their ids of 16 bytes, and return the error code of each; 0 for one that exists.

    By id, brokers distinguish a deleted topic (UNKNOWN_TOPIC_ID) from one that we may not see
    (TOPIC_AUTHORIZATION_FAILED): by name they return the latter whether the topic exists or not (KIP-516).

    As with names, an id is unknown only if no broker knows it; if some broker does not answer, it is
    BROKER_NOT_AVAILABLE.

    Raises:
        UnsupportedVersionError: the broker is older than Kafka 3.1.
        UnreachableError: no broker answers.
    """
    topic_type = kafka.MetadataRequest.MetadataRequestTopic
    wanted = [topic_type(topic_id=UUID(bytes=topic_id), name=None) for topic_id in topic_ids]
    if not wanted:
        return {}
    request = kafka.MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    versions = {"lowest": _METADATA_BY_ID, "highest": _METADATA_BY_ID}
    answer = client.ask_any(request, **versions, timeout=timeout)
    errors: dict[bytes, int] = {topic.topic_id.bytes: topic.error_code for topic in answer.topics}
    brokers = [Broker(one.node_id, one.host, one.port) for one in answer.brokers]
    if Code.UNKNOWN_TOPIC_ID in errors.values() and len(brokers) > 1:
        answers = client.ask_each(brokers, request, **versions, timeout=timeout)
        in_doubt = int(Code.UNKNOWN_TOPIC_ID if all(answers) else Code.BROKER_NOT_AVAILABLE)
        known = {t.topic_id.bytes for one in answers if one for t in one.topics if not t.error_code}
        for topic_id, code in errors.items():
            if code == Code.UNKNOWN_TOPIC_ID:
                errors[topic_id] = 0 if topic_id in known else in_doubt
    return errors
