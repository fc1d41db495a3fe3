"""Reading and creating the internal topics on a real broker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kmirror.errors import Reason, TimedOutError, UnreachableError
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.lock import transact
from kmirror.state.record_kinds import encode
from kmirror.state.records import MirrorRecord, PartitionRecord, PartitionState
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.waiting import UNTIL_ABORTED_S, Deadline
from tests.support.stores import mirror, state_store
from tests.support.waiting import wait_until

_PATIENCE_S = 4.0


def test_what_was_written_is_read_by_the_same_store_and_by_another(store: StateStore, config: Any, name: str) -> None:
    partitions = tuple(PartitionRecord(name, "orders", n, PartitionState.MIRRORING, 1) for n in range(3))
    transact(store, name, lambda state: Changes((mirror(name), *partitions)))
    assert store.read(patience=UNTIL_ABORTED_S).mirror(name) == mirror(name)
    other = state_store(config)
    assert other.read(patience=UNTIL_ABORTED_S).partitions(name, "orders") == partitions

    transact(other, name, lambda state: Changes((mirror(name, 2),), tombstones=(partitions[1].key,)))
    for reader in (store, other, state_store(config)):
        assert reader.read(patience=UNTIL_ABORTED_S).mirror(name) == mirror(name, 2)
        assert reader.read(patience=UNTIL_ABORTED_S).partitions(name, "orders") == (partitions[0], partitions[2])


def test_events_are_read_by_mirror_and_time(store: StateStore, name: str) -> None:
    day = 86_400_000
    events = [Event(day * n, name, what, "eve@ops", "DONE") for n, what in ((1, "create"), (2, "add"), (3, "pause"))]
    for event in events:
        changes = Changes((mirror(name),), (), (event,))
        transact(store, name, lambda _, changes=changes: changes)  # type: ignore[misc]
    assert store.read_events(name) == tuple(events)
    assert store.read_events(name, since_ms=2 * day) == tuple(events[1:])
    assert store.read_events(name, since_ms=4_000_000_000_000) == ()
    assert store.read_events("nobody") == ()
    assert [event for event in store.read_events() if event.mirror == name] == events


def open_transaction(config: dict[str, Any], record: MirrorRecord) -> Any:
    from confluent_kafka import Producer

    producer = Producer({**config, "transactional.id": f"test-{record.name}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    key, value = encode(record)
    producer.produce(STATE_TOPIC, key=key, value=value, partition=0)
    assert producer.flush(30) == 0
    return producer


def test_a_log_that_ends_in_an_aborted_transaction_is_read_to_its_end(
    store: StateStore, config: Any, name: str
) -> None:
    transact(store, name, lambda state: Changes((mirror(name, 1),)))
    open_transaction(config, mirror(name, 2)).abort_transaction(30)
    for reader in (store, state_store(config)):
        assert reader.read_complete(Deadline(30)).mirror(name) == mirror(name, 1)
        assert reader.read_complete(Deadline(30)).mirror(name) == mirror(name, 1)


def test_an_open_transaction_hides_nothing_from_who_has_to_decide(store: StateStore, config: Any, name: str) -> None:
    transact(store, name, lambda state: Changes((mirror(name, 1),)))
    stuck = open_transaction(config, mirror(f"{name}-stuck"))
    # committed behind the open transaction, so that the last stable offset is before it
    late = open_transaction(config, mirror(name, 2))
    late.commit_transaction(30)

    assert store.read().mirror(name) == mirror(name, 1)
    with pytest.raises(TimedOutError, match="unfinished transaction"):
        store.read_complete(Deadline(0.5))
    ending = threading.Timer(0.5, stuck.commit_transaction, (30,))
    ending.start()
    for reader in (store, state_store(config)):
        state = reader.read_complete(Deadline(30))
        assert state.mirror(name) == mirror(name, 2)
        assert state.mirror(f"{name}-stuck") is not None
    ending.join()


@pytest.mark.slow
def test_an_open_transaction_is_waited_for_once(
    store: StateStore, config: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transact(store, name, lambda _: Changes((mirror(name),)))
    stuck = open_transaction(config, mirror(f"{name}-stuck"))
    other = open_transaction(config, mirror(f"{name}-other"))
    late = open_transaction(config, mirror(name, 2))
    late.commit_transaction(30)

    def waited_s() -> float:
        began = time.monotonic()
        assert store.read(patience=_PATIENCE_S).mirror(name) == mirror(name)
        return time.monotonic() - began

    left, read = list[float](), StateStore._read

    def noted(store: StateStore, deadline: Deadline, patience: Deadline) -> State:
        left.append(patience.remaining)
        return read(store, deadline, patience)

    assert waited_s() >= _PATIENCE_S
    with monkeypatch.context() as patched:
        patched.setattr(StateStore, "_read", noted)
        waited_s()
    assert left == [0.0]
    stuck.abort_transaction(30)
    # its marker is written a moment later: then the other one is waited for
    wait_until(lambda: waited_s() >= _PATIENCE_S)
    other.abort_transaction(30)
    wait_until(lambda: store.read(patience=_PATIENCE_S).mirror(name) == mirror(name, 2))


def test_a_missing_cluster_is_reported_at_once_with_the_reason() -> None:
    store = state_store({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(UnreachableError, match="connection refused") as refused:
        store.read(timeout=250)  # pytest's own time-out would come first
    assert refused.value.reason is Reason.DESTINATION_UNREACHABLE
    with pytest.raises(UnreachableError, match=r"cannot connect to nowhere\.invalid:9092: name or service not known"):
        state_store({"bootstrap.servers": "nowhere.invalid:9092"}).read(timeout=250)
    with pytest.raises(UnreachableError, match="connection refused"):
        transact(state_store({"bootstrap.servers": "127.0.0.1:1"}), "m", lambda state: Changes(), timeout=250)


def test_an_address_that_does_not_answer_fails_after_the_time_out(name: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = state_store({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
        with pytest.raises(UnreachableError, match=r"describing topic __kmirror_state: .* timed out") as refused:
            store.read(timeout=1.5)
    assert refused.value.reason is Reason.DESTINATION_UNREACHABLE
