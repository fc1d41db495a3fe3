"""Brokers elect leaders that lack records, at the source and at the destination, and one cluster takes another's place.

The clusters of three brokers are as operators have them who prefer being available to keeping what was written: topics
on the brokers 1 and 2, the second of which lags behind when the first dies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.test_source_histories import archived, is_failed, said
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, unique_topic
from tests.support.engine import Engine
from tests.support.foreign import labelled
from tests.support.installed_logs import create_topics
from tests.support.leader import create_topic
from tests.support.mirrored import Mirrored, recover
from tests.support.real_logs import BUSY, delete_records, write
from tests.support.still_logs import FOREVER
from tests.support.topics import set_topic
from tests.support.visible import Bounds, assert_mirrored, bounds_of, shown
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

THREE = {"default.replication.factor": "3", "min.insync.replicas": "1", **QUICK_FAILOVER, **BUSY}
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "retention.ms": "-1"}
#: What becomes of a source topic: so many records are written to the leader that lacks 200.
CASES = {"longer": 500, "shorter": 50, "cut": 0}


@pytest.fixture(scope="module")
def three(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster of three brokers."""
    return make_module_cluster("three", brokers=3, properties=THREE)


@pytest.fixture(autouse=True)
def every_broker(three: SandboxCluster) -> None:
    """Have all of them run, whatever became of them before."""
    three.start()


@pytest.fixture(scope="module")
def single(make_module_cluster: MakeCluster) -> SandboxCluster:
    return make_module_cluster("single", properties=BUSY)


def leader_and_in_sync(cluster: SandboxCluster, topic: str, partition: int = 0) -> tuple[int, set[int]]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    found = admin.list_topics(timeout=30).topics[topic].partitions[partition]
    return found.leader, set(found.isrs)


@contextmanager
def unclean_election(cluster: SandboxCluster, topics: Sequence[str], partition: int = 0) -> Iterator[None]:
    """Broker 2 does not get what is written to these topics in the block, and leads them after it; 1 is dead then."""
    wait_until(lambda: all(leader_and_in_sync(cluster, topic, partition) == (1, {1, 2}) for topic in topics))
    cluster.stop_broker(2, grace_s=60)
    wait_until(lambda: all(leader_and_in_sync(cluster, topic, partition) == (1, {1}) for topic in topics))
    yield
    cluster.kill(1)
    cluster.start_broker(2)
    wait_until(lambda: all(leader_and_in_sync(cluster, topic, partition) == (2, {2}) for topic in topics), 60)


def failed_topics(mirror: Mirrored) -> set[str]:
    return {topic for (topic, _), row in mirror.rows().items() if is_failed(row)}


def wait_until_failed(mirror: Mirrored, engine: Engine, topics: set[str], seconds: float = 120) -> None:
    """Wait until these topics are FAILED, while the engine runs."""
    deadline = time.monotonic() + seconds
    while not failed_topics(mirror) >= topics:
        assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
        assert time.monotonic() < deadline, f"not within {seconds} s:\n{mirror.rows()}\n{engine.output[-4000:]}"
        time.sleep(0.1)


REWRITTEN = (
    "the history of {place} was rewritten: from offset 1000 on it differs from what was copied, 200 records up to "
    "offset 1199"
)
CUT = "the source ends at offset 1000, but 1200 had been copied from it: 200 records are no longer there"


