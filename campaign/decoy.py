"""A cluster that no mirror has to do with, at which connections to others may arrive: nothing of it may change.

It has topics with the names of a world's, and other records in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from campaign.logins import admin, settings_of
from campaign.reading import bounds
from campaign.world import World
from tests.support.new_topics import create_and_wait

_ANSWER_S = 20.0
_RECORDS = 500
#: Brokers create it when a client looks for a group's coordinator.
_BY_A_QUESTION = "__consumer_offsets"


class Decoy:
    """The cluster, as it was when a world began."""

    def __init__(self, world: World, servers: str) -> None:
        self._world, self._servers = world, servers
        self._before: Mapping[str, Any] = {}

    def fill(self) -> None:
        """Create the topics of the world, and write to them."""
        client = admin(self._servers)
        new = [NewTopic(topic.name, topic.partitions, 1) for topic in self._world.topics]
        create_and_wait(client, *new)
        producer = Producer({"bootstrap.servers": self._servers, "log_level": 0})
        for topic in self._world.topics:
            for number in range(_RECORDS):
                producer.produce(topic.name, b"of a decoy %d" % number, b"k%d" % number)
        if producer.flush(_ANSWER_S):
            raise RuntimeError("the decoy takes no records")
        self._before = self._state()

    def differences(self) -> dict[str, list[Any]]:
        """Return what has changed since, with its earlier and its present state."""
        now = self._state()
        return {key: [self._before[key], now[key]] for key in now if self._before[key] != now[key]}

    def _state(self) -> Mapping[str, Any]:
        client = admin(self._servers)
        topics = client.list_topics(timeout=_ANSWER_S).topics
        names = [topic.name for topic in self._world.topics]
        places = [(name, number) for name in names if name in topics for number in topics[name].partitions]
        groups = client.list_consumer_groups().result(_ANSWER_S).valid
        return {
            "topics": sorted(set(topics) - {_BY_A_QUESTION}),
            "logs": bounds(self._servers, places),
            "settings": settings_of(self._servers, [name for name in names if name in topics]),
            "groups": sorted(group.group_id for group in groups),
        }
