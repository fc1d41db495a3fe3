"""A leader is demoted while it waits for a replica: it answers that it does not lead, and its successor has the batch.

Once, the records were taken for those of another client, and archives failed with OFFSET_MISMATCH at such a moment.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox import cluster_spec
from tests.support.clusters import MakeCluster, freeze
from tests.support.leader import OWN_ID, create_topic, young
from tests.support.oracle import librdkafka_records, raw_log_bytes
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.waiting import wait_until

#: A frozen follower stays in sync for longer than the test takes.
_PATIENT = {"broker.session.timeout.ms": "60000", "replica.lag.time.max.ms": "120000"}
LEADER, NEXT, FROZEN = 1, 2, 3


def records(start: int, end: int) -> list[Record]:
    return [Record(offset, young(), b"k", b"%d" % offset) for offset in range(start, end)]


def elect_next(client: ClusterClient, topic: str) -> None:
    """Have the second replica of both partitions lead."""
    reassign, elect = AlterPartitionReassignmentsRequest, ElectLeadersRequest
    order = [
        reassign.ReassignableTopic.ReassignablePartition(partition_index=index, replicas=[NEXT, LEADER, FROZEN])
        for index in range(2)
    ]
    topics = [reassign.ReassignableTopic(name=topic, partitions=order)]
    assert not client.ask_any(reassign(timeout_ms=30_000, topics=topics)).error_code
    led = [elect.TopicPartitions(topic=topic, partitions=[0, 1])]
    client.ask_any(elect(election_type=0, topic_partitions=led, timeout_ms=30_000))


@pytest.mark.slow
def test_what_a_demoted_leader_had_appended_is_found_at_its_successor(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the one that is frozen must not be the active controller, which has the next leader elected
    monkeypatch.setattr(cluster_spec, "controller_count", lambda brokers: 1)
    three = make_cluster("three", brokers=3, heap=SMALL_HEAP, properties=_PATIENT)
    topic = create_topic(three, partitions=2, replicas=[[LEADER, NEXT, FROZEN]] * 2)
    config = client_config(three.client_properties())
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with ClusterClient(config) as client, ClusterClient(config) as its_own, ThreadPoolExecutor(1) as pool:

        def ends() -> set[int | None]:
            return {found.offset for found in client.list_offsets({one: LATEST, other: LATEST}, log_end=True).values()}

        def leaders() -> set[int | None]:
            return {found.leader_id for found in client.metadata([topic]).topics[topic].partitions.values()}

        def has_fetched() -> bool:
            """Return whether the next leader stores what the leader does."""
            return all(
                raw_log_bytes(three, topic, index, LEADER) == raw_log_bytes(three, topic, index, NEXT)
                for index in range(2)
            )

        with (
            OffsetAppender(its_own, one, producer_id=OWN_ID) as out,
            AppendPipeline(config, producer_id=OWN_ID) as pipeline,
        ):
            out.append(records(0, 2))
            pipeline.append(other, records(0, 2)).result(30)
            freeze(three, FROZEN)
            alone, piped = pool.submit(out.append, records(2, 4)), pipeline.append(other, records(2, 4))
            wait_until(lambda: ends() == {4})
            wait_until(has_fetched)
            elect_next(client, topic)
            wait_until(lambda: leaders() == {NEXT})
            assert ends() == {4}
            three.signal(FROZEN, signal.SIGCONT)
            assert (alone.result(60), piped.result(60)) == (4, 4)
            assert out.append(records(5, 6)) == 6
            assert pipeline.append(other, records(4, 6)).result(60) == 6
    for partition, offsets in ((0, [0, 1, 2, 3, 5]), (1, range(6))):
        seen = librdkafka_records(three.bootstrap_servers, topic, partition, "read_committed")
        assert [(record.offset, record.value) for record in seen] == [(o, b"%d" % o) for o in offsets]
