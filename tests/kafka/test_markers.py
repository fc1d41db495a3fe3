"""What brokers do with markers: the facts on which filling holes rests, on each version there is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kmirror.cluster.protocol import list_offsets, markers
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.markers import Fill
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.kafka_versions import EVERY_VERSION
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic, young
from tests.support.oracle import console_consumer, dump_log, librdkafka_records
from tests.support.shared_clusters import forgetful_cluster
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


@pytest.fixture(scope="module", params=EVERY_VERSION)
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that looks for expired producer ids all the time; how long they live is as everywhere, a day."""
    return forgetful_cluster(request, request.param)


class Marking(NamedTuple):
    """A partition's leader, and how to write markers there."""

    leader: Leader

    def request(
        self, *fills: Fill, coordinator_epoch: int = 0, version: int | None = None
    ) -> dict[tuple[str, int], int]:
        connection = self.leader.connection
        found = version or connection.version_for(markers.API)
        correlation_id = connection.next_correlation_id()
        data = markers.request(correlation_id, found, "kmirror", fills, coordinator_epoch)
        return markers.answer(connection.exchange_frame([data], correlation_id, 30), found)

    def mark(self, count: int = 1, *, epoch: int = 0, coordinator_epoch: int = 0, producer_id: int = OWN_ID) -> int:
        """Write so many markers; return the error code."""
        topic, partition = self.leader.partition
        fill = Fill(topic, partition, producer_id, epoch, count, coordinator_epoch)
        return self.request(fill)[topic, partition]


@pytest.fixture
def forgetting(quick_to_forget: SandboxCluster) -> Iterator[Marking]:
    """Return the leader of a new topic of one partition, where idle producers are forgotten at once."""
    with Leader(quick_to_forget, create_topic(quick_to_forget)) as leader:
        yield Marking(leader)


@pytest.fixture
def marking(cluster: SandboxCluster) -> Iterator[Marking]:
    """Return the leader of a new topic of one partition."""
    with Leader(cluster, create_topic(cluster)) as leader:
        yield Marking(leader)


# -- offsets that are never shown -------------------------------------------------------------------------------------


def test_markers_take_offsets_and_no_consumer_is_shown_them(cluster: SandboxCluster, marking: Marking) -> None:
    leader = marking.leader
    now = young()
    assert leader.append(batch_of(3, timestamp=now), 0) == (0, 0)
    assert marking.mark(5) == 0
    assert leader.append(batch_of(2, timestamp=now), 3) == (0, 8)
    assert marking.mark(1) == 0
    assert leader.log_end == 11
    topic = leader.partition.topic
    for isolation in ("read_committed", "read_uncommitted"):
        records = librdkafka_records(cluster.bootstrap_servers, topic, 0, isolation)
        assert [record.offset for record in records] == [0, 1, 2, 8, 9]
        assert console_consumer(cluster, topic, 0, isolation) == records
    dumped = [batch for batch in dump_log(cluster, topic) if batch.is_control]
    assert [(b.base_offset, b.count, b.size, b.producer_id) for b in dumped] == [
        (offset, 1, 78, OWN_ID) for offset in (3, 4, 5, 6, 7, 10)
    ]
    assert all(batch.is_valid for batch in dumped)


def test_one_request_fills_many_partitions(cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=20)
    with Leader(cluster, topic) as leader:
        fills = [Fill(topic, p, OWN_ID + p, 0, p + 1) for p in range(20)]
        # a partition that is not there comes first: behind all others it would keep the request from being answered
        codes = Marking(leader).request(Fill(topic, 99, OWN_ID, 0, 1), *fills, coordinator_epoch=3)
        assert codes.pop((topic, 99)) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == {(topic, p): 0 for p in range(20)}
        epochs = {TopicPartition(topic, p): leader.leader_epoch for p in range(20)}
        correlation_id = leader.connection.next_correlation_id()
        version = spoken_log_end_versions(leader)[-1]
        data = asked_for_log_ends(correlation_id, version, epochs)
        frame = leader.connection.exchange_frame([data], correlation_id, 30)
        found, _ = list_offsets.answer(frame, version)
        assert {p: end.offset for p, end in found.items()} == {TopicPartition(topic, p): p + 1 for p in range(20)}


