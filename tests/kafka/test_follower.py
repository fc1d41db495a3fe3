"""When a partition counts as read to its end: a broker that throttles us answers nothing, whatever there is to read."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower, PollResult
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now
from kmirror.engine.lane.reports.control import LaneControl
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.lane.reports.state_log import STATE_PARTITION, StateLog, append_to
from kmirror.engine.spec import LaneSpec
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.lane import Mirror
from tests.support.leader import create_topic
from tests.support.mirrors import produce
from tests.support.quotas import slowed
from tests.support.waiting import PATIENCE_S, polls, wait_until
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


@pytest.mark.slow
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
            state_log := StateLog(client_config({"bootstrap.servers": f"{wire.host}:{wire.port}"})),
            lambda: RowChanges({}, frozenset()),
            lambda _: None,
        )
        wire.freeze(("", 0))  # that is no client, but new connections are frozen too
        control.start()
        wait_until(lambda: wire.turns.connections == 2)
        threads = state_log.claims._thread, state_log.reports._thread
        control.stop(final_report=False)
        assert all(thread is not None and thread.is_alive() for thread in threads)
        wire.thaw()
        wait_until(lambda: not any(thread is not None and thread.is_alive() for thread in threads))
        wait_until(lambda: wire._sockets == {wire._listener})


@dataclass
class Reporter:
    """Report the same records every tenth of a second."""

    records: Sequence[tuple[bytes, bytes]]
    answers: list[bool] = field(default_factory=list)
    next_at: float = 0.0

    def due_at(self) -> float:
        return self.next_at

    def prepare(self) -> Sequence[tuple[bytes, bytes]]:
        self.next_at = now() + 0.1
        return self.records

    def stored(self, *, is_known: bool) -> None:
        self.answers.append(is_known)

    def broken(self, error: Exception) -> None:
        raise AssertionError from error


def test_a_record_that_is_refused_holds_up_its_own_report_only(
    mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique_topic("reports")

    def key(text: str) -> bytes:
        return f'["progress","{name}","{text}"]'.encode()

    too_large = (key("too large"), random.randbytes(2 << 20))
    held_up = Reporter([(key("page"), b"1"), too_large, (key("report"), b"2")])
    others = [Reporter([(key(f"of {number}"), b"3")]) for number in range(3)]
    log = StateLog(mirror.at_destination.config).reports
    leave = [log.add(one) for one in (others[0], held_up, *others[1:])]
    wait_until(lambda: held_up.answers and all(any(one.answers) for one in others))
    wait_until(lambda: all(one.answers.count(True) > 3 for one in others))
    for one in leave:
        one().wait(PATIENCE_S)
    assert not any(held_up.answers)
    assert len(held_up.answers) < len(others[0].answers), "it was tried again at once"
    assert all(all(one.answers) for one in others)
    with closing(PartitionFollower(mirror.at_destination, STATE_PARTITION, look_back=100)) as tail:
        stored = {record.key for record in tail.poll(0).records}
    assert {key(f"of {number}") for number in range(3)} <= stored
    assert not {key("too large"), key("report")} & stored, "a report must not refer to what is not stored"
    assert "too large" in caplog.text
    assert "MESSAGE_TOO_LARGE" in caplog.text
