"""Groups for tests: offsets committed and read by librdkafka's admin client, mirrors ready for a group sync."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from kmirror.engine.side_jobs import JobView, Told
from kmirror.ops.add import add
from kmirror.ops.context import Destination, change
from kmirror.ops.group_sync import GroupSyncJob
from kmirror.sandbox.cluster import SandboxCluster
from kmirror.settings import parse_settings
from kmirror.state.records import PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.waiting import wait_until


def commit(cluster: SandboxCluster, group: str, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
    """Commit offsets for a group in which nobody is."""
    admin = AdminClient(properties_of(cluster))

    def is_done() -> bool:
        places = [TopicPartition(topic, p, offset, metadata) for p, offset in offsets.items()]
        done = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result(30)
        errors = {place.error.code() for place in done.topic_partitions if place.error}
        # while the first group's coordinator is made
        assert errors <= {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}, errors
        return not errors

    wait_until(is_done)


def committed(cluster: SandboxCluster, group: str, topic: str) -> dict[int, int]:
    """Return what a group has committed for a topic, by partition."""
    return {place.partition: place.offset for place in _committed(cluster, group) if place.topic == topic}


def metadata_of(cluster: SandboxCluster, group: str) -> set[str]:
    """Return the words that stand with a group's offsets."""
    return {place.metadata or "" for place in _committed(cluster, group)}


def _committed(cluster: SandboxCluster, group: str) -> list[TopicPartition]:
    admin = AdminClient(properties_of(cluster))
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return [place for place in found.topic_partitions if place.offset >= 0]


def delete_offsets(cluster: SandboxCluster, group: str) -> None:
    """Delete a group with all that it has committed."""
    admin = AdminClient(properties_of(cluster))
    admin.delete_consumer_groups([group])[group].result(30)


@contextmanager
def member(cluster: SandboxCluster, group: str, topic: str, protocol: str = "classic") -> Iterator[None]:
    """Have somebody in a group, who commits nothing."""
    consumer = Consumer(
        {
            **properties_of(cluster),
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    stop, is_in = threading.Event(), threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: is_in.set())

    def poll() -> None:
        while not stop.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert is_in.wait(60), "nobody let the member in"
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


class GroupScene:
    """A mirror topic that holds what its source does, as if an engine had copied it; and a group's sync of it."""

    def __init__(
        self, pair: ClusterPair, destination: Destination, *, records: int = 100, copied: int = 100, **settings: str
    ) -> None:
        self.pair, self.destination = pair, destination
        self.source_topic, self.group = unique_topic(), unique_topic("g")
        self.mirror = new_mirror(destination, pair.source, **settings)
        self.topic = settings.get("topic_prefix", "") + self.source_topic
        make_topic(pair.source, self.source_topic)
        add(destination, self.mirror, selector(self.source_topic))
        values = [str(number) for number in range(records)]
        produce(pair.source, self.source_topic, values)
        produce(pair.destination, self.topic, values[:copied])
        self.set_partition(PartitionState.MIRRORING)
        self.job = GroupSyncJob(self.mirror, destination.properties)

    def set_partition(self, state: PartitionState, **fields: object) -> None:
        """Write down how the partition stands, as an engine does."""
        record = PartitionRecord(self.mirror, self.topic, 0, state, 1, begun=True, aligned=True)
        changed = replace(record, **fields)  # type: ignore[arg-type]
        change(self.destination, self.mirror, lambda _: Changes((changed,)))

    def set_topic(self, **fields: object) -> None:
        """Write down what operators want of the topic."""

        def decide(state: State) -> Changes:
            record = state.topic(self.mirror, self.topic)
            assert isinstance(record, TopicRecord)
            return Changes((replace(record, **fields),))  # type: ignore[arg-type]

        change(self.destination, self.mirror, decide)

    def sync(self) -> list[Told]:
        """Do what an engine does every ten seconds."""
        state = self.destination.state()
        record = state.mirror(self.mirror)
        assert record is not None
        view = JobView(record, parse_settings(record.settings), state.topics(self.mirror), {}, {})
        return list(self.job.run(view))

    def at_source(self, offset: int, metadata: str = "") -> None:
        """Have the group commit at the source."""
        commit(self.pair.source, self.group, self.source_topic, {0: offset}, metadata)

    def here(self, group: str | None = None) -> int | None:
        """Return what the group has at the destination."""
        return committed(self.pair.destination, group or self.group, self.topic).get(0)

    def close(self) -> None:
        """Let go of connections."""
        self.job.close()
