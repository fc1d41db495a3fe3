"""A topic is rebuilt on real brokers, interrupted before and after every step, and finished by the next attempt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition as Place
from kmirror.cluster.topics import policies
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.engine.archive import archiving
from kmirror.engine.archive.archive_topic import Range
from kmirror.engine.archive.copy import Archived, archive_partition
from kmirror.errors import KmirrorError, Reason, RefusedError
from kmirror.ops.add import topic_admin
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.results import VerbResult
from kmirror.ops.jobs import rebuild
from kmirror.ops.jobs.rebuild import TopicRebuilder
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.state.group_records import GroupRecord
from kmirror.state.records import PENDING_REBUILD, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror.work import Add
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.groups import commit, committed
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, selector
from tests.support.visible import shown

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

    def assert_rebuilt(self) -> None:
        record = self.record
        found = self.destination.client.metadata([self.topic]).topics[self.topic]
        with ClusterClient(self.destination.config) as client:
            assert client.metadata([self.topic]).topics[self.topic].topic_id == found.topic_id
        assert (record.destination_topic_id, record.partitions) == (found.printed_topic_id, 2)
        assert (record.pending_operation, record.rebuild, record.archive) == (None, None, self.archive)
        assert [one._replace(headers=()) for one in shown(self.pair.destination, self.topic)] == []
        saved = shown(self.pair.destination, self.archive)
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
    (TopicRebuilder, "_with_ranges"),
    (TopicRebuilder, "_archive"),
    (rebuild, "committed_on"),
    (TopicRebuilder, "_record"),
    (topic_admin, "delete_topics"),
    (policies, "create_topic"),
    (rebuild, "restore_offsets"),
    (TopicRebuilder, "_complete"),
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


def test_a_source_that_is_gone_is_waited_for(scene: Scene) -> None:
    scene.rebuilder.begin(scene.topic, RESET, consented=False)
    delete_topic(scene.pair.source, scene.topic)
    with pytest.raises(KmirrorError, match="the source has no topic"):
        scene.rebuilder.carry_out(scene.topic)
    assert shown(scene.pair.destination, scene.topic) == scene.old
    make_topic(scene.pair.source, scene.topic, partitions=2)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


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


def test_the_brake(cluster_pair: ClusterPair, destination: Destination) -> None:
    scene = Scene(cluster_pair, destination, source_reset_auto_max_topics="0")
    with pytest.raises(RefusedError, match="no more are rebuilt automatically"):
        scene.rebuilder.begin(scene.topic, RESET, consented=False)
    assert scene.record.pending_operation is None
    scene.rebuilder.begin(scene.topic, RESET, consented=True)
    scene.rebuilder.carry_out(scene.topic)
    scene.assert_rebuilt()


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
