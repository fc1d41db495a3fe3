"""Kafka Streams applications, exactly once, with state stores on disk, move with their topics and come back."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, send
from tests.support.kafka_tools import kafka_tool
from tests.support.visible import shown
from tests.support.waiting import wait_until

PARTITIONS = 2
WINDOW_MS = 2_000
WORDS = re.findall(r"\w+", "the quick brown fox jumps over a lazy dog while rain falls on seven hills")


class WordCount:
    """The application, in one process or more, each with its own state directory; and lines of words for it.

    In a `with` block nothing of it is left afterwards.
    """

    def __init__(self, folder: Path, input_topic: str, protocol: str = "classic", *, processes: int = 1) -> None:
        self.name, self.protocol = unique_topic("count"), protocol
        self.input, self.output, self.windows = input_topic, f"{self.name}-out", f"{self.name}-windows"
        self.folders = [folder / f"{self.name}-{number}" for number in range(processes)]
        jars = kafka_jars(None, os.environ, lambda line: None, extra=("kafka-streams-examples",))
        self.programs = [JavaProgram(own, jars, "CountWords") for own in self.folders]
        self.written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to mirror: its input, its output, and its internal ones."""
        own = ("words-repartition", "counts-changelog", "windows-changelog")
        return (self.input, self.output, self.windows, *(f"{self.name}-{one}" for one in own))

    def create_topics(self, cluster: SandboxCluster) -> None:
        """Create the topics that it does not create."""
        create_topics(cluster, {self.input: {"retention.ms": "-1"}, self.output: {}, self.windows: {}}, PARTITIONS)

    def start(self, cluster: SandboxCluster) -> None:
        """Start it on a cluster, and wait until it works."""
        for folder, program in zip(self.folders, self.programs, strict=True):
            program.start(
                {
                    "application.id": self.name,
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "input": self.input,
                    "output": self.output,
                    "windows": self.windows,
                    "group.protocol": self.protocol,
                    "processing.guarantee": "exactly_once_v2",
                    "state.dir": str(folder / "state"),
                    "commit.interval.ms": "100",
                    "statestore.cache.max.bytes": "0",
                    # as every 30 seconds, in a life of hours
                    "repartition.purge.interval.ms": "300",
                    "consumer.auto.offset.reset": "earliest",
                    # it does not leave its group when it is closed
                    "session.timeout.ms": "6000",
                    "num.stream.threads": "1",
                    "num.standby.replicas": str(len(self.programs) - 1),
                }
            )
        for program in self.programs:
            program.wait_for("state RUNNING")

    def stop(self) -> None:
        """Close it."""
        for program in self.programs:
            program.stop()

    def kill(self) -> None:
        """Kill it, whatever it is doing."""
        for program in self.programs:
            program.kill()

    def reset(self, cluster: SandboxCluster) -> None:
        """Reset it to the start of its input, once its group has no member any more."""
        there = ("--bootstrap-server", cluster.bootstrap_servers)
        if self.protocol == "streams":
            topics = ("--input-topic", self.input, "--to-earliest", "--delete-all-internal-topics")
            kafka_tool("kafka-streams-groups.sh", *there, "--reset-offsets", "--group", self.name, *topics, "--execute")
        else:
            application = ("--application-id", self.name, "--input-topics", self.input)
            kafka_tool("kafka-streams-application-reset.sh", *there, *application, "--force")

    def write(self, cluster: SandboxCluster, lines: int = 100) -> None:
        """Write lines to its input."""
        for partition in range(PARTITIONS):
            first = self.written + partition * lines
            text = [" ".join(WORDS[(n * 7 + k) % len(WORDS)] for k in range(5)) for n in range(first, first + lines)]
            send(cluster, self.input, text, partition)
        self.written += PARTITIONS * lines

    def wait_until_all_is_counted(self, cluster: SandboxCluster) -> None:
        """Wait until its latest counts are those of its input."""
        wanted = words_of(cluster, self.input)
        wait_until(lambda: latest(counts(cluster, self.output)) == wanted, 90)
        windows = words_of(cluster, self.input, by_windows=True)
        wait_until(lambda: latest(counts(cluster, self.windows)) == windows, 90)

    def restored(self) -> int:
        """Return how many changelog records it has read since its last start."""
        return sum(self._numbers("restored "))

    def followed_from(self) -> list[int]:
        """Return where its standbys began to read changelogs since its last start."""
        return self._numbers("follows ")

    def _numbers(self, begin: str) -> list[int]:
        lines = (line for program in self.programs for line in program.lines)
        return [int(line.rpartition(" ")[2]) for line in lines if line.startswith(begin)]


def counts(cluster: SandboxCluster, topic: str) -> dict[str, list[int]]:
    """Return the counts that consumers see of each key, in order."""
    found: dict[str, list[int]] = {}
    for partition in range(PARTITIONS):
        for record in shown(cluster, topic, partition):
            found.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
    return found


def words_of(cluster: SandboxCluster, topic: str, *, by_windows: bool = False) -> Counter[str]:
    """Count the words of a topic, without Streams."""
    found: Counter[str] = Counter()
    for partition in range(PARTITIONS):
        for record in shown(cluster, topic, partition):
            window = f"@{record.timestamp // WINDOW_MS * WINDOW_MS}" if by_windows else ""
            found.update(word + window for word in (record.value or b"").decode().split())
    return found


