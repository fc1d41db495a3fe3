"""FAILED partitions are looked at again by the running engine: what was mended is copied, what needs consent is not.

Once, a partition that FAILED was left alone by its lane for good. A right that was given back, a setting that was
mended or a source topic that was there again changed nothing until an operator typed `recover`, or started the engine
again.
"""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition import retry
from kmirror.engine.lane.reports.state_log import STATE_PARTITION
from kmirror.errors import Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.ops.show.events import events
from kmirror.state.records import PartitionState, ProgressRow
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import create_in_force
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.lane import Mirror
from tests.support.leader import Leader, batch_of
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, selector
from tests.support.topics import set_topic
from tests.support.visible import shown
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again after 0.3 s, 0.6 s and so on, up to 2 s: how long the pauses are the unit tests say."""
    monkeypatch.setattr(retry, "FIRST_RETRY_SECONDS", 0.3)
    monkeypatch.setattr(retry, "LONGEST_RETRY_SECONDS", 2.0)


def row_of(mirror: Mirror, topic: str) -> ProgressRow | None:
    """Return what the lane last wrote about partition 0 of a topic."""
    rows = [row for record in mirror.progress() for row in record.rows if row.topic == mirror.mirror_of(topic)]
    return rows[-1] if rows else None


def wait_failed(mirror: Mirror, lane: Lane, topic: str, reason: Reason, attempts: int) -> None:
    """Wait until a partition is FAILED and was tried again so often."""

    def tried() -> bool:
        row = row_of(mirror, topic)
        return (
            row is not None
            and (row.state, row.reason) == (PartitionState.FAILED, reason)
            and row.retry_attempt >= attempts
        )

    mirror.wait(lane, tried)


def reported_states(mirror: Mirror, topic: str) -> list[PartitionState]:
    """Return the states that the lane has reported of a topic, each as often as it changed."""
    found: list[PartitionState] = []
    for record in mirror.progress():
        found += [row.state for row in record.rows if row.topic == topic and [row.state] != found[-1:]]
    return found


@pytest.mark.slow
def test_a_record_is_taken_once_the_setting_is_mended_and_foreign_records_never_are(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    with closing(Mirror(source_cluster, destination_cluster)) as mirror:
        large, written = mirror.topic(), mirror.topic()
        produce(source_cluster, large, ["small"] * 4)
        produce(source_cluster, written, ["small"] * 4)
        lane = mirror.start()
        mirror.wait_copied(lane)
        mirror.wait(lane, lambda: (row := row_of(mirror, large)) and row.state is PartitionState.MIRRORING)
        set_topic(destination_cluster, large, {"max.message.bytes": "1000"})
        produce(source_cluster, large, ["x" * 5000, "after"])
        with Leader(destination_cluster, written) as leader:
            leader.append_as_is(batch_of(1))
        produce(source_cluster, written, ["more"] * 3)
        wait_failed(mirror, lane, large, Reason.RECORD_REJECTED, 2)
        wait_failed(mirror, lane, written, Reason.DESTINATION_WRITTEN, 0)
        end = mirror.destination_ends()[f"{written}-0"]
        set_topic(destination_cluster, large, {"max.message.bytes": "1000000"})
        mirror.wait(lane, lambda: mirror.destination_ends()[f"{large}-0"] == 6)
        assert shown(destination_cluster, large) == shown(source_cluster, large)
        mirror.wait(lane, lambda: (row := row_of(mirror, large)) and row.state is PartitionState.MIRRORING)
        # one way there, one way back, however often it was tried: no attempt is reported as a success
        assert reported_states(mirror, large)[-3:] == [
            PartitionState.MIRRORING,
            PartitionState.FAILED,
            PartitionState.MIRRORING,
        ]
        row = row_of(mirror, large)
        assert row is not None
        assert (row.reason, row.retry_attempt) == (None, 0)
        wait_failed(mirror, lane, written, Reason.DESTINATION_WRITTEN, 4)
        assert mirror.destination_ends()[f"{written}-0"] == end
        assert reported_states(mirror, written)[-1] is PartitionState.FAILED
        mirror.stop(lane)


def allow(cluster: SandboxCluster, name: str, *operations: str) -> None:
    """Give the user `kmirror` rights to a topic."""
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    who = ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:kmirror", "*"
    create_in_force(admin, [AclBinding(*who, AclOperation[one], AclPermissionType.ALLOW) for one in operations])


@pytest.mark.slow
def test_a_granted_right_is_used_without_a_restart(guarded_cluster: SandboxCluster) -> None:
    guarded = guarded_cluster
    user = guarded.client_properties("kmirror")
    properties = {"source_properties": user, "destination_properties": user, "retry_timeout_ms": 500}
    with closing(Mirror(guarded, guarded, **properties)) as mirror:
        allow(guarded, STATE_PARTITION.topic, "READ", "WRITE")
        unread, unseen, unwritten = (mirror.topic() for _ in range(3))
        for topic in (unread, unseen, unwritten):
            with Leader(guarded, topic) as leader:
                leader.append_as_is(batch_of(3))
        allow(guarded, unread, "DESCRIBE")
        allow(guarded, unwritten, "READ")
        for topic in (unread, unseen):
            allow(guarded, mirror.mirror_of(topic), "READ", "WRITE")
        allow(guarded, mirror.mirror_of(unwritten), "READ")
        lane = mirror.start()
        for topic in (unread, unseen, unwritten):
            wait_failed(mirror, lane, topic, Reason.NOT_AUTHORIZED, 1)
        allow(guarded, unread, "READ")
        allow(guarded, unseen, "READ")
        allow(guarded, mirror.mirror_of(unwritten), "WRITE")
        mirror.wait_copied(lane)
        assert {report.state for report in mirror.rows_at_stop(lane)} == {"MIRRORING"}


@pytest.mark.slow
def test_a_recreated_source_topic_follows_its_policy_and_two_events_report_a_failure(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    source = cluster_pair.source
    gone, large = unique_topic(), unique_topic()
    for topic in (gone, large):
        make_topic(source, topic)
        produce(source, topic, ["one", "two", "three"])
    mirror = new_mirror(destination, source, retry_timeout_ms="500", sync_topic_configs_enabled="false")
    assert add(destination, mirror, selector(gone, large)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        set_topic(cluster_pair.destination, large, {"max.message.bytes": "1000"})
        produce(source, large, ["x" * 5000])
        delete_topic(source, gone)

        def failed() -> dict[str, tuple[Reason | None, int]]:
            rows = describe(destination, mirror)
            return {row.topic: (row.reason, row.retry_attempt) for row in rows if row.failed}

        wait_until(lambda: len(rows := failed()) == 2 and min(retries for _, retries in rows.values()) > 0)
        assert {topic: reason for topic, (reason, _) in failed().items()} == {
            gone: Reason.SOURCE_TOPIC_DELETED,
            large: Reason.RECORD_REJECTED,
        }
        set_topic(cluster_pair.destination, large, {"max.message.bytes": "1000000"})
        make_topic(source, gone)
        produce(source, gone, ["other", "records"])
        wait_until(lambda: not failed(), 60)
        # who reads a topic while it is replaced is out of its range in the end
        wait_until(lambda: next(row for row in describe(destination, mirror) if row.topic == gone).rebuilt_at_ms)
        for topic in (gone, large):
            wait_until(lambda topic=topic: shown(cluster_pair.destination, topic) == shown(source, topic))  # type: ignore[misc]
        (rebuilt,) = [row for row in describe(destination, mirror) if row.topic == gone]
        assert rebuilt.archive == f"{gone}.kmirror-archive.1"
        wait_until(
            lambda: reported(destination, mirror, large) == ["FAILED RECORD_REJECTED", "RESUMED RECORD_REJECTED"]
        )
        assert reported(destination, mirror, gone) == ["FAILED SOURCE_TOPIC_DELETED", "FAILED SOURCE_TOPIC_RECREATED"]


def reported(destination: Destination, mirror: str, topic: str) -> list[str]:
    """Return what events say of a topic's partitions."""
    return [
        f"{event.result} {event.details['reason']}"
        for event in events(destination, mirror).events
        if event.what == "partition" and event.details["topic"] == topic and "reason" in event.details
    ]
