"""What real brokers make of logs that were cut while they were stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import UnreachableError
from kmirror.offline.log_dir import locked, open_log_dirs
from kmirror.offline.survey import PlannedCut
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic
from tests.support.log_dirs import contents, locked_by_another
from tests.support.oracle import (
    DumpedBatch,
    ReadRecord,
    console_consumer,
    dump_log,
    librdkafka_records,
    raw_log_bytes,
    segment_files,
)
from tests.support.producers import whole_batches
from tests.support.visible import bounds_of, replica_difference
from tests.support.waiting import wait_until

#: A new segment begins whenever the records are a minute younger than its first.
SHORT_SEGMENTS = {"segment.ms": "1000"}
MINUTE_MS = 60_000
LEVELS = ("read_uncommitted", "read_committed")


def plan_for(cluster: SandboxCluster, topic: str, cut_offset: int, partition: int = 0) -> TruncationPlan:
    """Return the plan of one cut."""
    with ClusterClient(client_config(cluster.client_properties())) as client:
        topic_id = client.metadata([topic]).topics[topic].printed_topic_id
    assert topic_id is not None
    return TruncationPlan(cluster.cluster_id, "m", 1, (PlannedCut(topic, topic_id, partition, cut_offset),))


def truncate(plan: Path, log_dir: Path, *flags: str) -> int:
    """Run the command, as someone would type it."""
    return main(["truncate-logs", "--plan", str(plan), "--log-dir", str(log_dir), "--yes", *flags])


def is_unlocked(log_dir: Path) -> bool:
    """Return whether no process holds a log directory's lock."""
    with locked_by_another(log_dir) as answer:
        return answer == "locked"


def own_batch(start_ms: int) -> bytearray:
    """Return a batch of ten records for the producer whose memory is looked at."""
    return batch_of(10, timestamp=start_ms, value=b"own")


def write_history(cluster: SandboxCluster, topic: str, rounds: int) -> None:
    """Write rounds of our own producer's batches, a committed and an aborted transaction; a segment each.

    The records are of times to come: transaction markers, which have the present one, begin no segment.
    """
    begin = int(time.time() * 1000) + MINUTE_MS
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic}
    producer = whole_batches(topic, settings)
    producer.init_transactions(30)
    with Leader(cluster, topic) as leader:
        for number in range(rounds):
            start = begin + number * MINUTE_MS
            for one in range(2):
                assert leader.append(own_batch(start), (number * 2 + one) * 10)[0] == 0
            for commit in (True, False):
                producer.begin_transaction()
                for record in range(5):
                    value = b"%s %d %d" % (b"kept" if commit else b"dropped", number, record)
                    producer.produce(topic, value, b"k", partition=0, timestamp=start)
                assert producer.flush(30) == 0
                end = leader.log_end
                (producer.commit_transaction if commit else producer.abort_transaction)(30)
                wait_until(lambda end=end: leader.log_end == end + 1)  # type: ignore[misc]  # its marker comes later


def seen(cluster: SandboxCluster, topic: str, end: int) -> dict[str, list[ReadRecord]]:
    """Return what consumers of both kinds see before an offset."""
    return {
        level: [one for one in librdkafka_records(cluster.bootstrap_servers, topic, 0, level) if one.offset < end]
        for level in LEVELS
    }


def own_batches(batches: Sequence[DumpedBatch], end: int) -> list[DumpedBatch]:
    """Return our own producer's batches before an offset."""
    return [one for one in batches if one.producer_id == OWN_ID and one.last_offset < end]


