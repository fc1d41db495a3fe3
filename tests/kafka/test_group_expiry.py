"""Committed offsets expire at the destination, where a synced group has no members; a minute represents the week."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.check import check
from kmirror.ops.groups import expiry
from kmirror.ops.groups.expiry import OffsetsRetention, offsets_retention
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.stop.failover import failover
from kmirror.state.group_records import GroupReason
from kmirror.state.records import DesiredState, PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import NO_RETENTION, ClusterPair, made_clusters, unique_topic
from tests.support.groups import GroupScene, commit, committed, delete_offsets, lose_source, member
from tests.support.leader import create_topic
from tests.support.mirrors import delete_topic, make_topic, produce, properties_of, selector
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.waiting import wait_until

_RETENTION_S = 60
_EXPIRY = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "500"}


@pytest.fixture(scope="module")
def expiring(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a cluster that keeps the offsets of groups without members for a minute."""
    with made_clusters(clusters_directory) as make:
        yield make("expiring", heap=SMALL_HEAP, properties={**NO_RETENTION, **_EXPIRY})


@pytest.fixture
def scene(source_cluster: SandboxCluster, expiring: SandboxCluster) -> Iterator[GroupScene]:
    """Return a group whose offsets expire at the destination."""
    with Destination.open(properties_of(expiring)) as destination:
        made = GroupScene(ClusterPair(source_cluster, expiring), destination)
        yield made
        made.close()


def sync_for_longer_than_offsets_live(scene: GroupScene) -> list[int | None]:
    """Do what an engine does every ten seconds, and return what the group had in between."""
    found, until = [], time.monotonic() + _RETENTION_S + 15
    while time.monotonic() < until:
        with suppress(UnreachableError):
            scene.sync()
        found.append(scene.here())
        time.sleep(3)
        found.append(scene.here())
    return found


@pytest.mark.slow
def test_offsets_of_idle_groups_never_expire_while_an_engine_runs(scene: GroupScene) -> None:
    scene.at_source(40, "stream time")
    scene.sync()
    assert set(sync_for_longer_than_offsets_live(scene)) == {40}


@pytest.mark.slow
def test_offsets_of_a_group_that_had_members_here_are_put_back_once_they_have_expired(scene: GroupScene) -> None:
    """Brokers count from when its last member left, whatever is committed later; then it begins as a new group."""
    scene.at_source(40)
    scene.sync()
    with member(scene.pair.destination, scene.group, scene.topic):
        pass
    found = sync_for_longer_than_offsets_live(scene)
    assert None in found, "it does not count from the last commit"
    assert found[-1] == 40
    assert set(sync_for_longer_than_offsets_live(scene)) == {40}


@pytest.mark.slow
def test_without_the_source_they_do_not_expire_and_a_failover_puts_back_what_has(scene: GroupScene) -> None:
    scene.at_source(40, "stream time")
    scene.sync()
    lose_source(scene)
    assert set(sync_for_longer_than_offsets_live(scene)) == {40}
    # no engine: they expire
    wait_until(lambda: scene.here() is None, seconds=90)
    planned = failover(scene.destination, scene.mirror, dry_run=True).result
    assert [(row.group, row.from_offset, row.to_offset) for row in planned.groups] == [(scene.group, None, 40)]
    assert scene.group in " ".join(planned.warnings)
    assert scene.here() is None
    done = failover(scene.destination, scene.mirror).result
    assert [(row.group, row.to_offset, row.result) for row in done.groups] == [(scene.group, 40, Outcome.DONE)]
    assert scene.here() == 40


# -- as if they had expired, on the clusters that all tests share ------------------------------------------------------


@pytest.fixture
def shared(cluster_pair: ClusterPair, destination: Destination) -> Iterator[GroupScene]:
    """Return a group that was synced."""
    made = GroupScene(cluster_pair, destination)
    made.at_source(40, "stream time")
    made.sync()
    yield made
    made.close()


def sync_without_the_source(scene: GroupScene) -> None:
    with pytest.raises(UnreachableError, match="the source"):
        scene.sync()


def test_check_says_how_long_the_destination_keeps_offsets(shared: GroupScene) -> None:
    lines = {line.what: line for line in check(shared.destination.properties, mirror=shared.mirror).lines}
    line = lines["keeping group offsets"]
    assert (line.message, line.hint) == (
        "7d without a member or a commit (offsets.retention.minutes); an engine commits them again every 16h48m",
        None,
    )


