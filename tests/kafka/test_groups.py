"""Group offsets are synced between real brokers; librdkafka's and Kafka's admin clients check the result."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind, ListedGroup
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.trim import delete_records
from kmirror.engine.spark.conf import SparkOptions
from kmirror.errors import ExitCode, Reason, TimedOutError, UnreachableError, UsageError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, require_mirror
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.topic_results import GroupResult, Outcome
from kmirror.ops.groups import at_stop
from kmirror.ops.groups import commit as group_commit
from kmirror.ops.groups import group_facts as group_look
from kmirror.ops.groups import sync as group_sync
from kmirror.ops.groups.at_stop import age_note, clamp_groups
from kmirror.ops.groups.group_facts import SourceGroups
from kmirror.ops.groups.sync import final_sync
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.run.last_group_sync import SyncedGroups, last_group_sync
from kmirror.ops.run.run import run
from kmirror.ops.show import describe_groups as group_rows
from kmirror.ops.show.describe_groups import describe_groups
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.failover import failover
from kmirror.state.group_records import GroupReason
from kmirror.state.records import DesiredState, PartitionState
from kmirror.state.snapshot import Changes, State
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.groups import GroupScene, commit, committed, delete_offsets, lose_source, member, metadata_of
from tests.support.json_documents import check_printed
from tests.support.kafka_tools import kafka_tool
from tests.support.local_engine import Threads
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector
from tests.support.waiting import wait_until

MakeScene = Callable[..., GroupScene]


@pytest.fixture
def make_scene(cluster_pair: ClusterPair, destination: Destination) -> Iterator[MakeScene]:
    made: list[GroupScene] = []

    def make(**settings: Any) -> GroupScene:
        made.append(GroupScene(cluster_pair, destination, **settings))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


@pytest.fixture
def scene(make_scene: MakeScene) -> GroupScene:
    return make_scene()


def results(found: tuple[GroupResult, ...]) -> list[tuple[str, int | None, int | None, Outcome, str | None]]:
    return [(one.group, one.from_offset, one.to_offset, one.result, one.reason) for one in found]


# -- the sync ----------------------------------------------------------------------------------------------------------


def test_offsets_follow_the_source_forward_and_back(scene: GroupScene) -> None:
    scene.at_source(40, "stream time")
    assert scene.sync() == []
    assert (scene.here(), metadata_of(scene.pair.destination, scene.group)) == (40, {"stream time"})
    for offset in (100, 3):
        scene.at_source(offset)
        scene.sync()
        assert scene.here() == offset


@pytest.mark.parametrize("passes", [True, False])
def test_commit_metadata_is_not_given_up_for_an_error_that_passes(
    scene: GroupScene, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    """Brokers answer -1 to metadata that is too large, and to much else: once, all groups lost theirs from then on."""
    other, asked, commit_all = unique_topic("g"), list[str](), ClusterGroups.commit_all

    def failing(groups: ClusterGroups, wanted: Mapping[str, tuple[GroupKind, Any]], timeout: float) -> Any:
        ((group, (_, offsets)),) = wanted.items()
        asked.append(group)
        if any(one.metadata for one in offsets.values()) and not (passes and len(asked) > 1):
            return {group: dict.fromkeys(offsets, int(Code.UNKNOWN_SERVER_ERROR))}
        return commit_all(groups, wanted, timeout)

    monkeypatch.setattr(ClusterGroups, "commit_all", failing)
    scene.at_source(40, "stream time")
    scene.sync()
    commit(scene.pair.source, other, scene.source_topic, {0: 40}, "longer than that")
    scene.sync()
    kept = [metadata_of(scene.pair.destination, group) for group in (scene.group, other)]
    assert kept == ([{"stream time"}, {"longer than that"}] if passes else [{""}, {""}])
    assert asked == [scene.group] * 3 + [other], "what is refused for good is not tried with each group"


def test_offsets_are_brought_into_the_log_until_it_is_there(make_scene: MakeScene) -> None:
    scene = make_scene(copied=30)
    scene.at_source(90)
    scene.sync()
    assert scene.here() == 30
    delete_records(scene.destination.client, {TopicPartition(scene.topic, 0): 20})
    scene.at_source(10)
    scene.sync()
    assert scene.here() == 20


def test_nothing_is_written_when_nothing_changes(scene: GroupScene) -> None:
    scene.at_source(40)
    scene.sync()
    before = scene.destination.state()
    scene.sync()
    scene.sync()
    assert scene.destination.state() is before, "the state topic has not grown"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_left_alone_and_reported_once(scene: GroupScene, protocol: str) -> None:
    scene.at_source(40)
    scene.sync()
    with member(scene.pair.destination, scene.group, scene.topic, protocol):
        scene.at_source(50)
        (reported,) = scene.sync()
        assert (reported.what, reported.result, reported.details["groups"]) == ("groups", "SKIPPED", [scene.group])
        assert scene.group in (reported.note or "")
        assert scene.sync() == []
        assert scene.here() == 40
        (row,) = describe_groups(scene.destination, scene.mirror)
        assert (row.source_offset, row.destination_offset, row.reason) == (50, 40, GroupReason.HAS_MEMBERS)
        assert results(final_sync(scene.destination, scene.mirror, [scene.topic])) == [
            (scene.group, 40, 50, Outcome.REFUSED, GroupReason.HAS_MEMBERS)
        ]
    scene.sync()
    assert scene.here() == 50


def test_what_a_local_consumer_commits_is_respected(scene: GroupScene) -> None:
    scene.at_source(40)
    scene.sync()
    commit(scene.pair.destination, scene.group, scene.topic, {0: 44})
    scene.at_source(50)
    (reported,) = scene.sync()
    assert reported.details["reason"] == GroupReason.COMMITTED_HERE
    assert scene.here() == 44
    # as the sentence says, that ends when another client deletes it
    delete_offsets(scene.pair.destination, scene.group)
    scene.sync()
    assert scene.here() == 50


def test_filters_choose_groups(make_scene: MakeScene) -> None:
    scene = make_scene(groups_include="g-.*,other", groups_exclude="g-.*-not")
    wanted = {scene.group: 10, f"{scene.group}-not": None, f"x{scene.group}": None}
    for group in wanted:
        commit(scene.pair.source, group, scene.source_topic, {0: 10})
    scene.sync()
    assert {group: scene.here(group) for group in wanted} == wanted


def test_the_default_filters_leave_tools_out(scene: GroupScene) -> None:
    wanted = {f"console-consumer-{scene.group}": None, f"connect-{scene.group}": None, f"__{scene.group}": None}
    for group in wanted:
        commit(scene.pair.source, group, scene.source_topic, {0: 10})
    scene.sync()
    assert {group: scene.here(group) for group in wanted} == wanted


def test_only_mirrored_topics(scene: GroupScene) -> None:
    other = unique_topic()
    make_topic(scene.pair.source, other)
    make_topic(scene.pair.destination, other)
    commit(scene.pair.source, scene.group, other, {0: 5})
    scene.at_source(40)
    scene.sync()
    assert committed(scene.pair.destination, scene.group, other) == {}
    assert scene.here() == 40


def test_names_with_a_prefix(make_scene: MakeScene) -> None:
    scene = make_scene(topic_prefix="eu.", group_prefix_enable="true")
    scene.at_source(40)
    scene.sync()
    assert (scene.here(f"eu.{scene.group}"), scene.here()) == (40, None)
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.group, row.source_group, row.topic) == (f"eu.{scene.group}", scene.group, scene.topic)


def test_a_group_prefix_needs_a_topic_prefix(cluster_pair: ClusterPair, destination: Destination) -> None:
    properties = {**properties_of(cluster_pair.source), "group.prefix.enable": "true"}
    with pytest.raises(UsageError, match=r"group\.prefix\.enable=true requires topic\.prefix"):
        create(destination, unique_topic("m"), properties)


def test_switched_off(scene: GroupScene) -> None:
    scene.at_source(40)
    change_config(scene.destination, scene.mirror, {"consumer.offset.sync.enable": "false"})
    scene.sync()
    assert (scene.here(), final_sync(scene.destination, scene.mirror, [scene.topic])) == (None, ())
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert row.reason is GroupReason.SYNC_DISABLED


def test_never_after_the_stop(scene: GroupScene) -> None:
    scene.at_source(40)
    scene.sync()
    scene.set_topic(desired=DesiredState.STOPPED)
    scene.at_source(50)
    scene.sync()
    assert (scene.here(), final_sync(scene.destination, scene.mirror, [scene.topic])) == (40, ())
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.destination_offset, row.last_synced_offset, row.reason) == (40, 40, GroupReason.STOPPED)


def test_slow_sources_of_several_mirrors_are_asked_together(
    make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other they shared three seconds: the last ones counted as unreachable."""
    scenes = [make_scene() for _ in range(3)]
    for scene in scenes:
        scene.at_source(40)
        scene.sync()
    read_source_groups = group_look.read_source_groups

    def slow(*given: Any) -> SourceGroups:
        time.sleep(1.1)
        return read_source_groups(*given)

    monkeypatch.setattr(group_rows, "read_source_groups", slow)
    rows = {row.mirror: row for row in describe_groups(scenes[0].destination)}
    assert [(rows[one.mirror].source_offset, rows[one.mirror].reason) for one in scenes] == [(40, None)] * 3


