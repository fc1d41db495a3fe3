"""A destination's follower lags behind: what its leader alone has can be lost with it, and is not shown as copied.

Once, `describe` showed such a log end, with a lag of 0: the next leader had less, and consumers saw less all along. And
once, a fence that the next leader wrote below such an end was not found: its own marker counted as copied.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.batch import set_producer
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import Append
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import ClusterAccess, client_config
from kmirror.cluster.writing import fence as fencing
from kmirror.cluster.writing.fence import FenceResult, Writer, fence, replicated_ends
from kmirror.engine.clock import now_ms
from kmirror.engine.compare.difference import PartitionComparison
from kmirror.engine.compare.verification import CompareWorkUnit, Piece, compare_work_unit
from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.groups.group_facts import log_bounds
from kmirror.ops.show.describe import describe
from kmirror.state.internal_topics import STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, freeze, unique_topic
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.waiting import PATIENCE_S, wait_until

#: A frozen follower stays in sync, as far as the leader knows, for longer than the test takes to ask; and its fetches
#: wait so long at the leader that there is one as it freezes.
_PATIENT = {
    "broker.session.timeout.ms": "60000",
    "replica.lag.time.max.ms": "120000",
    "replica.fetch.wait.max.ms": "4000",
}
LEADER, FOLLOWER, OTHER = 1, 2, 3


@pytest.mark.slow
def test_what_only_the_leader_has_is_not_copied_yet(source_cluster: SandboxCluster, make_cluster: MakeCluster) -> None:
    three = make_cluster("three", brokers=3, heap=SMALL_HEAP, properties=_PATIENT)
    topic = unique_topic()
    place = TopicPartition(topic, 0)
    make_topic(source_cluster, topic, retention_ms="-1")
    produce(source_cluster, topic, ["1", "2", "3"])
    create_topic(three, name=topic, replicas=[[LEADER, FOLLOWER]])
    create_topic(three, name=STATE_TOPIC, replicas=[[OTHER]], settings=STATE_TOPIC_SETTINGS)
    producer = Producer({"bootstrap.servers": three.bootstrap_servers, "acks": "1", "log_level": 0})

    def append(value: str) -> None:
        producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    with Destination.open(properties_of(three)) as destination:
        client = destination.client

        def ends() -> tuple[int | None, int | None]:
            """Return the leader's log end, and where its log ends for consumers."""
            found = (client.list_offsets({place: LATEST}, log_end=one)[place].offset for one in (True, False))
            return next(found), next(found)

        def shown() -> tuple[int | None, int | None]:
            (row,) = describe(destination, mirror)
            return row.destination_offset, row.lag

        mirror = new_mirror(destination, source_cluster)
        assert add(destination, mirror, selector(topic), adopt=True).exit_code == ExitCode.OK
        append("1")
        wait_until(lambda: ends() == (1, 1))
        freeze(three, FOLLOWER)
        append("2")  # an answer to the fetch that the follower had sent before: it finds it later
        append("3")
        assert ends() == (3, 1)
        assert shown() == (1, 2)
        assert log_bounds(client, [place]) == {place: (0, 1)}
        with ClusterClient(destination.config) as other, ThreadPoolExecutor(1) as pool:
            stopped = pool.submit(replicated_ends, other, [place])
            assert shown() == (1, 2)
            assert not stopped.done()
            three.signal(FOLLOWER, signal.SIGCONT)
            assert stopped.result() == {place: FenceResult(0, 3)}
        assert shown() == (3, 0)

        freeze(three, FOLLOWER)
        append("4")
        time.sleep(1)  # the leader answers the follower's fetch before it has more
        append("5")
        assert shown() == (3, 0)
        three.stop_broker(LEADER)
        three.signal(FOLLOWER, signal.SIGCONT)
        wait_until(lambda: ends() == (4, 4), 2 * PATIENCE_S)
        wait_until(lambda: shown() == (4, 0))


@pytest.mark.slow
def test_a_source_that_does_not_show_what_its_leader_has_is_not_called_different(
    destination_cluster: SandboxCluster, make_cluster: MakeCluster
) -> None:
    """As after an election: what the last leader showed was copied, and the next one does not show it yet."""
    three = make_cluster("three", brokers=3, heap=SMALL_HEAP, properties=_PATIENT)
    topic = create_topic(three, replicas=[[LEADER, FOLLOWER]])
    make_topic(destination_cluster, topic)
    source, destination = (ClusterAccess(properties_of(one), one.cluster_id) for one in (three, destination_cluster))
    place, now = TopicPartition(topic, 0), now_ms()
    unit = CompareWorkUnit(source, destination, (Piece(topic, 0, topic, 0, 3),))

    def append(cluster: SandboxCluster, *values: str) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "1", "log_level": 0})
        for value in values:
            producer.produce(topic, value, partition=0, timestamp=now)
        assert producer.flush(30) == 0

    def compared() -> PartitionComparison:
        (finding,) = compare_work_unit(unit)
        assert finding.comparison is not None
        return finding.comparison

    append(destination_cluster, "1", "2", "3")
    append(three, "1")
    with ClusterClient(client_config(properties_of(three))) as client:
        wait_until(lambda: client.list_offsets({place: LATEST})[place].offset == 1)
    freeze(three, FOLLOWER)
    append(three, "2", "3")
    found = compared()
    assert found.first_difference is None
    assert str(found.obstacle).startswith("the source shows consumers nothing from offset ")
    three.signal(FOLLOWER, signal.SIGCONT)
    wait_until(lambda: compared().equal)