def cut_and_look(cluster: SandboxCluster, tmp_path: Path) -> None:
    """Cut a log with transactions in its fourth segment, and prove that the broker continues from there."""
    topic = create_topic(cluster, settings=SHORT_SEGMENTS)
    bystander = create_topic(cluster, settings=SHORT_SEGMENTS)
    write_history(cluster, topic, 6)
    write_history(cluster, bystander, 2)
    batches = dump_log(cluster, topic)
    assert len({one.segment for one in batches}) == 6
    # behind the fourth round's second batch of ours: in the midst of a segment with transactions on both sides
    cut_offset = [one for one in batches if one.producer_id == OWN_ID][7].last_offset + 1
    kept = [one for one in batches if one.last_offset < cut_offset]
    assert {one.is_control for one in kept} == {True, False}
    assert kept[-1].segment == next(one for one in batches if one.base_offset == cut_offset).segment
    before = seen(cluster, topic, cut_offset)
    assert len(before["read_uncommitted"]) > len(before["read_committed"])
    bytes_before, others_before = raw_log_bytes(cluster, topic), raw_log_bytes(cluster, bystander)
    plan = tmp_path / "plan.json"
    write_plan(plan_for(cluster, topic, cut_offset), plan)
    (log_dir,) = {broker.log_dir for broker in cluster.brokers}

    assert truncate(plan, log_dir) == 3, "the broker still runs"
    cluster.stop()
    with open_log_dirs([log_dir]) as dirs, locked(dirs), pytest.raises(UnreachableError):
        cluster.start()
    assert truncate(plan, log_dir, "--dry-run") == 0
    stored = contents(log_dir)
    assert truncate(plan, log_dir) == 0
    assert contents(log_dir) != stored
    assert truncate(plan, log_dir, "--undo") == 0
    assert contents(log_dir) == stored
    assert truncate(plan, log_dir) == 0
    cluster.start()

    assert bounds_of(cluster, topic).end == cut_offset
    assert plan_for(cluster, topic, cut_offset).digest == json_digest(plan)
    size = sum(one.size for one in kept)
    assert raw_log_bytes(cluster, topic) == bytes_before[:size]
    assert raw_log_bytes(cluster, bystander) == others_before
    assert seen(cluster, topic, cut_offset) == before
    assert (
        console_consumer(cluster, topic, isolation="read_committed", max_messages=len(before["read_committed"]))
        == (before["read_committed"])
    )
    with Leader(cluster, topic) as leader:
        producer = leader.producer()
        assert producer is not None
        sequence = own_batches(batches, cut_offset)[-1].last_sequence
        assert producer.last_sequence == sequence == 79
        assert leader.append(own_batch(int(time.time() * 1000)), 100)[0] == 45, "what was cut is not remembered"
        assert leader.append(own_batch(int(time.time() * 1000)), 80) == (0, cut_offset)
        assert leader.append(own_batch(int(time.time() * 1000)), 80) == (0, cut_offset), "and it is known as a repeat"
        assert leader.append(own_batch(int(time.time() * 1000)), 90) == (0, cut_offset + 10)
    assert bounds_of(cluster, topic).end == cut_offset + 20
    after = dump_log(cluster, topic)
    assert all(one.is_valid for one in after)
    assert [one.base_offset for one in after][: len(kept)] == [one.base_offset for one in kept]
    epochs = [one.partition_leader_epoch for one in after]
    assert epochs == sorted(epochs)

    cluster.stop()
    stored = contents(log_dir)
    assert truncate(plan, log_dir, "--undo") == 3, "the broker was started since"
    assert contents(log_dir) == stored
    cluster.start()
    assert bounds_of(cluster, topic).end == cut_offset + 20


def json_digest(plan: Path) -> str:
    """Return the digest of a plan's file: cluster, topic ids and offsets."""
    document = json.loads(plan.read_text())
    (one,) = document["partitions"]
    cut = PlannedCut(one["topic"], one["topicId"], one["partition"], one["cutOffset"])
    return TruncationPlan(document["clusterId"], "m", 1, (cut,)).digest


@pytest.mark.slow
def test_a_broker_continues_from_the_cut(mortal_cluster: SandboxCluster, tmp_path: Path) -> None:
    cut_and_look(mortal_cluster, tmp_path)


