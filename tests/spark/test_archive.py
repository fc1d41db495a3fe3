"""Archives written and compared by Spark workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic, divided
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds, make_archive
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics
from tests.support.real_logs import write
from tests.support.visible import shown


@pytest.mark.long
def test_partitions_are_archived_by_several_workers(destination_cluster: SandboxCluster, tmp_path: Path) -> None:
    topic = unique_topic("saved")
    create_topics(destination_cluster, {topic: {"retention.ms": "-1"}}, partitions=5)
    for partition in range(4):
        write(destination_cluster, topic, 100 * (partition + 1), partition)
    archive = make_archive(destination_cluster, topic, 5)
    with ClusterClient(client_config(destination_cluster.client_properties())) as client:
        topic_id = client.metadata([topic]).topics[topic].printed_topic_id
    wanted = tuple(PartitionRanges(index, ((10, 100 * (index + 1)),) if index < 4 else ()) for index in range(5))
    spec = ArchiveSpec(destination_cluster.client_properties(), topic, archive, topic_id, wanted)
    options = SparkOptions(
        slots=2, log_file=tmp_path / "spark.log", app_name="archive", preload=("kmirror.engine.archive.archiving",)
    )
    with SparkRuntime(options) as runtime:
        results = list(runtime.map("archive", archive_topic, divided(spec, runtime.slots)))
    assert len(results) == 2
    assert all(result.saved for result in results)
    assert sorted(outcome.partition for result in results for outcome in result.outcomes) == [0, 1, 2, 3, 4]
    for partition in range(5):
        assert_holds(
            destination_cluster, archive, shown(destination_cluster, topic, partition)[10:], partition=partition
        )
