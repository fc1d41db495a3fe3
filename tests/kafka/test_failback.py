"""The old source comes back as the mirror of the new primary, on real brokers: A was mirrored to B, B is in charge."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kmirror.cli.main import main
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.offline.survey import PlannedCut
from kmirror.ops.add.add import add
from kmirror.ops.context import Destination
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Way
from kmirror.ops.failback.truncate_logs import truncate_logs
from kmirror.ops.failback.truncation_plan import TruncationPlan, read_plan, write_plan
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.results import Outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import Stopped, failover
from kmirror.ops.stop.promote import PromoteRequest, promote
from kmirror.ops.stop.switchover import SwitchoverRequest, switchover
from kmirror.sandbox.cluster import SandboxCluster
from kmirror.state.records import PartitionState
from kmirror.state.workflow_records import WorkflowRecord
from tests.support.archiving import assert_holds
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.groups import commit, committed, killed_member, member
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import new_mirror, produce, properties_of, selector
from tests.support.real_logs import set_topic
from tests.support.visible import assert_intact, assert_mirrored, assert_sound, bounds_of, shown
from tests.support.waiting import wait_until


class Trip:
    """A and B, and a mirror between them."""

    def __init__(self, a: SandboxCluster, b: SandboxCluster) -> None:
        self.a, self.b = a, b
        self.at_a, self.at_b = Destination.open(properties_of(a)), Destination.open(properties_of(b))
        self.mirror = new_mirror(self.at_b, a)

    def __enter__(self) -> Trip:
        return self

    def __exit__(self, *_: object) -> None:
        self.at_a.close()
        self.at_b.close()

    def opened_again(self) -> None:
        """Connect anew, after a cluster was restarted."""
        self.__exit__()
        self.at_a, self.at_b = Destination.open(properties_of(self.a)), Destination.open(properties_of(self.b))

    def go(self, *topics: str, partitions: int = 1, records: int = 3, **settings: str) -> None:
        """Mirror topics with so many records in partition 0 from A to B, and fail over."""
        for topic in topics:
            make_old_topic(self.a, topic, partitions, **settings)
            produce_batches(self.a, topic, [f"common-{n}" for n in range(records)])
        assert add(self.at_b, self.mirror, selector(*topics)).exit_code == 0
        self.copy_to_b()
        assert failover(self.at_b, self.mirror).result.exit_code == 0

    def copy_to_b(self) -> None:
        with LocalEngine(self.at_b, self.mirror) as engine:
            engine.catch_up()

    def copy_to_a(self) -> None:
        with LocalEngine(self.at_a, self.mirror) as engine:
            engine.catch_up()

    def back(self, *topics: str, **how: Any) -> Stopped:
        """Fail back, to A."""
        steps = {key: how.pop(key) for key in ("dry_run", "checkpoint") if key in how}
        chosen = selector(*topics) if topics else None
        request = FailbackRequest(self.mirror, properties_of(self.b), chosen, watch_s=0.1, **how)
        return failback(self.at_a, request, **steps)

    def assert_same(self, topic: str, partitions: int = 1) -> None:
        """A holds what B does."""
        for partition in range(partitions):
            assert_mirrored(self.b, self.a, topic, partition)
            assert_intact(self.a, topic, partition)


@pytest.fixture
def trip(cluster_pair: ClusterPair) -> Iterator[Trip]:
    with Trip(cluster_pair.source, cluster_pair.destination) as trip:
        yield trip


def make_old_topic(cluster: SandboxCluster, topic: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic in which old records stay, on all brokers."""
    config = {key.replace("_", "."): value for key, value in settings.items()} | {"retention.ms": "-1"}
    admin = AdminClient(properties_of(cluster))
    admin.create_topics([NewTopic(topic, partitions, len(cluster.brokers), config=config)])[topic].result(30)


def has_partition(cluster: SandboxCluster, topic: str, partition: int) -> bool:
    return bounds_of(cluster, topic, partition) == (0, 0)