def asked_for_log_ends(correlation_id: int, version: int, epochs: dict[TopicPartition, int]) -> bytes:
    wanted = {partition: (epoch, list_offsets.LATEST) for partition, epoch in epochs.items()}
    replica_id = list_offsets.DEBUGGING_REPLICA
    return list_offsets.request(correlation_id, version, "kmirror", wanted, replica_id=replica_id)


def spoken_log_end_versions(leader: Leader) -> range:
    lowest, highest = leader.connection.api_versions[list_offsets.API_KEY]
    return range(max(lowest, list_offsets.LOWEST_VERSION), min(highest, list_offsets.HIGHEST_VERSION) + 1)


def test_every_version_a_broker_offers_is_spoken(marking: Marking) -> None:
    lowest, highest = marking.leader.connection.api_versions[markers.API_KEY]
    topic = marking.leader.partition.topic
    spoken = range(max(lowest, markers.LOWEST_VERSION), min(highest, markers.HIGHEST_VERSION) + 1)
    assert spoken
    for version in spoken:
        assert marking.request(Fill(topic, 0, OWN_ID, 0, 2), version=version) == {(topic, 0): 0}
    assert marking.leader.log_end == 2 * len(spoken)


def test_a_log_end_is_returned_by_the_leader_of_this_epoch_only(marking: Marking) -> None:
    leader = marking.leader
    connection = leader.connection

    def ask(leader_epoch: int, version: int) -> tuple[int, int | None]:
        correlation_id = connection.next_correlation_id()
        data = asked_for_log_ends(correlation_id, version, {leader.partition: leader_epoch})
        found, _ = list_offsets.answer(connection.exchange_frame([data], correlation_id, 30), version)
        return found[leader.partition][:2]

    assert marking.mark(4) == 0
    for version in spoken_log_end_versions(leader):
        assert ask(leader.leader_epoch, version) == (0, 4)
        assert ask(leader.leader_epoch + 1, version) == (Code.UNKNOWN_LEADER_EPOCH, None)


# -- the guard's sequence ---------------------------------------------------------------------------------------------


def test_the_sequence_and_the_list_of_repeats_continue_across_markers(marking: Marking) -> None:
    leader = marking.leader
    now = young()
    assert leader.append(batch_of(3, timestamp=now), 50) == (0, 0)
    assert marking.mark(4, coordinator_epoch=1) == 0
    assert leader.append(batch_of(3, timestamp=now), 57)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(3, timestamp=now), 50) == (0, 0)  # a repeat
    assert leader.append(batch_of(2, timestamp=now), 53) == (0, 7)
    state = leader.producer()
    assert state is not None
    assert (state.last_sequence, state.producer_epoch, state.coordinator_epoch) == (54, 0, 1)


def test_where_nothing_was_known_the_sequence_begins_at_0_behind_a_marker(marking: Marking) -> None:
    leader = marking.leader
    assert marking.mark() == 0
    state = leader.producer()
    assert state is not None
    assert (state.last_sequence, state.coordinator_epoch) == (-1, 0)
    for wrong in (1, 7, 0x7FFFFFFF):
        assert leader.append(batch_of(timestamp=young()), wrong)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(timestamp=young()), 0) == (0, 1)


def test_where_our_memory_was_lost_the_sequence_begins_at_0_behind_a_marker(forgetting: Marking) -> None:
    leader = forgetting.leader
    assert leader.append(batch_of(5, timestamp=young() - 40 * DAY_MS), 70) == (0, 0)
    wait_until(lambda: leader.producer() is None)
    assert forgetting.mark() == 0
    assert leader.append(batch_of(timestamp=young()), 75)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(timestamp=young()), 0) == (0, 6)


