"""Create destination topics, delete them, and change their settings.

Each result is for one topic: a refused topic never hides the others.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.topics.topic_requests import NewTopic, create_topics, delete_topics
from kmirror.cluster.topics.topic_settings import set_topic_settings
from kmirror.commands import option
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.gone import is_there
from kmirror.state.waiting import Deadline, refused, unreachable

#: A controller writes a record for each topic, partition and setting, at most 10,000 per request (KRaft's
#: MAX_RECORDS_PER_USER_OP).
_RECORDS_AT_ONCE = 9_000
_TIMEOUT_S = 30.0
#: How long to wait until the quota of changes lets topics be created.
QUOTA_WAIT_S = 600.0
_STEP_S = 0.1
#: Time brokers may take to create or delete a topic.
CREATION_S = 60.0
#: Brokers from Kafka 4.0 on, which have no ZooKeeper, offer this version of Produce.
_PRODUCE, _PRODUCE_WITHOUT_ZOOKEEPER = 0, 12
#: How often to check whether they have.
PAUSE_S = 0.2


def await_topics(cluster: ClusterClient, topics: Collection[str], deadline: Deadline) -> ClusterMetadata:
    """Wait until new topics have leaders for all partitions, or until `deadline`; return their metadata.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    while True:
        metadata = cluster.metadata(topics)
        if deadline.passed or all(_is_ready(metadata, topic) for topic in topics):
            return metadata
        time.sleep(_STEP_S)


def _is_ready(metadata: ClusterMetadata, topic: str) -> bool:
    found = metadata.topics.get(topic)
    return bool(
        found
        and not found.error_code
        and found.partitions
        and all(partition.leader_id is not None for partition in found.partitions.values())
    )


def delete_topic(client: ClusterClient, topic: str, topic_id: str | None) -> None:
    """Delete a topic by its id, and wait until its name is free. Raises BrokerError, UnreachableError."""
    begin_deletion(client, topic, topic_id)
    await_deleted(client, topic, topic_id)


def begin_deletion(client: ClusterClient, topic: str, topic_id: str | None) -> None:
    """Delete a topic by its id; brokers may show it for a moment. Raises BrokerError, UnreachableError."""
    if topic_id is not None:
        try:
            delete_topics(client, [parse_topic_id(topic_id)])
        except BrokerError as error:
            raise BrokerError(error.code, error.name, f"deleting topic {topic}", error.detail) from None


def await_deleted(client: ClusterClient, topic: str, topic_id: str | None) -> None:
    """Wait until a topic that is being deleted is no longer shown, and its name is free. Raises UnreachableError."""
    deadline = Deadline(CREATION_S)
    while is_there(client, topic, topic_id) or _is_shown(client, topic, topic_id):
        if deadline.passed:
            raise UnreachableError(f"topic {topic} still exists {CREATION_S:g} s after it was deleted")
        time.sleep(PAUSE_S)
    while _is_being_deleted(client, topic) and not deadline.passed:
        time.sleep(PAUSE_S)


def _is_shown(client: ClusterClient, topic: str, topic_id: str | None) -> bool:
    """Return whether some broker still shows a topic whose name others show with another id, or not at all.

    Offsets that it would take for the name meanwhile are deleted with the topic.
    """
    answers = client.ask_each(client.metadata([]).brokers.values(), metadata_codec.exchange([topic]))
    shown = [answer.topics[topic] for answer in answers if answer is not None and topic in answer.topics]
    return any(topic_id is not None and one.printed_topic_id == topic_id for one in shown if not one.error_code)


def _is_being_deleted(client: ClusterClient, topic: str) -> bool:
    """Return whether a controller with ZooKeeper still has a topic that brokers do not know any more."""
    if client.highest_version(_PRODUCE) >= _PRODUCE_WITHOUT_ZOOKEEPER:
        return False
    try:
        answer = create_topics(client, [NewTopic(topic, 1, -1, {})], validate_only=True, quota_wait_s=0.0)[topic]
    except OutcomeUnknown:
        return True
    is_taken = isinstance(answer, BrokerError) and answer.code == Code.TOPIC_ALREADY_EXISTS
    return is_taken and client.metadata([topic]).topics[topic].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


class TopicAdmin:
    """Create and alter destination topics; return errors by topic, None for success."""

    def __init__(self, destination: Destination) -> None:
        self._cluster = destination.client
        self._login = destination.client.config

    def create(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, quota_wait_s: float = QUOTA_WAIT_S
    ) -> dict[str, KmirrorError | None]:
        """Create topics, or with `validate_only` ask the brokers whether they would.

        TOPIC_ALREADY_EXISTS may be due to our own request, if its first answer was lost.
        """
        items = {topic.name: topic for topic in topics}
        sizes = {topic.name: 1 + topic.partitions + len(topic.settings) for topic in items.values()}
        outcomes: dict[str, KmirrorError | None] = {}
        for some in requests_of(sizes):
            try:
                found = create_topics(
                    self._cluster,
                    [items[name] for name in some],
                    validate_only=validate_only,
                    quota_wait_s=quota_wait_s,
                )
            except (UnreachableError, OutcomeUnknown) as error:
                reason = error.reason or Reason.DESTINATION_UNREACHABLE
                outcomes |= {name: unreachable(f"creating topic {name}: {error}", reason) for name in some}
                continue
            for name, answer in found.items():
                outcomes[name] = None
                if isinstance(answer, BrokerError):
                    grant = grant_line(self._login, ("CREATE",), *option("--topic", name))
                    outcomes[name] = refused(answer.code, answer.name, answer.what, answer.detail, grant)
        return outcomes

    def set_settings(
        self, changes: Mapping[str, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> dict[str, KmirrorError | None]:
        """Set some settings of topics (IncrementalAlterConfigs), or only ask if the cluster would.

        None resets to the brokers' default.
        """
        outcomes: dict[str, KmirrorError | None] = {}
        for some in requests_of({topic: len(settings) for topic, settings in changes.items()}):
            try:
                asked = {topic: changes[topic] for topic in some}
                found = set_topic_settings(self._cluster, asked, _TIMEOUT_S, validate_only=validate_only)
            except UnreachableError as error:
                outcomes |= {name: unreachable(f"changing topic {name}: {error}", error.reason) for name in some}
                continue
            for name, (code, detail) in found.items():
                grant = grant_line(self._login, ("ALTER_CONFIGS",), *option("--topic", name))
                what = f"changing topic {name}"
                outcomes[name] = refused(code, code_name(code), what, detail, grant) if code else None
        return outcomes


def requests_of(sizes: Mapping[str, int]) -> list[list[str]]:
    """Return the topics of each request, given how many records each topic takes: few requests, the last ones largest.

    Brokers know the topics of a request only once they have created all logs of the requests before it.
    """
    requests: list[list[str]] = []
    records = 0
    for topic, size in reversed(list(sizes.items())):
        if not requests or records + size > _RECORDS_AT_ONCE:
            requests.append([])
            records = 0
        requests[-1].append(topic)
        records += size
    return [some[::-1] for some in reversed(requests)]
