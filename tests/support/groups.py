"""Groups for tests: offsets committed and read by a librdkafka consumer, mirrors ready for a group sync."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kmirror.cluster.security.client_config import client_config
from kmirror.engine.driver.side_jobs import JobEvent, JobView
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.settings.parsing import parse_settings
from kmirror.state.records import PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.librdkafka import librdkafka
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector


def commit(cluster: SandboxCluster, group: str, topic: str, offsets: Mapping[int, int], metadata: str = "") -> None:
    """Commit offsets for a group without members."""
    topic_partitions = [TopicPartition(topic, partition, offset, metadata) for partition, offset in offsets.items()]

    with _consumer(cluster, group) as consumer:
        done = _asked(lambda: consumer.commit(offsets=topic_partitions, asynchronous=False))
    assert not any(topic_partition.error for topic_partition in done), done


def committed(cluster: SandboxCluster, group: str, topic: str) -> dict[int, int]:
    """Return what a group has committed for a topic, by partition."""
    return {topic_partition.partition: topic_partition.offset for topic_partition in _committed(cluster, group, topic)}


def metadata_of(cluster: SandboxCluster, group: str) -> set[str]:
    """Return the metadata that is stored with a group's offsets."""
    return {partition.metadata or "" for partition in _committed(cluster, group)}


def _committed(cluster: SandboxCluster, group: str, *topic: str) -> list[TopicPartition]:
    with _consumer(cluster, group) as consumer:
        topics = consumer.list_topics(*topic, timeout=30).topics
        topic_partitions = [
            TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions
        ]
        return [
            topic_partition
            for topic_partition in _asked(lambda: consumer.committed(topic_partitions, timeout=60))
            if topic_partition.offset >= 0
        ]


def _asked(request: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
    # again while the group's coordinator is being made
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in {KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR}:
                raise
            time.sleep(0.1)


@contextmanager
def _consumer(cluster: SandboxCluster, group: str) -> Iterator[Consumer]:
    # not an AdminClient: librdkafka 2.16 crashes there when a coordinator answers that it is not ready yet
    consumer = Consumer({**librdkafka(client_config(cluster.client_properties())), "group.id": group})
    try:
        yield consumer
    finally:
        consumer.close()


def delete_offsets(cluster: SandboxCluster, group: str) -> None:
    """Delete a group with everything that it has committed."""
    admin = AdminClient(properties_of(cluster))
    admin.delete_consumer_groups([group])[group].result(30)


@contextmanager
def member(cluster: SandboxCluster, group: str, topic: str, protocol: str = "classic") -> Iterator[None]:
    """Keep a member in a group, which commits nothing."""
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
        assert is_in.wait(60), "the member was not let in"
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


_MEMBER = """
import json, sys
from confluent_kafka import Consumer
consumer = Consumer(json.loads(sys.argv[1]))
consumer.subscribe([sys.argv[2]], on_assign=lambda *_: print("in", flush=True))
while True:
    consumer.poll(0.1)
"""


def killed_member(cluster: SandboxCluster, group: str, topic: str, client_id: str, session_timeout_ms: int) -> None:
    """Have a member in a group whose process is killed: the group keeps it until its session times out."""
    settings = {
        **properties_of(cluster),
        "client.id": client_id,
        "group.id": group,
        "group.protocol": "classic",
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": 500,
        "enable.auto.commit": False,
    }
    command = [sys.executable, "-c", _MEMBER, json.dumps(settings), topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n", "the member was not let in"
        finally:
            process.kill()


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
        """Store the state of the partition, as an engine does."""
        record = PartitionRecord(self.mirror, self.topic, 0, state, 1, begun=True, aligned=True)
        changed = replace(record, **fields)  # type: ignore[arg-type]
        change(self.destination, self.mirror, lambda _: Changes((changed,)))

    def set_topic(self, **fields: object) -> None:
        """Store the desired state of the topic."""

        def decide(state: State) -> Changes:
            record = state.topic(self.mirror, self.topic)
            assert isinstance(record, TopicRecord)
            return Changes((replace(record, **fields),))  # type: ignore[arg-type]

        change(self.destination, self.mirror, decide)

    def sync(self) -> list[JobEvent]:
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
        """Close connections."""
        self.job.close()


def lose_source(scene: GroupScene) -> None:
    """Have the mirror's source be where no one answers."""

    def decide(state: State) -> Changes:
        record = state.mirror(scene.mirror)
        assert record is not None
        return Changes((replace(record, source={"bootstrap.servers": "127.0.0.1:1"}),))

    change(scene.destination, scene.mirror, decide)
