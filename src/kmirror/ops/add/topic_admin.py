"""Create destination topics and change their settings, with librdkafka's admin client.

Each result is for one topic: a refused topic never hides the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.commands import option
from kmirror.errors import KmirrorError
from kmirror.state.client import Deadline, ask, client
from kmirror.state.store import StateStore

#: A controller writes a record for each topic, partition and setting, at most 10,000 per request (KRaft's
#: MAX_RECORDS_PER_USER_OP).
_RECORDS_AT_ONCE = 9_000
_TIMEOUT_S = 30.0
_STEP_S = 0.1

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a `replication_factor` of -1 is the brokers' default."""

    name: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


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


class TopicAdmin:
    """Create and alter destination topics; return errors by topic, None for success."""

    def __init__(self, store: StateStore) -> None:
        from confluent_kafka.admin import AdminClient

        self._login = store.client_config
        self._watch = store.watch
        self._admin = client(AdminClient, store.config, store.watch)

    def create(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> dict[str, KmirrorError | None]:
        """Create topics, or with `validate_only` ask the brokers whether they would.

        TOPIC_ALREADY_EXISTS may be due to our own request, if its first answer was lost.
        """
        from confluent_kafka import admin as librdkafka

        def request(some: Sequence[NewTopic]) -> dict[str, Any]:
            wanted = [
                librdkafka.NewTopic(
                    topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    config=dict(topic.settings),
                )
                for topic in some
            ]
            asked = self._admin.create_topics(
                wanted, validate_only=validate_only, operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S
            )
            return dict(asked)  # a copy: the client reads its own again

        items = {topic.name: topic for topic in topics}
        sizes = {topic.name: 1 + topic.partitions + len(topic.settings) for topic in items.values()}
        return self._each(items, sizes, request, "creating topic", "CREATE")

    def set_settings(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, KmirrorError | None]:
        """Set some settings of topics (IncrementalAlterConfigs); None resets to the brokers' default."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        def entry(key: str, value: str | None) -> ConfigEntry:
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            return ConfigEntry(key, value or "", incremental_operation=operation)

        def request(some: Sequence[tuple[str, Mapping[str, str | None]]]) -> dict[str, Any]:
            resources = [
                ConfigResource(
                    ResourceType.TOPIC,
                    topic,
                    incremental_configs=[entry(key, value) for key, value in settings.items()],
                )
                for topic, settings in some
            ]
            asked = self._admin.incremental_alter_configs(resources, request_timeout=_TIMEOUT_S)
            return {resource.name: future for resource, future in asked.items()}

        items = {topic: (topic, settings) for topic, settings in changes.items()}
        sizes = {topic: len(settings) for topic, settings in changes.items()}
        return self._each(items, sizes, request, "changing topic", "ALTER_CONFIGS")

    def _each(
        self,
        items: Mapping[str, Item],
        sizes: Mapping[str, int],
        request: Callable[[Sequence[Item]], dict[str, Any]],
        what: str,
        operation: str,
    ) -> dict[str, KmirrorError | None]:
        # many topics per request; retries are for one topic each
        outcomes: dict[str, KmirrorError | None] = {}
        for some in requests_of(sizes):
            first = request([items[name] for name in some])
            for name in some:

                def again(name: str = name, first: dict[str, Any] = first) -> Any:
                    return first.pop(name, None) or request([items[name]])[name]

                grant = grant_line(self._login, (operation,), *option("--topic", name))
                try:
                    ask(again, self._admin, self._watch, Deadline(_TIMEOUT_S), f"{what} {name}", grant)
                except KmirrorError as error:
                    outcomes[name] = error
                else:
                    outcomes[name] = None
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