def test_the_source_elects_a_leader_that_lacks_records(
    three: SandboxCluster, single: SandboxCluster, tmp_path: Path
) -> None:
    """One mirror's engine runs all the time; the others' do not, and one of those is to repair it by itself."""
    mirrors = {kind: Mirrored(three, single, tmp_path, {}, with_spark=True) for kind in ("running", "stopped", "auto")}
    topics = {(kind, case): unique_topic(f"{kind}-{case}") for kind in mirrors for case in CASES}
    same, alone = unique_topic("same"), unique_topic("alone")
    for topic in (*topics.values(), same):
        create_topic(three, name=topic, replicas=[[1, 2]], settings=UNCLEAN)
        write(three, topic, 1000)
    create_topic(three, name=alone, replicas=[[1]], settings=FOREVER)
    write(three, alone, 100)
    with mirrors["running"], mirrors["stopped"], mirrors["auto"]:
        for kind, mirror in mirrors.items():
            mirror.topics |= {topic: 1 for (of, _), topic in topics.items() if of == kind}
        mirrors["running"].topics |= {same: 1, alone: 1}
        mirrors["auto"].create("refresh.interval.seconds=1", "source.divergence.policy=auto")
        for kind in ("running", "stopped"):
            mirrors[kind].create("refresh.interval.seconds=1", "retry.timeout.ms=3000")
        engine = mirrors["running"].engine()
        with unclean_election(three, [*topics.values(), same]):
            for topic in topics.values():
                write(three, topic, labelled("lost", 200))
            mirrors["running"].wait_until_equal(engine)
            for kind in ("stopped", "auto"):
                mirrors[kind].copy()
        copied = {topic: shown(single, topic) for topic in topics.values()}
        for (_, case), topic in topics.items():
            write(three, topic, labelled("instead", CASES[case]))
        write(three, same, labelled("more", 100))

        def assert_told(kind: str) -> None:
            rows = mirrors[kind].rows()
            for case in CASES:
                topic = topics[kind, case]
                row, rewritten = rows[topic, 0], REWRITTEN.format(place=f"{topic}-0")
                # an engine that runs may look before anything is written to the new leader
                wanted = {CUT} if case == "cut" else {rewritten, CUT} if kind == "running" else {rewritten}
                assert row["reason"] == "SOURCE_DIVERGED", row
                assert said(row) in wanted
                assert (
                    f"kmirror recover --mirror {mirrors[kind].name} --topics {topic} --accept-divergence"
                    in (row["errorMessage"])
                )
                assert shown(single, topic) == copied[topic]

        def assert_repaired(kind: str) -> None:
            for case in CASES:
                topic = topics[kind, case]
                assert_mirrored(three, single, topic)
                assert archived(mirrors[kind], topic) == copied[topic][1000:]

        diverged = {topics["running", case] for case in CASES}
        wait_until_failed(mirrors["running"], engine, diverged)
        assert_told("running")
        # what did not part is copied; what has no leader is waited for, though the time for retries is over
        wait_until(lambda: mirrors["running"].rows()[same, 0]["destinationOffset"] == 1100, 60)
        row = mirrors["running"].rows()[alone, 0]
        assert (row["state"], row["reason"]) == ("MIRRORING", "SOURCE_UNREACHABLE"), row
        three.start_broker(1)
        write(three, alone, 10)
        mirrors["running"].wait_until_equal(engine, [alone])
        assert failed_topics(mirrors["running"]) == diverged
        recover(mirrors["running"], "--accept-divergence", "--yes")
        mirrors["running"].wait_until_equal(engine)
        assert_repaired("running")
        assert engine.stop() == 0
        # between the runs of an engine
        mirrors["stopped"].copy(exit_codes=(7,))
        assert_told("stopped")
        recover(mirrors["stopped"], "--accept-divergence", "--yes")
        mirrors["stopped"].copy()
        assert_repaired("stopped")
        # and without being asked
        mirrors["auto"].copy()
        assert_repaired("auto")
        assert {row["archive"] for row in mirrors["auto"].rows().values()} == {
            f"{topics['auto', case]}.kmirror-archive.1" for case in CASES
        }


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_the_destination_elects_a_leader_that_lacks_records(
    three: SandboxCluster, single: SandboxCluster, tmp_path: Path, is_running: bool
) -> None:
    """What is lost there is copied again, as long as the rest can be compared."""
    kept, gone = unique_topic("kept"), unique_topic("gone")
    create_topics(single, {kept: FOREVER, gone: FOREVER})
    for topic in (kept, gone):
        write(single, topic, 1000)
    with Mirrored(single, three, tmp_path, {kept: 1, gone: 1}, with_spark=True) as mirror:
        mirror.create("refresh.interval.seconds=1", "follow.log.start=false")
        for topic in (kept, gone):
            move(three, topic, [1, 2])
            set_topic(three, topic, UNCLEAN)
        engine = mirror.engine()
        mirror.wait_until_equal(engine)
        with unclean_election(three, [kept, gone]):
            for topic in (kept, gone):
                write(single, topic, labelled("more", 200))
            mirror.wait_until_equal(engine)
            delete_records(single, gone, 1200)
            if not is_running:
                assert engine.stop() == 0
        if not is_running:
            engine = mirror.engine()
        wait_until_failed(mirror, engine, {gone})
        wait_until(lambda: mirror.rows()[kept, 0]["destinationOffset"] == 1200, 60)
        row = mirror.rows()[gone, 0]
        assert (row["reason"], said(row)) == (
            "DESTINATION_TRUNCATED",
            "the destination lost offsets 1000 to 1199, and what remains cannot be compared with the source",
        )
        assert (row["destinationLogStart"], row["destinationOffset"]) == (0, 1000)
        again = f"{kept}-0 lost the offsets 1000 to 1199 at the destination"
        wait_until(lambda: again in engine.output)
        three.start_broker(1)
        wait_until(lambda: leader_and_in_sync(three, kept)[1] == {1, 2}, 60)
        assert_mirrored(single, three, kept)
        # what remains is kept, or archived, as it is asked for
        before = shown(three, gone)
        refused = recover(mirror, code=3)
        assert "--accept-loss" in refused["error"]["hint"]
        done = recover(mirror, "--accept-loss" if is_running else "--accept-divergence", "--yes")
        assert [one["result"] for one in done["results"]] == ["DONE"], done
        write(single, gone, labelled("later", 10))
        mirror.wait_until_equal(engine)
        later = shown(single, gone)
        assert len(later) == 10
        if is_running:
            assert shown(three, gone) == [*before, *later]
        else:
            assert_mirrored(single, three, gone)
            assert archived(mirror, gone) == before
        assert engine.stop() == 0


