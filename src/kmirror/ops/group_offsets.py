"""The offsets that consumer groups have committed for a topic, and putting others in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kmirror.state.client import Deadline, ask, client
from kmirror.state.store import StateStore

_TIMEOUT_S = 30.0

#: By group, then by partition.
Committed = Mapping[str, Mapping[int, int]]


class GroupOffsets:
    """Read and write committed offsets on one cluster, through its admin client."""

    def __init__(self, store: StateStore) -> None:
        from confluent_kafka.admin import AdminClient

        self._watch = store.watch
        self._admin = client(AdminClient, store.config, store.watch)

    def of(self, topic: str) -> dict[str, dict[int, int]]:
        """Return what every group that we may see has committed for a topic.

        Raises:
            KmirrorError: the cluster does not answer.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions

        listed = self._ask(lambda: self._admin.list_consumer_groups(request_timeout=_TIMEOUT_S), "listing groups")
        found: dict[str, dict[int, int]] = {}
        for group in sorted(one.group_id for one in listed.valid):

            def read(group: str = group) -> Any:
                asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
                return asked[group]

            answer = self._ask(read, f"reading the offsets of group {group}")
            offsets = {place.partition: place.offset for place in answer.topic_partitions if place.topic == topic}
            if committed := {partition: offset for partition, offset in offsets.items() if offset >= 0}:
                found[group] = committed
        return found

    def put(self, topic: str, offsets: Committed) -> dict[str, str]:
        """Commit offsets for groups; return why that failed, by group.

        Raises:
            KmirrorError: the cluster does not answer.
        """
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        failed: dict[str, str] = {}
        for group, places in offsets.items():
            wanted = [TopicPartition(topic, partition, offset) for partition, offset in places.items()]

            def write(group: str = group, wanted: list[Any] = wanted) -> Any:
                return self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]

            answer = self._ask(write, f"putting back the offsets of group {group}")
            errors = [str(place.error) for place in answer.topic_partitions if place.error is not None]
            if errors:
                failed[group] = errors[0]
        return failed

    def _ask(self, request: Any, what: str) -> Any:
        return ask(request, self._admin, self._watch, Deadline(_TIMEOUT_S), what)
