"""What the destination's brokers refuse of a group is named with the limit, and what they take is committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from kmirror.cluster.groups.cluster_groups import OFFSETS_TOPIC, ClusterGroups
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.groups.sync import final_sync
from kmirror.ops.show.describe_groups import describe_groups
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.group_records import GroupReason
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import NO_RETENTION, ClusterPair, made_clusters, unique_topic
from tests.support.groups import GroupScene, commit, committed, member, metadata_of
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, properties_of
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.topics import alter_topic
from tests.support.waiting import wait_until

COMMENT = "a comment of 27 characters."
LIMIT = "offset.metadata.max.bytes=16"


@pytest.fixture(scope="module")
def tight(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a cluster that takes little commit metadata."""
    with made_clusters(clusters_directory) as make:
        yield make("tight", heap=SMALL_HEAP, properties={**NO_RETENTION, "offset.metadata.max.bytes": "16"})


@pytest.fixture
def scene(source_cluster: SandboxCluster, tight: SandboxCluster) -> Iterator[GroupScene]:
    """Return a group of a mirror whose destination takes little."""
    with Destination.open(properties_of(tight)) as destination:
        made = GroupScene(ClusterPair(source_cluster, tight), destination)
        yield made
        made.close()


def test_a_position_is_committed_without_the_comment_that_is_too_long(scene: GroupScene) -> None:
    destination = scene.pair.destination
    scene.at_source(40, COMMENT)
    assert scene.sync() == []
    assert (scene.here(), metadata_of(destination, scene.group)) == (40, {""})
    (event,) = scene.sync()
    assert (event.result, event.details["groups"]) == ("METADATA_REFUSED", [scene.group])
    assert (event.note or "").endswith(LIMIT)
    before = scene.destination.state()
    assert scene.sync() == []
    assert scene.destination.state() is before
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert (row.destination_offset, row.reason) == (40, GroupReason.METADATA_REFUSED)
    assert (row.message or "").endswith(LIMIT)
    scene.at_source(50, COMMENT)
    (last,) = final_sync(scene.destination, scene.mirror, [scene.topic])
    assert (last.to_offset, last.result, last.reason, scene.here()) == (
        50,
        Outcome.DONE,
        GroupReason.METADATA_REFUSED,
        50,
    )
    assert (last.message or "").endswith(LIMIT)
    # a comment that fits is committed again
    scene.at_source(60, "short")
    scene.sync()
    assert (scene.here(), metadata_of(destination, scene.group)) == (60, {"short"})
    (row,) = describe_groups(scene.destination, scene.mirror)
    assert row.reason is None


@pytest.mark.slow
def test_a_promote_names_the_groups_that_are_not_as_at_the_source(scene: GroupScene) -> None:
    destination, elsewhere, commented = scene.pair.destination, unique_topic("g"), scene.group
    mirror, topic = scene.mirror, scene.topic
    scene.at_source(40, COMMENT)
    commit(scene.pair.source, elsewhere, scene.source_topic, {0: 40})
    with member(destination, elsewhere, topic), LocalEngine(scene.destination, mirror) as engine:
        engine.catch_up()
        done = promote(scene.destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=120_000)).result
    assert done.exit_code == 0, done
    reported = " | ".join(done.warnings)
    assert f"group {commented}: its offsets are committed without their commit metadata" in reported
    assert LIMIT in reported
    assert f"group {elsewhere} has no offset in {topic}-0 on the destination, instead of 40: " in reported
    assert (scene.here(), scene.here(elsewhere)) == (40, None)


def refuses(cluster: SandboxCluster, topic: str, partitions: int) -> bool:
    """Return whether the brokers refuse a commit for so many partitions at once."""
    try:
        commit(cluster, unique_topic("probe"), topic, dict.fromkeys(range(partitions), 0))
    except (KafkaException, AssertionError):
        return True
    return False


@pytest.mark.slow
def test_what_does_not_fit_into_a_batch_is_committed_in_parts(scene: GroupScene) -> None:
    destination, topic, group = scene.pair.destination, unique_topic(), unique_topic("g")
    make_topic(destination, topic, 100)
    wanted = {TopicPartition(topic, partition): Committed(0) for partition in range(100)}
    try:
        alter_topic(destination, OFFSETS_TOPIC, max_message_bytes="3000")
        wait_until(lambda: refuses(destination, topic, 100))
        codes = ClusterGroups(scene.destination.client).commit(group, GroupKind.CONSUMER, wanted)
        assert codes == dict.fromkeys(wanted, 0)
        assert committed(destination, group, topic) == dict.fromkeys(range(100), 0)
        # nothing at all fits
        alter_topic(destination, OFFSETS_TOPIC, max_message_bytes="100")
        wait_until(lambda: refuses(destination, topic, 1))
        scene.at_source(40)
        (row,) = final_sync(scene.destination, scene.mirror, [scene.topic])
        assert (row.result, row.reason) == (Outcome.REFUSED, GroupReason.REFUSED)
        assert f"max.message.bytes=100 of topic {OFFSETS_TOPIC}" in (row.message or "")
    finally:
        alter_topic(destination, OFFSETS_TOPIC, max_message_bytes=None)
