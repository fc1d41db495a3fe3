"""Partitions without a leader: what is said of them, and that all others are served."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics import leaders
from kmirror.errors import ExitCode, Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.check.check import check
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.show.describe import describe
from kmirror.ops.stop import promote_readiness
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.internal_topics import EVENTS_TOPIC, EVENTS_TOPIC_SETTINGS, STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, unique_topic
from tests.support.leader import create_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, outcomes, produce, properties_of, selector
from tests.support.promoting import until_stopped
from tests.support.shared_clusters import SMALL_HEAP
from tests.support.topics import set_topic
from tests.support.waiting import PATIENCE_S, wait_until

ELECTION_S = 3.0


def has_no_leader(destination: Destination, topic: str) -> bool:
    return destination.client.metadata([topic]).leader(TopicPartition(topic, 1)) is None


def in_sync(destination: Destination, topic: str) -> int:
    return len(destination.client.metadata([topic]).topics[topic].partitions[0].in_sync_replicas)


def dispensable_broker(destination: Destination) -> int:
    """Return a broker that leads none of kmirror's own topics."""
    own = destination.client.metadata([STATE_TOPIC, EVENTS_TOPIC]).topics.values()
    used = {partition.leader_id for topic in own for partition in topic.partitions.values()}
    return min({1, 2, 3} - used)


@pytest.mark.slow
def test_what_has_no_leader_is_named_and_the_rest_is_stopped(
    source_cluster: SandboxCluster, three_brokers: SandboxCluster
) -> None:
    lost, kept = sorted([unique_topic(), unique_topic()]), sorted([unique_topic(), unique_topic()])
    for topic in (*lost, *kept):
        make_topic(source_cluster, topic, 2)
        produce(source_cluster, topic, ["1", "2"])
    with Destination.open(properties_of(three_brokers)) as destination:
        mirror = new_mirror(destination, source_cluster)
        gone = dispensable_broker(destination)
        for topic in (*lost, *kept):
            replicas = [[gone], [gone]] if topic in lost else [[1, 2, 3], [3, 1, 2]]
            create_topic(three_brokers, name=topic, partitions=2, replicas=replicas)
        added = add(destination, mirror, selector(*lost, *kept), adopt=True)
        assert set(outcomes(added).values()) == {"DONE"}, added.results
        with LocalEngine(destination, mirror) as engine:
            engine.catch_up()
        three_brokers.stop_broker(gone)
        wait_until(lambda: all(has_no_leader(destination, topic) for topic in lost))
        found = check(properties_of(three_brokers), mirror=mirror)
        (line,) = [line for line in found.lines if line.what == "leaders"]
        assert (line.cluster, line.ok, line.reason) == ("destination", False, Reason.DESTINATION_UNREACHABLE)
        assert line.message == f"no leader: {lost[0]}-0, {lost[0]}-1, {lost[1]}-0, {lost[1]}-1"
        assert found.exit_code == ExitCode.REFUSED
        for dry_run in (True, False):
            result = failover(destination, mirror, dry_run=dry_run).result
            assert result.exit_code == ExitCode.PARTLY_DONE
            assert result.error is not None
            assert result.error.message.startswith("2 of 4 topics failed; the first: ")
            assert f"{lost[0]}-0 has no leader" in result.error.message
            assert result.error.hint is not None
            assert "log directories" in result.error.hint
            assert {topic for topic, outcome in outcomes(result).items() if outcome == "DONE"} == set(kept)
        three_brokers.start()
        again = failover(destination, mirror).result
        assert again.exit_code == ExitCode.OK, again.results


@pytest.mark.slow
def test_a_promote_does_not_wait_for_partitions_of_the_source_without_a_leader(
    three_brokers: SandboxCluster, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, kept = unique_topic(), unique_topic()
    create_topic(three_brokers, name=lost, partitions=2, replicas=[[1], [2]])
    create_topic(three_brokers, name=kept, partitions=2, replicas=[[1, 2, 3], [3, 1, 2]])
    for topic in (lost, kept):
        produce(three_brokers, topic, ["1", "2"])
    mirror = new_mirror(destination, three_brokers)
    assert set(outcomes(add(destination, mirror, selector(lost, kept))).values()) == {"DONE"}
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, mirror)))
        three_brokers.stop_broker(2)
        with ClusterClient(client_config(three_brokers.client_properties())) as client:
            wait_until(lambda: client.metadata([lost]).leader(TopicPartition(lost, 1)) is None)
        # a look that waits for a leader would not end
        monkeypatch.setattr(promote_readiness, "_SOURCE_S", 3600.0)
        request = PromoteRequest(mirror, idle_ms=500, timeout_ms=120_000)
        done = promote(destination, request, *until_stopped(destination, mirror, kept)).result
    assert outcomes(done) == {kept: "DONE", lost: "TIMED_OUT"}
    assert done.error is not None
    assert "no leader" in done.error.message


