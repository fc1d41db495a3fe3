"""A topic is rebuilt on real brokers, interrupted before and after every step, and finished by the next attempt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition as Place
from kmirror.cluster.rights.acl_commands import Grant
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics import policies
from kmirror.cluster.topics.log_dirs import DiskUse, disk_use
from kmirror.cluster.topics.topic_requests import create_partitions, create_topic
from kmirror.engine.archive import archiving
from kmirror.engine.archive.archive_topic import Range
from kmirror.engine.archive.copy import Archived, archive_partition
from kmirror.engine.driver.rebuilds import ConsentNeededError
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add import topic_admin
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.rights import destination_grants
from kmirror.ops.groups import restore
from kmirror.ops.jobs import rebuild, rebuild_claim
from kmirror.ops.jobs.rebuild import RebuildAttempt, TopicRebuilder
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.recover import Consent, recover
from kmirror.ops.show.describe import describe
from kmirror.ops.show.events import events
from kmirror.ops.stop.failover import failover
from kmirror.settings.parsing import parse_settings
from kmirror.state.group_records import GroupRecord
from kmirror.state.records import PENDING_REBUILD, RebuildStep, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.work import Add
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.groups import commit, committed, delete_offsets
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector, settings_of
from tests.support.round_trip import trim
from tests.support.shared_clusters import TieredPair
from tests.support.topics import set_topic
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until

RESET = Reason.SOURCE_TOPIC_RECREATED
OLD = [f"old {number}" for number in range(30)]


class HereAndNow:
    """Run what Spark would run, here and now."""

    slots = spare_slots = 2
    driver_host = bind_address = "127.0.0.1"

    def map(
        self, name: str, function: Callable[[Any, int], Any], arguments: Iterable[Any], at_once: int | None = None
    ) -> Generator[Any, None, None]:
        yield from (function(argument, 0) for argument in arguments)


class NoRoom(HereAndNow):
    """A Spark cluster whose cores all run lanes, which never end."""

    spare_slots = 0

    def map(self, name: str, *_: object) -> Generator[Any, None, None]:
        raise AssertionError(f"{name} waits for ever")


class CutOffError(KmirrorError):
    """The process is gone here."""


class Scene:
    """A mirror topic with old records, and a source topic of its name that is another one now."""

    def __init__(self, pair: ClusterPair, destination: Destination, **settings: str) -> None:
        self.pair, self.destination, self.topic = pair, destination, unique_topic()
        self.mirror = new_mirror(destination, pair.source, **settings)
        make_topic(pair.source, self.topic)
        add(destination, self.mirror, selector(self.topic))
        produce(pair.destination, self.topic, OLD)
        self.old = shown(pair.destination, self.topic)
        self.group = unique_topic("group")
        commit(pair.destination, self.group, self.topic, {0: 20})
        delete_topic(pair.source, self.topic)
        make_topic(pair.source, self.topic, partitions=2)
        self.rebuilder = TopicRebuilder(destination.properties, self.mirror, HereAndNow())

    @property
    def record(self) -> TopicRecord:
        found = self.destination.state().topic(self.mirror, self.topic)
        assert found is not None
        return found

    @property
    def archive(self) -> str:
        return f"{self.topic}.kmirror-archive.1"

    def committed(self) -> dict[int, int]:
        return committed(self.pair.destination, self.group, self.topic)

    def assert_rebuilt(self, archive: str | None = None) -> None:
        archive = archive or self.archive
        record = self.record
        found = self.destination.client.metadata([self.topic]).topics[self.topic]
        with ClusterClient(self.destination.config) as client:
            assert client.metadata([self.topic]).topics[self.topic].topic_id == found.topic_id
        assert (record.destination_topic_id, record.partitions) == (found.printed_topic_id, 2)
        assert (record.pending_operation, record.rebuild, record.archive) == (None, None, archive)
        assert [one._replace(headers=()) for one in shown(self.pair.destination, self.topic)] == []
        saved = shown(self.pair.destination, archive)
        assert [(one.key, one.value, one.timestamp) for one in saved] == [
            (one.key, one.value, one.timestamp) for one in self.old
        ]
        assert self.committed() == {0: 0}
        guards = [
            one.guard.producer_id for one in self.destination.state().partitions(self.mirror, self.topic) if one.guard
        ]
        assert len(set(guards)) == 2


@pytest.fixture
def scene(cluster_pair: ClusterPair, destination: Destination) -> Scene:
    return Scene(cluster_pair, destination)


STEPS: list[tuple[Any, str]] = [
    (RebuildAttempt, "_with_ranges"),
    (RebuildAttempt, "_archive"),
    (rebuild, "committed_on"),
    (RebuildAttempt, "_record"),
    (topic_admin, "delete_topics"),
    (policies, "create_topic"),
    (rebuild, "restore_offsets"),
    (RebuildAttempt, "_complete"),
]


def cut_off(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """Let a step fail as often as it is taken: before it has done anything, or when it has done all."""
    step = getattr(owner, name)

    def failing(*arguments: Any, **options: Any) -> Any:
        if after:
            step(*arguments, **options)
        raise CutOffError(f"{name} was cut off")

    monkeypatch.setattr(owner, name, failing)


def test_cut_off_before_and_after_every_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    assert scene.record.pending_operation == PENDING_REBUILD
    (row,) = describe(scene.destination, scene.mirror)
    assert (row.topic_state, row.reason) == ("PENDING_MIRROR", RESET)
    assert scene.archive in (row.error_message or "")
    here = Place(scene.archive, 0)
    for owner, name in STEPS:
        for after in (False, True):
            with monkeypatch.context() as patch:
                cut_off(patch, owner, name, after=after)
                with pytest.raises(CutOffError):
                    scene.rebuilder.carry_out(scene.topic)
            if name in ("_with_ranges", "_archive") and after:
                (row,) = describe(scene.destination, scene.mirror)
                # a transaction's marker follows its records
                ends = scene.destination.client.list_offsets({here: LATEST}) if name == "_archive" else {}
                end = ends[here].offset if ends else None
                assert (row.offsets_to_archive, row.archive_log_end) == (len(OLD), end)
                so_far = f"({len(OLD)} offsets) are being archived in {scene.archive}, which has {end} offsets so far"
                assert (so_far in (row.error_message or "")) == (end is not None), row.error_message
            gone = scene.topic not in scene.destination.client.metadata(None).topics
            if gone:
                assert len(shown(scene.pair.destination, scene.archive)) == len(OLD), "deleted before it was saved"
            if (name, after) == ("_complete", True):
                break
    scene.assert_rebuilt()
    with pytest.raises(RefusedError, match="is no longer being rebuilt"):
        scene.rebuilder.carry_out(scene.topic)


def test_where_lanes_have_all_of_spark_it_is_done_without(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.engine.bulk.runner._SLOT_SECONDS", 0.1)
    scene.rebuilder = TopicRebuilder(scene.destination.properties, scene.mirror, NoRoom())
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_synced_groups_get_what_they_have_at_the_source(scene: Scene) -> None:
    synced = GroupRecord(scene.mirror, scene.group, scene.group, "consumer", 1, {scene.topic: {0: (20,)}})
    change(scene.destination, scene.mirror, lambda _: Changes((synced,)))
    for partition in (0, 1):
        produce(scene.pair.source, scene.topic, [str(number) for number in range(10)], partition)
    commit(scene.pair.source, scene.group, scene.topic, {0: 5, 1: 400})
    local, moved_here = unique_topic("g"), unique_topic("g")
    commit(scene.pair.destination, local, scene.topic, {0: 11})
    for cluster, offset in ((scene.pair.source, 6), (scene.pair.destination, 12)):
        commit(cluster, moved_here, scene.topic, {0: offset})
    moved = GroupRecord(scene.mirror, moved_here, moved_here, "consumer", 1, {scene.topic: {0: (3,)}})
    change(scene.destination, scene.mirror, lambda _: Changes((moved,)))
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    scene.rebuilder.carry_out(scene.topic)
    assert scene.committed() == {0: 5, 1: 10}
    assert [committed(scene.pair.destination, group, scene.topic) for group in (local, moved_here)] == [{0: 0}, {0: 0}]
    record = scene.destination.state().group(scene.mirror, scene.group)
    assert record is not None
    assert [record.ours(scene.topic, partition)[0] for partition in (0, 1)] == [5, 10]


@pytest.mark.parametrize("is_same", [False, True])
def test_groups_that_are_synced_meanwhile_are_restored(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """Once, they were passed over, and the event said that their offsets were committed."""
    synced = GroupRecord(scene.mirror, scene.group, scene.group, "consumer", 1, {scene.topic: {0: (20,)}})
    change(scene.destination, scene.mirror, lambda _: Changes((synced,)))
    produce(scene.pair.source, scene.topic, [str(number) for number in range(10)])
    commit(scene.pair.source, scene.group, scene.topic, {0: 5})
    known_committed, times = restore.known_committed, itertools.count(1)

    def then_synced(*arguments: Any) -> Any:
        found = known_committed(*arguments)
        offsets: dict[str, dict[int, tuple[int, ...]]] = {scene.topic: {0: (20,)}, "t": {0: (0,)}}
        offsets[scene.topic if is_same else "t"][0] += (next(times),)
        change(scene.destination, scene.mirror, lambda _: Changes((replace(synced, offsets=offsets),)))
        return found

    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    trouble = pytest.raises(KmirrorError, match=f"were not committed for group {scene.group}: UNKNOWN_NOW")
    with monkeypatch.context() as patch, trouble if is_same else nullcontext():
        patch.setattr(restore, "known_committed", then_synced)
        scene.rebuilder.carry_out(scene.topic)
    if is_same:
        scene.rebuilder.carry_out(scene.topic)
    assert scene.committed() == {0: 5}
    record = scene.destination.state().group(scene.mirror, scene.group)
    assert record is not None
    assert (record.ours(scene.topic, 0)[0], record.ours("t", 0)) == (5, (0,) if is_same else (0, next(times) - 1))


def test_groups_that_are_excluded_are_not_asked_for_at_the_source(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a rebuild waited for offsets of a group that the operator had excluded, as its hint said."""
    synced = GroupRecord(scene.mirror, scene.group, scene.group, "consumer", 1, {scene.topic: {0: (20,)}})
    change(scene.destination, scene.mirror, lambda _: Changes((synced,)))
    change_config(scene.destination, scene.mirror, {"groups.exclude": scene.group})
    committed_by, source = ClusterGroups.committed, scene.pair.source.bootstrap_servers

    def readable(groups: ClusterGroups, wanted: Mapping[str, GroupKind], topics: Collection[str] | None = None) -> Any:
        if ",".join(f"{host}:{port}" for host, port in groups.client.config.bootstrap_servers) == source:
            return dict.fromkeys(wanted, int(Code.GROUP_AUTHORIZATION_FAILED))
        return committed_by(groups, wanted, topics)

    monkeypatch.setattr(ClusterGroups, "committed", readable)
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_offsets_of_the_former_log_are_not_put_back_into_the_new_one(scene: Scene) -> None:
    """Neither of a group that the source has no offsets of now, nor of one that has committed some of its own here."""
    gone = unique_topic("g")
    offsets = {scene.topic: {0: (3,)}, "t": {0: (3,)}}
    synced = [GroupRecord(scene.mirror, group, group, "consumer", 1, offsets) for group in (scene.group, gone)]
    change(scene.destination, scene.mirror, lambda _: Changes(tuple(synced)))
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    scene.rebuilder.carry_out(scene.topic)
    assert scene.committed() == {0: 0}
    delete_offsets(scene.pair.destination, scene.group)
    produce(scene.pair.destination, scene.topic, OLD)
    assert failover(scene.destination, scene.mirror).result.groups == ()
    for group in (scene.group, gone):
        assert committed(scene.pair.destination, group, scene.topic) == {}
        record = scene.destination.state().group(scene.mirror, group)
        assert record is not None
        assert record.ours("t", 0) == (3,)


