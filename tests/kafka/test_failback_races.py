"""What happens to the topics on either side while a failback is on its way: nothing is deleted on old evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.topics.topic_requests import create_partitions
from kmirror.errors import BrokerError, ExitCode, KmirrorError, Reason, UnreachableError
from kmirror.offline.survey import PlannedCut
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback import carry_out
from kmirror.ops.failback.groups import restore_offsets
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror.ops.stop.steps import Checkpoint
from kmirror.settings.table import Settings
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import assert_holds
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.groups import commit, committed, member
from tests.support.mirrors import produce, properties_of, settings_of
from tests.support.round_trip import CutOffError, Trip, archives_of, cut, make_old_topic, trim
from tests.support.topics import set_topic
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until

SAVED = "archive the records after the fork, and compare the archive with the log"
DELETED = "record that it was deleted"
RECORDED = "record the mirror of the new primary"


def add_partition(cluster: SandboxCluster, topic: str) -> None:
    admin = AdminClient(properties_of(cluster))
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_until(lambda: bounds_of(cluster, topic, 1) == (0, 0))


def delete(cluster: SandboxCluster, topic: str) -> None:
    admin = AdminClient(properties_of(cluster))
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=30).topics)


def once_after(step: str, do: Callable[[], None]) -> Checkpoint:
    """Return a checkpoint that does something once, after a step."""
    left = [do]

    def checkpoint(does: str) -> None:
        if does == step and left:
            left.pop()()

    return checkpoint


@pytest.mark.slow
def test_a_partition_that_is_added_after_the_archive_is_not_deleted(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])

    def grow() -> None:
        add_partition(trip.a, topic)
        produce(trip.a, topic, ["in a new one"], 1)

    done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(SAVED, grow))
    assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
    held = shown(trip.a, topic, 1)
    assert [record.value for record in held] == [b"in a new one"]
    again = trip.back(strategy=Strategy.RECREATE)
    assert again.result.exit_code == 0, again.result
    assert_holds(trip.a, archives_of(again)[topic]["archive"], held, partition=1)
    trip.copy_to_a()
    trip.assert_same(topic)


def test_a_topic_that_was_deleted_to_be_recreated_is_not_forgotten_by_a_plan_for_cuts(
    trip: Trip, tmp_path: Path
) -> None:
    gone, cut_later = sorted(unique_topic() for _ in range(2))
    trip.go(gone, cut_later)
    for topic in (gone, cut_later):
        produce(trip.a, topic, ["lost"])

    def end() -> None:
        raise CutOffError(DELETED)

    with pytest.raises(CutOffError):
        trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(DELETED, end))
    planned = trip.back(strategy=Strategy.OFFLINE, plan=str(tmp_path / "plan"))
    told = {row.topic: row.message for row in planned.result.results}
    assert "run the same command again to create and mirror it" in str(told[gone]), told
    assert trip.back(gone).result.exit_code == 0
    assert bounds_of(trip.a, gone) == (0, 0)


def test_a_topic_that_may_get_no_partitions_does_not_hold_up_the_others(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, other = sorted(unique_topic() for _ in range(2))
    trip.go(refused, other)
    for topic in (refused, other):
        add_partition(trip.b, topic)

    def create(client: ClusterClient, counts: Mapping[str, int]) -> None:
        """Answer for one topic as brokers do whose policy forbids it."""
        if refused in counts:
            raise BrokerError(44, "POLICY_VIOLATION", f"adding partitions to {refused}")
        create_partitions(client, counts)

    with monkeypatch.context() as patched:
        patched.setattr(carry_out, "create_partitions", create)
        done = trip.back()
    assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
    assert {row.topic: row.result for row in done.result.results} == {refused: Outcome.FAILED, other: Outcome.DONE}
    assert trip.back().result.exit_code == 0


def test_a_topic_that_no_broker_here_describes_now_is_not_taken_for_a_new_one(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    trip.go(topic)
    here, metadata = trip.at_a.client, ClusterClient.metadata

    def looked_up(self: ClusterClient, topics: Iterable[str] | None = None, **how: Any) -> ClusterMetadata:
        found = metadata(self, topics, **how)
        if self is not here or topic not in found.topics:
            return found
        unknown = replace(found.topics[topic], error_code=int(Code.BROKER_NOT_AVAILABLE))
        return replace(found, topics={**found.topics, topic: unknown})

    with monkeypatch.context() as patched:
        patched.setattr(ClusterClient, "metadata", looked_up)
        with pytest.raises(KmirrorError, match=f"does not describe {topic}: BROKER_NOT_AVAILABLE"):
            trip.back()
    assert trip.back().result.exit_code == 0


@pytest.mark.parametrize("how", ["deleted", "recreated"])
def test_the_new_primarys_topic_is_gone_after_the_archive(trip: Trip, how: str) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    held = shown(trip.a, topic)

    def lose() -> None:
        delete(trip.b, topic)
        if how == "recreated":
            make_old_topic(trip.b, topic)
            produce(trip.b, topic, ["other"])

    done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(SAVED, lose))
    assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
    assert shown(trip.a, topic) == held


@pytest.mark.parametrize("how", ["deleted", "recreated"])
def test_a_topic_that_is_gone_after_its_failback_is_mirrored_again(trip: Trip, how: str) -> None:
    topic = unique_topic()
    trip.go(topic)
    assert trip.back().result.exit_code == 0
    delete(trip.a, topic)
    if how == "recreated":
        make_old_topic(trip.a, topic)
    done = trip.back()
    assert done.result.exit_code == 0, done.result
    assert [row.result for row in done.result.results] == [Outcome.DONE]
    trip.copy_to_a()
    trip.assert_same(topic)
    assert [row.result for row in trip.back().result.results] == [Outcome.NOOP]


def lose_archive(cluster: SandboxCluster, archive: str, how: str) -> None:
    if how == "deleted":
        delete(cluster, archive)
    else:
        trim(cluster, archive, 1)


@pytest.mark.parametrize(("how", "next_number"), [("deleted", 1), ("trimmed", 2)])
def test_the_archive_loses_records_before_the_topic_is_deleted(trip: Trip, how: str, next_number: int) -> None:
    topic = unique_topic()
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    held = shown(trip.a, topic)
    lose = partial(lose_archive, trip.a, f"{topic}.kmirror-archive.1", how)
    done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(SAVED, lose))
    assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
    assert "kmirror-archive.1 was deleted since it was proved" in str(done.result.results[0].message)
    assert shown(trip.a, topic) == held
    again = trip.back(strategy=Strategy.RECREATE)
    assert again.result.exit_code == 0, again.result
    assert archives_of(again)[topic] == {"archive": f"{topic}.kmirror-archive.{next_number}", "records": 1}
    assert_holds(trip.a, f"{topic}.kmirror-archive.{next_number}", held[3:])


def test_a_cut_is_planned_only_with_an_archive_that_is_still_there(trip: Trip, tmp_path: Path) -> None:
    topic, plan = unique_topic(), tmp_path / "plan.json"
    trip.go(topic)
    produce(trip.a, topic, ["lost-1", "lost-2"])
    held = shown(trip.a, topic)[3:]
    lose = partial(lose_archive, trip.a, f"{topic}.kmirror-archive.1", "trimmed")
    how = {"strategy": Strategy.OFFLINE, "plan": str(plan)}
    assert trip.back(checkpoint=once_after(SAVED, lose), **how).result.exit_code == ExitCode.PARTLY_DONE
    assert not plan.exists()
    for number, then in ((2, lose_archive), (3, None)):
        planned = trip.back(**how)
        assert planned.result.exit_code == 0, planned.result
        assert_holds(trip.a, archive := f"{topic}.kmirror-archive.{number}", held)
        assert archives_of(planned)[topic] == {"archive": archive, "records": 2}
        if then is not None:
            then(trip.a, archive, "trimmed")


@pytest.mark.long
def test_the_new_primary_loses_its_tail_after_the_archive(
    make_cluster: MakeCluster, source_cluster: SandboxCluster, tmp_path: Path
) -> None:
    """It has more records than before when the topic would be deleted, but others."""
    b, topic = make_cluster("b"), unique_topic()
    with Trip(source_cluster, b) as trip:
        trip.go(topic, records=200)
        produce(trip.a, topic, ["lost"])
        held = shown(trip.a, topic)

        def lose() -> None:
            found = trip.at_b.client.metadata([topic]).topics[topic]
            cuts = (PlannedCut(topic, str(found.printed_topic_id), 0, 100),)
            write_plan(TruncationPlan(trip.at_b.cluster_id, trip.mirror, 1, cuts), tmp_path / "plan.json")
            cut(b, tmp_path / "plan.json")
            produce(b, topic, ["after the election"] * 140)

        done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(SAVED, lose))
        (row,) = done.result.results
        assert "both logs were the same up to offset 200, and now are up to 100" in str(row.message)
        assert shown(trip.a, topic) == held
        trip.opened_again()
        again = trip.back(strategy=Strategy.RECREATE)
        assert again.result.exit_code == 0, again.result
        assert_holds(trip.a, archives_of(again)[topic]["archive"], held[100:])


def test_what_groups_and_operators_changed_after_the_archive_is_kept(trip: Trip, tmp_path: Path) -> None:
    topic, moved, late, name = unique_topic(), unique_topic("g"), unique_topic("g"), "min.insync.replicas"
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    commit(trip.a, moved, topic, {0: 1})
    assert trip.back(strategy=Strategy.OFFLINE, plan=str(tmp_path / "plan.json")).result.exit_code == 0
    # the brokers are not stopped after all, and for some days consumers continue
    commit(trip.a, moved, topic, {0: 2})
    commit(trip.a, late, topic, {0: 3})
    set_topic(trip.a, topic, {name: "2"})
    done = trip.back(strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done)[topic] == {"archive": f"{topic}.kmirror-archive.1", "records": 1}
    assert [committed(trip.a, group, topic) for group in (moved, late)] == [{0: 2}, {0: 3}]
    assert settings_of(trip.a, topic)[name] == "2"


def test_another_client_creates_the_topic_again_before_kmirror_does(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    commit(trip.a, group, topic, {0: 2})

    def create() -> None:
        make_old_topic(trip.a, topic)
        produce(trip.a, topic, ["other"])

    done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(DELETED, create))
    assert done.result.exit_code == ExitCode.HISTORIES_DIFFER, done.result
    held = shown(trip.a, topic)
    assert [record.value for record in held] == [b"other"]
    again = trip.back(strategy=Strategy.RECREATE)
    assert again.result.exit_code == 0, again.result
    assert_holds(trip.a, archives_of(again)[topic]["archive"], held)
    # brokers forgot it with the topic; where it read is below no fork now, so it reads again and skips nothing
    assert committed(trip.a, group, topic) == {0: 0}
    trip.copy_to_a()
    trip.assert_same(topic)


def test_offsets_that_a_member_keeps_from_being_restored_are_restored_by_the_next_run(trip: Trip) -> None:
    topic, other, group = unique_topic(), unique_topic(), unique_topic("g")
    trip.go(topic)
    make_old_topic(trip.a, other)
    produce(trip.a, topic, ["lost"])
    commit(trip.a, group, topic, {0: 2})
    with ExitStack() as stack:

        def join() -> None:
            stack.enter_context(member(trip.a, group, other))

        done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(DELETED, join))
        again = trip.back(strategy=Strategy.RECREATE)
    for refused in (done, again):
        assert refused.result.exit_code == ExitCode.PARTLY_DONE, refused.result
        (row,) = refused.result.results
        assert row.result is Outcome.FAILED
        assert f"offset 2 of {topic}-0 was not committed for group {group}: the group has members" in str(row.message)
        assert committed(trip.a, group, topic) == {}
    last = trip.back(strategy=Strategy.RECREATE)
    assert last.result.exit_code == 0, last.result
    assert committed(trip.a, group, topic) == {0: 2}
    assert archives_of(last)[topic]["records"] == 1
    trip.copy_to_a()
    trip.assert_same(topic)


def test_a_topic_that_a_consumer_reads_again_since_the_plan_is_not_deleted(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    trip.go(topic)
    produce(trip.a, topic, ["lost"])
    held = shown(trip.a, topic)
    with ExitStack() as stack:

        def join() -> None:
            stack.enter_context(member(trip.a, group, topic))

        done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(SAVED, join))
        assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
        (row,) = done.result.results
        assert "1 group has members" in str(row.message)
        assert f"group {group} ({topic})" in str(row.message)
        assert "stop these consumers" in str(row.hint)
        assert shown(trip.a, topic) == held
    again = trip.back(strategy=Strategy.RECREATE)
    assert again.result.exit_code == 0, again.result
    assert archives_of(again)[topic] == {"archive": f"{topic}.kmirror-archive.1", "records": 1}


@pytest.mark.slow
def test_a_topic_is_not_adopted_while_a_group_is_ahead_of_its_fork(trip: Trip) -> None:
    topic, clean, other, group = unique_topic(), unique_topic(), unique_topic(), unique_topic("g")
    trip.go(topic, clean)
    make_old_topic(trip.a, other)
    commit(trip.a, group, topic, {0: 9})
    with ExitStack() as stack:

        def join() -> None:
            stack.enter_context(member(trip.a, group, other))

        done = trip.back(checkpoint=once_after(RECORDED, join))
    assert done.result.exit_code == ExitCode.PARTLY_DONE, done.result
    assert {row.topic: row.result for row in done.result.results} == {topic: Outcome.FAILED, clean: Outcome.DONE}
    assert trip.at_a.state().topic(trip.mirror, topic) is None
    again = trip.back()
    assert again.result.exit_code == 0, again.result
    assert committed(trip.a, group, topic) == {0: 3}
    trip.copy_to_a()
    trip.assert_same(topic)


def test_offsets_are_restored_once_the_coordinator_knows_the_topic(trip: Trip, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group, codes = unique_topic(), unique_topic("g"), list[int]()
    commit_once = ClusterGroups.commit

    def commit_and_create(*given: Any, **how: Any) -> Mapping[TopicPartition, int]:
        answer = commit_once(*given, **how)
        codes.extend(answer.values())
        if len(codes) == 1:
            make_old_topic(trip.b, topic)
        return answer

    monkeypatch.setattr(ClusterGroups, "commit", commit_and_create)
    limits = {TopicPartition(topic, 0): 3}
    rows = restore_offsets(trip.at_b, trip.mirror, Settings(), topic, {group: {0: 2}}, limits)
    assert (codes[0], codes[-1]) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)
    assert [row.result for row in rows] == [Outcome.DONE]
    assert committed(trip.b, group, topic) == {0: 2}


LOST = UnreachableError("no answer", None, Reason.DESTINATION_UNREACHABLE)


@pytest.mark.parametrize(
    ("after", "rows"),
    [
        (RECORDED, {"planned": Outcome.TIMED_OUT, "diverging": Outcome.TIMED_OUT}),
        (DELETED, {"planned": Outcome.DONE, "diverging": Outcome.TIMED_OUT}),
    ],
)
def test_a_failback_that_loses_the_old_source_has_a_row_for_each_topic(
    trip: Trip, after: str, rows: Mapping[str, Outcome]
) -> None:
    """Once, it ended as if nothing had been changed, with neither rows nor a report."""
    planned, diverging = unique_topic(), unique_topic()
    trip.go(planned, diverging)
    produce(trip.a, diverging, ["lost"])

    def lose() -> None:
        raise LOST

    done = trip.back(strategy=Strategy.RECREATE, checkpoint=once_after(after, lose))
    assert {row.topic: row.result for row in done.result.results} == {
        planned: rows["planned"],
        diverging: rows["diverging"],
    }, done.result
    assert done.result.exit_code == ExitCode.TIMED_OUT
    assert len(done.evidence["partitions"]) == 2
    assert trip.back(strategy=Strategy.RECREATE).result.exit_code == 0
