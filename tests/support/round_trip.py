"""A mirror from A to B that has failed over, and the way back: B is to be copied to A."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest
from kmirror.ops.failback.truncate_logs import truncate_logs
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.report import VerbReport
from kmirror.state.workflow_records import WorkflowRecord
from kmirror.work import WorkView
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import new_mirror, produce, properties_of, selector
from tests.support.new_topics import create_and_wait
from tests.support.visible import assert_intact, assert_mirrored
from tests.support.watching import assert_grows


class Trip:
    """A and B, and a mirror between them."""

    def __init__(self, a: SandboxCluster, b: SandboxCluster) -> None:
        self.a, self.b = a, b
        self.at_a, self.at_b = Destination.open(properties_of(a)), Destination.open(properties_of(b))
        self.mirror = new_mirror(self.at_b, a)
        #: The output of the last failback.
        self.views: list[WorkView] = []

    def __enter__(self) -> Trip:
        return self

    def __exit__(self, *_: object) -> None:
        self.at_a.close()
        self.at_b.close()

    def opened_again(self) -> None:
        """Reconnect, after a cluster was restarted."""
        self.__exit__()
        self.at_a, self.at_b = Destination.open(properties_of(self.a)), Destination.open(properties_of(self.b))

    def go(self, *topics: str, partitions: int = 1, records: int = 3, **settings: str) -> None:
        """Mirror topics with this many records in partition 0 from A to B, and fail over."""
        for topic in topics:
            make_old_topic(self.a, topic, partitions, **settings)
            produce_batches(self.a, topic, [f"common-{n}" for n in range(records)])
        assert add(self.at_b, self.mirror, selector(*topics)).exit_code == 0
        self.copy_to_b()
        assert failover(self.at_b, self.mirror).result.exit_code == 0

    def copy_to_b(self) -> None:
        with LocalEngine(self.at_b, self.mirror) as engine:
            engine.catch_up()

    def copy_to_a(self) -> None:
        with LocalEngine(self.at_a, self.mirror) as engine:
            engine.catch_up()

    def back(self, *topics: str, **how: Any) -> VerbReport:
        """Fail back, to A."""
        steps = {key: how.pop(key) for key in ("dry_run", "checkpoint") if key in how}
        chosen = selector(*topics) if topics else None
        request = FailbackRequest(self.mirror, properties_of(self.b), chosen, watch_s=0.1, **how)
        self.views.clear()
        done = failback(self.at_a, request, watch=self.views.append, **steps)
        assert_grows(self.views)
        check("report", done.evidence)
        return done

    def assert_same(self, topic: str, partitions: int = 1) -> None:
        """Check that A holds what B does."""
        for partition in range(partitions):
            assert_mirrored(self.b, self.a, topic, partition)
            assert_intact(self.a, topic, partition)


def make_old_topic(cluster: SandboxCluster, topic: str, partitions: int = 1, **settings: str) -> None:
    """Create a topic that keeps old records, on all brokers."""
    config = {key.replace("_", "."): value for key, value in settings.items()} | {"retention.ms": "-1"}
    admin = AdminClient(properties_of(cluster))
    create_and_wait(admin, NewTopic(topic, partitions, len(cluster.brokers), config=config))


def produce_batches(cluster: SandboxCluster, topic: str, values: list[str], most: int = 100) -> None:
    """Append records in batches of so many."""
    for first in range(0, len(values), most):
        produce(cluster, topic, values[first : first + most])


def trim(cluster: SandboxCluster, topic: str, offset: int) -> None:
    """Delete the records below, as retention does."""
    admin = AdminClient(properties_of(cluster))
    partition = TopicPartition(topic, 0, offset)
    admin.delete_records([partition])[partition].result(30)


def archives_of(done: VerbReport) -> dict[str, Any]:
    found = done.evidence["archives"]
    assert isinstance(found, dict)
    return found


def under_way(destination: Destination, mirror: str) -> list[str]:
    """Return what is stored of unfinished steps."""
    records = destination.state().records.values()
    return [one.name for one in records if isinstance(one, WorkflowRecord) and one.mirror == mirror]


class CutOffError(Exception):
    """The process is gone here."""


def cut(cluster: SandboxCluster, plan: Path) -> None:
    """Cut the logs of all brokers, which are stopped for it."""
    cluster.stop()
    for broker in cluster.brokers:
        assert truncate_logs(read_plan(plan), [broker.log_dir], lambda _: True).exit_code == 0
    cluster.start()
