"""When a partition counts as read to its end: a broker that throttles us answers nothing, whatever there is to read."""

from __future__ import annotations

import random
import time
from contextlib import closing

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower, PollResult
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now
from kmirror.engine.lane.reports.control import STATE_PARTITION, LaneControl, append_to
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.spec import LaneSpec
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.lane import Mirror
from tests.support.leader import create_topic
from tests.support.mirrors import produce
from tests.support.quotas import slowed
from tests.support.waiting import polls, wait_until
from tests.support.wire import Wire

TTL_S = 10.0


def test_a_throttled_answer_is_not_the_end_of_a_partition(destination_cluster: SandboxCluster) -> None:
    topic, client_id = create_topic(destination_cluster), unique_topic("slow")
    values = [f"{number}-{'x' * 5000}" for number in range(9)]
    for value in values:
        produce(destination_cluster, topic, [value])
    config = client_config({**destination_cluster.client_properties(), "client.id": client_id})
    with ClusterClient(config) as client, closing(PartitionFollower(client, TopicPartition(topic, 0))) as follower:
        with slowed(destination_cluster, client_id, 3000):
            answers = [follower.poll(100)]
            assert not answers[0].records, "it was not throttled"
            assert not answers[0].reached_end
        while not answers[-1].reached_end:
            answers.append(follower.poll(100))
        # nothing has changed, and the position is still at the end
        assert follower.poll(10) == PollResult([], reached_end=True)
    read = [record.value for answer in answers for record in answer.records]
    assert read == [value.encode() for value in values]


def test_a_lane_that_is_throttled_stops_writing_when_another_engine_has_taken_over(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    client_id = unique_topic("slow")
    with closing(Mirror(source_cluster, destination_cluster)) as mirror:
        produce(source_cluster, mirror.topic(), ["one", "two"])
        properties = {**destination_cluster.client_properties(), "client.id": client_id}
        lane = mirror.start(destination_properties=properties, ttl_ms=int(TTL_S * 1000))
        mirror.wait_copied(lane)
        with slowed(destination_cluster, client_id, 50_000):
            # others write much at once; the claim comes after it
            for _ in range(12):
                batch = make_batch(
                    [Record(0, time.time_ns() // 1_000_000, b'["of others"]', random.randbytes(100_000))]
                )
                append_to(mirror.at_destination, STATE_PARTITION, memoryview(batch))
            mirror.claim(lease="another")
            claimed = now()
            latest = lane.control.deadline
            for _ in polls():
                latest = max(latest, lane.control.deadline)
                if lane.control.ended or now() - claimed > 8:
                    break
        assert lane.control.ended is None, "it was not throttled"
        mirror.wait(lane, lambda: lane.control.ended)
        assert mirror.result(lane).ended == "FENCED"
    assert latest <= claimed + TTL_S


def test_a_connection_that_is_opened_while_a_lane_ends_is_closed(destination_cluster: SandboxCluster) -> None:
    """Its threads are waited for, but not for as long as a handshake may take."""
    broker = destination_cluster.brokers[0]
    with closing(Wire(broker.host, broker.port)) as wire:
        control = LaneControl(
            LaneSpec("m", 3, 7, "ours", {}, {}, (), int(TTL_S * 1000), False, 1_000),
            0,
            client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"}),
            lambda: RowChanges({}, frozenset()),
            lambda _: None,
        )
        wire.freeze(("", 0))  # that is no client, but new connections are frozen too
        control.start()
        wait_until(lambda: wire.turns.connections == 2)
        control.stop(final_report=False)
        assert control._follower.is_alive()
        wire.thaw()
        wait_until(lambda: not control._follower.is_alive() and not control._reporter.is_alive())
        wait_until(lambda: wire._sockets == {wire._listener})
