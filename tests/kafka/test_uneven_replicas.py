"""A compacted source whose replicas were not compacted alike, as each broker's cleaner works by itself.

Once, a copy that ended in a hole of the leader was FAILED with SOURCE_DIVERGED when its successor showed records there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import ForkQuestion, search_forks
from kmirror.engine.histories.stretches import LogEnds
from kmirror.engine.lane import leader_checks
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition import retry
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.inspected import produce
from tests.support.lane import Mirror, copy_of, states
from tests.support.leader import Leader, batch_of, create_topic
from tests.support.oracle import librdkafka_records
from tests.support.shared_clusters import set_brokers
from tests.support.waiting import wait_until

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "true",
}
#: Records of keys of their own, the first offset of those of one key, and where the copy ends among these.
SINGLE, SAME, COPIED = 5, 5, 15


@pytest.fixture
def uneven(three_brokers: SandboxCluster) -> Iterator[SandboxCluster]:
    """Return a cluster in which only the first broker's cleaner works."""
    cleaners = "log.cleaner.backoff.ms"
    for node_id, pause in ((1, "100"), (2, "86400000")):
        set_brokers(three_brokers, {cleaners: pause}, node_id)
    yield three_brokers
    three_brokers.start()
    set_brokers(three_brokers, {cleaners: None})


class Uneven:
    """A topic of the brokers 1 and 2, and a lane that would copy it but is to copy another one first."""

    def __init__(self, source: SandboxCluster, destination: SandboxCluster) -> None:
        self.source, self.destination = source, destination
        self.topic = create_topic(source, replicas=[[1, 2]], settings=COMPACTED)
        create_topic(destination, name=self.topic, settings={"cleanup.policy": "compact"})
        self.mirror = Mirror(source, destination)
        self.assignment: Assignment = self.mirror.add(self.topic, self.topic)[0]
        self._clock = count(time.time_ns() // 1_000_000 - 10_000_000, 1000)

    def close(self) -> None:
        self.mirror.close()

    def write(self, key: bytes, number: int = 1) -> None:
        """Write records of one key, each in a segment of its own."""
        with Leader(self.source, self.topic) as leader:
            for at in (next(self._clock) for _ in range(number)):
                batch = batch_of(1, key=key, value=b"at %d" % at, timestamp=at)
                assert leader.append_as_is(batch).error_code == 0

    def wait_until_cleaned(self) -> None:
        """Wait until the leader has a hole from the first of the records of one key to where the copy ends."""

        def is_cleaned() -> bool:
            self.write(b"another")
            time.sleep(0.1)
            with Leader(self.source, self.topic) as leader:
                left = [header.base_offset for header in batch_headers(leader.fetch(0).records)]
            return not any(SAME <= offset <= COPIED for offset in left)

        wait_until(is_cleaned)

    def shown(self, cluster: SandboxCluster) -> list[tuple[int, bytes | None]]:
        return [
            (r.offset, r.value) for r in librdkafka_records(cluster.bootstrap_servers, self.topic, 0, "read_committed")
        ]

    def copy_into_the_hole(self) -> None:
        """Copy what the leader shows, up to where the copy ends."""
        shown = librdkafka_records(self.source.bootstrap_servers, self.topic, 0, "read_committed")
        single = [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in shown if r.offset < SAME]
        to, own = self.assignment.destination, self.assignment.producer_id
        with OffsetAppender(self.mirror.at_destination, to, producer_id=own) as out:
            out.append(single)
            out.fill(COPIED)

    def move_leader_and_back(self) -> None:
        """Have the first broker begin a leader epoch in which nothing is written, after another one of that kind."""
        self.source.stop_broker(1, grace_s=60)
        self.source.start_broker(1)
        admin = AdminClient({"bootstrap.servers": self.source.bootstrap_servers})
        place = TopicPartition(self.topic, 0)

        def is_back() -> bool:
            partition = self.mirror.at_source.metadata({self.topic}).topics[self.topic].partitions[0]
            if partition.leader_id != 1 and set(partition.in_sync_replicas) == {1, 2}:
                admin.elect_leaders(ElectionType.PREFERRED, [place]).result(30)
            return partition.leader_id == 1

        wait_until(is_back)

    def start(self) -> Lane:
        """Start the lane, and wait until it would copy."""
        lane = self.mirror.start(claim=False)
        self.mirror.claim(first_topics=(unique_topic(),))
        self.mirror.wait(lane, lambda: set(states(lane.partitions).values()) == {"copying"})
        return lane


@pytest.fixture
def topic(
    uneven: SandboxCluster, destination_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Uneven]:
    monkeypatch.setattr(leader_checks, "CHECK_SECONDS", 0.5)
    with closing(Uneven(uneven, destination_cluster)) as made:
        for index in range(SINGLE):
            made.write(b"single %d" % index)
        yield made


@pytest.mark.parametrize("has_written", [True, False], ids=["an epoch with records", "an epoch without"])
def test_a_new_leader_shows_what_its_predecessors_cleaner_had_removed(topic: Uneven, *, has_written: bool) -> None:
    topic.write(b"same", 20)
    topic.wait_until_cleaned()
    topic.copy_into_the_hole()
    if not has_written:
        topic.move_leader_and_back()
    lane = topic.start()
    topic.source.kill(1)
    partition = copy_of(lane, topic.topic)
    topic.mirror.wait(lane, lambda: partition.facts and partition.facts.source_leader[0] == 2)
    topic.mirror.claim()
    topic.mirror.wait_copied(lane)
    shown = topic.shown(topic.source)
    assert [offset for offset, _ in shown] == list(range(len(shown)))
    assert topic.shown(topic.destination) == [one for one in shown if not SAME <= one[0] < COPIED]
    # what both sides get after a failover follows the fork, even if nothing says where the copy ended
    topic.mirror.stop(lane)
    end = len(shown) + 300
    for cluster, name in ((topic.source, "here"), (topic.destination, "there")):
        produce(cluster, topic.topic, 300, name)
    question = ForkQuestion(topic.assignment.destination, topic.assignment.source, LogEnds(0, end, 0, end))
    (answer,) = search_forks(topic.mirror.at_destination, topic.mirror.at_source, [question]).found
    assert answer.fork == Fork(len(shown), True, len(shown) - 1)


def test_a_new_leader_lacks_what_superseded_the_removed_records(topic: Uneven, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copy lacks is the last of its key there; and that stays so, however often it is inspected."""
    monkeypatch.setattr(retry, "FIRST_RETRY_SECONDS", 0.1)
    topic.write(b"same")
    topic.source.stop_broker(2, grace_s=60)
    topic.write(b"same", 20)
    topic.wait_until_cleaned()
    topic.copy_into_the_hole()
    lane = topic.start()
    topic.source.kill(1)
    topic.source.start_broker(2)
    topic.write(b"later", 50)
    partition = copy_of(lane, topic.topic)
    attempts = partition.retry.attempt + 2

    def is_judged() -> bool:
        seen, failure = partition.facts, partition.retry.failure
        copies = seen is not None and seen.source_leader[0] == 2 and partition.status is Status.COPYING
        return copies or (failure is not None and failure.offset == SAME and partition.retry.attempt >= attempts)

    topic.mirror.wait(lane, is_judged)
    failure = partition.retry.failure
    assert failure is not None
    assert failure.reason is Reason.SOURCE_DIVERGED
