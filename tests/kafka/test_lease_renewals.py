"""A heartbeat with nothing new is appended without a transaction, and never after the record of a successor.

Those of many leases are sent together.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.writing.lone_batches import LoneBatches
from kmirror.engine.driver.renewals import LeaseRenewals
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError
from kmirror.state import lease as lease_module
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.lease import Lease
from kmirror.state.lock import transact
from kmirror.state.records import EngineRecord, Incarnation, MirrorRecord, PartitionRecord, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline, boottime
from kmirror.state.writer import STATE_PARTITION, StateWriter
from tests.support.clusters import MakeCluster
from tests.support.kafka_versions import OTHER_VERSIONS
from tests.support.stores import state_store
from tests.support.waiting import PATIENCE_S, wait_until

ME = EngineIdentity.of_this_process("app-me", "local[*]")
OTHER_HOST = replace(ME, host="far-away", boot_id="another", pid=7, application_id="app-far")
LANES = {0: Incarnation(1, 0)}


@pytest.fixture
def sender(config: Any) -> Iterator[LoneBatches]:
    with ClusterClient(client_config(config)) as client:
        yield LoneBatches(client, STATE_PARTITION)


def beat(lease: Lease, sender: LoneBatches) -> bool:
    """Send a heartbeat as engines do: in a transaction only if needed. Return whether it was sent without."""
    record = lease.next_record(LANES)
    renewal = lease.renewal(record)
    if renewal is not None:
        (trouble,) = sender.append([renewal.batch], 30)
        lease.renewed(renewal, trouble)
        if trouble is None:
            return True
    lease.store(record, Changes())
    return False


@pytest.fixture
def name(store: StateStore) -> str:
    """Create a mirror and give its name."""
    made = f"m-{uuid.uuid4().hex[:8]}"
    transact(store, made, lambda state: Changes((MirrorRecord(made, {}, {}, None, "eve@ops", 0),)))
    return made


def engine_of(store: StateStore, name: str) -> EngineRecord:
    found = store.read_complete(Deadline(30)).engine(name)
    assert found is not None
    return found


def log_end(store: StateStore) -> int:
    """Return the end of the state's log; a transaction has a marker, too."""
    partition = TopicPartition(STATE_TOPIC, 0)
    store.read_complete(Deadline(30))  # so that no marker is on its way
    with ClusterClient(store.client_config) as client:
        end = client.list_offsets({partition: LATEST})[partition].offset
    assert end is not None
    return end


