"""A running lane takes partitions and gives others up, and the rest of it does not notice: on real brokers."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.mirrors.recover import Consent, recover
from kmirror.ops.stop.failover import remove
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.records import Incarnation
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.lane import Mirror
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.stored import first_difference
from tests.support.waiting import PATIENCE_S


def fill(mirror: Mirror, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(topic, b"value", b"%d" % number, 0)
    assert producer.flush(30) == 0


def copy_of(lane: Lane, topic: str) -> PartitionCopy:
    return next(p for p in lane.partitions if p.assignment.source_topic == topic)


def inspections(copy: PartitionCopy) -> int:
    """Return how often a partition was inspected since its lane has it."""
    return sum(line.startswith("inspected") for line in copy.history)


# -- a lane -----------------------------------------------------------------------------------------------------------


def test_a_lane_is_assigned_one_partition_and_releases_another(mirror: Mirror) -> None:
    kept, left = mirror.topic(), mirror.topic()
    fill(mirror, kept, 5)
    fill(mirror, left, 5)
    lane = mirror.start()
    mirror.wait_copied(lane)
    untouched = copy_of(lane, kept)
    new = mirror.topic()
    fill(mirror, new, 7)
    mirror.change(1, [left], mirror.assignments_of(new))
    mirror.wait(lane, lambda: (mirror.progress()[-1].taken, mirror.progress()[-1].given_up) == (1, 1))
    fill(mirror, kept, 5)
    fill(mirror, left, 5)
    mirror.wait(lane, lambda: mirror.destination_ends() == {f"{kept}-0": 10, f"{left}-0": 5, f"{new}-0": 7})
    # what was released is reported until the engine knows, and then no more
    mirror.wait(lane, lambda: {row.topic for row in mirror.progress()[-1].rows} == {kept, new})
    # and back again, with what came meanwhile
    mirror.change(2, [new], mirror.assignments_of(left))
    mirror.wait(lane, lambda: mirror.destination_ends() == {f"{kept}-0": 10, f"{left}-0": 10, f"{new}-0": 7})
    assert copy_of(lane, kept) is untouched
    assert inspections(untouched) == 1
    result = mirror.stop(lane)
    assert (result.ended, result.clean) == ("STOPPED", True)


def test_nothing_is_sent_between_reading_a_change_and_going_by_it(mirror: Mirror) -> None:
    kept, left = mirror.topic(), mirror.topic()
    lane = mirror.start()
    mirror.wait_copied(lane)
    take, read = lane.control.on_lane_change, list[LaneChangeRecord]()
    lane.control.on_lane_change = read.append
    mirror.change(1, [left])
    mirror.wait(lane, lambda: read)
    fill(mirror, kept, 5)
    fill(mirror, left, 5)
    time.sleep(1)
    assert mirror.destination_ends() == {f"{kept}-0": 0, f"{left}-0": 0}
    take(read[0])
    mirror.wait(lane, lambda: mirror.destination_ends() == {f"{kept}-0": 5, f"{left}-0": 0})


def test_what_another_lane_may_still_write_to_is_left_alone_for_a_while(mirror: Mirror) -> None:
    topic = mirror.topic()
    lane = mirror.start(ttl_ms=2000)
    mirror.wait_copied(lane)
    new = mirror.topic()
    fill(mirror, new, 3)
    mirror.change(1, (), mirror.assignments_of(new), in_doubt=True)
    reported = time.monotonic()
    mirror.wait_copied(lane)
    assert time.monotonic() - reported > 2
    assert inspections(copy_of(lane, new)) == 2
    assert inspections(copy_of(lane, topic)) == 1


def test_a_task_that_is_started_again_goes_by_the_changes_since(mirror: Mirror) -> None:
    kept, left = mirror.topic(), mirror.topic()
    mirror.claim()
    mirror.change(1, [left])
    fill(mirror, kept, 5)
    fill(mirror, left, 5)
    # it is given both, as the attempt before was when that began
    lane = mirror.start(attempt=1, claim=False, ttl_ms=2000)
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{kept}-0"] == 5)
    assert [p.assignment.source_topic for p in lane.partitions] == [kept]
    assert mirror.destination_ends()[f"{left}-0"] == 0
    mirror.wait(lane, lambda: (mirror.progress()[-1].attempt, mirror.progress()[-1].given_up) == (1, 1))


def test_a_task_that_misses_a_change_ends_and_has_written_nothing(mirror: Mirror) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 5)
    mirror.claim()
    # what compaction leaves of two changes
    mirror.change(2, [topic])
    lane = mirror.start(attempt=1, claim=False, ttl_ms=2000)
    assert mirror.result(lane).ended == "OUTDATED"
    assert mirror.destination_ends() == {f"{topic}-0": 0}


def test_changes_of_other_lanes_and_of_former_runs_are_nothing_to_a_lane(mirror: Mirror) -> None:
    topic = mirror.topic()
    lane = mirror.start()
    mirror.wait_copied(lane)
    mine = LaneChangeRecord(mirror.name, 0, mirror.lease, 1, 1, ((topic, 0),), (), False)
    for other in (
        replace(mine, mirror=f"{mirror.name}-other"),
        replace(mine, lane=1),
        replace(mine, lease_id="lease-0"),
        replace(mine, generation=2),
        replace(mine, revision=2),
    ):
        mirror.write(other)
    fill(mirror, topic, 5)
    mirror.wait_copied(lane)
    mirror.write(mine)
    mirror.wait(lane, lambda: not lane.partitions)


# -- an engine --------------------------------------------------------------------------------------------------------


class Writer:
    """Write to some source topics without a pause."""

    def __init__(self, pair: ClusterPair, topics: list[str]) -> None:
        self._pair, self._topics = pair, topics
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        producer = Producer({**properties_of(self._pair.source), "linger.ms": 2, "acks": "all"})
        number = 0
        while not self._enough.wait(0.002):
            for topic in self._topics:
                producer.produce(topic, b"%d" % number, partition=number % 2)
            number += 1
            producer.poll(0)
        assert producer.flush(30) == 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join(60)


def ends_of(destination: Destination, topic: str) -> list[int | None]:
    topic_partitions = [TopicPartition(topic, partition) for partition in range(2)]
    found = destination.client.list_offsets(dict.fromkeys(topic_partitions, LATEST), log_end=True)
    return [found[topic_partition].offset for topic_partition in topic_partitions]


def wait_until_same(pair: ClusterPair, topic: str) -> None:
    """Wait until both sides have the same on disk."""
    source, copy = (cluster.brokers[0].log_dir for cluster in (pair.source, pair.destination))
    deadline = time.monotonic() + PATIENCE_S
    for partition in range(2):
        while (difference := first_difference(source, copy, topic, partition)) is not None:
            assert time.monotonic() < deadline, difference
            time.sleep(0.1)


@pytest.mark.slow
def test_topics_come_and_go_and_the_others_are_not_disturbed(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    kept, left, paused, late = [unique_topic() for _ in range(3)], unique_topic(), unique_topic(), unique_topic()
    for topic in (*kept, left, paused, late):
        # the first records are old: brokers would delete them
        make_topic(cluster_pair.source, topic, 2, retention_ms="-1")
        produce(cluster_pair.source, topic, ["one", "two"])
    mirror = new_mirror(destination, cluster_pair.source, copy_lanes="1")
    assert add(destination, mirror, selector(*kept, left, paused)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        (lane,) = engine.lanes
        untouched = {p for p in lane.partitions if p.assignment.topic in kept}
        with Writer(cluster_pair, [*kept, left, paused, late]):
            assert add(destination, mirror, selector(late)).exit_code == 0
            removed = remove(destination, mirror, selector(left))
            assert {row.result for row in removed.result.results} == {Outcome.DONE}
            assert pause(destination, mirror, selector(paused)).exit_code == 0
            stopped = ends_of(destination, left), ends_of(destination, paused)
            deadline = time.monotonic() + PATIENCE_S
            while not all(end and end > 10 for end in ends_of(destination, late)):
                assert time.monotonic() < deadline, engine.notes
                time.sleep(0.05)
        assert (ends_of(destination, left), ends_of(destination, paused)) == stopped
        assert resume(destination, mirror, selector(paused)).exit_code == 0
        deadline = time.monotonic() + PATIENCE_S
        while {p.assignment.topic for p in lane.partitions} != {*kept, paused, late}:
            assert time.monotonic() < deadline, lane.partitions
            time.sleep(0.05)
        engine.catch_up()
        for topic in (*kept, paused, late):
            wait_until_same(cluster_pair, topic)
        assert ends_of(destination, left) == stopped[0]
        # one lane from beginning to end, in which the others were inspected once
        record = destination.state().engine(mirror)
        assert record is not None
        assert record.lanes == {0: Incarnation(1, 0)}
        assert engine.lanes == [lane]
        assert untouched <= set(lane.partitions)
        assert {inspections(copy) for copy in untouched} == {1}
        assert not [note for note in engine.notes if "replaced" in note or "died" in note]


@pytest.mark.slow
def test_a_recovered_partition_restarts_by_itself(cluster_pair: ClusterPair, destination: Destination) -> None:
    kept, broken = unique_topic(), unique_topic()
    for topic in (kept, broken):
        make_topic(cluster_pair.source, topic, 2, retention_ms="-1")
        produce(cluster_pair.source, topic, ["one", "two"])
    mirror = new_mirror(destination, cluster_pair.source, copy_lanes="1")
    assert add(destination, mirror, selector(kept, broken)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        (lane,) = engine.lanes
        assert pause(destination, mirror, selector(broken)).exit_code == 0
        produce(cluster_pair.source, broken, ["three", "four"])
        admin = AdminClient(properties_of(cluster_pair.source))
        for deleted in admin.delete_records([Place(broken, 0, 3)]).values():
            deleted.result(30)
        assert resume(destination, mirror, selector(broken)).exit_code == 0
        deadline = time.monotonic() + PATIENCE_S
        while not engine.engine.failures:
            assert time.monotonic() < deadline, engine.engine.partitions.rows
            time.sleep(0.05)
        untouched = {p for p in lane.partitions if p.assignment.destination != (broken, 0)}
        done = recover(destination, mirror, selector(broken), Consent(loss=True))
        assert [row.result for row in done.results] == [Outcome.DONE], done
        engine.catch_up()
        assert ends_of(destination, broken) == [4, 0]
        assert engine.lanes == [lane]
        assert untouched < set(lane.partitions)
        assert {inspections(copy) for copy in untouched} == {1}
