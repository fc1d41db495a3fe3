"""Kafka Connect, distributed, with a file source and a file sink: its topics move with the records, and come back.

A twin stays in place and gets the same lines: its sink's file and its topic are the expected result.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, values, values_in_order, values_lost
from tests.support.waiting import wait_until

_FILES = "org.apache.kafka.connect.file.FileStream"


class Connect:
    """A worker, and a connector that reads a file into a topic, and one that writes the topic into another file."""

    def __init__(self, folder: Path) -> None:
        jars = kafka_jars(None, os.environ, lambda line: None, extra=("connect-file", "connect-runtime"))
        self.program = JavaProgram(folder / "connect", jars, "org.apache.kafka.connect.cli.ConnectDistributed")
        self.topic, self.name = unique_topic("lines"), unique_topic("files")
        self.own_topics = tuple(f"{self.name}-{what}" for what in ("configs", "offsets", "status"))
        self._in, self._out = folder / "in.txt", folder / "out.txt"
        self._in.touch()
        self._out.touch()
        self._url = ""
        self.written = 0

    def start(self, cluster: SandboxCluster) -> None:
        """Start the worker on a cluster."""
        self._url = f"http://{LOOPBACK}:{free_ports(1)[0]}"
        converter = "org.apache.kafka.connect.storage.StringConverter"
        configs, offsets, status = self.own_topics
        self.program.start(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": self.name,
                "config.storage.topic": configs,
                "offset.storage.topic": offsets,
                "offset.storage.partitions": "1",
                "status.storage.topic": status,
                "status.storage.partitions": "1",
                **dict.fromkeys((f"{what}.storage.replication.factor" for what in ("config", "offset", "status")), "1"),
                "key.converter": converter,
                "value.converter": converter,
                "listeners": self._url,
                "plugin.discovery": "service_load",
                "exactly.once.source.support": "enabled",
                "offset.flush.interval.ms": "300",
                "scheduled.rebalance.max.delay.ms": "0",
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "1000",
            }
        )
        wait_until(lambda: self._ask("GET", "/connectors") is not None, 120)

    def deploy(self) -> None:
        """Create its connectors, which it stores in a topic."""
        source = {"connector.class": f"{_FILES}SourceConnector", "file": str(self._in), "topic": self.topic}
        sink = {"connector.class": f"{_FILES}SinkConnector", "file": str(self._out), "topics": self.topic}
        for name, settings in (("read", {**source, "exactly.once.support": "required"}), ("write", sink)):
            body = {**settings, "name": f"{self.name}-{name}", "tasks.max": "1"}
            assert self._ask("PUT", f"/connectors/{self.name}-{name}/config", body) is not None

    def write(self, lines: int = 300) -> None:
        """Write lines into the file that is read."""
        with self._in.open("a") as file:
            file.writelines(f"{number}\n" for number in range(self.written, self.written + lines))
        self.written += lines

    @property
    def lines_in(self) -> Counter[str]:
        """The lines that were written to the file."""
        return Counter(self._in.read_text().splitlines())

    @property
    def text_out(self) -> str:
        """The output in the other file, in order."""
        return self._out.read_text()

    @property
    def lines_out(self) -> Counter[str]:
        """The distinct lines in the other file."""
        return Counter(self.text_out.splitlines())

    def wait_until_all_is_out(self) -> None:
        """Wait until each line has come out."""
        wait_until(lambda: self.lines_out.keys() >= self.lines_in.keys(), 120)

    def _ask(self, method: str, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return None  # it is not ready yet


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_source_and_a_sink_move_and_come_back(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    connect, twin = Connect(tmp_path / "moved"), Connect(tmp_path / "unmoved")
    create_topics(a, {connect.topic: {}, twin.topic: {}})
    patterns = (connect.topic, f"{connect.name}-.*")

    def write() -> None:
        connect.write()
        twin.write()

    with (
        connect.program,
        twin.program,
        Journey(a, b, tmp_path, patterns, "groups.exclude=console-consumer-.*") as journey,
    ):
        for one in (connect, twin):
            one.start(a)
            one.deploy()
        write()
        connect.wait_until_all_is_out()
        journey.wait_for_topics(connect.topic, *connect.own_topics)
        for there in (b, a):
            # planned: what is written while no worker runs is read at the other cluster
            write()
            connect.program.stop()
            write()
            journey.promote()
            journey.failback()
            connect.start(there)
            write()
            for one in (connect, twin):
                one.wait_until_all_is_out()
            assert values_in_order(there, connect.topic) == values_in_order(a, twin.topic)
            assert connect.text_out == twin.text_out

        # unplanned: the source's offsets and its lines end at different points
        write()
        journey.kill_engine()
        write()
        connect.wait_until_all_is_out()
        connect.program.kill()
        lost = journey.failover()
        connect.start(b)
        write()
        reported = values_lost(a, connect.topic, lost).keys()
        wait_until(lambda: values(b, connect.topic).keys() | reported >= connect.lines_in.keys(), 120)
        connect.wait_until_all_is_out()

        connect.program.stop()
        journey.failback("--recreate")
        journey.promote()
        connect.start(a)
        write()
        for one in (connect, twin):
            one.wait_until_all_is_out()
        assert values(a, connect.topic).keys() | reported == values(a, twin.topic).keys()
        assert connect.lines_out.keys() == twin.lines_out.keys()