def test_what_has_vanished_is_restored_where_no_one_else_uses_the_group(shared: GroupScene) -> None:
    destination = shared.pair.destination
    lose_source(shared)
    delete_offsets(destination, shared.group)
    with member(destination, shared.group, shared.topic):
        sync_without_the_source(shared)
        assert shared.here() is None
    sync_without_the_source(shared)
    assert shared.here() == 40
    # a paused topic's offsets expire as well
    delete_offsets(destination, shared.group)
    shared.set_topic(desired=DesiredState.PAUSED)
    sync_without_the_source(shared)
    assert shared.here() == 40
    # neither what a consumer here has committed is changed, nor anything after the stop
    commit(destination, shared.group, shared.topic, {0: 44})
    sync_without_the_source(shared)
    assert shared.here() == 44
    delete_offsets(destination, shared.group)
    shared.set_topic(desired=DesiredState.STOPPED)
    assert shared.sync() == []
    assert shared.here() is None


def test_a_failover_lists_groups_without_offsets(shared: GroupScene) -> None:
    destination, unsynced = shared.pair.destination, unique_topic("g")
    commit(shared.pair.source, unsynced, shared.source_topic, {0: 7})
    with member(destination, unsynced, shared.topic):
        shared.sync()
        lose_source(shared)
        delete_offsets(destination, shared.group)
        with member(destination, shared.group, shared.topic):
            found = failover(shared.destination, shared.mirror, dry_run=True).result
            assert [(row.group, row.to_offset, row.result, row.reason) for row in found.groups] == [
                (shared.group, 40, Outcome.REFUSED, GroupReason.HAS_MEMBERS)
            ]
            (listed,) = (one for one in found.warnings if "without committed offsets" in one)
            assert listed.startswith("2 groups without")
            assert shared.group in listed
            assert unsynced in listed
        done = failover(shared.destination, shared.mirror).result
    assert [(row.group, row.from_offset, row.to_offset, row.result) for row in done.groups] == [
        (shared.group, None, 40, Outcome.DONE)
    ]
    assert shared.here() == 40
    # the operator's own from now on
    delete_offsets(destination, shared.group)
    assert failover(shared.destination, shared.mirror).result.groups == ()
    assert shared.here() is None


@pytest.mark.parametrize("setting", ["groups.exclude", "sync.group.offsets.enabled"])
def test_a_failover_puts_nothing_back_of_groups_that_are_not_synced_any_more(shared: GroupScene, setting: str) -> None:
    """Once, a group that the operator had excluded, and had given its own start, began where it was weeks before."""
    outside = unique_topic("g")
    commit(shared.pair.source, outside, shared.source_topic, {0: 7})
    with member(shared.pair.destination, outside, shared.topic):
        shared.sync()
    value = f"{shared.group},{outside}" if setting == "groups.exclude" else "false"
    change_config(shared.destination, shared.mirror, {setting: value})
    delete_offsets(shared.pair.destination, shared.group)
    lose_source(shared)
    for dry_run in (True, False):
        done = failover(shared.destination, shared.mirror, dry_run=dry_run).result
        assert (done.exit_code, done.groups) == (0, ())
        assert not [one for one in done.warnings if shared.group in one or outside in one]
    assert shared.here() is None


def test_what_the_source_has_dropped_is_dropped(shared: GroupScene, monkeypatch: pytest.MonkeyPatch) -> None:
    moving, dropped = unique_topic("g"), shared.group
    commit(shared.pair.source, moving, shared.source_topic, {0: 3})
    shared.sync()
    delete_offsets(shared.pair.source, dropped)
    assert shared.sync() == []
    assert shared.here() == 40, "a new coordinator may know less for a moment"
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    (event,) = shared.sync()
    assert (event.result, event.details) == ("DROPPED", {"groups": [dropped], "count": 1})
    assert shared.here() is None
    lose_source(shared)
    sync_without_the_source(shared)
    assert shared.here() is None
    assert failover(shared.destination, shared.mirror).result.groups == ()
    assert (shared.here(), shared.here(moving)) == (None, 3)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_nothing_of_a_group_that_continues_here_is_dropped(
    shared: GroupScene, monkeypatch: pytest.MonkeyPatch, is_noticed: bool
) -> None:
    """A batch job: it has no members between its runs, and its idle partitions have the offsets that were synced."""
    pair, moving, moved = shared.pair, unique_topic("g"), shared.group
    idle = unique_topic()
    make_topic(pair.source, idle)
    assert add(shared.destination, shared.mirror, selector(idle)).exit_code == 0
    moving_topic, shared.topic = shared.topic, idle
    shared.set_partition(PartitionState.MIRRORING)
    for cluster in (pair.source, pair.destination):
        produce(cluster, idle, [str(number) for number in range(10)])
    commit(pair.source, moved, idle, {0: 7})
    commit(pair.source, moving, shared.source_topic, {0: 3})
    for _ in range(2):  # the second time it is seen at the source as well
        shared.sync()
    commit(pair.destination, moved, moving_topic, {0: 60})
    if is_noticed:
        shared.at_source(41)
        (event,) = shared.sync()
        assert event.details["reason"] is GroupReason.COMMITTED_HERE
    delete_offsets(pair.source, moved)
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    assert shared.sync() == []
    assert shared.here() == 7
    assert committed(pair.destination, moved, moving_topic) == {0: 60}
    record = shared.destination.state().group(shared.mirror, moved)
    assert record is not None
    assert record.absent[idle] == (0,), "kmirror commits it again for good"


