"""Consumers of every kind of group move with their topic and come back: classic with static members, new, shared."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.group_members import JavaMember
from tests.support.groups import commit
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, send, values, values_lost
from tests.support.kafka_tools import kafka_tool
from tests.support.waiting import wait_until

PARTITIONS = 2


class StaticMembers:
    """Two librdkafka consumers with instance ids: a group that does not notice when they are restarted."""

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.read: Counter[str] = Counter()

    def consume(self, cluster: SandboxCluster, until: int) -> None:
        """Read until it has this many values, commit after every few, and end without leaving the group."""
        settings = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": self.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
        with ExitStack() as closed:
            members = [Consumer({**settings, "group.instance.id": name}) for name in ("one", "two")]
            for member in members:
                closed.callback(member.close)
                member.subscribe([self.topic])

            def read() -> bool:
                for member in members:
                    self._read(member)
                return len(self.read) >= until

            wait_until(read, 90)

    def _read(self, member: Consumer) -> None:
        batch = member.consume(50, 0.05)
        assert not [message.error() for message in batch if message.error()]
        self.read.update((message.value() or b"").decode() for message in batch)
        if batch:
            member.commit(asynchronous=False)


class NewGroup:
    """Kafka's verifiable consumer, with the new protocol."""

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.read: Counter[str] = Counter()

    def consume(self, cluster: SandboxCluster, until: int) -> None:
        """Read until it has this many values, and leave."""
        member = JavaMember(cluster, self.group, self.topic)
        try:
            wait_until(lambda: len(self.read.keys() | member.values.copy().keys()) >= until, 90)
            member.stop()
        finally:
            member.destroy()
        self.read.update(member.values)


class ShareGroup:
    """Kafka's share consumer; it acknowledges what it is given."""

    def __init__(self, group: str, topic: str, folder: Path) -> None:
        self.group, self.topic = group, topic
        self._program = JavaProgram(folder / group, kafka_jars(None, os.environ, lambda line: None), "Share")
        self.read: Counter[str] = Counter()

    def consume(self, cluster: SandboxCluster, until: int) -> None:
        """Read until it has this many values, and leave."""
        with self._program as program:
            program.start({"bootstrap.servers": cluster.bootstrap_servers, "group.id": self.group, "input": self.topic})
            wait_until(lambda: len(self.read.keys() | set(self._given())) >= until, 90)
            program.stop()
        self.read.update(self._given())

    def _given(self) -> list[str]:
        return [line.removeprefix("given ") for line in self._program.lines if line.startswith("given ")]


class Application:
    """A topic that is written to, and a group of each kind that reads it."""

    def __init__(self, cluster: SandboxCluster, folder: Path) -> None:
        self.topic = unique_topic("read")
        self._sent = 0
        create_topics(cluster, {self.topic: {}}, PARTITIONS)
        share = unique_topic("share")
        self.exact: tuple[StaticMembers | NewGroup, ...]
        self.exact = StaticMembers(unique_topic("static"), self.topic), NewGroup(unique_topic("new"), self.topic)
        self.groups: tuple[StaticMembers | NewGroup | ShareGroup, ...]
        self.groups = *self.exact, ShareGroup(share, self.topic, folder)
        for once in self.exact:
            commit(cluster, once.group, self.topic, dict.fromkeys(range(PARTITIONS), 0))
        where = ("--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "groups", "--entity-name", share)
        kafka_tool("kafka-configs.sh", *where, "--alter", "--add-config", "share.auto.offset.reset=earliest")

    def write(self, cluster: SandboxCluster, records: int = 300) -> None:
        """Write so many new values to each partition."""
        for partition in range(PARTITIONS):
            send(cluster, self.topic, [str(number) for number in range(self._sent, self._sent + records)], partition)
            self._sent += records

    def consume(self, cluster: SandboxCluster, but: int = 0) -> None:
        """Have each group read until it has all values ever written but so many."""
        for group in self.groups:
            group.consume(cluster, self._sent - but)

    def values(self, cluster: SandboxCluster) -> set[str]:
        """Return the values that are in the topic."""
        return set(values(cluster, self.topic, PARTITIONS))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_groups_of_every_kind_move_and_come_back(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    """A twin stays in place and gets the same values: what its groups have read is the expected result."""
    a, b = cluster_pair.source, cluster_pair.destination
    moved, unmoved = Application(a, tmp_path), Application(a, tmp_path)
    with Journey(a, b, tmp_path, [moved.topic]) as journey:
        for here, there in ((a, b), (b, a)):
            moved.write(here)
            unmoved.write(a)
            moved.consume(here, but=200)
            unmoved.consume(a, but=200)
            journey.promote()
            journey.failback()
            moved.write(there)
            unmoved.write(a)
            moved.consume(there)
            unmoved.consume(a)
        assert moved.values(a) == unmoved.values(a)
        for ours, theirs in zip(moved.groups, unmoved.groups, strict=True):
            assert ours.read.keys() == theirs.read.keys() == unmoved.values(a)
        for ours, theirs in zip(moved.exact, unmoved.exact, strict=True):
            assert ours.read == theirs.read
            assert set(ours.read.values()) == {1}

        # unplanned: what they have committed last may not have arrived, and what they have read may be lost
        moved.write(a)
        unmoved.write(a)
        moved.consume(a, but=400)
        journey.kill_engine()
        moved.write(a)
        unmoved.write(a)
        moved.consume(a, but=200)
        gone = values_lost(a, moved.topic, journey.failover()).keys()
        moved.write(b)
        unmoved.write(a)
        unmoved.consume(a)
        assert moved.values(b) == unmoved.values(a) - gone
        for ours, theirs in zip(moved.groups, unmoved.groups, strict=True):
            ours.consume(b, len(moved.values(b) | ours.read.keys()))
            assert ours.read.keys() | gone == theirs.read.keys()
            assert ours.read.keys() >= moved.values(b)

        journey.failback("--recreate")
        journey.promote()
        moved.write(a)
        unmoved.write(a)
        unmoved.consume(a)
        assert moved.values(a) == unmoved.values(a) - gone
        for ours, theirs in zip(moved.groups, unmoved.groups, strict=True):
            ours.consume(a, len(moved.values(a) | ours.read.keys()))
            assert ours.read.keys() | gone == theirs.read.keys()
