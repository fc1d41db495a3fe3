"""Consumers of every kind of group move with their topic and come back: classic with static members, new, shared."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from kmirror.sandbox.cluster import SandboxCluster
from kmirror.sandbox.jars import kafka_jars
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_groups_of_every_kind_move_and_come_back(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b, topic = cluster_pair.source, cluster_pair.destination, unique_topic("read")
    create_topics(a, {topic: {}}, PARTITIONS)
    groups = (
        StaticMembers(unique_topic("static"), topic),
        NewGroup(unique_topic("new"), topic),
        ShareGroup(unique_topic("share"), topic, tmp_path),
    )
    for once in groups[:2]:
        commit(a, once.group, topic, dict.fromkeys(range(PARTITIONS), 0))
    kafka_tool(
        "kafka-configs.sh",
        "--bootstrap-server",
        a.bootstrap_servers,
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        groups[2].group,
        "--add-config",
        "share.auto.offset.reset=earliest",
    )
    sent = 0

    def write(cluster: SandboxCluster, records: int = 300) -> None:
        nonlocal sent
        for partition in range(PARTITIONS):
            send(cluster, topic, [str(number) for number in range(sent, sent + records)], partition)
            sent += records

    with Journey(a, b, tmp_path, [topic]) as journey:
        for here, there in ((a, b), (b, a)):
            write(here)
            for group in groups:
                group.consume(here, sent - 200)
            journey.promote()
            journey.failback()
            write(there)
            for group in groups:
                group.consume(there, sent)
                assert group.read.keys() == values(there, topic, PARTITIONS).keys(), group
        for once in groups[:2]:
            assert set(once.read.values()) == {1}, once

        # unplanned: what they have committed last may not have arrived, and what they have read may be lost
        write(a)
        for group in groups:
            group.consume(a, sent - 400)
        journey.kill_engine()
        write(a)
        for group in groups:
            group.consume(a, sent - 200)
        lost = journey.failover()
        write(b)
        gone = values_lost(a, topic, lost)
        for group in groups:
            group.consume(b, len(values(b, topic, PARTITIONS).keys() | group.read.keys()))
            assert group.read.keys() | gone.keys() >= values(b, topic, PARTITIONS).keys()
            assert group.read.keys() >= values(b, topic, PARTITIONS).keys()

        journey.failback("--recreate")
        journey.promote()
        write(a)
        for group in groups:
            group.consume(a, len(values(a, topic, PARTITIONS).keys() | group.read.keys()))
            assert group.read.keys() >= values(a, topic, PARTITIONS).keys()