def produce_batches(cluster: SandboxCluster, topic: str, values: list[str], most: int = 100) -> None:
    """Append records in batches of so many."""
    for first in range(0, len(values), most):
        produce(cluster, topic, values[first : first + most])


def trim(cluster: SandboxCluster, topic: str, offset: int) -> None:
    """Delete the records below, as retention does."""
    admin = AdminClient(properties_of(cluster))
    place = TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(30)


def archives_of(done: Stopped) -> dict[str, Any]:
    found = done.evidence["archives"]
    assert isinstance(found, dict)
    return found


def under_way(destination: Destination, mirror: str) -> list[str]:
    """Return what is remembered of steps that were not finished."""
    records = destination.state().records.values()
    return [one.name for one in records if isinstance(one, WorkflowRecord) and one.mirror == mirror]


def test_nothing_lies_beyond_and_the_delta_alone_is_copied_twice_in_a_row(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic, partitions=2, records=50)
    commit(trip.a, group, topic, {0: 20})
    commit(trip.b, group, topic, {0: 52})
    produce(trip.b, topic, ["local-1", "local-2"])
    drill = trip.back(dry_run=True)
    assert drill.result.exit_code == 0
    assert trip.at_a.state().mirror(trip.mirror) is None
    done = trip.back()
    assert done.result.exit_code == 0, done.result
    assert {(row.topic, row.partition, row.result) for row in done.result.results} == {
        (topic, partition, Outcome.DONE) for partition in range(2)
    }
    assert archives_of(done) == {}
    # the marker of the failover and two records, of 53 offsets
    assert [one["offsetsToCopy"] for one in done.evidence["forks"]] == [3, 1]
    assert under_way(trip.at_a, trip.mirror) == []
    again = trip.back()
    assert {row.result for row in again.result.results} == {Outcome.NOOP}
    with LocalEngine(trip.at_a, trip.mirror, [GroupSyncJob(trip.mirror, trip.at_a.properties)]) as engine:
        engine.catch_up()
        trip.assert_same(topic, 2)
        # what stood there from before was taken for kmirror's
        wait_until(lambda: committed(trip.a, group, topic) == {0: 52})
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_a, trip.mirror)))
        promoted = promote(trip.at_a, PromoteRequest(trip.mirror, idle_ms=0, timeout_ms=60_000))
    assert promoted.result.exit_code == 0, promoted.result
    # A is in charge again, and B comes back under the same name; then all of it once more
    produce(trip.a, topic, ["at-a-again"])
    request = FailbackRequest(trip.mirror, properties_of(trip.a), watch_s=0.1)
    returned = failback(trip.at_b, request)
    assert returned.result.exit_code == 0, returned.result
    assert archives_of(returned) == {}
    trip.copy_to_b()
    assert_mirrored(trip.a, trip.b, topic)
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    produce(trip.a, topic, ["never-copied"])
    produce(trip.b, topic, ["local-3"])
    second = trip.back(way=Way.RECREATE)
    assert second.result.exit_code == 0, second.result
    assert archives_of(second)[topic]["records"] == 1
    trip.copy_to_a()
    trip.assert_same(topic, 2)
    assert [record.value for record in shown(trip.a, topic)][-2:] == [b"at-a-again", b"local-3"]