def test_offsets_that_a_coordinator_does_not_take_yet_are_not_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator on another broker may not know the new topic yet, or is still loading its groups."""
    codes, commit_now = [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.COORDINATOR_LOAD_IN_PROGRESS], ClusterGroups.commit

    def commit_later(
        here: ClusterGroups, group: str, kind: GroupKind, offsets: Mapping[Place, Committed]
    ) -> dict[Place, int]:
        return dict.fromkeys(offsets, int(codes.pop(0))) if codes else commit_now(here, group, kind, offsets)

    monkeypatch.setattr(ClusterGroups, "commit", commit_later)
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with pytest.raises(KmirrorError, match=f"of {scene.topic} were not committed for group {scene.group}: UNKNOWN_NOW"):
        scene.rebuilder.carry_out(scene.topic)
    assert codes == []
    assert scene.record.pending_operation == PENDING_REBUILD
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_nothing_is_deleted_that_its_archive_does_not_hold(scene: Scene) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    # another client writes to the archive
    create_topic(scene.destination.client, scene.archive, 1, 1, {})
    produce(scene.pair.destination, scene.archive, ["not ours"])
    with pytest.raises(KmirrorError):
        scene.rebuilder.carry_out(scene.topic)
    assert shown(scene.pair.destination, scene.topic) == scene.old


def test_nothing_is_deleted_when_the_comparison_finds_a_difference(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_the_last(
        reading: ClusterClient,
        writing: ClusterClient,
        partition: Place,
        archive: Place,
        ranges: Sequence[Range],
        reported: Add,
    ) -> Archived:
        return archive_partition(
            reading, writing, partition, archive, [(low, high - 1) for low, high in ranges], reported
        )

    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    monkeypatch.setattr(archiving, "archive_partition", without_the_last)
    with pytest.raises(KmirrorError, match="does not hold what"):
        scene.rebuilder.carry_out(scene.topic)
    assert shown(scene.pair.destination, scene.topic) == scene.old


@pytest.mark.parametrize("retry_timeout_ms", ["300000", "0"])
def test_a_source_that_is_gone_is_waited_for(
    cluster_pair: ClusterPair, destination: Destination, retry_timeout_ms: str
) -> None:
    scene = Scene(cluster_pair, destination, retry_timeout_ms=retry_timeout_ms)
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    delete_topic(scene.pair.source, scene.topic)
    with pytest.raises(KmirrorError, match="the source has no topic"):
        scene.rebuilder.carry_out(scene.topic)
    assert shown(scene.pair.destination, scene.topic) == scene.old
    failed = [row.error_message or "" for row in describe(destination, scene.mirror, failed=True)]
    assert ["the source has no topic" in message for message in failed] == ([True] if retry_timeout_ms == "0" else [])
    make_topic(scene.pair.source, scene.topic, partitions=2)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_with_what_check_prints_groups_are_read_even_if_none_is_synced(
    source_cluster: SandboxCluster, guarded_cluster: SandboxCluster
) -> None:
    topic, group = unique_topic(), unique_topic("group")
    settings = {"sync.group.offsets.enabled": "false", "retry.timeout.ms": "0", "read.only": "detect"}
    needed = destination_grants(parse_settings(settings), [topic])
    on_groups = [one for one in needed if one.resource[0] == "--group"]
    make_topic(source_cluster, topic)
    with (
        ClusterClient(client_config(guarded_cluster.client_properties())) as admin,
        Destination.open(guarded_cluster.client_properties("kmirror")) as destination,
    ):
        grant(admin, *(one for one in needed if one not in on_groups))
        mirror = new_mirror(destination, source_cluster, **{key.replace(".", "_"): settings[key] for key in settings})
        assert add(destination, mirror, selector(topic)).exit_code == 0
        commit(guarded_cluster, group, topic, {0: 0})
        delete_topic(source_cluster, topic)
        make_topic(source_cluster, topic)
        rebuilder = TopicRebuilder(destination.properties, mirror, HereAndNow())
        rebuilder.begin(topic, RESET, consented=False)
        with pytest.raises(UnreachableError, match="the destination: committed offsets of group") as refused:
            rebuilder.carry_out(topic)
        (row,) = describe(destination, mirror, failed=True)
        # one of the groups of the shared cluster, and the grant for it
        named = str(refused.value).split("committed offsets of group ")[1].split()[0]
        assert named in ClusterGroups(admin).listed()
        assert f"--operation Read --group {named}" in str(row.error_message)
        grant(admin, *on_groups)
        rebuilder.carry_out(topic)
        assert committed(guarded_cluster, group, topic) == {0: 0}


def grant(admin: ClusterClient, *needed: Grant) -> None:
    """Give the user `kmirror` the rights that `check` prints."""
    kinds = {"--topic": "topic", "--transactional-id": "transactional_id", "--cluster": "cluster", "--group": "group"}
    for one in needed:
        resource, *name = one.resource
        bindings = acls(
            kinds[resource], "".join(name) or "kafka-cluster", "kmirror", *one.operations, prefixed=one.prefixed
        )
        give(admin, bindings)


def test_a_topic_that_another_client_creates_meanwhile_is_left_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patch:
        cut_off(patch, topic_admin, "delete_topics", after=True)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    make_topic(scene.pair.destination, scene.topic, partitions=2)
    produce(scene.pair.destination, scene.topic, ["somebody's"])
    with pytest.raises(RefusedError, match="another client created"):
        scene.rebuilder.carry_out(scene.topic)
    assert [record.value for record in shown(scene.pair.destination, scene.topic)] == [b"somebody's"]
    delete_topic(scene.pair.destination, scene.topic)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def cut_off_before_the_deletion(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        cut_off(patch, topic_admin, "delete_topics", after=False)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)


def test_what_groups_and_operators_changed_after_the_archive_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    cut_off_before_the_deletion(scene, monkeypatch)
    late = unique_topic("late")
    commit(scene.pair.destination, late, scene.topic, {0: 11})
    set_topic(scene.pair.destination, scene.topic, {"segment.ms": "86400000"})
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()
    assert committed(scene.pair.destination, late, scene.topic) == {0: 0}
    assert settings_of(scene.pair.destination, scene.topic)["segment.ms"] == "86400000"


def test_what_was_written_after_the_archive_is_not_deleted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    cut_off_before_the_deletion(scene, monkeypatch)
    produce(scene.pair.destination, scene.topic, ["by another client"])
    scene.old = shown(scene.pair.destination, scene.topic)
    for _ in range(2):
        with suppress(KmirrorError):
            scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt(f"{scene.topic}.kmirror-archive.2")


@pytest.mark.parametrize(("lost", "next_number"), [("whole", 1), ("a record", 2)])
def test_what_the_archive_has_lost_since_is_archived_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, lost: str, next_number: int
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    cut_off_before_the_deletion(scene, monkeypatch)
    if lost == "whole":
        delete_topic(scene.pair.destination, scene.archive)
    else:
        trim(scene.pair.destination, scene.archive, 1)
    with pytest.raises(KmirrorError, match=r"is not deleted: since it was archived in .*, this archive was deleted"):
        scene.rebuilder.carry_out(scene.topic)
    assert shown(scene.pair.destination, scene.topic) == scene.old
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt(f"{scene.topic}.kmirror-archive.{next_number}")


def test_an_archive_that_may_delete_records_at_any_time_is_not_trusted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    cut_off_before_the_deletion(scene, monkeypatch)
    wanted = {"cleanup.policy": "compact", "retention.ms": "86400000", "retention.bytes": "1"}
    for key, value in wanted.items():
        set_topic(scene.pair.destination, scene.archive, {key: value})
        with pytest.raises(RefusedError, match=f"may delete records at any time: it has {key}={value}"):
            scene.rebuilder.carry_out(scene.topic)
        set_topic(scene.pair.destination, scene.archive, {key: "delete" if key == "cleanup.policy" else "-1"})
    # no more than this is in it
    set_topic(scene.pair.destination, scene.archive, {"retention.bytes": "10000000"})
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_what_was_written_while_the_rest_was_archived_is_archived_too(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patch:
        cut_off(patch, RebuildAttempt, "_with_ranges", after=True)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    produce(scene.pair.destination, scene.topic, ["by another client"])
    scene.old = shown(scene.pair.destination, scene.topic)
    with pytest.raises(KmirrorError, match="another client writes to"):
        scene.rebuilder.carry_out(scene.topic)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_an_empty_range_of_an_older_version_which_does_not_say_where_the_log_ended_proves_nothing(scene: Scene) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)

    def archived(_: State) -> Changes:
        record = scene.record
        assert record.rebuild is not None
        return Changes((replace(record, rebuild=replace(record.rebuild, step=RebuildStep.REPLACE, ranges={0: ()})),))

    change(scene.destination, scene.mirror, archived)
    with pytest.raises(KmirrorError, match="is not deleted"):
        scene.rebuilder.carry_out(scene.topic)
    # what a group has committed is read with the archive
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_what_the_topic_has_lost_since_its_ranges_were_recorded_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election a part of what was to be archived is gone, and the archive may have a part of that."""
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patch:
        cut_off(patch, RebuildAttempt, "_archive", after=True)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)

    def longer(_: State) -> Changes:
        record = scene.record
        assert record.rebuild is not None
        return Changes((replace(record, rebuild=replace(record.rebuild, ranges={0: ((0, len(OLD) + 10),)})),))

    change(scene.destination, scene.mirror, longer)
    with pytest.raises(KmirrorError, match=f"{scene.topic} is not deleted: .* it has lost records"):
        scene.rebuilder.carry_out(scene.topic)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt(f"{scene.topic}.kmirror-archive.2")


