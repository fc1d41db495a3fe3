"""A Spark Structured Streaming job keeps its checkpoint while its topic moves and comes back.

A twin reads a topic that stays in place and gets the same records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import artifact_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.ending import killed_at_last, printed
from tests.support.installed_logs import create_topics
from tests.support.journeys import Journey, Lost, send, values, values_lost

PARTITIONS = 2
#: The newest published version; it runs on later Sparks, too. Spark has its other dependencies.
CONNECTOR = "4.2.0"
OF_CONNECTOR = ("commons-pool2-", "kafka-clients-", "spark-sql-kafka-", "spark-token-provider-")


class Job:
    """The job (tests/apps/spark_stream.py), and records for it; one Spark for the `with` block.

    What is written to its topic, on whichever cluster, is also written to the `unmoved` one on its first cluster.
    """

    def __init__(self, folder: Path, home: SandboxCluster) -> None:
        self.home = home
        self.topic, self.unmoved, self.folder = unique_topic("events"), unique_topic("unmoved"), folder
        self.written = 0
        found = artifact_jars("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR, 60, os.environ).directory
        jars = ",".join(str(jar) for jar in found.glob("*.jar") if jar.name.startswith(OF_CONNECTOR))
        with (folder / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("spark_stream.py"), jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with killed_at_last(self._process):
            printed(self._process)

    def run(
        self,
        cluster: SandboxCluster,
        *,
        topic: str | None = None,
        checkpoint: str = "first",
        starting: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it to the end of the topic; return the values in its files, or its error."""
        order = {
            "bootstrap": cluster.bootstrap_servers,
            "topic": topic or self.topic,
            "checkpoint": str(self.folder / f"checkpoint-{checkpoint}"),
            "files": str(self.folder / f"files-{checkpoint}"),
            "starting": json.dumps(starting) if starting else "earliest",
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def unmoved_values(self) -> Counter[str]:
        """Have the twin read on, and return the values in its files."""
        return Counter(self.run(self.home, topic=self.unmoved, checkpoint="unmoved"))

    def write(self, cluster: SandboxCluster, records: int = 200) -> None:
        """Write records, each with a number of its own."""
        for partition in range(PARTITIONS):
            text = [str(self.written + number) for number in range(records)]
            send(cluster, self.topic, text, partition)
            send(self.home, self.unmoved, text, partition)
            self.written += records

    def has_read_beyond(self, ends: Mapping[tuple[str, int], Lost]) -> bool:
        """Return whether the checkpoint is ahead of the copy, by its newest file."""
        offsets = (self.folder / "checkpoint-first" / "offsets").glob("[0-9]*")
        newest = max(offsets, key=lambda path: int(path.name)).read_text()
        read = json.loads(newest.splitlines()[-1])[self.topic]
        return any(offset > ends[self.topic, int(partition)].begin for partition, offset in read.items())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_checkpoint_stays_good(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    with Job(tmp_path, a) as job:
        create_topics(a, {job.topic: {}, job.unmoved: {}}, PARTITIONS)
        job.write(a)
        assert len(job.run(a)) == job.written
        with Journey(a, b, tmp_path, [job.topic]) as journey:
            # planned, there and back: records are left to read
            for here, there in ((a, b), (b, a)):
                job.write(here)
                journey.promote()
                journey.failback()
                job.write(there)
                assert Counter(job.run(there)) == job.unmoved_values() == values(there, job.topic, PARTITIONS)

            # unplanned, and the job had read no more than what was copied: its checkpoint stays good there and back
            job.write(a)
            journey.wait()
            assert len(job.run(a)) == job.written
            journey.kill_engine()
            job.write(a)
            lost = journey.failover()
            gone = values_lost(a, job.topic, lost)
            assert gone.total() == PARTITIONS * 200
            assert not job.has_read_beyond(lost)
            job.write(b)
            assert Counter(job.run(b)) == job.unmoved_values() - gone == values(b, job.topic, PARTITIONS)
            journey.failback("--recreate")
            job.write(b)
            journey.promote()
            journey.failback()
            job.write(a)
            assert Counter(job.run(a)) == job.unmoved_values() - gone == values(a, job.topic, PARTITIONS)
            journey.wait()

            # unplanned, and the checkpoint is ahead of what is left: Spark says so instead of continuing
            journey.kill_engine()
            job.write(a)
            before = Counter(job.run(a))
            lost = journey.failover()
            gone_too = values_lost(a, job.topic, lost)
            assert gone_too.total() == PARTITIONS * 200
            assert job.has_read_beyond(lost)
            assert "Some data may have been lost" in job.run(b)["error"]

            # with a checkpoint that begins where the copy ends, all that was not lost is read once, there and back
            job.write(b)
            begin = {job.topic: {str(partition): loss.begin for (_, partition), loss in lost.items()}}
            after = Counter(job.run(b, checkpoint="second", starting=begin))
            assert before - gone_too + after == values(b, job.topic, PARTITIONS)
            journey.failback("--recreate")
            journey.promote()
            job.write(a)
            after = Counter(job.run(a, checkpoint="second"))
            unmoved = job.unmoved_values() - gone - gone_too
            assert before - gone_too + after == unmoved == values(a, job.topic, PARTITIONS)
