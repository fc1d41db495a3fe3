"""Brokers that are set to store message formats before 2, in which a copy would not be the same."""

from __future__ import annotations

import pytest

from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.check.check import check
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, outcomes, produce, properties_of, selector
from tests.support.round_trip import Trip, produce_batches
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.topics import set_topic
from tests.support.visible import assert_mirrored

OLD = "0.10.2"


def findings(cluster: SandboxCluster, mirror: str | None = None) -> list[tuple[bool, str]]:
    report = check(properties_of(cluster), mirror=mirror)
    return [(line.ok, line.message) for line in report.lines if line.what == "message format"]


@pytest.mark.slow
def test_brokers_with_an_old_format_are_reported(make_cluster: MakeCluster) -> None:
    old = make_cluster("old", heap=SMALL_HEAP, kafka_version="2.8.2", properties={"log.message.format.version": OLD})
    ((ok, message),) = findings(old)
    assert not ok
    assert message.startswith(f"broker 1 has log.message.format.version={OLD}: ")


@pytest.mark.slow
@pytest.mark.parametrize(("version", "has_effect"), [("2.8.2", True), ("3.3.2", False)])
def test_topics_with_an_old_format_are_refused_where_brokers_heed_it(
    source_cluster: SandboxCluster, make_cluster: MakeCluster, version: str, has_effect: bool
) -> None:
    old = make_cluster("old", heap=SMALL_HEAP, kafka_version=version)
    present, later = unique_topic(), unique_topic()
    for topic in (present, later):
        make_topic(source_cluster, topic)
        produce(source_cluster, topic, ["1", "2"])
    make_topic(old, present, message_format_version=OLD)
    with Destination.open(properties_of(old)) as destination:
        mirror = new_mirror(destination, source_cluster)
        assert outcomes(add(destination, mirror, selector(later))) == {later: "DONE"}
        assert [ok for ok, _ in findings(old, mirror)] == ([True] if has_effect else [])
        adopted = add(destination, mirror, selector(present), adopt=True)
        set_topic(old, later, {"message.format.version": OLD})
        if has_effect:
            assert adopted.exit_code == ExitCode.REFUSED
            assert adopted.results[0].reason is Reason.RECORD_REJECTED
            assert findings(old, mirror) == [
                (False, f"{later} has message.format.version={OLD}: copied batches are refused below 0.11")
            ]
            return
        assert adopted.exit_code == ExitCode.OK
        assert findings(old, mirror) == []
        with LocalEngine(destination, mirror) as engine:
            engine.catch_up()
    assert_mirrored(source_cluster, old, present)
    assert_mirrored(source_cluster, old, later)


@pytest.mark.slow
def test_an_old_source_with_an_old_format_is_refused_as_a_mirror_before_anything_is_changed(
    destination_cluster: SandboxCluster, make_cluster: MakeCluster
) -> None:
    old = make_cluster("old", heap=SMALL_HEAP, kafka_version="2.8.2")
    same, forked = unique_topic(), unique_topic()
    with Trip(old, destination_cluster) as trip:
        for topic in (same, forked):
            make_topic(old, topic, message_format_version=OLD, retention_ms="-1")
            produce(old, topic, ["1", "2"])
        assert add(trip.at_b, trip.mirror, selector(same, forked)).exit_code == ExitCode.OK
        with pytest.raises(RefusedError) as refused:
            switchover(trip.at_b, SwitchoverRequest(trip.mirror, properties_of(destination_cluster)))
        assert refused.value.reason is Reason.RECORD_REJECTED
        assert {row.topic_state for row in describe(trip.at_b, trip.mirror)} == {TopicState.PENDING_MIRROR}
        trip.copy_to_b()
        assert failover(trip.at_b, trip.mirror).result.exit_code == ExitCode.OK
        produce_batches(old, forked, ["only there"], 1)
        for dry_run in (True, False):
            with pytest.raises(RefusedError, match=f"^{same} has message.format.version={OLD} here: ") as refused:
                trip.back(same, dry_run=dry_run)
            assert "--delete-config" in str(refused.value.hint)
        # the logs of such brokers do not name their topic, which a truncation needs
        for dry_run in (True, False):
            with pytest.raises(RefusedError, match=r"before Kafka 3\.0") as refused:
                trip.back(forked, strategy=Strategy.OFFLINE, plan="plan.json", dry_run=dry_run)
            assert "--recreate" in str(refused.value.hint)
        assert not list(old.directory.rglob("partition.metadata"))
        # a topic that is recreated gets the format of the brokers
        assert trip.back(forked, strategy=Strategy.RECREATE).result.exit_code == ExitCode.OK
        set_topic(old, same, {"message.format.version": "2.8"})
        assert trip.back(same).result.exit_code == ExitCode.OK
        produce(destination_cluster, same, ["3"])
        trip.copy_to_a()
        assert_mirrored(destination_cluster, old, same)  # in two formats here
        trip.assert_same(forked)