def test_a_partition_that_was_added_after_the_archive_is_not_deleted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    cut_off_before_the_deletion(scene, monkeypatch)
    create_partitions(scene.destination.client, {scene.topic: 2})
    wait_until(lambda: bounds_of(scene.pair.destination, scene.topic, 1) == (0, 0))
    produce(scene.pair.destination, scene.topic, ["by another client"], 1)
    added = shown(scene.pair.destination, scene.topic, 1)
    for _ in range(2):
        with suppress(KmirrorError):
            scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt(archive := f"{scene.topic}.kmirror-archive.2")
    assert [one.value for one in shown(scene.pair.destination, archive, 1)] == [one.value for one in added]


@pytest.fixture
def diverged(scene: Scene) -> Scene:
    """Return a scene whose source topic is the same one, with a tail of its own."""
    source, here = scene.pair.source, scene.pair.destination
    scene.topic, scene.mirror = unique_topic(), new_mirror(scene.destination, source)
    scene.rebuilder = TopicRebuilder(scene.destination.properties, scene.mirror, HereAndNow())
    make_topic(source, scene.topic)
    assert add(scene.destination, scene.mirror, selector(scene.topic)).exit_code == 0
    produce(source, scene.topic, OLD)
    with LocalEngine(scene.destination, scene.mirror) as engine:
        engine.catch_up()
    for cluster, word in ((source, "there"), (here, "here")):
        produce(cluster, scene.topic, [f"{word} {number}" for number in range(5)])
    scene.old = shown(here, scene.topic)
    return scene