def test_a_group_that_both_clusters_have_forgotten_is_forgotten(
    shared: GroupScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, moved = unique_topic("g"), unique_topic("g")
    for group in (other, moved):
        commit(shared.pair.source, group, shared.source_topic, {0: 3})
    shared.sync()
    commit(shared.pair.destination, moved, shared.topic, {0: 60})

    def known() -> set[str]:
        # as an engine that has just started
        shared.job.close()
        shared.job = GroupSyncJob(shared.mirror, shared.destination.properties)
        shared.sync()
        return {one.group for one in shared.destination.state().groups(shared.mirror)}

    for group in (shared.group, moved):
        delete_offsets(shared.pair.source, group)
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    assert known() == {shared.group, moved, other}
    assert shared.here() == 40, "it was not seen at the source by this engine: it expires"
    monkeypatch.setattr(expiry, "FORGOTTEN_MS", 0)
    assert known() == {shared.group, moved, other}, "the destination still has what was synced"
    delete_offsets(shared.pair.destination, shared.group)
    assert known() == {moved, other}
    # back again
    shared.at_source(50)
    assert known() == {shared.group, moved, other}
    assert (shared.here(), shared.here(moved)) == (50, 60)


def test_one_topic_of_a_group_is_dropped_while_it_continues_with_another(
    shared: GroupScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, first, second = shared.pair, shared.topic, unique_topic()
    make_topic(pair.source, second)
    assert add(shared.destination, shared.mirror, selector(second)).exit_code == 0
    shared.topic = second
    shared.set_partition(PartitionState.MIRRORING)
    for cluster in (pair.source, pair.destination):
        produce(cluster, second, [str(number) for number in range(10)])
    commit(pair.source, shared.group, second, {0: 1})
    shared.sync()
    with ClusterClient(client_config(properties_of(pair.source))) as client:
        gone = TopicPartition(first, 0)
        assert ClusterGroups(client).delete_offsets(shared.group, [gone]) == {gone: 0}
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    commit(pair.source, shared.group, second, {0: 2})
    (event,) = shared.sync()
    assert event.result == "DROPPED"
    assert committed(pair.destination, shared.group, first) == {}
    assert shared.here() == 2


def test_nothing_is_dropped_if_the_source_has_nothing_or_another_topic(
    shared: GroupScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    delete_offsets(shared.pair.source, shared.group)
    assert shared.sync() == []
    assert shared.here() == 40
    delete_topic(shared.pair.source, shared.source_topic)
    assert shared.sync() == []
    assert shared.here() == 40


def test_what_was_synced_before_a_stop_is_not_put_back_when_the_topic_is_mirrored_again(shared: GroupScene) -> None:
    assert failover(shared.destination, shared.mirror).result.exit_code == 0
    delete_topic(shared.pair.destination, shared.topic)
    assert add(shared.destination, shared.mirror, selector(shared.topic)).exit_code == 0
    shared.set_partition(PartitionState.MIRRORING)
    lose_source(shared)
    sync_without_the_source(shared)
    assert failover(shared.destination, shared.mirror).result.groups == ()
    assert shared.here() is None


# -- with few rights ---------------------------------------------------------------------------------------------------


def test_without_rights_a_day_is_assumed_and_nothing_is_deleted(guarded_cluster: SandboxCluster) -> None:
    topic, group = create_topic(guarded_cluster), unique_topic("g")
    partition = TopicPartition(topic, 0)
    with ClusterClient(client_config(guarded_cluster.client_properties())) as admin:
        give(admin, acls("topic", topic, "kmirror", "READ"), acls("group", group, "kmirror", "READ"))
        with ClusterClient(client_config(guarded_cluster.client_properties("kmirror"))) as client:
            assert offsets_retention(client) == OffsetsRetention(86_400, is_known=False)
            groups = ClusterGroups(client)
            assert groups.commit(group, GroupKind.CONSUMER, {partition: Committed(0)}) == {partition: 0}
            assert groups.delete_offsets(group, [partition]) == {partition: Code.GROUP_AUTHORIZATION_FAILED}
            give(admin, acls("group", group, "kmirror", "DELETE"))
            assert groups.delete_offsets(group, [partition]) == {partition: 0}
            assert groups.committed({group: GroupKind.CONSUMER}) == {group: {}}
