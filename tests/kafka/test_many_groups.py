"""More groups move than the destination takes in the time that one look at the stored topics is good for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import TimedOutError
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.groups import commit as group_commit
from kmirror.ops.groups import sync as group_sync
from kmirror.ops.groups.at_stop import age_note, clamp_groups
from kmirror.ops.show.describe_groups import describe_groups
from kmirror.state.records import DesiredState
from tests.support.clusters import ClusterPair
from tests.support.groups import GroupScene, lose_source
from tests.support.mirrors import properties_of

#: The key of OffsetCommit, in the first bytes of a frame after its size.
_COMMITS = b"\0\x08"


@pytest.fixture
def scene(cluster_pair: ClusterPair, destination: Destination) -> Iterator[GroupScene]:
    made = GroupScene(cluster_pair, destination)
    yield made
    made.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Let each exchange of commits, and each commit in it, take time; a negative number makes it fast again."""
    exchange = Connection._exchange_frames
    seconds = [0.0, 0.0]

    def slowly(self: Connection, buffers: Sequence[Any], ids: Sequence[int], timeout: float) -> Any:
        if bytes(buffers[0][4:6]) == _COMMITS:
            time.sleep(seconds[0] + seconds[1] * len(ids))
        return exchange(self, buffers, ids, timeout)

    monkeypatch.setattr(Connection, "_exchange_frames", slowly)

    def by(each_exchange: float, each_commit: float) -> None:
        seconds[:] = each_exchange, each_commit

    return by


def names_of(scene: GroupScene, count: int) -> list[str]:
    return [f"{scene.group}-{number:03}" for number in range(count)]


def move(scene: GroupScene, names: Sequence[str], offset: int) -> None:
    """Have groups commit at the source."""
    at = TopicPartition(scene.source_topic, 0)
    with ClusterClient(client_config(properties_of(scene.pair.source))) as client:
        groups = ClusterGroups(client)
        for name in names:
            assert groups.commit(name, GroupKind.CONSUMER, {at: Committed(offset)}) == {at: 0}


def here(scene: GroupScene, names: Sequence[str]) -> dict[str, int]:
    """Return what groups have at the destination."""
    found = ClusterGroups(scene.destination.client).committed(dict.fromkeys(names, GroupKind.CONSUMER))
    at = TopicPartition(scene.topic, 0)
    return {name: one[at].offset for name, one in found.items() if isinstance(one, dict) and at in one}


def test_the_distance_counts_once_for_many_groups(scene: GroupScene, slow: Callable[[float, float], None]) -> None:
    """One round trip for each, and the names that sort last were never synced while the first ones moved."""
    names = names_of(scene, 120)
    move(scene, names, 40)
    slow(0.1, 0.0)
    assert scene.sync() == []
    assert here(scene, names) == dict.fromkeys(names, 40)


def test_what_was_left_undone_comes_first_and_is_reported(
    scene: GroupScene, slow: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(scene, 30)
    monkeypatch.setattr(group_commit, "_NOTE_MS", 0)
    monkeypatch.setattr(group_commit, "_COMMIT_S", 1.0)
    monkeypatch.setattr(group_sync, "FRESH_S", 0.5)
    move(scene, names, 40)
    slow(0.0, 0.05)
    with pytest.raises(TimedOutError, match=r"offsets of \d+ groups were not committed in time"):
        scene.sync()
    synced = here(scene, names)
    assert 0 < len(synced) < 30
    undone = [name for name in names if name not in synced]
    state = scene.destination.state()
    checked = state.groups_checked(scene.mirror)
    assert checked is not None
    assert checked.unreadable == tuple(undone)
    note = age_note(state, require_mirror(state, scene.mirror), checked.time_ms)
    assert note is not None
    assert note.startswith(f"offsets of group {undone[0]} and {len(undone) - 1} more could not be synced at 20")
    # nothing is said to have been synced that was not
    rows = {row.group: row for row in describe_groups(scene.destination, scene.mirror)}
    assert {name for name in names if rows[name].last_sync_ms is not None} == set(synced)
    # the first ones move all the time
    for turn in range(3):
        move(scene, names[:10], 41 + turn)
        try:
            scene.sync()
        except TimedOutError:
            continue
    assert here(scene, undone).keys() == set(undone)
    slow(0.0, 0.0)
    scene.sync()
    assert here(scene, names[:10]) == dict.fromkeys(names[:10], 43)


def test_a_stop_puts_back_all_that_has_vanished(
    scene: GroupScene, slow: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(scene, 60)
    move(scene, names, 40)
    scene.sync()
    lose_source(scene)
    scene.set_topic(desired=DesiredState.STOPPED)
    assert not any(ClusterGroups(scene.destination.client).delete(names).values())
    monkeypatch.setattr(group_commit, "_COMMIT_S", 1.0)
    slow(0.0, 0.05)
    done = clamp_groups(scene.destination, scene.mirror, {TopicPartition(scene.topic, 0): (0, 100)}, put_back=True)
    assert [(row.to_offset, row.result) for row in done.results] == [(40, Outcome.DONE)] * 60
    assert here(scene, names) == dict.fromkeys(names, 40)


def test_what_a_stop_could_not_set_in_time_is_reported(
    scene: GroupScene, slow: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(scene, 2)
    move(scene, names, 90)
    scene.sync()
    lose_source(scene)
    scene.set_topic(desired=DesiredState.STOPPED)
    monkeypatch.setattr(group_commit, "_COMMIT_S", 0.0)
    done = clamp_groups(scene.destination, scene.mirror, {TopicPartition(scene.topic, 0): (0, 80)}, put_back=True)
    assert done.warnings() == [
        f"offsets of 2 groups on the destination are outside the log and could not be set in time: {', '.join(names)}"
    ]