@pytest.mark.long
def test_a_broker_of_version_3_continues_from_the_cut(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cut_and_look(make_cluster("cut3", kafka_version="3.9.2"), tmp_path)


@pytest.mark.long
def test_a_broker_that_was_killed_and_cuts_at_the_ends(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Cut between two segments, at the log's very beginning, and a log whose end is not the broker's own."""
    cluster = make_cluster("killed")
    topics = [create_topic(cluster, settings=SHORT_SEGMENTS) for _ in range(3)]
    for topic in topics:
        write_history(cluster, topic, 3)
    between, emptied, torn = topics
    in_the_second = [one for one in dump_log(cluster, torn) if one.producer_id == OWN_ID][2]
    ends = {between: int(segment_files(cluster, between)[-1].stem), emptied: 0, torn: in_the_second.last_offset + 1}
    kept = {topic: seen(cluster, topic, end) for topic, end in ends.items()}
    plans = [plan_for(cluster, topic, end) for topic, end in ends.items()]
    plan = tmp_path / "plan.json"
    write_plan(TruncationPlan(cluster.cluster_id, "m", 1, tuple(p.partitions[0] for p in plans)), plan)
    (broker,) = cluster.brokers
    cluster.kill(broker.node_id)
    with segment_files(cluster, torn)[-1].open("ab") as file:
        file.write(b"half a batch")
    wait_until(lambda: is_unlocked(broker.log_dir))  # by its last threads
    assert truncate(plan, broker.log_dir) == 0
    cluster.start()
    for topic, end in ends.items():
        assert bounds_of(cluster, topic).end == end
        assert seen(cluster, topic, end) == kept[topic]
        with Leader(cluster, topic) as leader:
            known = leader.producer()
            batches = own_batches(dump_log(cluster, topic), end) if end else []
            assert (known.last_sequence if known else None) == (batches[-1].last_sequence if batches else None)
            sequence = batches[-1].last_sequence + 1 if batches else 0
            assert leader.append(own_batch(int(time.time() * 1000)), sequence) == (0, end)


@pytest.mark.long
def test_a_transaction_that_would_lose_its_end_is_removed_whole(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster("open")
    topic = create_topic(cluster)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic}
    producer = whole_batches(topic, settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    now = int(time.time() * 1000)
    with Leader(cluster, topic) as leader:
        assert leader.append(own_batch(now), 0) == (0, 0)
        producer.produce(topic, b"in a transaction", partition=0)
        assert producer.flush(30) == 0
        assert leader.append(own_batch(now), 10) == (0, 11)
        producer.commit_transaction(30)
        wait_until(lambda: bounds_of(cluster, topic, isolation="read_committed").end == 22)
        assert leader.append(own_batch(now), 20) == (0, 22)
    plan = tmp_path / "plan.json"
    write_plan(plan_for(cluster, topic, 21), plan)
    cluster.stop()
    assert truncate(plan, cluster.brokers[0].log_dir) == 0
    cluster.start()
    assert bounds_of(cluster, topic).end == bounds_of(cluster, topic, isolation="read_committed").end == 10
    with Leader(cluster, topic) as leader:
        assert leader.append(own_batch(now), 10) == (0, 10)
    assert bounds_of(cluster, topic, isolation="read_committed").end == 20


@pytest.mark.long
def test_every_replica_is_cut(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster("replicas", brokers=3)
    topic = create_topic(cluster, replicas=[[1, 2, 3]], name=unique_topic(), settings=SHORT_SEGMENTS)
    write_history(cluster, topic, 2)
    cluster.stop_broker(1)
    wait_until(lambda: _leader_and_in_sync(cluster, topic) in {(2, (2, 3)), (3, (2, 3))})
    with Leader(cluster, topic) as leader:  # an epoch of its own
        assert leader.append(own_batch(int(time.time() * 1000) - MINUTE_MS), 40)[0] == 0
        assert leader.append(own_batch(int(time.time() * 1000) - MINUTE_MS), 50)[0] == 0
    cluster.start_broker(1)
    wait_until(lambda: _leader_and_in_sync(cluster, topic)[1] == (1, 2, 3), 60)
    end = bounds_of(cluster, topic).end
    cut_offset = end - 10
    kept = seen(cluster, topic, cut_offset)
    plan = tmp_path / "plan.json"
    write_plan(plan_for(cluster, topic, cut_offset), plan)
    cluster.stop()
    for broker in cluster.brokers:
        assert truncate(plan, broker.log_dir) == 0
        assert truncate(plan, broker.log_dir) == 0
    cluster.start()
    wait_until(lambda: _leader_and_in_sync(cluster, topic)[1] == (1, 2, 3), 60)
    assert bounds_of(cluster, topic).end == cut_offset
    assert seen(cluster, topic, cut_offset) == kept
    with Leader(cluster, topic) as leader:
        assert leader.append(own_batch(int(time.time() * 1000)), 50) == (0, cut_offset)
    assert bounds_of(cluster, topic).end == cut_offset + 10
    wait_until(lambda: len({raw_log_bytes(cluster, topic, 0, node) for node in (1, 2, 3)}) == 1)
    cluster.stop()
    assert replica_difference(cluster, topic) is None


def _leader_and_in_sync(cluster: SandboxCluster, topic: str) -> tuple[int | None, tuple[int, ...]]:
    with ClusterClient(client_config(cluster.client_properties())) as client:
        found = client.metadata([topic]).topics[topic].partitions[0]
    return found.leader_id, tuple(sorted(found.in_sync_replicas))
