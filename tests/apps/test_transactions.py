"""A Java consumer and transactional producer in one, exactly once, moves with its topics and comes back.

A twin stays in place, gets the same records, and is never killed: consumers must see the same of both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, send, values, values_in_order, values_lost
from tests.support.waiting import wait_until

PARTITIONS = 2


class Transfer:
    """The application, and numbered records for it."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output, self.name = unique_topic("in"), unique_topic("out"), unique_topic("transfer")
        jars = kafka_jars(None, os.environ, lambda line: None)
        self.program = JavaProgram(folder / self.name, jars, "Transfer")
        self.written = 0

    def start(self, cluster: SandboxCluster) -> None:
        """Start it on a cluster, with the new group protocol."""
        self.program.start(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": self.name,
                "group.protocol": "consumer",
                "transactional.id": f"{self.name}-0",
                "input": self.input,
                "output": self.output,
            }
        )
        self.program.wait_for("in")

    def write(self, cluster: SandboxCluster, records: int = 200) -> None:
        """Write records to its input."""
        for partition in range(PARTITIONS):
            send(cluster, self.input, [str(self.written + number) for number in range(records)], partition)
            self.written += records

    def in_(self, cluster: SandboxCluster) -> Counter[str]:
        """Return what its input holds."""
        return values(cluster, self.input, PARTITIONS)

    def out(self, cluster: SandboxCluster) -> Counter[str]:
        """Return what consumers see of its output."""
        return values(cluster, self.output, PARTITIONS)

    def wait_until_all_is_out(self, cluster: SandboxCluster, lost: Collection[str] = ()) -> None:
        """Wait until each record of the input has come out, except results that are known to be lost."""
        wanted = self.in_(cluster).keys() - lost
        wait_until(lambda: self.out(cluster).keys() >= wanted, 90)

    def wait_until_more_is_out(self, cluster: SandboxCluster, records: int) -> None:
        """Wait until more than this many records have come out."""
        wait_until(lambda: self.out(cluster).total() > records, 90)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_transactional_application_moves_and_comes_back(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    application, twin = Transfer(tmp_path), Transfer(tmp_path)
    topics = (application.input, application.output)
    create_topics(a, {topic: {} for topic in (*topics, twin.input, twin.output)}, PARTITIONS)

    def write(cluster: SandboxCluster, records: int = 200) -> None:
        application.write(cluster, records)
        twin.write(a, records)

    with application.program, twin.program, Journey(a, b, tmp_path, topics) as journey:
        twin.start(a)
        for here, there in ((a, b), (b, a)):
            write(here)
            application.start(here)
            application.wait_until_all_is_out(here)
            # killed while it is at work: the transaction that is open is aborted, and done again at the other cluster
            done = application.out(here).total()
            write(here, 2_000)
            application.wait_until_more_is_out(here, done + 100)
            application.program.kill()
            assert application.out(here).total() < application.written
            journey.promote()
            journey.failback()
            application.start(there)
            application.wait_until_all_is_out(there)
            twin.wait_until_all_is_out(a)
            unmoved = values_in_order(a, twin.output, PARTITIONS)
            assert values_in_order(there, application.output, PARTITIONS) == unmoved
            application.program.stop()

        # unplanned, under load: what the engine has not copied is reported, and the rest is done at least once
        application.start(a)
        write(a, 1_000)
        journey.kill_engine()
        write(a, 1_000)
        application.wait_until_all_is_out(a)
        application.program.kill()
        ends = journey.ends(topics, PARTITIONS)
        lost = journey.failover()
        assert {partition: loss.end for partition, loss in lost.items()} == ends
        reported, unread = (values_lost(a, topic, lost).keys() for topic in (application.output, application.input))
        application.start(b)
        write(b)
        application.wait_until_all_is_out(b, reported)
        application.program.stop()

        # the old primary gets what the new one has, and its own tail is archived
        journey.failback("--recreate")
        journey.promote()
        application.start(a)
        write(a)
        application.wait_until_all_is_out(a, reported)
        twin.wait_until_all_is_out(a)
        moved_values, unmoved_values = application.out(a).keys(), twin.out(a).keys()
        assert moved_values <= unmoved_values
        assert unmoved_values - moved_values <= reported | unread
