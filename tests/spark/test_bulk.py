"""Forks, archives, counts and comparisons on a Spark cluster, by the same code as in threads; an executor dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess, client_config
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic, check_work_units
from kmirror.engine.bulk.runner import SparkTasks, Task, Threads
from kmirror.engine.compare.counting import RangeToCount, RecordCount, count_records
from kmirror.engine.compare.verification import (
    CompareWorkUnit,
    Extent,
    PartitionVerdict,
    PieceFinding,
    compare_work_unit,
    work_units,
)
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import ForkQuestion, find_forks
from kmirror.engine.histories.stretches import LogEnds
from kmirror.engine.lane.reports.state_log import append_to
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.work import Add, Meter, WorkView, unwatched
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds, is_saved, make_archive
from tests.support.clusters import ClusterPair
from tests.support.leader import create_topic
from tests.support.visible import shown

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.slow

PARTITIONS = 40
LENGTH = 100
BASE_TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRuntime]:
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr("kmirror.engine.spark.application._FIRST_TASK_SECONDS", 300.0)
        with SparkRuntime(SparkOptions(2, log_file, "test", "local-cluster[2,1,1024]")) as started:
            yield started


def write(cluster: SandboxCluster, topic: str, logs: dict[int, list[Record]], size: int = 1000) -> None:
    with ClusterClient(client_config(cluster.client_properties())) as client:
        for partition, log in logs.items():
            for start in range(0, len(log), size):
                # a broker takes batches that begin at 0
                some = [replace(one, offset=one.offset - start) for one in log[start : start + size]]
                append_to(client, TopicPartition(topic, partition), memoryview(make_batch(some)))


def test_forks_are_searched_and_what_follows_them_is_counted(cluster_pair: ClusterPair, spark: SparkRuntime) -> None:
    topic = create_topic(cluster_pair.source, partitions=PARTITIONS)
    create_topic(cluster_pair.destination, name=topic, partitions=PARTITIONS)
    records = [Record(offset, BASE_TIME, None, b"%d" % offset) for offset in range(LENGTH)]
    # the fork of partition n is at offset n
    other = {n: [replace(r, value=b"other") if r.offset >= n else r for r in records] for n in range(PARTITIONS)}
    write(cluster_pair.source, topic, dict.fromkeys(range(PARTITIONS), records))
    write(cluster_pair.destination, topic, other)
    topic_partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    questions = [
        ForkQuestion(topic_partition, topic_partition, LogEnds(0, LENGTH, 0, LENGTH))
        for topic_partition in topic_partitions
    ]
    pair = cluster_pair.source, cluster_pair.destination
    source, destination = (ClusterAccess(one.client_properties(), one.cluster_id) for one in pair)
    runner, views = SparkTasks(spark), list[WorkView]()
    with Meter(views.append, "forks", "partition", PARTITIONS) as meter:
        answers = list(find_forks(runner, "forks", questions, source, destination, meter))
    forks = {one.question.destination.partition: one.fork for one in answers}
    assert forks == {n: Fork(n, True, n - 1 if n else None) for n in range(PARTITIONS)}
    assert (views[-1].done, views[-1].total) == (PARTITIONS, PARTITIONS)
    wanted = [
        RangeToCount(topic_partition, topic_partition.partition, LENGTH, 70, 1000)
        for topic_partition in topic_partitions
    ]
    with Meter(unwatched, "") as meter:
        found = count_records(runner, destination, wanted, meter)
    assert found == {
        topic_partition: RecordCount(LENGTH - topic_partition.partition, 30) for topic_partition in topic_partitions
    }


def test_archives_are_written_and_compared_in_pieces(
    destination_cluster: SandboxCluster, spark: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.engine.bulk.ranges._SMALLEST_TASK_BYTES", 1500)
    topic = create_topic(destination_cluster, partitions=2, settings={"retention.ms": "-1"})
    write(destination_cluster, topic, {0: [Record(i, BASE_TIME + i, b"k", b"v" * 50) for i in range(400)]}, 30)
    archive = make_archive(destination_cluster, topic, 2)
    properties = destination_cluster.client_properties()
    wanted = PartitionRanges(0, ((10, 400),)), PartitionRanges(1, ())
    with ClusterClient(client_config(properties)) as client:
        spec = ArchiveSpec(properties, topic, archive, client.metadata([topic]).topics[topic].printed_topic_id, wanted)
        result = archive_topic(spec, SparkTasks(spark))
        assert is_saved(result), result
        assert [(one.partition, one.comparison and one.comparison.records) for one in result.outcomes] == [
            (0, 390),
            (1, 0),
        ]
        # pieces begin in the middle of batches
        assert sum(len(share.pieces) for share in check_work_units(client, spec, 2)) > 4
    for partition in range(2):
        assert_holds(
            destination_cluster, archive, shown(destination_cluster, topic, partition)[10:], partition=partition
        )
    # a record that is lacking in the middle is found, with the offset that it had
    other = make_archive(destination_cluster, topic, 2)
    lacking = replace(spec, archive=other, partitions=(PartitionRanges(0, ((10, 217), (218, 400))),))
    assert is_saved(archive_topic(lacking, Threads()))
    (outcome,) = archive_topic(replace(lacking, partitions=wanted[:1]), Threads()).outcomes
    assert outcome.comparison is not None
    assert outcome.comparison.first_difference is not None
    assert outcome.comparison.first_difference.offset == 217


def dies_once(order: tuple[Path, CompareWorkUnit], progress: Add) -> tuple[PieceFinding, ...]:
    """Compare a share; the first one that a worker is given kills its executor half-way."""
    died, share = order
    if not died.exists():
        died.touch()
        progress(1)
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
    return compare_work_unit(share, progress)


def test_an_executor_that_dies_is_made_good_and_a_difference_is_found_in_its_range(
    cluster_pair: ClusterPair, spark: SparkRuntime, tmp_path: Path
) -> None:
    topic = create_topic(cluster_pair.source)
    create_topic(cluster_pair.destination, name=topic)
    log = [Record(i, BASE_TIME + i, b"k%d" % i, b"v" * 100) for i in range(3000)]
    write(cluster_pair.source, topic, {0: log}, 70)
    wrong = [replace(one, value=b"x") if one.offset in (1777, 2999) else one for one in log]
    write(cluster_pair.destination, topic, {0: wrong}, 110)
    pair = cluster_pair.source, cluster_pair.destination
    source, destination = (ClusterAccess(one.client_properties(), one.cluster_id) for one in pair)
    work = work_units([Extent(topic, 0, topic, 0, 3000, 64 << 20)], 2, source, destination)
    assert len(work) == 8
    views: list[WorkView] = []
    verdict = PartitionVerdict()
    with Meter(views.append, "comparing", "offset", 3000) as meter:
        tasks = [Task((tmp_path / "died", share), share.offsets) for share in work]
        for findings in SparkTasks(spark).run("compare", dies_once, tasks, meter):
            for finding in findings:
                verdict.take(finding)
    assert (tmp_path / "died").exists()
    assert verdict.first_difference is not None
    assert (verdict.first_difference.offset, verdict.trouble) == (1777, None)
    assert verdict.offsets == 3000
    # what follows a difference in its own range was not compared
    assert views[-1].done == views[-1].total
    assert views[-1].done < 3000
