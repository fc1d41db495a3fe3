"""A Kafka Streams application, exactly once, with a state store on disk, moves with its topics and comes back."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from kmirror.sandbox.cluster import SandboxCluster
from kmirror.sandbox.jars import kafka_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, send
from tests.support.kafka_tools import kafka_tool
from tests.support.visible import shown
from tests.support.waiting import wait_until

PARTITIONS = 2
WORDS = re.findall(r"\w+", "the quick brown fox jumps over a lazy dog while rain falls on seven hills")


class WordCount:
    """The application, with a folder of its own for its state; and lines of words for it."""

    def __init__(self, folder: Path, input_topic: str, output: str, *, name: str | None = None) -> None:
        self.name = name or unique_topic("count")
        self.input, self.output = input_topic, output
        self.state = folder / "state" / self.name
        jars = kafka_jars(None, os.environ, lambda line: None, extra=("kafka-streams-examples",))
        self.program = JavaProgram(folder / self.name, jars, "CountWords")
        self.written = 0

    @property
    def topics(self) -> tuple[str, ...]:
        """What has to be mirrored: its input, its output, and what it keeps for itself."""
        return (self.input, self.output, f"{self.name}-words-repartition", f"{self.name}-counts-changelog")

    def start(self, cluster: SandboxCluster) -> None:
        """Start it on a cluster, and wait until it works."""
        self.program.start(
            {
                "application.id": self.name,
                "bootstrap.servers": cluster.bootstrap_servers,
                "input": self.input,
                "output": self.output,
                "processing.guarantee": "exactly_once_v2",
                "state.dir": str(self.state.parent),
                "commit.interval.ms": "100",
                "statestore.cache.max.bytes": "0",
                # as every 30 seconds, in a life of hours
                "repartition.purge.interval.ms": "300",
                "consumer.auto.offset.reset": "earliest",
                # it does not leave its group when it is closed
                "session.timeout.ms": "6000",
                "num.stream.threads": "1",
            }
        )
        self.program.wait_for("state RUNNING")

    def reset(self, cluster: SandboxCluster) -> None:
        """Have it begin with its input, when its group has no member any more."""
        arguments = ("--bootstrap-server", cluster.bootstrap_servers, "--application-id", self.name)
        kafka_tool("kafka-streams-application-reset.sh", *arguments, "--input-topics", self.input, "--force")

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
        wait_until(lambda: latest(self.counts(cluster)) == wanted, 90)

    def counts(self, cluster: SandboxCluster) -> dict[str, list[int]]:
        """Return the counts that consumers see of each word, in their order."""
        found: dict[str, list[int]] = {}
        for partition in range(PARTITIONS):
            for record in shown(cluster, self.output, partition):
                found.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
        return found

    def restored(self) -> int:
        """Return how many records it has read of its changelog since it was started last."""
        return sum(int(line.rpartition(" ")[2]) for line in self.program.lines if line.startswith("restored "))


def words_of(cluster: SandboxCluster, topic: str) -> Counter[str]:
    """Count the words of a topic, without Streams."""
    records = [record for partition in range(PARTITIONS) for record in shown(cluster, topic, partition)]
    return Counter(word for record in records for word in (record.value or b"").decode().split())


def latest(counts: Mapping[str, list[int]]) -> Counter[str]:
    """Return what is known of each word after the last record."""
    return Counter({word: numbers[-1] for word, numbers in counts.items()})


def assert_each_word_was_counted_once(application: WordCount, cluster: SandboxCluster) -> None:
    """Each word's counts are 1, 2, 3 …: a word that was counted twice, or not, shows."""
    for word, numbers in application.counts(cluster).items():
        assert numbers == list(range(1, len(numbers) + 1)), (word, numbers)
    assert latest(application.counts(cluster)) == words_of(cluster, application.input)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_application_with_state_moves_and_comes_back(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    application = WordCount(tmp_path, unique_topic("lines"), unique_topic("counts"))
    create_topics(a, {application.input: {"retention.ms": "-1"}, application.output: {}}, PARTITIONS)
    patterns = (application.input, application.output, f"{application.name}-.*")
    with (
        application.program,
        Journey(a, b, tmp_path, patterns, "source.truncation.policy=follow") as journey,
    ):
        application.start(a)
        application.write(a)
        journey.wait_for_topics(*application.topics)
        application.write(a)
        application.wait_until_all_is_counted(a)

        # planned: it is stopped while lines are left to count, and goes on with the state that it has
        application.write(a, 300)
        application.program.stop()
        journey.promote()
        journey.failback()
        application.start(b)
        application.write(b)
        application.wait_until_all_is_counted(b)
        assert_each_word_was_counted_once(application, b)
        assert application.restored() == 0

        # and back; what it has read of its repartition topic is deleted before the other cluster follows
        application.write(b, 300)
        application.program.stop()
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
        application.program.kill()
        ends = journey.ends(application.topics, PARTITIONS)
        lost = journey.failover()
        assert {place: loss.end for place, loss in lost.items()} == ends
        shutil.rmtree(application.state)
        application.reset(b)
        application.start(b)
        application.write(b)
        application.wait_until_all_is_counted(b)
        application.program.stop()

        journey.failback("--recreate")
        journey.promote()
        application.start(a)
        assert application.restored() == 0
        application.write(a)
        application.wait_until_all_is_counted(a)

        # one that has never moved gets the same result from the same input
        twin = WordCount(tmp_path, application.input, unique_topic("twin"))
        create_topics(a, {twin.output: {}}, PARTITIONS)
        with twin.program:
            twin.start(a)
            twin.wait_until_all_is_counted(a)
            assert latest(twin.counts(a)) == latest(application.counts(a))
