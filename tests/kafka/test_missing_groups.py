"""Groups whose coordinator is away: no broker lists them, and none says so. They are not taken for groups not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from kafka.protocol.admin import AlterPartitionReassignmentsRequest
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.coordinators import KeyType, find_coordinators
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, TimedOutError, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.failback import groups as failback_groups
from kmirror.ops.failback.groups import live_groups
from kmirror.ops.groups.restore import committed_offsets, committed_on
from kmirror.ops.show import drained
from kmirror.ops.show.drained import read_committed_offsets
from kmirror.settings.parsing import stored_settings
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.groups import commit, member
from tests.support.leader import create_topic
from tests.support.shared_clusters import revived
from tests.support.waiting import wait_until

OFFSETS = "__consumer_offsets"


def place(client: ClusterClient, brokers: Sequence[int]) -> None:
    """Have all partitions of the groups' topic on these brokers."""
    request = AlterPartitionReassignmentsRequest
    replicas = [
        request.ReassignableTopic.ReassignablePartition(partition_index=p, replicas=list(brokers))
        for p in client.metadata([OFFSETS]).topics[OFFSETS].partitions
    ]
    answer = client.ask_any(
        request(timeout_ms=30_000, topics=[request.ReassignableTopic(name=OFFSETS, partitions=replicas)])
    )
    assert not answer.error_code, answer

    def is_placed() -> bool:
        found = client.metadata([OFFSETS]).topics[OFFSETS].partitions.values()
        return all(set(one.in_sync_replicas) == set(brokers) and one.leader_id in brokers for one in found)

    wait_until(is_placed)


@contextmanager
def without_coordinators(cluster: SandboxCluster) -> Iterator[None]:
    """Have all groups coordinated by one broker, which is killed; afterwards all is as it was."""
    only, *others = (broker.node_id for broker in cluster.brokers)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        place(client, [only])
        try:
            cluster.kill(only)
            wait_until(lambda: only not in client.metadata([]).brokers)
            yield
        finally:
            revived(cluster)
            wait_until(lambda: only in client.metadata([]).brokers)
            place(client, [only, *others])


@pytest.mark.slow
def test_groups_without_a_coordinator_are_missing_and_not_gone(
    three_brokers: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drained, "_REQUEST_S", 2.0)
    cluster, topic, group = three_brokers, create_topic(three_brokers, replicas=[[1, 2, 3]]), unique_topic("g")
    commit(cluster, group, topic, {0: 0})
    properties = {**cluster.client_properties(), "request.timeout.ms": "2000"}
    with member(cluster, group, topic), Destination.open(properties) as destination:
        assert [one.group for one in live_groups(destination, [topic])] == [group]
        with without_coordinators(cluster):
            groups = ClusterGroups(destination.client)
            # the work on the groups there are is not delayed
            assert group not in groups.listed(whole=False)
            for question in (
                groups.listed,
                lambda: live_groups(destination, [topic]),
                lambda: committed_offsets(destination.client, [topic]),
                lambda: committed_on(destination.client, topic),
                lambda: read_committed_offsets(destination.client, stored_settings({}), None),
            ):
                with pytest.raises(UnreachableError, match="not all groups are known: no broker coordinates"):
                    question()
        wait_until(lambda: group in groups.listed())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_members_read_is_known_before_they_commit(
    cluster_pair: ClusterPair, destination: Destination, protocol: str
) -> None:
    cluster = cluster_pair.destination
    topic, other, group = create_topic(cluster), create_topic(cluster), unique_topic("g")
    with member(cluster, group, topic, protocol):
        (live,) = live_groups(destination, [topic, other])
        assert (live.group, live.topics) == (group, (topic,))
        (one,) = live.members
        assert (one.client_id, bool(one.member_id), one.host.lstrip("/")) == ("rdkafka", True, "127.0.0.1")
        assert live_groups(destination, [other]) == []
    wait_until(lambda: live_groups(destination, [topic]) == [])


def test_an_assignment_that_cannot_be_read_is_no_assignment_of_nothing(destination: Destination) -> None:
    group = unique_topic("g")
    assert ClusterGroups(destination.client).committed({group: GroupKind.CONSUMER}) == {group: {}}
    joined = destination.client.ask_any(_join(group), highest=3)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=b"\0\0\0\0\0\1\xff\xff"
    )
    sync = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[assignment]
    )
    assert not destination.client.ask_any(sync, highest=3).error_code
    with pytest.raises(UnreachableError, match=f"which topics group {group} reads is unknown: CORRUPT_MESSAGE"):
        live_groups(destination, [unique_topic()])
    leave = LeaveGroupRequest(group_id=group, member_id=joined.member_id)
    assert not destination.client.ask_any(leave, highest=1).error_code
    assert live_groups(destination, [unique_topic()]) == []


def _join(group: str) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )


@pytest.mark.slow
def test_a_group_that_is_still_assigning_partitions_may_read_any_topic(
    destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failback_groups, "_REBALANCE_S", 1.0)
    topic, group = unique_topic(), unique_topic("g")
    # makes sure that it has a coordinator
    assert ClusterGroups(destination.client).committed({group: GroupKind.CONSUMER}) == {group: {}}
    # later versions have to join twice
    joined = destination.client.ask_any(_join(group), highest=3)
    assert not joined.error_code, joined
    with pytest.raises(TimedOutError, match=f"which topics group {group} reads is unknown: it has been rebalancing"):
        live_groups(destination, [topic])

    def is_over() -> bool:
        try:
            return live_groups(destination, [topic]) == []
        except KmirrorError:
            return False

    wait_until(is_over)


@pytest.mark.slow
def test_a_share_groups_offset_is_not_absent_while_its_partition_has_no_leader(three_brokers: SandboxCluster) -> None:
    """Its coordinator asks that leader for the log's end, and returns an error instead of the offset without it."""
    cluster, group = three_brokers, unique_topic("g")
    with ClusterClient(client_config(cluster.client_properties())) as client:
        groups = ClusterGroups(client)
        # makes sure that it has a coordinator
        assert groups.committed({group: GroupKind.CONSUMER}) == {group: {}}
        coordinator = find_coordinators(client, KeyType.GROUP, [group], 30)[group]
        assert not isinstance(coordinator, int), coordinator
        leader = next(broker.node_id for broker in cluster.brokers if broker.node_id != coordinator[0])
        at, wanted = TopicPartition(create_topic(cluster, replicas=[[leader]]), 0), {group: GroupKind.SHARE}
        assert groups.commit(group, GroupKind.SHARE, {at: Committed(0)}) == {at: 0}
        assert groups.committed(wanted) == {group: {at: Committed(0)}}
        cluster.kill(leader)
        try:
            wait_until(lambda: leader not in client.metadata([]).brokers)
            wait_until(lambda: groups.committed(wanted)[group] == Code.LEADER_NOT_AVAILABLE)
            with pytest.raises(UnreachableError, match=f"committed offsets of group {group} are unknown"):
                committed_on(client, at.topic)
        finally:
            revived(cluster)
        wait_until(lambda: groups.committed(wanted) == {group: {at: Committed(0)}})
