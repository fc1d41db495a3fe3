"""A failback that cuts the logs of the old source's stopped brokers: only the delta is copied, if the logs allow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.errors import ExitCode
from kmirror.offline.survey import PlannedCut
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.truncation_plan import TruncationPlan, read_plan, write_plan
from kmirror.ops.mirrors.delete import delete
from tests.support.archiving import assert_holds
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.mirrors import produce
from tests.support.round_trip import Trip, archives_of, cut, make_old_topic, produce_batches, trim, under_way
from tests.support.topics import set_topic
from tests.support.visible import bounds_of, shown
from tests.support.watching import assert_grows


@pytest.mark.slow
def test_a_warning_says_that_a_cut_may_not_help_on_a_compacted_topic(trip: Trip, tmp_path: Path) -> None:
    cleaned, plain = unique_topic("cleaned"), unique_topic("plain")
    trip.go(cleaned, plain)
    set_topic(trip.a, cleaned, {"cleanup.policy": "compact,delete"})
    plan = str(tmp_path / "plan.json")

    def warned(dry_run: bool = True, strategy: Strategy | None = Strategy.OFFLINE) -> list[str]:
        done = trip.back(strategy=strategy, plan=plan if strategy is Strategy.OFFLINE else None, dry_run=dry_run)
        assert done.result.exit_code == 0, done.result
        return [warning for warning in done.result.warnings if "cleanup.policy is compact" in warning]

    # nothing is cut
    assert warned() == []
    for topic in (cleaned, plain):
        produce(trip.a, topic, ["lost"])
    for warnings in (warned(), warned(strategy=None), warned(dry_run=False)):
        assert [warning.partition(": ")[0] for warning in warnings] == [cleaned]
    assert warned(strategy=Strategy.RECREATE) == []


@pytest.mark.slow
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
    cut = trip.back(strategy=Strategy.OFFLINE, plan="never-written")
    assert cut.result.exit_code == ExitCode.REFUSED
    assert "not enough" in str(cut.result.error)
    assert not Path("never-written").exists()
    done = trip.back(strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert_grows(trip.views, "counting", "archiving", "checking", "searching")
    assert_holds(trip.a, archives_of(done)[topic]["archive"], held)
    trip.copy_to_a()
    trip.assert_same(topic)
    assert bounds_of(trip.a, topic) == (6, 7)


def test_a_cut_is_at_the_start_of_a_batch_also_where_the_new_primary_ends_within_it(trip: Trip, tmp_path: Path) -> None:
    topic, plan = unique_topic(), tmp_path / "plan.json"
    for cluster in (trip.a, trip.b):
        make_old_topic(cluster, topic)
    produce_batches(trip.a, topic, [f"v-{n}" for n in range(100)])
    held = shown(trip.a, topic)
    with OffsetAppender(trip.at_b.client, TopicPartition(topic, 0), producer_id=FIRST_OWN_PRODUCER_ID) as out:
        out.append([Record(one.offset, one.timestamp, one.key, one.value, one.headers) for one in held[:50]])
    assert delete(trip.at_b, trip.mirror).exit_code == 0
    done = trip.back(topic, strategy=Strategy.OFFLINE, plan=str(plan))
    assert done.result.exit_code == 0, done.result
    assert [(one.cut_offset, one.expected_log_end, one.leader_epoch) for one in read_plan(plan).partitions] == [
        (0, 100, 0)
    ]
    assert_holds(trip.a, f"{topic}.kmirror-archive.1", held[50:])


@pytest.mark.long
def test_an_old_source_whose_log_was_trimmed(trip: Trip) -> None:
    below, behind = unique_topic(), unique_topic()
    trip.go(below, behind)
    produce(trip.a, behind, ["lost-1", "lost-2"])
    trim(trip.a, below, 2)
    trim(trip.a, behind, 4)
    done = trip.back(below)
    assert done.result.exit_code == 0, done.result
    cut = trip.back(behind, strategy=Strategy.OFFLINE, plan="never-written")
    assert cut.result.exit_code == ExitCode.REFUSED
    done = trip.back(behind, strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done)[behind]["records"] == 1
    trip.copy_to_a()
    trip.assert_same(behind)
    assert [record.offset for record in shown(trip.a, behind)] == [0, 1, 2]
    assert [record.offset for record in shown(trip.a, below)] == [2]


def fail_back_offline(trip: Trip, plan: Path) -> None:
    """Fail over, lose records, fail back by cutting logs, and see what was copied."""
    topic, shorter, a, b = unique_topic(), unique_topic(), trip.a, trip.b
    trip.go(topic, shorter, records=2_000)
    produce(a, topic, ["lost-1", "lost-2", "lost-3"])
    lost = shown(a, topic)[2_000:]
    produce(b, topic, ["local-1", "local-2"])
    for _ in range(2):
        # run again before anything was cut, it finds its archive
        planned = trip.back(topic, strategy=Strategy.OFFLINE, plan=str(plan))
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
    done = trip.back(topic, strategy=Strategy.OFFLINE, plan=str(plan))
    assert done.result.exit_code == 0, done.result
    (fork,) = done.evidence["forks"]
    assert (fork["sharedEnd"], fork["recordsBeyond"], fork["offsetsToCopy"]) == (2_000, 0, 3)
    assert fork["bytesToCopy"] < 0.02 * 2_000 * 20
    assert under_way(trip.at_a, trip.mirror) == []
    (row,) = trip.back(shorter, dry_run=True).result.results
    assert "the same up to offset 1900" in str(row.message)
    assert "had been copied, but they differ from offset 1900 on" in str(row.message)
    done = trip.back(shorter, strategy=Strategy.RECREATE)
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
        done = trip.back(strategy=Strategy.RECREATE)
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
def test_a_difference_deep_inside_is_found_by_the_full_comparison_and_then_by_the_search(
    trip: Trip, tmp_path: Path
) -> None:
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
    assert trip.back(topic, strategy=Strategy.OFFLINE, plan=str(plan)).result.exit_code == 0
    # within a batch nothing can be cut, and what goes beside is at the new primary
    assert read_plan(plan).partitions[0].cut_offset == 500
    assert "3,450 records after it" in str(refused.result.results[0].message)
    done = trip.back(topic, strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert under_way(trip.at_a, trip.mirror) == []
    assert_holds(trip.a, f"{topic}.kmirror-archive.1", held)
    trip.copy_to_a()
    trip.assert_same(topic)
