"""Heartbeats of many mirrors: a coordinator that does not answer holds up those of its own mirrors alone.

Lanes do not run here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.coordinators import KeyType, find_coordinators
from kmirror.engine.driver.engines import Engines
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.state.internal_topics import EVENTS_TOPIC_SETTINGS, STATE_TOPIC_SETTINGS
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes
from kmirror.state.store import EVENTS_TOPIC, STATE_TOPIC
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.idle_engine import IdleLanes, NoRebuilder
from tests.support.mirrors import properties_of
from tests.support.waiting import wait_until

#: More than all threads that send heartbeats.
STUCK, HEALTHY = 40, 4
#: The broker that keeps the state, and the one that stops.
STAYS, STOPS = 1, 2


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster of two brokers whose internal topics have one replica each: the first has kmirror's."""
    once = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}
    made = make_cluster("coordinators", brokers=2, properties=once)
    admin = AdminClient(properties_of(made))
    topics = {STATE_TOPIC: STATE_TOPIC_SETTINGS, EVENTS_TOPIC: EVENTS_TOPIC_SETTINGS}
    new = [NewTopic(name, 1, replica_assignment=[[STAYS]], config=dict(given)) for name, given in topics.items()]
    for created in admin.create_topics(new, operation_timeout=30).values():
        created.result(30)
    return made


def store(destination: Destination, names: Iterable[str]) -> None:
    """Store mirrors as `create` does, without looking at their sources."""
    for name in names:
        record = MirrorRecord(name, {"bootstrap.servers": "127.0.0.1:1"}, {}, "a-cluster", "eve@ops", now_ms())
        change(destination, name, lambda _, record=record: Changes((record,)))  # type: ignore[misc]


def coordinated_by(destination: Destination, node: int, count: int) -> list[str]:
    """Return names of mirrors whose heartbeats this broker coordinates."""
    names = [f"m-{node}-{number}" for number in range(10 * count)]
    ids = {f"kmirror-engine-{name}": name for name in names}

    def found() -> list[str]:
        answers = find_coordinators(destination.client, KeyType.TRANSACTION, ids, 30)
        assert all(isinstance(answer, tuple) for answer in answers.values())
        return [ids[key] for key, answer in answers.items() if isinstance(answer, tuple) and answer[0] == node]

    return found()[:count]


def test_more_mirrors_with_a_dead_coordinator_than_threads_hold_up_no_heartbeat_of_others(
    cluster: SandboxCluster,
) -> None:
    with Destination.open(properties_of(cluster)) as destination:
        destination.use_in_threads()
        store(destination, ["first"])  # so that there are coordinators
        stuck, healthy = (coordinated_by(destination, *one) for one in ((STOPS, STUCK), (STAYS, HEALTHY)))
        store(destination, (*stuck, *healthy))
        lanes, identity = IdleLanes(), EngineIdentity.of_this_process("app", "local[1]")
        engines = {
            name: MirrorEngine(
                name,
                destination.state(),
                Lease.acquire(destination.store, name, identity, 60_000),
                destination.properties,
                lanes,
                "eve@ops",
                NoRebuilder(),
            )
            for name in (*stuck, *healthy)
        }
        run = Engines(engines.values())

        def attempts(names: Iterable[str]) -> list[int]:
            run.tick()
            return [engines[name].heartbeats.attempts for name in names]

        wait_until(lambda: min(attempts(engines)) >= 2)
        cluster.signal(STOPS, signal.SIGSTOP)
        try:
            before = dict(zip(engines, attempts(engines), strict=True))
            # each of these takes three seconds
            wait_until(lambda: min(attempts([name])[0] - before[name] for name in stuck) >= 3)
            sent = {name: attempts([name])[0] - before[name] for name in engines}
            assert min(sent[name] for name in healthy) >= 2 * max(sent[name] for name in stuck), sent
            assert {engine.mirror: engine.lost for engine in run.last} == dict.fromkeys(engines)
        finally:
            cluster.signal(STOPS, signal.SIGCONT)
        run.close()
