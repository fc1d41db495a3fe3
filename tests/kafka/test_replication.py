"""One replica on a cluster of several brokers, and `min.insync.replicas` that cannot be met, are said in advance."""

from __future__ import annotations

import pytest

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import CheckLine
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror_plan import trial
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.mirrors import make_topic, properties_of, selector

ALONE = "on a cluster of 2 brokers: losing one broker loses them"
NEVER = "min.insync.replicas=2 can never be met"


def lines(destination: Destination, mirror: str) -> list[CheckLine]:
    return [line for line in check(destination.properties, mirror=mirror).lines if line.what == "replication"]


@pytest.mark.slow
def test_too_few_replicas_are_said_before_and_after(source_cluster: SandboxCluster, make_cluster: MakeCluster) -> None:
    two = make_cluster("two", brokers=2, properties={"min.insync.replicas": "2"})
    given, topic = properties_of(source_cluster), unique_topic()
    make_topic(source_cluster, topic)
    with Destination.open(properties_of(two)) as destination:
        warned = create(destination, "m", given, dry_run=True).warnings
        names = f"{STATE_TOPIC}, {EVENTS_TOPIC}, new mirror topics get 1 replica"
        assert warned[0].startswith(f"{names} {ALONE}; set replication.factor and state.replication.factor")
        assert f"{names}, so {NEVER}" in warned[1]
        enough = {"replication.factor": "2", "state.replication.factor": "2"}
        # a plan's trial, which may be the first to need kmirror's own topics, creates them as the mirror does
        with trial._mirror(destination, {**given, **enough}):
            pass
        done = create(destination, "m", {**given, **enough})
        assert (done.exit_code, done.warnings) == (0, ())
        found = destination.client.metadata([STATE_TOPIC, EVENTS_TOPIC]).topics
        assert {len(one.partitions[0].replicas) for one in found.values()} == {2}
        assert add(destination, "m", selector(topic)).exit_code == 0
        assert [(line.ok, line.hint) for line in lines(destination, "m")] == [(True, None)]
        change_config(destination, "m", {"replication.factor": "1"}, ())
        alone, never = lines(destination, "m")
        assert alone.message == f"new mirror topics get 1 replica {ALONE}"
        assert (alone.ok, alone.hint) == (True, "set replication.factor, for instance to 3, before they are created")
        assert NEVER in never.message
        make_topic(source_cluster, other := unique_topic())
        assert add(destination, "m", selector(other)).exit_code == 0
        assert f"{other} has 1 replica {ALONE}" in {line.message for line in lines(destination, "m")}