def latest(found: Mapping[str, list[int]]) -> Counter[str]:
    """Return the value of each key after the last record."""
    return Counter({key: numbers[-1] for key, numbers in found.items()})


def assert_each_word_was_counted_once(application: WordCount, cluster: SandboxCluster) -> None:
    """Check that each key's counts are 1, 2, 3 …: a word that was counted twice, or not at all, shows."""
    for topic, by_windows in ((application.output, False), (application.windows, True)):
        found = counts(cluster, topic)
        for key, numbers in found.items():
            assert numbers == list(range(1, len(numbers) + 1)), (topic, key, numbers)
        assert latest(found) == words_of(cluster, application.input, by_windows=by_windows)


def is_synced(journey: Journey, group: str) -> bool:
    """Return whether everything that a group has committed is also committed at the mirror's cluster."""
    rows = [row for row in journey.describe("--groups") if row["group"] == group]
    return bool(rows) and all(row["sourceOffset"] == row["destinationOffset"] for row in rows)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_an_application_with_state_moves_and_comes_back(
    protocol: str, cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    application = WordCount(tmp_path, unique_topic("lines"), protocol)
    application.create_topics(a)
    patterns = (application.input, f"{application.name}-.*")
    with (
        application,
        Journey(a, b, tmp_path, patterns, "source.truncation.policy=follow") as journey,
    ):
        application.start(a)
        application.write(a)
        journey.wait_for_topics(*application.topics)
        application.write(a)
        application.wait_until_all_is_counted(a)

        # planned: it is stopped while lines are left to count, and resumes with the state that it has
        application.write(a, 300)
        application.stop()
        journey.promote()
        journey.failback()
        application.start(b)
        application.write(b)
        application.wait_until_all_is_counted(b)
        assert_each_word_was_counted_once(application, b)
        assert application.restored() == 0

        # and back; what it has read of its repartition topic is deleted before the other cluster follows
        application.write(b, 300)
        application.stop()
        journey.promote()
        application.start(a)
        application.write(a)
        application.wait_until_all_is_counted(a)
        assert_each_word_was_counted_once(application, a)
        assert application.restored() == 0
        journey.failback("--recreate")
        journey.wait()

        # unplanned, under load: topics end at different points, so all is counted again, from the input
        application.write(a, 300)
        journey.kill_engine()
        application.write(a, 300)
        application.wait_until_all_is_counted(a)
        application.kill()
        ends = journey.ends(application.topics, PARTITIONS)
        lost = journey.failover()
        assert {partition: loss.end for partition, loss in lost.items()} == ends
        for folder in application.folders:
            shutil.rmtree(folder / "state")
        application.reset(b)
        application.start(b)
        application.write(b)
        application.wait_until_all_is_counted(b)
        application.stop()

        journey.failback("--recreate")
        journey.promote()
        application.start(a)
        assert application.restored() == 0
        application.write(a)
        application.wait_until_all_is_counted(a)

        # one that has never moved gets the same results from the same input
        twin = WordCount(tmp_path, application.input, protocol)
        create_topics(a, {twin.output: {}, twin.windows: {}}, PARTITIONS)
        with twin:
            twin.start(a)
            twin.wait_until_all_is_counted(a)
            for moved, unmoved in ((application.output, twin.output), (application.windows, twin.windows)):
                assert latest(counts(a, unmoved)) == latest(counts(a, moved))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_standbys_move_with_their_application(protocol: str, cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    application = WordCount(tmp_path, unique_topic("lines"), protocol, processes=2)
    application.create_topics(a)
    if protocol == "streams":
        # a setting of the group: it belongs to a cluster, and does not move
        for cluster in (a, b):
            there = ("--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "groups")
            setting = ("--entity-name", application.name, "--add-config", "streams.num.standby.replicas=1")
            kafka_tool("kafka-configs.sh", *there, "--alter", *setting)
    patterns = (application.input, f"{application.name}-.*")
    with (
        application,
        Journey(a, b, tmp_path, patterns, "source.truncation.policy=follow") as journey,
    ):
        application.start(a)
        application.write(a)
        journey.wait_for_topics(*application.topics)
        application.write(a, 300)
        application.wait_until_all_is_counted(a)
        application.write(a)
        application.stop()
        journey.promote()
        journey.failback()
        application.start(b)
        application.write(b)
        application.wait_until_all_is_counted(b)

        listed = kafka_tool("kafka-streams-groups.sh", "--bootstrap-server", b.bootstrap_servers, "--list")
        assert (application.name in listed.decode().split()) == (protocol == "streams")

        # standbys resume with the state that they have, and when a process dies at the other cluster, it is there
        wait_until(application.followed_from)
        assert min(application.followed_from()) > 0
        application.programs[0].kill()
        application.write(b)
        application.wait_until_all_is_counted(b)
        assert_each_word_was_counted_once(application, b)

        # unplanned, and nothing is lost: with what the groups have committed, it resumes with the state that it has
        application.programs[1].stop()
        journey.wait()
        wait_until(lambda: is_synced(journey, application.name))
        lost = journey.failover()
        assert all(loss.begin == loss.end for loss in lost.values())
        application.start(a)
        application.write(a)
        application.wait_until_all_is_counted(a)
        assert_each_word_was_counted_once(application, a)