@pytest.mark.slow
def test_a_fence_is_found_where_the_next_leaders_log_ends_before_the_last_ones(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = make_cluster("three", brokers=3, heap=SMALL_HEAP, properties=_PATIENT)
    topic = create_topic(three, replicas=[[LEADER, FOLLOWER]])
    place = TopicPartition(topic, 0)
    with Leader(three, topic) as leader, ClusterClient(leader.client.config) as client:

        def append(sequence: int, count: int) -> None:
            """Append what the leader acknowledges without its follower."""
            batch = batch_of(count)
            set_producer(memoryview(batch), OWN_ID, 0, sequence)
            (answer,) = leader.as_is(Append(topic, leader.topic_id, 0, batch), acks=1)
            assert (answer.error_code, answer.base_offset) == (0, sequence)

        append(0, 5)
        wait_until(lambda: client.list_offsets({place: LATEST})[place].offset == 5)
        freeze(three, FOLLOWER)
        append(5, 1)  # an answer to the fetch that the follower had sent before: it finds it later
        time.sleep(1)  # the leader answers that fetch before it has more (`replica.fetch.wait.max.ms` is 500)
        append(6, 10)
        before = leader.log_end
        send = fencing._send_markers

        def send_when_the_leader_is_gone(*arguments: Any) -> Any:
            monkeypatch.undo()
            three.stop_broker(LEADER)
            three.signal(FOLLOWER, signal.SIGCONT)
            return send(*arguments)

        monkeypatch.setattr(fencing, "_send_markers", send_when_the_leader_is_gone)
        fenced = {place: FenceResult(0, 6, is_fenced=True)}
        assert fence(client, {place: Writer(OWN_ID, 0, known_end=5)}) == fenced
        assert before == 16
        # a killed command is repeated: what was reported of the log may be more than it has, or less
        produce(three, topic, ["local"] * 30)
        for known_end in (0, 3, 7, before, 40):
            assert fence(client, {place: Writer(OWN_ID, 0, known_end)}) == fenced, known_end


@pytest.mark.slow
def test_fences_that_are_not_shown_are_waited_for_together(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, each partition was waited for on its own, three times: hours for some hundreds of them."""
    three = make_cluster("three", brokers=3, heap=SMALL_HEAP, properties=_PATIENT)
    topic = create_topic(three, partitions=4, replicas=[[LEADER, FOLLOWER]] * 4)
    places = [TopicPartition(topic, partition) for partition in range(4)]
    by_marker, by_record = places[:2], places[2:]
    producer = Producer({"bootstrap.servers": three.bootstrap_servers, "acks": "1", "log_level": 0})
    waits: list[tuple[TopicPartition, bool]] = []

    class WaitingReader(PartitionReader):
        """A reader that writes down whether it may ask again."""

        def __init__(self, client: ClusterClient, partition: TopicPartition, *, patience_s: float) -> None:
            waits.append((partition, patience_s > 0))
            super().__init__(client, partition, patience_s=patience_s)

    with ClusterClient(client_config(three.client_properties())) as client:
        writers = {place: Writer(OWN_ID, 0) for place in places}
        freeze(three, FOLLOWER)
        for place in places * 2:  # the first is an answer to the fetch that the follower had sent before
            producer.produce(topic, "only the leader has it", partition=place.partition)
            assert producer.flush(30) == 0
        monkeypatch.setattr(fencing, "PartitionReader", WaitingReader)
        monkeypatch.setattr(fencing, "_ANSWER_S", 2.0)
        monkeypatch.setattr(fencing, "_REPLICATED_S", 2.0)
        # they are written, and no answer comes
        fence(client, {place: writers[place] for place in by_marker})
        fence(client, {place: writers[place] for place in by_record}, with_record=True)
        waits.clear()
        found = fence(client, writers)
        assert {one.error_code for one in found.values()} == {Code.REQUEST_TIMED_OUT}
        assert all("readers see it only up to" in client.unanswered[place] for place in places)
        assert sorted(place for place, _ in waits) == places
        assert (waits[0][1], waits[-1][1]) == (True, False)
        three.signal(FOLLOWER, signal.SIGCONT)
        monkeypatch.undo()
        assert fence(client, writers) == {place: FenceResult(0, 2, is_fenced=True) for place in places}