def test_a_marker_keeps_the_memory_until_the_next_old_record(forgetting: Marking) -> None:
    leader = forgetting.leader
    old = young() - 40 * DAY_MS
    assert leader.append(batch_of(2, timestamp=old), 0) == (0, 0)
    assert forgetting.mark() == 0
    time.sleep(0.5)  # the broker looks for expired producers five times meanwhile
    state = leader.producer()
    assert state is not None
    assert leader.append(batch_of(2, timestamp=old), state.last_sequence + 1) == (0, 3)
    wait_until(lambda: leader.producer() is None)


# -- who is shut out --------------------------------------------------------------------------------------------------


def test_a_lower_coordinator_epoch_is_refused_and_an_equal_one_is_not(marking: Marking) -> None:
    assert marking.mark(coordinator_epoch=5) == 0
    assert marking.mark(3, coordinator_epoch=4) == Code.TRANSACTION_COORDINATOR_FENCED
    assert marking.leader.log_end == 1
    assert marking.mark(coordinator_epoch=5) == 0
    assert marking.mark(coordinator_epoch=6) == 0
    assert marking.mark(coordinator_epoch=5) == Code.TRANSACTION_COORDINATOR_FENCED
    assert marking.leader.log_end == 3


def test_a_lower_producer_epoch_is_refused_and_a_higher_one_shuts_out_data_too(marking: Marking) -> None:
    leader = marking.leader
    assert leader.append(batch_of(2, timestamp=young()), 0) == (0, 0)
    assert marking.mark(epoch=1) == 0
    assert marking.mark(epoch=0, coordinator_epoch=9) == Code.INVALID_PRODUCER_EPOCH
    assert leader.append(batch_of(timestamp=young()), 2)[0] == Code.INVALID_PRODUCER_EPOCH
    assert leader.append(batch_of(timestamp=young()), 2, epoch=1)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(timestamp=young()), 0, epoch=1) == (0, 3)


@pytest.mark.parametrize("known", [False, True], ids=["unknown producer", "known producer"])
@pytest.mark.parametrize("first", ["last", "rival"])
def test_of_two_rivals_only_one_is_ever_written(marking: Marking, first: str, known: bool) -> None:
    """(p, c + 1) and (p + 1, c): whichever comes first shuts out the other, and what is left of (p, c)."""
    if known:
        assert marking.leader.append(batch_of(timestamp=young()), 0) == (0, 0)
        assert marking.mark(coordinator_epoch=7) == 0
    start = marking.leader.log_end
    body, last, rival = (0, 7), (0, 8), (1, 7)
    one, other = (last, rival) if first == "last" else (rival, last)
    assert marking.mark(epoch=one[0], coordinator_epoch=one[1]) == 0
    for late in (other, body, other):
        code = marking.mark(epoch=late[0], coordinator_epoch=late[1])
        assert code in {Code.TRANSACTION_COORDINATOR_FENCED, Code.INVALID_PRODUCER_EPOCH}
    assert marking.leader.log_end == start + 1
    state = marking.leader.producer()
    assert state is not None
    assert (state.producer_epoch, state.coordinator_epoch) == one


@pytest.mark.slow
def test_who_is_shut_out_stays_shut_out_when_the_leader_is_killed(mortal: SandboxCluster) -> None:
    cluster = mortal
    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        assert leader.append(batch_of(2, timestamp=young()), 0) == (0, 0)
        assert Marking(leader).mark(3, epoch=1, coordinator_epoch=12) == 0
    cluster.kill(1)
    cluster.start_broker(1)
    with Leader(cluster, topic) as leader:
        marking = Marking(leader)
        assert leader.log_end == 5
        assert marking.mark(epoch=1, coordinator_epoch=11) == Code.TRANSACTION_COORDINATOR_FENCED
        assert marking.mark(epoch=0, coordinator_epoch=13) == Code.INVALID_PRODUCER_EPOCH
        assert marking.mark(epoch=1, coordinator_epoch=12) == 0
        assert leader.append(batch_of(timestamp=young()), 0, epoch=1) == (0, 6)
        assert [header.is_control for header in batch_headers(leader.fetch(2).records)][:4] == [True] * 4
