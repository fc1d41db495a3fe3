"""A Java group and a librdkafka group move from A to B and back to A while producers are at work: each record once."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.show.describe import describe
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.group_members import JavaMember, LibrdkafkaMember, Load, Member
from tests.support.groups import commit, committed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.visible import assert_mirrored
from tests.support.waiting import wait_until

PARTITIONS = 3


@pytest.mark.long
def test_groups_move_there_and_back_under_load(cluster_pair: ClusterPair) -> None:
    a, b, topic = cluster_pair.source, cluster_pair.destination, unique_topic()
    groups: dict[str, type[JavaMember] | type[LibrdkafkaMember]] = {
        unique_topic("java"): JavaMember,
        unique_topic("librdkafka"): LibrdkafkaMember,
    }
    read: dict[str, Counter[str]] = {group: Counter() for group in groups}
    sent: Counter[str] = Counter()
    make_topic(a, topic, PARTITIONS)
    for group in groups:
        commit(a, group, topic, dict.fromkeys(range(PARTITIONS), 0))

    def live(cluster: SandboxCluster) -> None:
        """Write and read for a while; then the producer ends, and the members leave while records are left to read."""
        with ExitStack() as made:
            load = made.enter_context(Load(cluster, topic, PARTITIONS, first=sum(sent.values())))
            members: dict[str, Member] = {group: join(cluster, group, topic) for group, join in groups.items()}
            for member in members.values():
                made.callback(member.destroy)
            wait_until(lambda: all(len(member.values.copy()) > 500 for member in members.values()), 90)
            for group, member in members.items():
                member.stop()
                read[group].update(member.values)
            wait_until(lambda: load.sent > sum(sent.values()) + 2_000, 60)
            sent.update(load.stop())

    with Destination.open(properties_of(a)) as at_a, Destination.open(properties_of(b)) as at_b:
        mirror = new_mirror(at_b, a)
        assert add(at_b, mirror, selector(topic)).exit_code == 0

        def switch(here: Destination, cluster: SandboxCluster) -> None:
            with LocalEngine(here, mirror, [GroupSyncJob(mirror, here.properties)]) as engine:
                live(b if cluster is a else a)
                engine.catch_up()
                wait_until(lambda: all(row.initial_copy_complete for row in describe(here, mirror)))
                request = SwitchoverRequest(mirror, properties_of(cluster), timeout_ms=90_000, idle_ms=500, watch_s=0.5)
                done = switchover(here, request).result
                assert done.exit_code == 0, done
            there = b if cluster is a else a
            for group in groups:
                assert committed(cluster, group, topic) == committed(there, group, topic)

        switch(at_b, b)
        switch(at_a, a)
        live(a)
        with LocalEngine(at_b, mirror) as engine:
            engine.catch_up()
        for partition in range(PARTITIONS):
            assert_mirrored(a, b, topic, partition)
    # what was left to read at the end is read now
    rest = {group: join(a, group, topic) for group, join in groups.items()}
    try:
        wait_until(lambda: all((read[g] + m.values.copy()).keys() >= sent.keys() for g, m in rest.items()), 90)
    finally:
        for member in rest.values():
            member.stop()
    for group, member in rest.items():
        read[group].update(member.values)
        assert read[group] == sent, f"{group} missed {sent - read[group]} or read twice {read[group] - sent}"