@pytest.mark.slow
def test_what_has_too_few_replicas_is_named_and_the_rest_is_stopped(
    source_cluster: SandboxCluster, three_brokers: SandboxCluster
) -> None:
    few, enough = unique_topic(), unique_topic()
    for topic in (few, enough):
        make_topic(source_cluster, topic)
        produce(source_cluster, topic, ["1", "2"])
    with Destination.open(properties_of(three_brokers)) as destination:
        mirror = new_mirror(destination, source_cluster)
        gone = dispensable_broker(destination)
        for topic in (few, enough):
            create_topic(three_brokers, name=topic, replicas=[[gone % 3 + 1, gone]])
        added = add(destination, mirror, selector(few, enough), adopt=True)
        assert set(outcomes(added).values()) == {"DONE"}, added.results
        with LocalEngine(destination, mirror) as engine:
            engine.catch_up()
        set_topic(three_brokers, few, {"min.insync.replicas": "2"})
        three_brokers.stop_broker(gone)
        wait_until(lambda: in_sync(destination, few) == in_sync(destination, enough) == 1)
        found = check(properties_of(three_brokers), mirror=mirror)
        (line,) = [line for line in found.lines if line.what == "in-sync replicas"]
        assert not line.ok
        assert line.message.endswith(f"refuse writes: {few}-0")
        result = failover(destination, mirror).result
        assert outcomes(result) == {few: "FAILED", enough: "DONE"}
        assert result.error is not None
        assert result.error.message.startswith(f"{few}-0 has fewer in-sync replicas than min.insync.replicas")
        assert "lower min.insync.replicas" in str(result.error.hint)


@pytest.mark.slow
def test_without_a_leader_of_kmirrors_own_topics_nothing_is_promised_or_waited_for_long(
    source_cluster: SandboxCluster, make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(brokers=3, heap=SMALL_HEAP, properties=QUICK_FAILOVER)
    create_topic(cluster, name=STATE_TOPIC, replicas=[[1]], settings=STATE_TOPIC_SETTINGS)
    create_topic(cluster, name=EVENTS_TOPIC, replicas=[[2]], settings=EVENTS_TOPIC_SETTINGS)
    topic = unique_topic()
    make_topic(source_cluster, topic)
    with Destination.open(properties_of(cluster)) as destination:
        mirror = new_mirror(destination, source_cluster)
        create_topic(cluster, name=topic, replicas=[[3, 1, 2]])
        assert outcomes(add(destination, mirror, selector(topic), adopt=True)) == {topic: "DONE"}

    def leader_of(own: str) -> int | None:
        with ClusterClient(client_config(properties_of(cluster))) as client:
            leader = client.metadata([own]).leader(TopicPartition(own, 0))
        return None if leader is None else leader.leader_id

    looks, without = list[str](), leaders._without

    def noted(*asked: Any) -> list[str]:
        looks.extend(found := without(*asked))
        return found

    monkeypatch.setattr(leaders, "_without", noted)
    for broker, own in ((2, EVENTS_TOPIC), (1, STATE_TOPIC)):
        cluster.stop_broker(broker)
        wait_until(lambda own=own: leader_of(own) is None)  # type: ignore[misc]
        monkeypatch.setattr(leaders, "_ELECTION_S", ELECTION_S)
        for dry_run in (True, False):
            for verb in (pause, failover):
                looks.clear()
                with (
                    Destination.open(properties_of(cluster)) as destination,
                    pytest.raises(UnreachableError, match=f"{own} has no leader") as refused,
                ):
                    verb(destination, mirror, dry_run=dry_run)
                assert looks.count(own) < 5 * ELECTION_S / leaders._STEP_S, (verb, own)
                assert refused.value.reason is Reason.DESTINATION_UNREACHABLE
                assert f"start broker {broker}" in str(refused.value.hint)
        # it comes back before an election counts as failed
        monkeypatch.setattr(leaders, "_ELECTION_S", PATIENCE_S)
        with ThreadPoolExecutor(1) as operator, Destination.open(properties_of(cluster)) as destination:
            looks.clear()
            paused = operator.submit(pause, destination, mirror)
            # it waits
            wait_until(lambda own=own, paused=paused: looks.count(own) > 3 or paused.done())  # type: ignore[misc]
            cluster.start()
            assert outcomes(paused.result()) == {topic: "DONE", None: "DONE"}
            assert resume(destination, mirror).exit_code == ExitCode.OK
