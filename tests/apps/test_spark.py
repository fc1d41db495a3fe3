"""A Spark Structured Streaming job keeps its checkpoint while its topic moves and comes back."""

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

from kmirror.sandbox.cluster import SandboxCluster
from kmirror.sandbox.jars import artifact_jars
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.journeys import Journey, send, values, values_lost

PARTITIONS = 2
#: The newest that is published; it runs on later Sparks, too. What else comes with it, Spark has.
CONNECTOR = "4.2.0"
OF_CONNECTOR = ("commons-pool2-", "kafka-clients-", "spark-sql-kafka-", "spark-token-provider-")


class Job:
    """The job (tests/apps/spark_stream.py), and records for it; one Spark for the `with` block."""

    def __init__(self, folder: Path) -> None:
        self.topic, self.folder = unique_topic("events"), folder
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
        self._process.communicate(timeout=60)

    def run(
        self, cluster: SandboxCluster, *, checkpoint: str = "first", starting: Mapping[str, Any] | None = None
    ) -> Any:
        """Run it to the end of the topic; return the values in its files, or its error."""
        order = {
            "bootstrap": cluster.bootstrap_servers,
            "topic": self.topic,
            "checkpoint": str(self.folder / f"checkpoint-{checkpoint}"),
            "files": str(self.folder / f"files-{checkpoint}"),
            "starting": json.dumps(starting) if starting else "earliest",
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def write(self, cluster: SandboxCluster, records: int = 200) -> None:
        """Write records, each with a number of its own."""
        for partition in range(PARTITIONS):
            send(cluster, self.topic, [str(self.written + number) for number in range(records)], partition)
            self.written += records


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_checkpoint_stays_good(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    with Job(tmp_path) as job:
        create_topics(a, {job.topic: {}}, PARTITIONS)
        job.write(a)
        with Journey(a, b, tmp_path, [job.topic]) as journey:
            assert len(job.run(a)) == job.written
            journey.promote()
            job.write(b)
            assert Counter(job.run(b)) == values(b, job.topic, PARTITIONS)
            journey.failback()
            journey.wait()

            # unplanned: the checkpoint is ahead of what is left of the topic, and Spark says so instead of going on
            journey.kill_engine()
            job.write(b)
            before = Counter(job.run(b))
            lost = journey.failover()
            told = values_lost(b, job.topic, lost)
            assert told.total() == PARTITIONS * 200
            assert "Some data may have been lost" in job.run(a)["error"]

        # with a checkpoint that begins where the copy ends, all that was not lost is read once
        job.write(a)
        begin = {job.topic: {str(partition): loss.begin for (_, partition), loss in lost.items()}}
        after = Counter(job.run(a, checkpoint="second", starting=begin))
        assert before - told + after == values(a, job.topic, PARTITIONS)