def move(cluster: SandboxCluster, topic: str, brokers: Sequence[int]) -> None:
    """Have the first partition of a topic on these brokers, led by the first."""
    request, elect = AlterPartitionReassignmentsRequest, ElectLeadersRequest
    with ClusterClient(client_config(cluster.client_properties())) as client:
        answer = client.ask_any(
            request(
                timeout_ms=30_000,
                topics=[
                    request.ReassignableTopic(
                        name=topic,
                        partitions=[
                            request.ReassignableTopic.ReassignablePartition(partition_index=0, replicas=list(brokers))
                        ],
                    )
                ],
            )
        )
        assert not answer.error_code, answer
        wait_until(lambda: leader_and_in_sync(cluster, topic)[1] == set(brokers), 60)
        client.ask_any(
            elect(
                election_type=0,
                topic_partitions=[elect.TopicPartitions(topic=topic, partitions=[0])],
                timeout_ms=30_000,
            )
        )
    wait_until(lambda: leader_and_in_sync(cluster, topic) == (brokers[0], set(brokers)), 60)


def test_another_cluster_answers_at_the_source(
    make_cluster: MakeCluster, single: SandboxCluster, tmp_path: Path
) -> None:
    """It has a topic of the same name, larger and with more partitions."""
    first = make_cluster("first", properties=BUSY)
    topic = unique_topic("moved")
    create_topics(first, {topic: FOREVER})
    write(first, topic, 1000)
    ports = [node.port for node in first.spec.nodes] + [node.controller_port or 0 for node in first.spec.nodes]
    with Mirrored(first, single, tmp_path, {topic: 1}, with_spark=True) as mirror:
        mirror.create("refresh.interval.seconds=1", "retry.timeout.ms=3000")
        engine = mirror.engine()
        mirror.wait_until_equal(engine)
        first.stop(grace_s=60)
        second = make_cluster("second", properties=BUSY, ports=ports)
        create_topics(second, {topic: FOREVER}, 3)
        write(second, topic, labelled("other", 1500))
        both = f"{second.cluster_id}", f"{first.cluster_id}"

        def is_told() -> bool:
            row = mirror.rows()[topic, 0]
            message = row["errorMessage"] or ""
            return row["reason"] == "SOURCE_CLUSTER_CHANGED" and all(name in message for name in both)

        wait_until(is_told, 60)
        row = mirror.rows()[topic, 0]
        assert row["topicState"] == "LINK_FAILED", row
        # long after its time for retries nothing is copied, nothing is FAILED, and no partition was added
        write(second, topic, 10, partition=2)
        wait_until(lambda: mirror.rows()[topic, 0]["engineLastSeenMs"] > row["engineLastSeenMs"] + 10_000, 60)
        assert mirror.rows()[topic, 0]["state"] == "MIRRORING"
        assert bounds_of(single, topic) == Bounds(0, 1000)
        admin = AdminClient({"bootstrap.servers": single.bootstrap_servers})
        assert list(admin.list_topics(timeout=30).topics[topic].partitions) == [0]
        assert engine.stop() == 0
        refused = mirror.copy(exit_codes=(3,))
        assert all(name in refused.output for name in both)
        # the right one is back
        engine = mirror.engine()
        second.stop(grace_s=60)
        first.start()
        write(first, topic, 50)
        mirror.wait_until_equal(engine)
        assert engine.stop() == 0
        mirror.compare()
