"""The forks of many partitions are searched by a real Spark, in tasks of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import Question, fork_shares, search_share
from kmirror.engine.histories.stretches import Ends
from kmirror.engine.lane.control import append_to
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from tests.support.clusters import ClusterPair
from tests.support.leader import create_topic

PARTITIONS = 40
LENGTH = 100


def test_many_partitions_in_several_tasks(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    topic = create_topic(cluster_pair.source, partitions=PARTITIONS)
    create_topic(cluster_pair.destination, name=topic, partitions=PARTITIONS)
    records = [Record(offset, 1_700_000_000_000, None, b"%d" % offset) for offset in range(LENGTH)]
    questions = []
    for cluster in (cluster_pair.source, cluster_pair.destination):
        with ClusterClient(client_config(cluster.client_properties())) as client:
            for partition in range(PARTITIONS):
                # the fork of partition n is at offset n
                is_other = cluster is cluster_pair.destination
                own = [replace(r, value=b"other") if is_other and r.offset >= partition else r for r in records]
                place = TopicPartition(topic, partition)
                append_to(client, place, memoryview(make_batch(own)))
    for partition in range(PARTITIONS):
        place = TopicPartition(topic, partition)
        questions.append(Question(place, place, Ends(0, LENGTH, 0, LENGTH)))
    properties = [cluster.client_properties() for cluster in (cluster_pair.source, cluster_pair.destination)]
    shares = fork_shares(questions, 2, *properties)
    assert len(shares) == 2
    with SparkRuntime(SparkOptions(slots=2, log_file=tmp_path / "spark.log", app_name="test")) as spark:
        found = [one for searched in spark.map("forks", search_share, shares) for one in searched.found]
    forks = {one.question.destination.partition: one.fork for one in found}
    assert forks == {n: Fork(n, True, n - 1 if n else None) for n in range(PARTITIONS)}