def test_the_source_topic_is_recreated_after_what_differed_was_archived(
    diverged: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that both had are at the destination only then."""
    scene, source, here = diverged, diverged.pair.source, diverged.pair.destination
    scene.rebuilder.begin(scene.topic, Reason.SOURCE_DIVERGED, consented=True)
    cut_off_before_the_deletion(scene, monkeypatch)
    assert len(shown(here, scene.archive)) == 5
    delete_topic(source, scene.topic)
    make_topic(source, scene.topic, partitions=2)
    commit(here, scene.group, scene.topic, {0: 20})
    for _ in range(2):
        with suppress(KmirrorError):
            scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt(f"{scene.topic}.kmirror-archive.2")


def test_a_partition_that_the_source_does_not_have_is_archived_whole(diverged: Scene) -> None:
    scene, here = diverged, diverged.pair.destination
    create_partitions(scene.destination.client, {scene.topic: 2})
    wait_until(lambda: bounds_of(here, scene.topic, 1) == (0, 0))
    produce(here, scene.topic, ["by another client"], 1)
    scene.rebuilder.begin(scene.topic, Reason.SOURCE_DIVERGED, consented=True)
    scene.rebuilder.carry_out(scene.topic)
    assert (scene.record.pending_operation, scene.record.partitions) == (None, 1)
    assert [len(shown(here, scene.archive, partition)) for partition in (0, 1)] == [5, 1]


def test_what_the_source_deletes_meanwhile_is_archived_where_the_mirror_keeps_it(
    diverged: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = diverged

    def keep(state: State) -> Changes:
        known = state.mirror(scene.mirror)
        assert known is not None
        return Changes((replace(known, settings={**known.settings, "follow.log.start": "false"}),))

    change(scene.destination, scene.mirror, keep)
    scene.rebuilder.begin(scene.topic, Reason.SOURCE_DIVERGED, consented=True)
    cut_off_before_the_deletion(scene, monkeypatch)
    trim(scene.pair.source, scene.topic, 20)
    scene.rebuilder.carry_out(scene.topic)
    values = [one.value for one in shown(scene.pair.destination, scene.archive)]
    assert values == [one.value for one in scene.old]


def test_the_brake(cluster_pair: ClusterPair, destination: Destination) -> None:
    scene = Scene(cluster_pair, destination, source_reset_auto_max_topics="0")
    with pytest.raises(RefusedError, match="no more are rebuilt automatically"):
        scene.rebuilder.begin(scene.topic, RESET, consented=False)
    assert scene.record.pending_operation is None
    scene.rebuilder.begin(scene.topic, RESET, consented=True)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


def test_an_archive_needs_room_for_the_headers_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild_claim, "_under_way", lambda _: {})  # what other tests have left
    for free, is_enough in ((1000 + len(OLD) * 90 - 1, False), (1000 + len(OLD) * 90, True)):
        use = DiskUse({scene.topic: (1000,)}, (free,))
        monkeypatch.setattr(rebuild_claim, "disk_use", lambda *_, use=use: use)
        with nullcontext() if is_enough else pytest.raises(ConsentNeededError, match=f"may need {free + 1:,} bytes"):
            scene.rebuilder.begin(scene.topic, RESET, consented=False)
        assert (scene.record.pending_operation == PENDING_REBUILD) == is_enough


def test_archives_under_way_need_room_too(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All topics of the source were created again at once."""
    one, other = Scene(cluster_pair, destination), Scene(cluster_pair, destination)
    under_way = rebuild_claim._under_way

    def of_these(state: State) -> dict[str, str]:
        return {topic: archive for topic, archive in under_way(state).items() if topic in (one.topic, other.topic)}

    def with_room_for_one(client: ClusterClient, topics: Collection[str]) -> DiskUse:
        found = disk_use(client, topics)
        assert found is not None
        needed = sum(found.replica_bytes[other.topic]) + len(OLD) * 90
        return replace(found, free_bytes=(needed * 3 // 2,))

    monkeypatch.setattr(rebuild_claim, "_under_way", of_these)
    with monkeypatch.context() as patch:
        patch.setattr(rebuild_claim, "_require_space", lambda *_: one.rebuilder.begin(one.topic, RESET, consented=True))
        with pytest.raises(RefusedError, match=f"the archive of {one.topic} has begun"):
            other.rebuilder.begin(other.topic, RESET, consented=False)
    monkeypatch.setattr(rebuild_claim, "disk_use", with_room_for_one)
    with pytest.raises(ConsentNeededError, match=f"an archive of {other.topic}, with those under way, may need"):
        other.rebuilder.begin(other.topic, RESET, consented=False)
    one.rebuilder.carry_out(one.topic)
    other.rebuilder.begin(other.topic, RESET, consented=False)


@pytest.mark.slow
def test_the_space_for_the_archive_of_a_tiered_topic_is_unknown(tiered_pair: TieredPair) -> None:
    pair = ClusterPair(tiered_pair.source, tiered_pair.destination)
    with Destination.open(properties_of(pair.destination)) as destination:
        scene = Scene(pair, destination)
        set_topic(pair.destination, scene.topic, {"remote.storage.enable": "true"})
        with pytest.raises(ConsentNeededError, match=f"{scene.topic} has tiered storage"):
            scene.rebuilder.begin(scene.topic, RESET, consented=False)
        scene.rebuilder.begin(scene.topic, RESET, consented=True)
        scene.rebuilder.carry_out(scene.topic)
        scene.assert_rebuilt()
        assert settings_of(pair.destination, scene.topic)["remote.storage.enable"] == "true"


def test_a_source_topic_that_a_broker_still_knows_was_not_recreated(scene: Scene) -> None:
    """A broker that is cut off from the controllers shows an older topic of the same name."""
    record = scene.record
    with ClusterClient(client_config(properties_of(scene.pair.source))) as client:
        now = client.metadata([scene.topic]).topics[scene.topic].printed_topic_id
    change(scene.destination, scene.mirror, lambda _: Changes((replace(record, source_topic_id=now),)))
    for consented in (False, True):
        with pytest.raises(UnreachableError, match=rf"{scene.topic} \({now}\) may still exist"):
            scene.rebuilder.begin(scene.topic, RESET, consented=consented)
    assert scene.record.pending_operation is None
    assert shown(scene.pair.destination, scene.topic) == scene.old


def test_what_an_earlier_attempt_has_created_is_replaced_if_the_source_topic_has_more_partitions_now(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patch:
        cut_off(patch, RebuildAttempt, "_complete", after=False)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    delete_topic(scene.pair.source, scene.topic)
    make_topic(scene.pair.source, scene.topic, partitions=4)
    scene.rebuilder.carry_out(scene.topic)
    found = scene.destination.client.metadata([scene.topic]).topics[scene.topic]
    assert (len(found.partitions), scene.record.partitions) == (4, 4)
    assert scene.record.destination_topic_id == found.printed_topic_id


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_rebuilt_topic_has_the_replicas_and_the_own_settings_of_the_old_one(
    source_cluster: SandboxCluster, three_brokers: SandboxCluster, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    own = {"min.insync.replicas": "2", "flush.messages": "1000"}
    with Destination.open(properties_of(three_brokers)) as destination:
        scene = Scene(ClusterPair(source_cluster, three_brokers), destination, replication_factor="3")
        mirror = destination.state().mirror(scene.mirror)
        assert mirror is not None
        # from now on the brokers' default, which is 1
        change(destination, scene.mirror, lambda _: Changes((replace(mirror, settings={}),)))
        set_topic(three_brokers, scene.topic, own)
        scene.rebuilder.begin(scene.topic, RESET, consented=False)
        with monkeypatch.context() as patch:
            cut_off(patch, topic_admin, "delete_topics", after=True)
            with pytest.raises(CutOffError):
                scene.rebuilder.carry_out(scene.topic)
        # as a consumer creates it that asks for it meanwhile, with the brokers' defaults
        make_topic(three_brokers, scene.topic, partitions=partitions)
        scene.rebuilder.carry_out(scene.topic)
        scene.assert_rebuilt()
        found = destination.client.metadata([scene.topic, scene.archive]).topics
        assert {name: {len(one.replicas) for one in topic.partitions.values()} for name, topic in found.items()} == {
            scene.topic: {3},
            scene.archive: {3},
        }
        settings = settings_of(three_brokers, scene.topic)
        assert {key: settings[key] for key in own} == own
        assert own.keys().isdisjoint(scene.record.settings or {})


def failed_over(scene: Scene) -> VerbResult:
    """Fail over, and check that a dry run right before said the same."""
    drill = failover(scene.destination, scene.mirror, dry_run=True).result
    done = failover(scene.destination, scene.mirror).result
    assert done.exit_code == 0, done
    assert any("was being rebuilt" in warning for warning in drill.warnings)
    assert drill.warnings == done.warnings
    rows = [
        [(row.topic, row.partition, row.result, row.last_mirrored_offset) for row in r.results] for r in (drill, done)
    ]
    assert rows[0] == rows[1]
    return done


def test_a_failover_in_the_middle_keeps_the_old_content(scene: Scene) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    done = failed_over(scene)
    assert any("its old records are still in it" in warning for warning in done.warnings)
    assert [one.value for one in shown(scene.pair.destination, scene.topic)] == [one.value for one in scene.old]
    # the rebuild finds that the topic is no longer being rebuilt
    with pytest.raises(RefusedError, match="no longer being rebuilt"):
        scene.rebuilder.carry_out(scene.topic)
    produce(scene.pair.destination, scene.topic, ["local"])
    assert len(shown(scene.pair.destination, scene.topic)) == len(OLD) + 1


def test_a_failover_when_all_is_archived_names_the_archive(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patched:
        cut_off(patched, topic_admin, "delete_topics", after=False)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    done = failed_over(scene)
    assert any(f"all its old records are in {scene.archive}" in warning for warning in done.warnings)
    with pytest.raises(RefusedError, match="no longer being rebuilt"):
        scene.rebuilder.carry_out(scene.topic)
    assert [one.value for one in shown(scene.pair.destination, scene.topic)] == [one.value for one in scene.old]
    assert scene.record.archive == scene.archive


def test_a_failover_after_the_old_topic_was_deleted_names_the_archive(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    with monkeypatch.context() as patched:
        cut_off(patched, topic_admin, "delete_topics", after=True)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    done = failed_over(scene)
    assert any(scene.archive in str(row.message) for row in done.results)
    assert any(scene.archive in warning for warning in done.warnings)


class KilledError(Exception):
    """The process is gone here."""


def killed(does: str) -> None:
    """End a command after the first step that has done something."""
    raise KilledError(does)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_failover_after_a_diverged_topic_was_deleted_says_that_most_of_it_is_at_the_source_only(
    diverged: Scene, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    scene = diverged
    scene.rebuilder.begin(scene.topic, Reason.SOURCE_DIVERGED, consented=True)
    with monkeypatch.context() as patched:
        cut_off(patched, topic_admin, "delete_topics", after=True)
        with pytest.raises(CutOffError):
            scene.rebuilder.carry_out(scene.topic)
    (row,) = describe(scene.destination, scene.mirror)
    assert f"what its source lacks is in {scene.archive}, and it is being recreated" in str(row.error_message)
    drill = failover(scene.destination, scene.mirror, dry_run=True).result
    if is_killed:
        with pytest.raises(KilledError):
            failover(scene.destination, scene.mirror, checkpoint=killed)
    done = failover(scene.destination, scene.mirror).result
    lost = f"what its source lacked is in {scene.archive}, and the rest is only at the source"
    for result in (drill, done):
        (stopped,) = result.results
        assert stopped.result is Outcome.FAILED
        assert (stopped.reason, stopped.message) == (
            Reason.DESTINATION_TOPIC_DELETED,
            f"{scene.topic} is gone: {lost}",
        )
        assert [warning for warning in result.warnings if warning.endswith(f"if it is gone, {lost}")]
    assert done.exit_code == ExitCode.PARTLY_DONE
    assert (scene.record.pending_operation, scene.record.rebuild) == (None, None)


def test_an_empty_topic_has_no_archive_that_could_be_named(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    delete_topic(cluster_pair.source, topic)
    make_topic(cluster_pair.source, topic)
    rebuilder = TopicRebuilder(destination.properties, mirror, HereAndNow())
    rebuilder.begin(topic, RESET, consented=False)
    with monkeypatch.context() as patched:
        cut_off(patched, topic_admin, "delete_topics", after=False)
        with pytest.raises(CutOffError):
            rebuilder.carry_out(topic)
    (archived,) = [one for one in events(destination, mirror).events if one.result == "ARCHIVED"]
    assert (archived.details["archive"], archived.details["records"]) == (None, 0)
    (row,) = describe(destination, mirror)
    assert "it had no records to archive, and it is being recreated" in str(row.error_message)
    done = failover(destination, mirror).result
    assert any(warning.endswith("because it did not match its source: it was empty") for warning in done.warnings)
    record = destination.state().topic(mirror, topic)
    assert record is not None
    assert record.archive is None


@pytest.mark.slow
def test_why_a_rebuild_fails_is_shown(source_cluster: SandboxCluster, make_cluster: MakeCluster) -> None:
    keeps = make_cluster("keeps", properties={"delete.topic.enable": "false"})
    with Destination.open(properties_of(keeps)) as destination:
        scene = Scene(ClusterPair(source_cluster, keeps), destination, source_reset_policy="fail")
        why = f"deleting topic {scene.topic}: TOPIC_DELETION_DISABLED (73): set delete.topic.enable=true"

        def accept_reset() -> str:
            (result,) = recover(destination, scene.mirror, consent=Consent(reset=True)).results
            assert result.result is Outcome.FAILED
            return str(result.message)

        with LocalEngine(destination, scene.mirror):
            wait_until(lambda: [r.reason for r in describe(destination, scene.mirror, failed=True)] == [RESET], 60)
            assert why in accept_reset()
        with pytest.raises(KmirrorError, match=re.escape(why)):
            scene.rebuilder.carry_out(scene.topic)
        (row,) = describe(destination, scene.mirror, failed=True)
        assert f"{scene.archive}, and it is being recreated; the last attempt failed: {why}" in str(row.error_message)
        assert why in accept_reset()
