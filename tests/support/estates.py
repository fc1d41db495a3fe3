"""An estate on a real cluster: applications that are known, their topics, groups and producers, and hubs over them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.new_topics import create_and_wait
from tests.support.waiting import wait_until

#: The applications of an estate of 2,000 topics: how many topics each of the fifty has.
FIFTY_APPLICATIONS = tuple((3, 5, 20, 40, 60, 121)[number % 6] for number in range(50))
#: Topics that are created by one request.
_AT_ONCE = 100


@dataclass
class RealEstate:
    """Applications of `sizes` topics each, on a cluster; `write` makes them. All names begin with `prefix`."""

    cluster: SandboxCluster
    sizes: Sequence[int]
    prefix: str = "app"
    #: Bytes of the records that a producer writes to each topic, and of one record.
    topic_bytes: int = 2_000
    record_bytes: int = 1_000
    seed: int = 1
    applications: list[frozenset[str]] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)
    #: By a name of ours: brokers know producers by ids only.
    producers: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        for number, size in enumerate(self.sizes):
            name = f"{self.prefix}{number:02}"
            topics = [f"{name}.t{one:02}" for one in range(size)]
            self.applications.append(frozenset(topics))
            self.groups[f"{name}.main"] = topics
            # a second group reads some, and producers overlap in one topic each, so that either alone connects all
            self.groups[f"{name}.other"] = chance.sample(topics, max(1, size // 2))
            half = max(1, size // 2)
            self.producers[f"{name}.first"] = topics[:half]
            self.producers[f"{name}.second"] = topics[half - 1 :]

    @property
    def topics(self) -> list[str]:
        """All topics."""
        return sorted(one for some in self.applications for one in some)

    def write(self) -> None:
        """Create the topics, write to them with one idempotent producer each, and commit for the groups."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        topics = self.topics
        for first in range(0, len(topics), _AT_ONCE):
            create_and_wait(admin, *(NewTopic(topic, 1, 1) for topic in topics[first : first + _AT_ONCE]))
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._produce, self.producers.values()))
        for group, reads in self.groups.items():
            self._commit(admin, group, reads)

    def _produce(self, topics: Sequence[str]) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "enable.idempotence": True})
        for topic in topics:
            for number in range(max(1, self.topic_bytes // self.record_bytes)):
                producer.produce(topic, random.Random(number).randbytes(self.record_bytes))
                producer.poll(0)
            assert producer.flush(60) == 0

    @staticmethod
    def _commit(admin: AdminClient, group: str, topics: Sequence[str]) -> None:
        offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1) for topic in topics])

        def is_done() -> bool:
            # while their coordinator loads, each partition has an error of its own
            (future,) = admin.alter_consumer_group_offsets([offsets]).values()
            return all(one.error is None for one in future.result(60).topic_partitions)

        wait_until(is_done)
