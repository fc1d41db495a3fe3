"""Heartbeats of many mirrors: a coordinator that does not answer holds up those of its own mirrors alone.

Those with nothing to store are sent together. Lanes do not run here.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.coordinators import KeyType, find_coordinators
from kmirror.cluster.writing.lone_batches import LoneBatches, Trouble
from kmirror.engine.driver.engines import Engines
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.renewals import LeaseRenewals
from kmirror.errors import OutcomeUnknown
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.internal_topics import EVENTS_TOPIC, EVENTS_TOPIC_SETTINGS, STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror.state.lease import Lease
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.idle_engine import IdleLanes, NoRebuilder
from tests.support.mirrors import properties_of
from tests.support.waiting import PATIENCE_S, wait_until

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


class Busy:
    """A lock that is never free to those who do not wait for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self, blocking: bool = True) -> bool:
        return blocking and self._lock.acquire()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


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


def engines_of(destination: Destination, names: Iterable[str]) -> dict[str, MirrorEngine]:
    lanes, identity = IdleLanes(), EngineIdentity.of_this_process("app", "local[1]")
    return {
        name: MirrorEngine(
            name,
            destination.state(),
            Lease.acquire(destination.store, name, identity, 60_000),
            destination.properties,
            lanes,
            "eve@ops",
            NoRebuilder(),
        )
        for name in names
    }


@pytest.mark.slow
def test_leases_are_renewed_together_and_in_transactions_once_that_fails(
    destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [unique_topic() for _ in range(12)]
    store(destination, names)
    engines = engines_of(destination, names)
    run = Engines(engines.values())
    append, sent, fails = LoneBatches.append, Counter[int](), threading.Event()

    def appends(sender: LoneBatches, batches: Sequence[memoryview], timeout: float) -> list[Trouble | None]:
        sent[len(batches)] += 1
        if fails.is_set():
            return [OutcomeUnknown("the answer was lost")] * len(batches)
        return append(sender, batches, timeout)

    def beats() -> list[int]:
        run.tick()
        return [engine.heartbeats.attempts for engine in engines.values()]

    monkeypatch.setattr(LoneBatches, "append", appends)
    wait_until(lambda: min(beats()) >= 4 and max(sent, default=0) > 1)
    fails.set()
    before, renewed = beats(), sum(size * times for size, times in sent.items())
    assert renewed < sum(before), "some are transactions"
    wait_until(lambda: min(now - then for now, then in zip(beats(), before, strict=True)) >= 6)
    assert sum(size * times for size, times in sent.items()) - renewed <= 2 * len(names), "one that fails is the last"
    for name, engine in engines.items():
        assert engine.lost is None
        record = destination.state().engine(name)
        assert record is not None
        assert record.lease_id == engine.snapshot().engine.lease_id
    run.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_renewal_that_is_not_sent_is_sent_by_the_pool(
    destination: Destination, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    name = unique_topic()
    store(destination, [name])
    engine = engines_of(destination, [name])[name]
    run = Engines([engine])
    beats = engine.heartbeats

    def count() -> int:
        run.tick()
        return beats.attempts

    wait_until(lambda: count() >= 2)
    with monkeypatch.context() as troubled:
        if is_begun:
            # the pool's thread has sent the one before, and is not done yet
            troubled.setattr(beats, "_sending", Busy(beats._sending))
        else:
            troubled.setattr(LeaseRenewals, "tick", lambda _: None)
        before = count()
        wait_until(lambda: count() >= before + 2)
    assert engine.lost is None
    run.close()


def test_a_renewal_that_takes_long_is_not_followed_by_a_transaction_with_the_same(
    destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unique_topic()
    store(destination, [name])
    engine = engines_of(destination, [name])[name]
    run, beats = Engines([engine]), engine.heartbeats
    append, send, put, stored = LoneBatches.append, beats.run, Lease.store, list[Lease]()
    renewing, waits, is_over = threading.Event(), threading.Event(), threading.Event()

    def appends(sender: LoneBatches, batches: Sequence[memoryview], timeout: float) -> list[Trouble | None]:
        found = append(sender, batches, timeout)
        renewing.set()
        waits.wait(PATIENCE_S)
        return found

    def sends() -> None:
        is_last = renewing.is_set()
        if is_last:
            waits.set()
            stored.clear()
        send()
        if is_last:
            is_over.set()

    def puts(lease: Lease, *given: Any) -> None:
        stored.append(lease)
        put(lease, *given)

    monkeypatch.setattr(LoneBatches, "append", appends)
    monkeypatch.setattr(beats, "run", sends)
    monkeypatch.setattr(Lease, "store", puts)

    def has_waited() -> bool:
        # the driver takes no answer any more once one is being renewed
        (run._pools.heartbeats if renewing.is_set() else run).tick()
        return waits.is_set()

    wait_until(has_waited)
    assert is_over.wait(PATIENCE_S)
    assert not stored
    assert beats.is_renewed
    run.close()


@pytest.mark.slow
def test_more_mirrors_with_a_dead_coordinator_than_threads_hold_up_no_heartbeat_of_others(
    cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if each had something new, for which it needs its coordinator
    monkeypatch.setattr("kmirror.state.lease._RENEWED_S", 0.0)
    with Destination.open(properties_of(cluster)) as destination:
        destination.use_in_threads()
        store(destination, ["first"])  # so that there are coordinators
        stuck, healthy = (coordinated_by(destination, *one) for one in ((STOPS, STUCK), (STAYS, HEALTHY)))
        store(destination, (*stuck, *healthy))
        engines = engines_of(destination, (*stuck, *healthy))
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
        # once all brokers answer, leases are closed in the time that there is for it
        then = attempts(engines)
        wait_until(lambda: all(now >= before + 2 for now, before in zip(attempts(engines), then, strict=True)))
        run.close()