def test_only_what_is_new_takes_a_transaction(store: StateStore, sender: LoneBatches, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    end, last_seen_ms = log_end(store), lease.record.last_seen_ms
    for _ in range(5):
        assert beat(lease, sender)
        assert engine_of(store, name) == lease.record
        assert lease.record.last_seen_ms >= last_seen_ms
        last_seen_ms = lease.record.last_seen_ms
    assert log_end(store) == end + 5
    partition = PartitionRecord(name, "orders", 0, PartitionState.MIRRORING, 5)
    lease.heartbeat(LANES, (partition,))
    assert lease.renewal(lease.next_record({0: Incarnation(2, 0)})) is None
    assert lease.renewal(lease.next_record(LANES, stopping=True)) is None
    lease.heartbeat({0: Incarnation(2, 0)})
    lease.heartbeat({0: Incarnation(2, 0)}, stopping=True)
    assert engine_of(store, name) == lease.record
    assert store.read().partition(name, "orders", 0) == partition
    assert log_end(store) == end + 5 + 3 + 2 + 2
    lease.close()


def test_a_connection_on_which_something_is_sent_at_the_end_is_closed_then(store: StateStore, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    assert engine_of(store, name) == lease.record  # until the marker is written, leaders refuse a renewal
    renewal = lease.renewal(lease.next_record(LANES))
    assert renewal is not None
    batch, closed, ended = renewal.batch, threading.Event(), list[object]()

    class Late:
        login = store.client_config

        def begin_renewal(self) -> memoryview:
            closed.wait(PATIENCE_S)
            return batch

        def end_renewal(self, trouble: object) -> None:
            ended.append(trouble)

    renewals = LeaseRenewals()
    renewals.add(Late())
    renewals.tick()
    renewals.close()
    closed.set()
    wait_until(lambda: ended)
    assert ended == [None]
    assert renewals._free == []
    lease.close()


def test_a_renewal_is_stored_as_a_heartbeat_is(store: StateStore, sender: LoneBatches, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    for _ in range(3):
        assert beat(lease, sender)
        stored = store.read_complete(Deadline(30)).engine(name)
        lease.heartbeat(LANES)
        again = store.read_complete(Deadline(30)).engine(name)
        assert stored is not None
        assert again == replace(stored, last_seen_ms=lease.record.last_seen_ms)
    lease.close()


def test_a_transaction_follows_soon(
    store: StateStore, sender: LoneBatches, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    monkeypatch.setattr(lease_module, "boottime", lambda: boottime() + 3600)
    assert not beat(lease, sender)
    lease.close()


def test_an_engine_that_was_succeeded_writes_nothing_after_its_successor(
    store: StateStore, config: Any, sender: LoneBatches, name: str
) -> None:
    first = Lease.acquire(store, name, ME)
    first.heartbeat(LANES)
    second = Lease.acquire(state_store(config), name, OTHER_HOST, take_over=True)
    end = log_end(store)
    with pytest.raises(RefusedError, match="no longer in charge") as fenced:
        beat(first, sender)
    assert fenced.value.reason is Reason.FENCED
    assert log_end(store) == end
    assert engine_of(store, name) == second.record
    second.heartbeat({})
    assert engine_of(store, name) == second.record
    second.close()


def test_an_engine_whose_id_was_taken_for_a_moment_continues(
    store: StateStore, config: Any, sender: LoneBatches, name: str
) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    stray = StateWriter(state_store(config), "engine", name)
    stray.open(Deadline(30))
    assert beat(lease, sender)
    assert engine_of(store, name) == lease.record
    stray.commit(Changes((PartitionRecord(name, "orders", 0, PartitionState.MIRRORING, 5),)), Deadline(30))
    assert not beat(lease, sender)
    assert engine_of(store, name) == lease.record
    stray.close()
    lease.close()


@pytest.mark.parametrize("is_written", [True, False])
def test_a_renewal_without_an_answer_is_made_good_at_once(
    store: StateStore, sender: LoneBatches, name: str, *, is_written: bool
) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    before = engine_of(store, name)
    renewal = lease.renewal(lease.next_record(LANES))
    assert renewal is not None
    if is_written:
        assert sender.append([renewal.batch], 30) == [None]
    lease.renewed(renewal, OutcomeUnknown("the answer was lost"))
    assert lease.record == before
    assert not beat(lease, sender), "each attempt would take a new epoch"
    assert engine_of(store, name) == lease.record != before
    assert not beat(lease, sender)
    lease.close()


def test_a_renewal_that_arrives_late_is_refused(store: StateStore, sender: LoneBatches, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    late = lease.renewal(lease.next_record(LANES))
    assert late is not None
    lease.renewed(late, OutcomeUnknown("the answer was lost"))
    lease.heartbeat(LANES)
    end = log_end(store)
    (trouble,) = sender.append([late.batch], 30)
    assert isinstance(trouble, BrokerError)
    assert log_end(store) == end
    lease.close()


def test_renewals_of_many_leases_are_sent_together_and_fail_alone(
    store: StateStore, config: Any, sender: LoneBatches
) -> None:
    names = [f"m-{uuid.uuid4().hex[:8]}" for _ in range(5)]
    leases = []
    for one in names:
        transact(store, one, lambda _, one=one: Changes((MirrorRecord(one, {}, {}, None, "eve@ops", 0),)))  # type: ignore[misc]
        leases.append(Lease.acquire(store, one, ME))
        leases[-1].heartbeat(LANES)
    renewals = [lease.renewal(lease.next_record(LANES)) for lease in leases]
    other = Lease.acquire(state_store(config), names[2], OTHER_HOST, take_over=True)
    end = log_end(store)
    troubles = sender.append([one.batch for one in renewals if one is not None], 30)
    assert [trouble is None for trouble in troubles] == [True, True, False, True, True]
    assert log_end(store) == end + 4
    for lease, renewal, trouble in zip(leases, renewals, troubles, strict=True):
        assert renewal is not None
        lease.renewed(renewal, trouble)
    for one, lease in zip(names, leases, strict=True):
        assert engine_of(store, one) == (other.record if one == names[2] else lease.record)
    for lease in (*leases, other):
        lease.close()


def test_leases_are_renewed_while_the_leader_of_the_state_is_away(store: StateStore, name: str) -> None:
    """What is sent to an address without a broker has an unknown outcome, and a transaction follows."""
    nowhere = ClusterClient(client_config({"bootstrap.servers": "127.0.0.1:1"}))
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    renewal = lease.renewal(lease.next_record(LANES))
    assert renewal is not None
    (trouble,) = LoneBatches(nowhere, STATE_PARTITION).append([renewal.batch], 1)
    assert isinstance(trouble, OutcomeUnknown)
    lease.renewed(renewal, trouble)
    lease.heartbeat(LANES)
    assert engine_of(store, name) == lease.record
    lease.close()


def test_what_is_appended_between_transactions_disturbs_none(store: StateStore, sender: LoneBatches, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    for at in range(10):
        lease.heartbeat(LANES, (PartitionRecord(name, "orders", 0, PartitionState.MIRRORING, at),))
        beat(lease, sender)  # the transaction's marker may not be written yet
        beat(lease, sender)
    assert engine_of(store, name) == lease.record
    found = store.read().partition(name, "orders", 0)
    assert found is not None
    assert found.state_time_ms == 9
    lease.close()


def test_an_id_that_may_get_another_producer_id_writes_in_transactions_only(
    store: StateStore, sender: LoneBatches, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.cluster.writing.transactional_writer._MOST_EPOCHS", 0)
    lease = Lease.acquire(store, name, ME)
    lease.heartbeat(LANES)
    assert not beat(lease, sender)
    lease.close()


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_brokers_of_other_versions_take_renewals_until_a_successor_has_written(
    make_cluster: MakeCluster, version: str
) -> None:
    config = {"bootstrap.servers": make_cluster("other", kafka_version=version).bootstrap_servers}
    with (
        closing(state_store(config)) as store,
        closing(state_store(config)) as other,
        ClusterClient(client_config(config)) as client,
    ):
        sender = LoneBatches(client, STATE_PARTITION)
        transact(store, "m", lambda _: Changes((MirrorRecord("m", {}, {}, None, "eve@ops", 0),)))
        first = Lease.acquire(store, "m", ME)
        first.heartbeat(LANES)
        end = log_end(store)
        for at in range(3):
            assert beat(first, sender)
            assert log_end(store) == end + 1
            first.heartbeat(LANES, (PartitionRecord("m", "orders", 0, PartitionState.MIRRORING, at),))
            end += 4
            assert log_end(store) == end  # once the marker is written: brokers refuse a renewal before that
        assert engine_of(store, "m") == first.record
        second = Lease.acquire(other, "m", OTHER_HOST, take_over=True)
        end = log_end(store)
        with pytest.raises(RefusedError, match="no longer in charge"):
            beat(first, sender)
        assert log_end(store) == end
        second.heartbeat({})
        assert engine_of(store, "m") == second.record
        second.close()