def test_stopped_while_a_sync_is_under_way(scene: GroupScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.at_source(40)

    def then_stopped(*arguments: Any, **options: Any) -> Any:
        planned = group_look.plan_groups(*arguments, **options)
        scene.set_topic(desired=DesiredState.STOPPED)
        return planned

    monkeypatch.setattr(group_sync, "plan_groups", then_stopped)
    scene.sync()
    assert scene.here() is None


def test_held_up_for_long_nothing_is_set_any_more(scene: GroupScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.at_source(40)
    with monkeypatch.context() as patch:
        times = itertools.chain((0.0, 0.0), itertools.repeat(6.0))
        patch.setattr(group_commit, "boottime", lambda: next(times))
        with pytest.raises(TimedOutError, match=f"offsets of 1 group were not committed in time: {scene.group}"):
            scene.sync()
    assert scene.here() is None
    scene.sync()
    assert scene.here() == 40


@pytest.mark.parametrize("standing", ["paused", "recreated", "not aligned"])
def test_topics_that_are_not_copied_wait(scene: GroupScene, standing: str) -> None:
    scene.at_source(40)
    if standing == "paused":
        scene.set_topic(desired=DesiredState.PAUSED)
    elif standing == "recreated":
        scene.set_partition(PartitionState.FAILED, reason=Reason.SOURCE_TOPIC_RECREATED)
    else:
        scene.set_partition(PartitionState.LOG_ALIGNMENT, begun=False, aligned=False)
    assert scene.sync() == []
    assert scene.here() is None
    scene.set_topic(desired=DesiredState.ACTIVE)
    scene.set_partition(PartitionState.MIRRORING)
    scene.sync()
    assert scene.here() == 40


def test_a_source_topic_that_is_another_one_now(scene: GroupScene) -> None:
    delete_topic(scene.pair.source, scene.source_topic)
    make_topic(scene.pair.source, scene.source_topic)
    scene.at_source(40)
    scene.sync()
    assert scene.here() is None
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert row.reason is GroupReason.SOURCE_TOPIC_RECREATED


# -- before and after a stop -------------------------------------------------------------------------------------------


def test_the_last_sync_says_what_it_did(scene: GroupScene) -> None:
    other = unique_topic("g")
    scene.at_source(100)
    commit(scene.pair.source, other, scene.source_topic, {0: 7})
    assert results(final_sync(scene.destination, scene.mirror, [scene.topic])) == sorted(
        [(scene.group, None, 100, Outcome.DONE, None), (other, None, 7, Outcome.DONE, None)]
    )
    commit(scene.pair.destination, other, scene.topic, {0: 9})
    assert results(final_sync(scene.destination, scene.mirror, [scene.topic])) == sorted(
        [(scene.group, 100, 100, Outcome.NOOP, None), (other, 9, 7, Outcome.REFUSED, GroupReason.COMMITTED_HERE)]
    )
    assert final_sync(scene.destination, scene.mirror, ["another"]) == ()


def test_the_last_sync_waits_for_records_that_are_on_their_way(make_scene: MakeScene) -> None:
    scene = make_scene(copied=30)
    scene.at_source(90)
    (row,) = final_sync(scene.destination, scene.mirror, [scene.topic], timeout_s=0.5)
    assert (row.to_offset, row.result) == (30, Outcome.DONE)
    copy = Timer(1, lambda: produce(scene.pair.destination, scene.topic, [str(n) for n in range(30, 100)]))
    copy.start()
    (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
    copy.join()
    assert (row.from_offset, row.to_offset, row.result, scene.here()) == (30, 90, Outcome.DONE, 90)
    # what the source itself does not have any more is not waited for
    scene.at_source(5_000)
    (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
    assert (row.to_offset, row.result) == (100, Outcome.DONE)


def test_a_synced_group_that_no_broker_lists_is_asked_for_by_name(
    scene: GroupScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.at_source(40)
    assert scene.sync() == []
    scene.at_source(100)
    listed = ClusterGroups.listed

    def without_it(groups: ClusterGroups, **how: bool) -> dict[str, ListedGroup]:
        """Answer as brokers do while the group's coordinator moves from one to the other."""
        return {name: one for name, one in listed(groups, **how).items() if name != scene.group}

    with monkeypatch.context() as patched:
        patched.setattr(ClusterGroups, "listed", without_it)
        (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
    assert (row.group, row.to_offset, row.result, scene.here()) == (scene.group, 100, Outcome.DONE, 100)
    # one that was deleted has nothing to sync, and stays where it is here
    admin = AdminClient(properties_of(scene.pair.source))
    admin.delete_consumer_groups([scene.group])[scene.group].result(30)
    assert final_sync(scene.destination, scene.mirror, [scene.topic]) == ()
    assert scene.here() == 100


def test_the_last_sync_reads_again_what_seems_to_go_back(scene: GroupScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.at_source(40)
    assert scene.sync() == []
    committed = ClusterGroups.committed
    older: list[dict[TopicPartition, Committed]] = []

    def as_a_new_coordinator(
        groups: ClusterGroups, wanted: Mapping[str, GroupKind], topics: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Answer once as a coordinator that does not know yet that its last records are replicated."""
        found = dict(committed(groups, wanted, topics))
        if older and groups.client is not scene.destination.client:
            found[scene.group] = older.pop()
        return found

    monkeypatch.setattr(ClusterGroups, "committed", as_a_new_coordinator)
    for known in ({}, {TopicPartition(scene.source_topic, 0): Committed(7)}):
        older[:] = [known]
        (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
        assert (row.from_offset, row.to_offset, row.result, scene.here()) == (40, 40, Outcome.NOOP, 40)
        assert not older
    # a group that was really rewound stays so
    scene.at_source(3)
    (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
    assert (row.to_offset, row.result, scene.here()) == (3, Outcome.DONE, 3)


def test_the_last_sync_needs_the_source(scene: GroupScene) -> None:
    scene.at_source(100)
    lose_source(scene)
    with pytest.raises(UnreachableError):
        final_sync(scene.destination, scene.mirror, [scene.topic])


def test_synced_groups_are_clamped_without_the_source(scene: GroupScene) -> None:
    outsider, in_range, moved_here = (unique_topic("g") for _ in range(3))
    scene.at_source(100)
    for group in (in_range, moved_here):
        commit(scene.pair.source, group, scene.source_topic, {0: 60})
    scene.sync()
    commit(scene.pair.destination, outsider, scene.topic, {0: 100})
    commit(scene.pair.destination, moved_here, scene.topic, {0: 95})
    partition = TopicPartition(scene.topic, 0)
    scene.set_topic(desired=DesiredState.STOPPED)
    with member(scene.pair.destination, scene.group, scene.topic):
        done = clamp_groups(scene.destination, scene.mirror, {partition: (0, 80)})
    assert results(done.results) == [(scene.group, 100, 80, Outcome.REFUSED, GroupReason.HAS_MEMBERS)]
    assert done.warnings() == [
        f"group {scene.group} stays at offset 100 in {partition} on the destination, instead of 80: "
        "the group has members on the destination"
    ]
    assert results(clamp_groups(scene.destination, scene.mirror, {partition: (0, 80)}).results) == [
        (scene.group, 100, 80, Outcome.DONE, None)
    ]
    assert clamp_groups(scene.destination, scene.mirror, {partition: (0, 80)}).results == ()
    groups = (scene.group, in_range, outsider, moved_here)
    assert [scene.here(group) for group in groups] == [80, 60, 100, 95]


@pytest.mark.parametrize("which", ["another topic", "the same topic"])
def test_groups_that_are_synced_for_other_topics_meanwhile_are_clamped(
    scene: GroupScene, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Once, a stop passed over such a group, without a row."""
    scene.at_source(100)
    scene.sync()
    scene.set_topic(desired=DesiredState.STOPPED)
    group_views = group_look.group_views

    def then_synced(*arguments: Any) -> Any:
        found = group_views(*arguments)
        record = scene.destination.state().group(scene.mirror, scene.group)
        assert record is not None
        offsets = {**record.offsets, **({"t": {0: (3,)}} if which == "another topic" else {scene.topic: {0: (9, 100)}})}
        change(scene.destination, scene.mirror, lambda _: Changes((replace(record, offsets=offsets),)))
        return found

    monkeypatch.setattr(at_stop, "group_views", then_synced)
    done = clamp_groups(scene.destination, scene.mirror, {TopicPartition(scene.topic, 0): (0, 80)})
    is_done = which == "another topic"
    outcome = (Outcome.DONE, None) if is_done else (Outcome.TIMED_OUT, GroupReason.UNKNOWN_NOW)
    assert results(done.results) == [(scene.group, 100, 80, *outcome)]
    assert (scene.here(), bool(done.warnings())) == (80 if is_done else 100, not is_done)
    record = scene.destination.state().group(scene.mirror, scene.group)
    assert record is not None
    assert record.ours(scene.topic, 0)[0] == (80 if is_done else 9)


# -- describe ----------------------------------------------------------------------------------------------------------


def test_described_with_the_source_down(scene: GroupScene) -> None:
    scene.at_source(40)
    assert [row.reason for row in describe_groups(scene.destination, scene.mirror)] == [None]
    scene.sync()
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.source_offset, row.destination_offset, row.last_synced_offset, row.reason) == (40, 40, 40, None)
    assert row.last_sync_age_ms is not None
    assert 0 <= row.last_sync_age_ms < 60_000
    lose_source(scene)
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.source_offset, row.destination_offset, row.reason) == (None, 40, GroupReason.SOURCE_UNREACHABLE)


def test_a_group_that_cannot_be_read_at_the_source_is_not_shown_as_synced(
    scene: GroupScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if DESCRIBE on it was revoked: no broker lists it, and its coordinator refuses."""
    other, source = unique_topic("g"), scene.pair.source.bootstrap_servers
    scene.at_source(40)
    commit(scene.pair.source, other, scene.source_topic, {0: 40})
    scene.sync()
    monkeypatch.setattr(group_commit, "_NOTE_MS", 0)
    listed, committed_by = ClusterGroups.listed, ClusterGroups.committed

    def is_source(groups: ClusterGroups) -> bool:
        return ",".join(f"{host}:{port}" for host, port in groups.client.config.bootstrap_servers) == source

    def visible(groups: ClusterGroups, **how: bool) -> dict[str, ListedGroup]:
        found = listed(groups, **how)
        return {name: one for name, one in found.items() if not (is_source(groups) and name == scene.group)}

    def readable(groups: ClusterGroups, wanted: Mapping[str, GroupKind], topics: Collection[str] | None = None) -> Any:
        found = committed_by(groups, wanted, topics)
        return {name: 30 if is_source(groups) and name == scene.group else one for name, one in found.items()}

    with monkeypatch.context() as revoked:
        revoked.setattr(ClusterGroups, "listed", visible)
        revoked.setattr(ClusterGroups, "committed", readable)
        commit(scene.pair.source, other, scene.source_topic, {0: 50})
        for _ in range(2):
            with pytest.raises(UnreachableError, match=rf"{scene.group} on the source are unknown: GROUP_AUTH.*\(30\)"):
                scene.sync()
        assert (scene.here(), scene.here(other)) == (40, 50)
        state = scene.destination.state()
        known = state.groups_checked(scene.mirror)
        assert known is not None
        assert known.unreadable == (scene.group,)
        # what is said of it at a stop is not said of the others
        note = age_note(state, require_mirror(state, scene.mirror), known.time_ms)
        assert note is not None
        assert note.startswith(f"offsets of group {scene.group} could not be synced at 20")
        reasons = {row.group: row.reason for row in describe_groups(scene.destination, scene.mirror)}
        assert reasons == {scene.group: GroupReason.UNKNOWN_NOW, other: None}
    scene.sync()
    checked = scene.destination.state().groups_checked(scene.mirror)
    assert checked is not None
    assert checked.unreadable == ()
    assert {row.reason for row in describe_groups(scene.destination, scene.mirror)} == {None}


# -- share groups ------------------------------------------------------------------------------------------------------


def share_offsets(cluster: SandboxCluster, group: str, topic: str) -> list[int]:
    """Return where a share group begins, as Kafka's own tool tells it."""
    reported = kafka_tool(
        "kafka-share-groups.sh",
        *("--bootstrap-server", cluster.bootstrap_servers, "--describe", "--offsets", "--group", group),
    ).decode()
    return [int(offset) for offset in re.findall(rf"{re.escape(topic)}\s+\d+\s+(\d+)", reported)]


@pytest.mark.slow
def test_share_groups(scene: GroupScene) -> None:
    partition = TopicPartition(scene.source_topic, 0)
    with ClusterClient(client_config(properties_of(scene.pair.source))) as client:
        groups = ClusterGroups(client)
        assert groups.commit(scene.group, GroupKind.SHARE, {partition: Committed(40)}) == {partition: 0}
        scene.sync()
        assert share_offsets(scene.pair.destination, scene.group, scene.topic) == [40]
        assert groups.commit(scene.group, GroupKind.SHARE, {partition: Committed(12)}) == {partition: 0}
        assert results(final_sync(scene.destination, scene.mirror, [scene.topic])) == [
            (scene.group, 40, 12, Outcome.DONE, None)
        ]
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.kind, row.source_offset, row.destination_offset) == (GroupKind.SHARE, 12, 12)
    assert share_offsets(scene.pair.destination, scene.group, scene.topic) == [12]
    lose_source(scene)
    drill = failover(scene.destination, scene.mirror, dry_run=True).result
    assert (drill.exit_code, drill.groups) == (ExitCode.OK, ())
    here = TopicPartition(scene.topic, 0)
    stopped = clamp_groups(scene.destination, scene.mirror, {here: (20, 80)}, put_back=True)
    assert results(stopped.results) == [(scene.group, 12, 20, Outcome.DONE, None)]
    assert share_offsets(scene.pair.destination, scene.group, scene.topic) == [20]
    named = ("--bootstrap-server", scene.pair.destination.bootstrap_servers, "--group", scene.group)
    kafka_tool("kafka-share-groups.sh", *named, "--delete")
    done = failover(scene.destination, scene.mirror).result
    assert done.exit_code == ExitCode.OK
    assert results(done.groups) == [(scene.group, None, 20, Outcome.DONE, None)]
    assert share_offsets(scene.pair.destination, scene.group, scene.topic) == [20]


# -- several brokers ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_coordinators_on_several_brokers(three_brokers: SandboxCluster) -> None:
    cluster = three_brokers
    topic, names = unique_topic(), [unique_topic("g") for _ in range(12)]
    make_topic(cluster, topic)
    partition = TopicPartition(topic, 0)
    with ClusterClient(client_config(properties_of(cluster))) as client:
        groups = ClusterGroups(client)
        for number, name in enumerate(names):
            assert groups.commit(name, GroupKind.CONSUMER, {partition: Committed(number)}) == {partition: 0}
        listed = groups.listed()
        assert {listed[name].kind for name in names} == {GroupKind.CONSUMER}
        # coordinators move: its groups are another client's
        admin = AdminClient(properties_of(cluster))
        described = admin.describe_consumer_groups(names)
        coordinators = Counter(one.result(30).coordinator.id for one in described.values())
        cluster.stop_broker(coordinators.most_common()[0][0])
        committed = {name: {partition: Committed(number)} for number, name in enumerate(names)}
        # for a moment one that has just become a group's coordinator may know less, under load
        wait_until(lambda: groups.committed(dict.fromkeys(names, GroupKind.CONSUMER)) == committed)


class ThreadsForSpark(Threads):
    """Threads that `run` takes for Spark."""

    def __init__(self, options: SparkOptions) -> None:
        super().__init__()

    def loss(self) -> None:
        """Lose nothing."""

    def start(self) -> None:
        """Have nothing to start."""

    def stop(self) -> None:
        """Have nothing to end."""


def test_a_run_that_could_not_sync_groups_at_its_end_says_so_and_does_not_end_with_0(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["one", "two"])
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0

    def lead_astray(state: State) -> Changes:
        record = state.mirror(mirror)
        assert record is not None
        return Changes((replace(record, source={"bootstrap.servers": "127.0.0.1:1"}),))

    def without_the_source(destination: Destination, mirror: str) -> SyncedGroups:
        change(destination, mirror, lead_astray)
        return last_group_sync(destination, mirror)

    def catch_up() -> VerbResult:
        request = RunRequest((mirror,), until_caught_up=True, timeout_ms=120_000)
        return run(lambda: Destination.open(properties_of(cluster_pair.destination)), request, lambda view: None)

    monkeypatch.setattr("kmirror.ops.base.spark.SparkRuntime", ThreadsForSpark)
    fine = catch_up()
    assert (fine.exit_code, [(row.result, row.lag) for row in fine.results]) == (0, [(Outcome.DONE, 0)])
    monkeypatch.setattr("kmirror.ops.run.run.last_group_sync", without_the_source)
    done = catch_up()
    assert done.exit_code == 4
    copied, trouble = done.results
    assert (copied.topic, copied.result, copied.lag) == (topic, Outcome.DONE, 0)
    assert trouble.result is Outcome.FAILED
    reported = f"group offsets of {mirror}: not synced at the end: the source: cannot connect"
    assert (trouble.message or "").startswith(reported)


# -- waiting until consumers have read all -----------------------------------------------------------------------------


def test_wait_until_groups_have_read_all_that_the_source_holds(
    cluster_pair: ClusterPair, destination: Destination, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, group, other = unique_topic(), unique_topic("g"), unique_topic("h")
    mirror = new_mirror(destination, cluster_pair.source)
    make_topic(cluster_pair.source, topic, 2, retention_ms="-1")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in (0, 0, 0, 1):
        producer.produce(topic, "record", partition=partition)
    producer.commit_transaction(30)
    words = ["wait", "--mirror", mirror, "--for", "drained", "--timeout", "1ms", "--json"]
    words += ["--bootstrap-server", cluster_pair.destination.bootstrap_servers]

    def drained(*more: str) -> tuple[int, list[tuple[str | None, int | None, str | None, int | None]]]:
        code = main([*words, *more])
        out = capsys.readouterr().out
        check_printed([*words, *more], out)
        rows = [row for row in json.loads(out)["results"] if row["result"] != "DONE"]
        return code, [(row["topic"], row["partition"], row.get("group"), row.get("offsetsLeft")) for row in rows]

    # nothing that is waited for could end it
    assert main(words) == ExitCode.REFUSED
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"] == f"no group has committed an offset of {topic}: waiting cannot succeed"
    assert drained("--groups", group) == (ExitCode.TIMED_OUT, [(None, None, None, None), (topic, None, None, None)])
    commit(cluster_pair.source, group, topic, {0: 1})
    # all there are: three records and a marker, of which one is read; a record and a marker
    assert drained() == (ExitCode.TIMED_OUT, [(topic, 0, group, 3), (topic, 1, group, 2)])
    commit(cluster_pair.source, group, topic, {0: 3, 1: 1})  # behind the last record, in front of the marker
    assert drained() == (0, [])
    commit(cluster_pair.source, other, topic, {0: 9, 1: 3})  # more than the source holds, it has lost records
    assert drained("--groups", other) == (ExitCode.TIMED_OUT, [(topic, 0, other, None), (topic, 1, other, None)])
    commit(cluster_pair.source, other, topic, {0: 0, 1: 0})
    assert drained("--groups", group) == (0, [])
    assert drained("--groups", f"{group},{other}") == (
        ExitCode.TIMED_OUT,
        [(topic, 0, other, 4), (topic, 1, other, 2)],
    )
    assert main([*words[:4], "stopped", *words[5:], "--groups", group]) == ExitCode.USAGE


def test_waiting_for_drained_topics_outlasts_a_destination_that_does_not_answer(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    mirror = new_mirror(destination, cluster_pair.source)
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["one", "two"])
    commit(cluster_pair.source, unique_topic("g"), topic, {0: 1})
    assert add(destination, mirror, selector(topic)).exit_code == 0
    seen: list[str] = []
    read = Destination.state

    def state(self: Destination) -> State:
        if len(seen) == 1:
            raise UnreachableError("no response from b:9092", "check", Reason.DESTINATION_UNREACHABLE)
        return read(self)

    monkeypatch.setattr(Destination, "state", state)
    done = wait(destination, mirror, Condition.DRAINED, 3_000, on_check=seen.append)
    assert done.exit_code == ExitCode.TIMED_OUT
    assert "unknown now: no response from b:9092" in seen[1]
    assert len(seen) > 2
