"""Groups of the streams protocol (KIP-1071) are synced, clamped and found like others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.groups import live_groups
from kmirror.ops.groups import expiry
from kmirror.ops.groups.at_stop import clamp_groups
from kmirror.ops.show.describe_groups import describe_groups
from kmirror.state.group_records import GroupReason
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.groups import GroupScene, commit, delete_offsets
from tests.support.mirrors import make_topic
from tests.support.streams_members import streams_member


@pytest.fixture
def scene(cluster_pair: ClusterPair, destination: Destination) -> Iterator[GroupScene]:
    """Return a Streams group of the source."""
    made = GroupScene(cluster_pair, destination)
    with streams_member(cluster_pair.source, made.group, made.source_topic):
        pass
    made.at_source(40, "stream time")
    yield made
    made.close()


def test_a_streams_group_is_synced_and_clamped_like_others(scene: GroupScene, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = scene.pair.destination
    assert scene.sync() == []
    assert scene.here() == 40
    with streams_member(destination, scene.group, scene.topic):
        scene.at_source(50)
        (event,) = scene.sync()
        assert event.details["reason"] == GroupReason.HAS_MEMBERS
        assert scene.here() == 40
        (row,) = describe_groups(scene.destination, scene.mirror)
        assert (row.source_offset, row.destination_offset, row.reason) == (50, 40, GroupReason.HAS_MEMBERS)
    # what is left at the destination is a Streams group without members
    scene.sync()
    assert scene.here() == 50
    (clamped,) = clamp_groups(scene.destination, scene.mirror, {TopicPartition(scene.topic, 0): (0, 30)}).results
    assert (clamped.result, scene.here()) == (Outcome.DONE, 30)
    scene.sync()
    assert scene.here() == 50
    # its offsets are dropped with the source's
    commit(scene.pair.source, unique_topic("g"), scene.source_topic, {0: 1})
    scene.sync()
    monkeypatch.setattr(expiry, "ABSENT_S", 0.0)
    delete_offsets(scene.pair.source, scene.group)
    (event,) = scene.sync()
    assert (event.result, scene.here()) == ("DROPPED", None)


def test_a_live_streams_group_is_found_by_what_it_reads(destination: Destination, cluster_pair: ClusterPair) -> None:
    topic, other, group = unique_topic(), unique_topic(), unique_topic("g")
    for name in (topic, other):
        make_topic(cluster_pair.destination, name)
    with streams_member(cluster_pair.destination, group, topic):
        assert [(one.group, one.topics) for one in live_groups(destination, [topic])] == [(group, (topic,))]
        assert live_groups(destination, [other]) == []
    assert live_groups(destination, [topic]) == []