def test_records_beyond_are_saved_before_the_topic_is_created_again(trip: Trip) -> None:
    topic, clean = unique_topic(), unique_topic()
    synced, here_only = unique_topic("g"), unique_topic("g")
    trip.go(topic, clean)
    produce(trip.a, topic, ["lost-1", "lost-2"])
    lost = shown(trip.a, topic)[3:]
    produce(trip.b, topic, ["local-1"])
    commit(trip.a, synced, topic, {0: 5})
    commit(trip.b, synced, topic, {0: 4})
    commit(trip.a, here_only, topic, {0: 5})
    refused = trip.back()
    assert refused.result.exit_code == ExitCode.REFUSED
    assert refused.result.error is not None
    assert "--recreate" in str(refused.result.error.hint)
    assert {row.topic: row.result for row in refused.result.results} == {topic: Outcome.REFUSED, clean: Outcome.NOOP}
    assert any("2 records after it" in str(row.message) for row in refused.result.results)
    assert trip.back(dry_run=True).result.exit_code == 0
    assert trip.at_a.state().mirror(trip.mirror) is None
    done = trip.back(way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    kept = archives_of(done)[topic]
    assert kept == {"archive": f"{topic}.kmirror-archive.1", "records": 2}
    assert_holds(trip.a, kept["archive"], lost)
    # nothing but the records that both have may be taken for read
    assert committed(trip.a, here_only, topic) == {0: 3}
    with LocalEngine(trip.at_a, trip.mirror, [GroupSyncJob(trip.mirror, trip.at_a.properties)]) as engine:
        engine.catch_up()
        wait_until(lambda: committed(trip.a, synced, topic) == {0: 4})
    trip.assert_same(topic)
    trip.assert_same(clean)
    assert_sound(trip.a, topic)
    assert committed(trip.a, here_only, topic) == {0: 3}


def test_discarded_records_are_gone(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    done = trip.back(way=Way.RECREATE, discard=True)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done) == {}
    assert f"{topic}.kmirror-archive.1" not in trip.at_a.client.metadata(None).topics
    trip.copy_to_a()
    trip.assert_same(topic)


def test_that_a_cut_may_be_of_no_use_where_a_cleaner_is_at_work_is_said_before(trip: Trip, tmp_path: Path) -> None:
    cleaned, plain = unique_topic("cleaned"), unique_topic("plain")
    trip.go(cleaned, plain)
    set_topic(trip.a, cleaned, {"cleanup.policy": "compact,delete"})
    plan = str(tmp_path / "plan.json")

    def warned(dry_run: bool = True, way: Way | None = Way.OFFLINE) -> list[str]:
        done = trip.back(way=way, plan=plan if way is Way.OFFLINE else None, dry_run=dry_run)
        assert done.result.exit_code == 0, done.result
        return [warning for warning in done.result.warnings if "cleanup.policy is compact" in warning]

    # nothing is cut
    assert warned() == []
    for topic in (cleaned, plain):
        produce(trip.a, topic, ["lost"])
    for warnings in (warned(), warned(way=None), warned(dry_run=False)):
        assert [warning.partition(": ")[0] for warning in warnings] == [cleaned]
    assert warned(way=Way.RECREATE) == []


def test_retention_has_left_nothing_to_compare(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    trim(trip.a, topic, 1)
    held = shown(trip.a, topic)
    produce(trip.b, topic, ["local-1", "local-2", "local-3"])
    trim(trip.b, topic, 6)
    (row,) = trip.back(dry_run=True).result.results
    assert "nothing can be compared: the new primary's log starts at 6" in str(row.message)
    assert "3 records after it" in str(row.message)
    assert "1 of them from the last mirrored offset 3 on" in str(row.message)
    cut = trip.back(way=Way.OFFLINE, plan="never-written")
    assert cut.result.exit_code == ExitCode.REFUSED
    assert "not enough" in str(cut.result.error)
    assert not Path("never-written").exists()
    done = trip.back(way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert_holds(trip.a, archives_of(done)[topic]["archive"], held)
    trip.copy_to_a()
    trip.assert_same(topic)
    assert bounds_of(trip.a, topic) == (6, 7)


@pytest.mark.long
def test_an_old_source_whose_log_was_trimmed(trip: Trip) -> None:
    below, behind = unique_topic(), unique_topic()
    trip.go(below, behind)
    produce(trip.a, behind, ["lost-1", "lost-2"])
    trim(trip.a, below, 2)
    trim(trip.a, behind, 4)
    done = trip.back(below)
    assert done.result.exit_code == 0, done.result
    cut = trip.back(behind, way=Way.OFFLINE, plan="never-written")
    assert cut.result.exit_code == ExitCode.REFUSED
    done = trip.back(behind, way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done)[behind]["records"] == 1
    trip.copy_to_a()
    trip.assert_same(behind)
    assert [record.offset for record in shown(trip.a, behind)] == [0, 1, 2]
    assert [record.offset for record in shown(trip.a, below)] == [2]


def test_the_new_primary_remembers_nothing(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.b, topic, ["local"])
    assert delete(trip.at_b, trip.mirror).exit_code == 0
    with pytest.raises(RefusedError, match="has no mirror") as refused:
        trip.back()
    assert "--topics" in str(refused.value.hint)
    done = trip.back(topic)
    assert done.result.exit_code == 0, done.result
    assert any("comparing contents only" in warning for warning in done.result.warnings)
    trip.copy_to_a()
    trip.assert_same(topic)


def test_a_member_whose_process_was_killed_is_named_until_its_session_is_over(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic)
    killed_member(trip.a, group, topic, "billing-7", session_timeout_ms=15_000)
    with pytest.raises(RefusedError) as refused:
        trip.back()
    named = rf"1 group has members at 2\S+Z that .*: group {group} \({topic}\): billing-7 on 127.0.0.1 "
    assert re.match(named + r"\(member billing-7-\S+\)$", str(refused.value))
    hint, _, command = (refused.value.hint or "").partition("\n")
    assert "a dead one leaves the group when its session.timeout.ms has passed" in hint
    servers = f"--bootstrap-server {trip.a.bootstrap_servers}"
    assert command == f"kafka-consumer-groups {servers} --describe --members --group {group}"

    def is_refused() -> bool:
        try:
            trip.back()
        except RefusedError as again:
            return re.match(named, str(again)) is not None
        return False

    wait_until(lambda: not is_refused())
    assert trip.back().result.exit_code == 0
    trip.copy_to_a()
    trip.assert_same(topic)


def test_what_is_refused(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with pytest.raises(RefusedError, match="not stopped on the new primary"):
        trip.back()
    trip.copy_to_b()
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    for protocol in ("classic", "consumer"):
        with member(trip.a, group, topic, protocol), pytest.raises(RefusedError) as refused:
            trip.back()
        # whoever has died is in the group until its session is over
        assert re.search(
            rf"at 2\S+Z that .*: group {group} \({topic}\): rdkafka on 127.0.0.1 \(member \S+\)$", str(refused.value)
        )
        assert f"--describe --members --group {group}" in (refused.value.hint or "")
        assert "session.timeout.ms" in (refused.value.hint or "")
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.02):
            produce(trip.a, topic, ["more"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(RefusedError, match=f"another client writes to {topic}-0"):
            failback(trip.at_a, FailbackRequest(trip.mirror, properties_of(trip.b), watch_s=1))
    finally:
        end.set()
        writer.join()
    producer = Producer({**properties_of(trip.a), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided", partition=0)
    producer.flush(30)
    with pytest.raises(RefusedError, match="a transaction is open"):
        trip.back()
    producer.abort_transaction(30)
    with pytest.raises(RefusedError, match="has no mirror"):
        failback(trip.at_b, FailbackRequest(trip.mirror, properties_of(trip.a), watch_s=0.1))
    request = FailbackRequest(trip.mirror, properties_of(trip.b), way=Way.RECREATE, watch_s=0.1)
    with pytest.raises(RefusedError, match="not confirmed"):
        failback(trip.at_a, request, lambda preview: trip.at_a.cluster_id not in preview.old_source)
    assert trip.at_a.state().mirror(trip.mirror) is None
    assert under_way(trip.at_a, trip.mirror) == []


@pytest.mark.long
def test_cut_off_after_each_step_and_run_again(trip: Trip) -> None:
    """Of one topic nothing lies beyond, of two something does; each run ends right after another step."""
    clean, group, dirty = unique_topic(), unique_topic("g"), [unique_topic(), unique_topic()]
    trip.go(clean, *dirty)
    commit(trip.a, group, clean, {0: 2})
    lost = {}
    for topic in dirty:
        produce(trip.a, topic, ["lost-1", "lost-2"])
        lost[topic] = shown(trip.a, topic)[3:]
        commit(trip.a, group, topic, {0: 5})
    reached: list[str] = []

    def checkpoint(name: str) -> None:
        if name not in reached:
            reached.append(name)
            raise CutOffError(name)

    done = None
    while done is None:
        try:
            done = trip.back(way=Way.RECREATE, checkpoint=checkpoint)
        except CutOffError:
            assert len(reached) <= 11
    assert done.result.exit_code == 0, done.result
    assert reached == [
        *("begun", "mirror recorded", "groups taken over", "adopted"),
        # of the one topic it was noted that it is gone, of the other it was not
        *("archive begun", "saved", "gone", "created", "groups put back", "deleted", "finished"),
    ]
    assert under_way(trip.at_a, trip.mirror) == []
    record = trip.at_a.state().group(trip.mirror, group)
    assert record is not None
    trip.copy_to_a()
    for topic, offset in ((clean, 2), *((topic, 3) for topic in dirty)):
        trip.assert_same(topic)
        assert committed(trip.a, group, topic) == {0: offset}
        assert record.ours(topic, 0)[0] == offset
    for topic in dirty:
        assert_holds(trip.a, f"{topic}.kmirror-archive.1", lost[topic])
        assert f"{topic}.kmirror-archive.2" not in trip.at_a.client.metadata(None).topics


class CutOffError(Exception):
    """The process is gone here."""


def cut(cluster: SandboxCluster, plan: Path) -> None:
    """Cut the logs of all brokers, stopped for it."""
    cluster.stop()
    for broker in cluster.brokers:
        assert truncate_logs(read_plan(plan), [broker.log_dir], lambda _: True).exit_code == 0
    cluster.start()


def fail_back_offline(trip: Trip, plan: Path) -> None:
    """Fail over, lose records, fail back by cutting logs, and see what was copied."""
    topic, shorter, a, b = unique_topic(), unique_topic(), trip.a, trip.b
    trip.go(topic, shorter, records=2_000)
    produce(a, topic, ["lost-1", "lost-2", "lost-3"])
    lost = shown(a, topic)[2_000:]
    produce(b, topic, ["local-1", "local-2"])
    for _ in range(2):
        # run again before anything was cut, it finds its archive
        planned = trip.back(topic, way=Way.OFFLINE, plan=str(plan))
        assert planned.result.exit_code == 0, planned.result
        assert any("truncate-logs" in warning for warning in planned.result.warnings)
        assert archives_of(planned)[topic] == {"archive": f"{topic}.kmirror-archive.1", "records": 3}
    assert [(one.topic, one.cut_offset, one.expected_log_end) for one in read_plan(plan).partitions] == [
        (topic, 2_000, 2_003)
    ]
    topics = trip.at_a.client.metadata([topic, shorter]).topics
    # as an election does that leaves the latest records behind
    lost_tail = PlannedCut(shorter, str(topics[shorter].printed_topic_id), 0, 1_900)
    before = read_plan(plan)
    write_plan(replace(before, partitions=(*before.partitions, lost_tail)), plan)
    cut(a, plan)
    trip.opened_again()
    produce(a, shorter, ["after the election"] * 2)
    written = shown(a, shorter)[1_900:]
    done = trip.back(topic, way=Way.OFFLINE, plan=str(plan))
    assert done.result.exit_code == 0, done.result
    (fork,) = done.evidence["forks"]
    assert (fork["sharedEnd"], fork["recordsBeyond"], fork["offsetsToCopy"]) == (2_000, 0, 3)
    assert fork["bytesToCopy"] < 0.02 * 2_000 * 20
    assert under_way(trip.at_a, trip.mirror) == []
    (row,) = trip.back(shorter, dry_run=True).result.results
    assert "the same up to offset 1900" in str(row.message)
    assert "had been copied, but they differ from offset 1900 on" in str(row.message)
    done = trip.back(shorter, way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    trip.copy_to_a()
    trip.assert_same(topic)
    trip.assert_same(shorter)
    assert_holds(a, f"{topic}.kmirror-archive.1", lost)
    assert_holds(a, f"{shorter}.kmirror-archive.1", written)
    assert trip.at_a.client.metadata([topic]).topics[topic].topic_id == topics[topic].topic_id


@pytest.mark.long
def test_the_logs_of_stopped_brokers_are_cut_and_only_the_delta_is_copied(
    make_cluster: MakeCluster, cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    with Trip(make_cluster("a"), cluster_pair.destination) as trip:
        fail_back_offline(trip, tmp_path / "plan.json")


@pytest.mark.long
def test_a_new_primary_that_has_lost_its_tail(
    make_cluster: MakeCluster, cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    b, topic, silent, plan = make_cluster("b"), unique_topic(), unique_topic(), tmp_path / "plan.json"
    with Trip(cluster_pair.source, b) as trip:
        trip.go(topic, silent, records=200)
        found = trip.at_b.client.metadata([topic, silent]).topics
        cuts = tuple(PlannedCut(name, str(found[name].printed_topic_id), 0, 100) for name in sorted((topic, silent)))
        write_plan(TruncationPlan(trip.at_b.cluster_id, trip.mirror, 1, cuts), plan)
        cut(b, plan)
        trip.opened_again()
        produce(b, topic, ["after the election"] * 140)
        held = {name: shown(trip.a, name)[100:] for name in (topic, silent)}
        refused = trip.back()
        assert refused.result.exit_code == ExitCode.REFUSED
        assert all("the same up to offset 100" in str(row.message) for row in refused.result.results)
        done = trip.back(way=Way.RECREATE)
        assert done.result.exit_code == 0, done.result
        trip.copy_to_a()
        for name, records in held.items():
            trip.assert_same(name)
            assert_holds(trip.a, f"{name}.kmirror-archive.1", records)


@pytest.mark.long
def test_every_replica_of_three_brokers_is_cut(
    make_cluster: MakeCluster, cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    with Trip(make_cluster("a", brokers=3), cluster_pair.destination) as trip:
        fail_back_offline(trip, tmp_path / "plan.json")


@pytest.mark.long
def test_a_difference_deep_inside_is_found_by_the_proof_and_then_by_the_search(trip: Trip, tmp_path: Path) -> None:
    topic, plan = unique_topic(), tmp_path / "plan.json"
    values = [f"v-{n}".ljust(300) for n in range(4_000)]
    for cluster in (trip.a, trip.b):
        make_old_topic(cluster, topic)
    produce_batches(trip.a, topic, [*values[:550], "other", *values[551:]], 500)
    produce_batches(trip.b, topic, values, 500)
    held = shown(trip.a, topic)[550:]
    assert delete(trip.at_b, trip.mirror).exit_code == 0
    found = trip.back(topic)
    assert found.result.exit_code == ExitCode.HISTORIES_DIFFER, found.result
    assert "offset 550" in str(found.result.error)
    refused = trip.back(topic)
    assert refused.result.exit_code == ExitCode.REFUSED
    assert trip.back(topic, way=Way.OFFLINE, plan=str(plan)).result.exit_code == 0
    # within a batch nothing can be cut, and what goes beside is at the new primary
    assert read_plan(plan).partitions[0].cut_offset == 500
    assert "3,450 records after it" in str(refused.result.results[0].message)
    done = trip.back(topic, way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert under_way(trip.at_a, trip.mirror) == []
    assert_holds(trip.a, f"{topic}.kmirror-archive.1", held)
    trip.copy_to_a()
    trip.assert_same(topic)


def test_partitions_that_one_side_has_got_since(trip: Trip) -> None:
    more_there, more_here = unique_topic(), unique_topic()
    trip.go(more_there, more_here)
    for cluster, topic in ((trip.b, more_there), (trip.a, more_here)):
        admin = AdminClient(properties_of(cluster))
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        wait_until(partial(has_partition, cluster, topic, 1))
        produce(cluster, topic, ["in a new one"], 1)
    held = shown(trip.a, more_here, 1)
    assert trip.back(more_there).result.exit_code == 0
    done = trip.back(more_here, way=Way.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert_holds(trip.a, f"{more_here}.kmirror-archive.1", held, partition=1)
    trip.copy_to_a()
    trip.assert_same(more_there, 2)
    trip.assert_same(more_here)


def test_the_command_asks_and_leaves_evidence(trip: Trip, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    file, report = tmp_path / "b.properties", tmp_path / "report.json"
    file.write_text(f"bootstrap.servers={trip.b.bootstrap_servers}\n")
    verb = ["failback", "--mirror", trip.mirror, "--mirror-config", str(file)]
    verb += ["--bootstrap-server", trip.a.bootstrap_servers]
    assert main(verb) == ExitCode.REFUSED
    assert "--recreate archives these records" in capsys.readouterr().err
    assert main([*verb, "--recreate"]) == ExitCode.REFUSED
    asked = capsys.readouterr().err
    assert f"source:       {trip.at_b.cluster_id} at {trip.b.bootstrap_servers}; it answers" in asked
    assert f"destination:  {trip.at_a.cluster_id} at {trip.a.bootstrap_servers}" in asked
    assert "1 record after it" in asked
    assert "add --yes" in asked
    assert main([*verb, "--recreate", "--yes", "--json", "--report", str(report)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verb"], document["exitCode"], document["error"]) == ("failback", 0, None)
    evidence = json.loads(report.read_text())
    assert evidence["archives"] == {topic: {"archive": f"{topic}.kmirror-archive.1", "records": 1}}
    assert evidence["source"]["clusterId"] == trip.at_b.cluster_id
    assert [one["step"] for one in evidence["steps"]][:2] == ["looked", "begun"]
    for wrong in (["--recreate", "--offline"], ["--discard"], ["--offline"]):
        assert main([*verb, *wrong]) == ExitCode.USAGE


def test_switchover_there_and_back(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one", "two", "three"])
    commit(trip.a, group, topic, {0: 2})
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0

    def switch(here: Destination, cluster: SandboxCluster) -> Stopped:
        with LocalEngine(here, trip.mirror, [GroupSyncJob(trip.mirror, here.properties)]) as engine:
            engine.catch_up()
            wait_until(lambda: all(row.initial_copy_complete for row in describe(here, trip.mirror)))
            request = SwitchoverRequest(trip.mirror, properties_of(cluster), timeout_ms=60_000, idle_ms=0, watch_s=0.1)
            return switchover(here, request, checkpoint=checkpoint)

    cut_off = ["begun", "promoted", "turning round"]

    def checkpoint(name: str) -> None:
        if cut_off and cut_off[0] == name:
            del cut_off[0]
            raise CutOffError(name)

    for _ in range(3):
        with pytest.raises(CutOffError):
            switch(trip.at_b, trip.b)
    done = switch(trip.at_b, trip.b)
    assert done.result.exit_code == 0, done.result
    assert under_way(trip.at_b, trip.mirror) == []
    assert committed(trip.b, group, topic) == {0: 2}
    produce(trip.b, topic, ["four"])
    commit(trip.b, group, topic, {0: 4})
    back = switch(trip.at_a, trip.a)
    assert back.result.exit_code == 0, back.result
    assert committed(trip.a, group, topic) == {0: 4}
    assert [record.value for record in shown(trip.a, topic)] == [b"one", b"two", b"three", b"four"]
    produce(trip.a, topic, ["five"])
    trip.copy_to_b()
    assert_mirrored(trip.a, trip.b, topic)
    assert {row.state for row in describe(trip.at_a, trip.mirror)} == {PartitionState.STOPPED}
    assert {row.state for row in describe(trip.at_b, trip.mirror)} == {PartitionState.MIRRORING}


def test_a_switchover_whose_source_is_still_read_says_so_and_goes_on(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), timeout_ms=60_000, idle_ms=0, watch_s=0.1)
    with pytest.raises(RefusedError) as wrong:
        switchover(trip.at_b, SwitchoverRequest(trip.mirror, properties_of(trip.a)))
    assert wrong.value.reason is Reason.SOURCE_CLUSTER_CHANGED
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        with member(trip.a, group, topic):
            done = switchover(trip.at_b, request)
        assert done.result.exit_code == ExitCode.TIMED_OUT
        assert group in str(done.result.error)
        done = switchover(trip.at_b, request)
    assert done.result.exit_code == 0, done.result
