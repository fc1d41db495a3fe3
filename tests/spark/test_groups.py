"""Groups under a running engine: MirrorMaker 2's integration tests about their offsets, and groups that move.

Of MirrorMaker 2 (MirrorConnectorsIntegrationBaseTest): one-way replication with automatic offset sync, with frequent
offset syncs, after a restart, and of a group that was rewound. There an offset may be translated to an earlier record;
here it has to be the source's, exactly.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Consumer

from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.groups.sync import final_sync
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import Engine
from tests.support.group_members import JavaMember, LibrdkafkaMember, Load, Member
from tests.support.groups import commit, committed
from tests.support.mirrored import Mirrored
from tests.support.mirrors import make_topic, produce, properties_of
from tests.support.waiting import PATIENCE_S, wait_until

PARTITIONS = 3


def values_of(label: str, count: int) -> list[str]:
    return [f"{label}-{number}" for number in range(count)]


def read_in_group(cluster: SandboxCluster, group: str, topic: str, count: int) -> list[str]:
    """Read so many records in a group, at least one poll that brings nothing after them, and commit."""
    consumer = Consumer(
        {**properties_of(cluster), "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    read: list[str] = []
    assigned = Event()
    consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
    deadline = time.monotonic() + PATIENCE_S
    idle = 0
    try:
        while not (assigned.is_set() and len(read) >= count and idle >= 3):
            assert time.monotonic() < deadline, f"{len(read)} of {count} records came"
            batch = consumer.consume(500, timeout=0.2)
            assert [message.error() for message in batch if message.error()] == []
            read += [message.value().decode() for message in batch]
            idle = 0 if batch else idle + 1
        if read:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return read


class Story:
    """One mirror with an engine that looks at groups every second."""

    def __init__(self, pair: ClusterPair, folder: Path, topics: dict[str, int], *, with_spark: bool = False) -> None:
        self.pair = pair
        self.topics = list(topics)
        for topic, partitions in topics.items():
            make_topic(pair.source, topic, partitions, retention_ms="-1")
        self.mirrored = Mirrored(pair.source, pair.destination, folder, topics, with_spark=with_spark)
        self.mirrored.create("sync.group.offsets.interval.seconds=1")
        self.engine: Engine | None = None

    def start(self) -> None:
        """Start an engine."""
        self.engine = self.mirrored.engine()

    def wait_until_synced(self, group: str, topic: str) -> dict[int, int]:
        """Wait until a group has at the destination what it has at the source; return that."""
        wanted = committed(self.pair.source, group, topic)
        deadline = time.monotonic() + PATIENCE_S
        while (found := committed(self.pair.destination, group, topic)) != wanted:
            assert time.monotonic() < deadline, (found, wanted, self.mirrored.run("describe", "--groups"))
            time.sleep(0.1)
        return found


@pytest.fixture
def story(cluster_pair: ClusterPair, tmp_path: Path) -> Iterator[Story]:
    made = Story(cluster_pair, tmp_path, {unique_topic(): PARTITIONS, unique_topic(): PARTITIONS}, with_spark=True)
    with made.mirrored:
        yield made


@pytest.mark.long
def test_mirror_makers_group_syncs(story: Story) -> None:
    source, destination = story.pair.source, story.pair.destination
    group, (first, second) = unique_topic("g"), story.topics
    for partition in range(PARTITIONS):
        produce(source, first, values_of(f"{partition}", 100), partition)
    assert len(read_in_group(source, group, first, 300)) == 300
    story.start()

    # automatic sync: who has read all at the source reads nothing again here
    assert story.wait_until_synced(group, first) == dict.fromkeys(range(PARTITIONS), 100)
    assert read_in_group(destination, group, first, 0) == []

    # a topic that comes later, with the same group
    for partition in range(PARTITIONS):
        produce(source, second, values_of(f"later-{partition}", 10), partition)
    assert len(read_in_group(source, group, second, 30)) == 30
    assert story.wait_until_synced(group, second) == dict.fromkeys(range(PARTITIONS), 10)

    # frequent syncs: after each batch the offset is the source's
    often = unique_topic("g")
    for offset in (1, 37, 99, 100):
        commit(source, often, first, {0: offset})
        assert story.wait_until_synced(often, first) == {0: offset}

    # a rewind
    commit(source, group, first, {0: 40, 1: 100, 2: 0})
    assert story.wait_until_synced(group, first) == {0: 40, 1: 100, 2: 0}

    # a restart: nothing moves back, and what was committed meanwhile follows
    assert story.engine is not None
    assert story.engine.stop() == 0
    commit(source, group, first, {0: 60, 1: 100, 2: 5})
    assert committed(destination, group, first) == {0: 40, 1: 100, 2: 0}
    story.start()
    assert story.wait_until_synced(group, first) == {0: 60, 1: 100, 2: 5}
    read = read_in_group(destination, group, first, 40 + 95)
    assert sorted(read) == sorted(values_of("0", 100)[60:] + values_of("2", 100)[5:])


@pytest.mark.slow
def test_groups_move_under_load(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    source, destination, topic = cluster_pair.source, cluster_pair.destination, unique_topic()
    story = Story(cluster_pair, tmp_path, {topic: PARTITIONS})
    groups: dict[str, type[JavaMember] | type[LibrdkafkaMember]] = {
        unique_topic("java"): JavaMember,
        unique_topic("librdkafka"): LibrdkafkaMember,
    }
    for group in groups:
        commit(source, group, topic, dict.fromkeys(range(PARTITIONS), 0))
    read: dict[str, Counter[str]] = {group: Counter() for group in groups}
    with story.mirrored, ExitStack() as made:
        story.start()
        load = made.enter_context(Load(source, topic, PARTITIONS))
        members: dict[str, Member] = {group: join(source, group, topic) for group, join in groups.items()}
        for member in members.values():
            made.callback(member.destroy)
        wait_until(lambda: all(len(member.values) > 500 for member in members.values()), 60)
        wait_until(lambda: all(len(committed(destination, group, topic)) == PARTITIONS for group in groups), 90)
        # sync, stop, start there; the producer still writes
        for group, member in members.items():
            member.stop()
            read[group] += member.values
        with Destination.open(properties_of(destination)) as opened:
            done = final_sync(opened, story.mirrored.name, [topic])
        assert {row.result for row in done} <= {Outcome.DONE, Outcome.NOOP}, done
        assert {row.group for row in done} == set(groups)
        for group in groups:
            assert committed(destination, group, topic) == committed(source, group, topic)
        at_the_move = load.sent
        members = {group: join(destination, group, topic) for group, join in groups.items()}
        for member in members.values():
            made.callback(member.destroy)
        wait_until(lambda: load.sent > at_the_move + 2_000, 60)
        sent = load.stop()
        wait_until(
            lambda: all((read[group] + members[group].values.copy()).keys() >= sent.keys() for group in groups), 60
        )
        for group, member in members.items():
            member.stop()
            assert member.values, "nothing was left to read after the move"
            read[group] += member.values
        assert story.engine is not None
        assert story.engine.stop() == 0
    for group in groups:
        assert read[group] == sent, f"{group} missed {sent - read[group]} or read twice {read[group] - sent}"
