"""Two engines for one mirror: one is in charge, the other learns which, and none writes after its time."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from kmirror.errors import OutcomeUnknown, Reason, RefusedError, TimedOutError, UnreachableError, UsageError
from kmirror.state.engine_findings import JobFailure
from kmirror.state.engine_identity import EngineIdentity, FencedByCommandError
from kmirror.state.event_records import Event
from kmirror.state.lease import Lease, end_lease
from kmirror.state.lock import transact
from kmirror.state.records import (
    EngineRecord,
    EngineState,
    Incarnation,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline, boottime
from kmirror.state.writer import StateWriter
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import freeze
from tests.support.spawned import PROCESSES, ended
from tests.support.stores import LostAnswers, state_store
from tests.support.waiting import PATIENCE_S, wait_until

ME = EngineIdentity.of_this_process("app-me", "local[*]")
OTHER_HOST = replace(ME, host="far-away", boot_id="another", pid=7, application_id="app-far")


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


def partition(name: str, number: int, at: int) -> PartitionRecord:
    return PartitionRecord(name, "orders", number, PartitionState.MIRRORING, at)


def now_ms(seconds_ago: float = 0.0) -> int:
    return int((time.time() - seconds_ago) * 1000)


def write_engine(store: StateStore, name: str, identity: EngineIdentity, **fields: Any) -> EngineRecord:
    """Leave the record an engine elsewhere would have left."""
    settings: dict[str, Any] = {"state": EngineState.RUNNING, "last_seen_ms": now_ms(), "ttl_ms": 10_000} | fields
    record = EngineRecord(
        name,
        str(uuid.uuid4()),
        host=identity.host,
        boot_id=identity.boot_id,
        pid=identity.pid,
        pid_start_time=identity.pid_start_time,
        application_id=identity.application_id,
        master=None,
        since_ms=now_ms(60),
        **settings,
    )
    transact(store, name, lambda state: Changes((record,)))
    return record


def test_the_first_engine_takes_charge_and_records_who_it_is(store: StateStore, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    assert lease.predecessor is None
    assert lease.predecessor_may_write_until == 0.0
    record = engine_of(store, name)
    assert record == lease.record
    assert (record.pid, record.application_id, record.state) == (os.getpid(), "app-me", EngineState.RUNNING)
    lease.close()


def test_an_engine_for_no_mirror_is_refused(store: StateStore) -> None:
    for begin in (Lease.acquire, Lease.standby):
        with pytest.raises(RefusedError, match="there is no mirror 'nobody'"):
            begin(store, "nobody", ME)


def test_a_lease_shorter_than_two_heartbeats_is_refused(store: StateStore, name: str) -> None:
    with pytest.raises(UsageError, match="1999 ms"):
        Lease.acquire(store, name, ME, ttl_ms=1_999)


def test_a_heartbeat_writes_everything_in_one_transaction(store: StateStore, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    event = Event(1, name, "partition-failed", "engine", "DONE", {"partition": 1})
    lease.heartbeat(
        {0: Incarnation(1, 0)}, (partition(name, 0, 5), partition(name, 1, 6)), (event,), application_id="app-later"
    )
    record = engine_of(store, name)
    assert record == lease.record
    assert (record.lanes, record.application_id) == ({0: Incarnation(1, 0)}, "app-later")
    assert store.read().partitions(name, "orders") == (partition(name, 0, 5), partition(name, 1, 6))
    assert store.read_events(name) == (event,)
    lease.heartbeat({0: Incarnation(1, 0)}, tombstones=(partition(name, 1, 6).key,), stopping=True)
    assert engine_of(store, name).state is EngineState.STOPPING
    assert store.read().partitions(name, "orders") == (partition(name, 0, 5),)
    lease.record = replace(lease.record, failing_jobs={"rights": JobFailure(1, "no right")})
    lease.release((partition(name, 0, 9),))
    assert engine_of(store, name).state is EngineState.RELEASED
    assert engine_of(store, name).failing_jobs is None
    assert store.read().partition(name, "orders", 0) == partition(name, 0, 9)


def test_a_second_engine_is_refused_with_the_name_of_the_first(store: StateStore, config: Any, name: str) -> None:
    first = Lease.acquire(store, name, ME)
    with heartbeats(first), pytest.raises(RefusedError) as refused:
        Lease.acquire(state_store(config), name, OTHER_HOST)
    assert f"process {os.getpid()} on {ME.host}, Spark application app-me, since 20" in refused.value.message
    assert "last heartbeat" in refused.value.message
    assert refused.value.hint is not None
    assert "--standby" in refused.value.hint
    assert "--take-over" in refused.value.hint
    assert engine_of(store, name).lease_id == first.lease_id
    first.close()


@contextmanager
def heartbeats(lease: Lease, timeout: float | None = None) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.5):
            with suppress(OutcomeUnknown, TimedOutError, UnreachableError):
                lease.heartbeat({0: Incarnation(1, 0)}, timeout=timeout)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_taking_over_ends_the_first_engine_with_a_clear_message(store: StateStore, config: Any, name: str) -> None:
    first = Lease.acquire(store, name, ME, ttl_ms=5_000)
    before = boottime()
    second = Lease.acquire(state_store(config), name, OTHER_HOST, take_over=True)
    assert second.predecessor == first.record
    assert before + 5 < second.predecessor_may_write_until < boottime() + 5

    with pytest.raises(RefusedError, match=r"no longer in charge .* process 7 on far-away, .* app-far took") as fenced:
        first.heartbeat({0: Incarnation(1, 0)}, (partition(name, 0, 666),))
    assert fenced.value.reason is Reason.FENCED
    assert store.read_complete(Deadline(30)).partition(name, "orders", 0) is None
    # and the one out of date has not disturbed its successor: the producer it opened still writes
    producer = second._writer._writer
    second.heartbeat({0: Incarnation(2, 0)})
    assert second._writer._writer is producer
    with pytest.raises(RefusedError, match="no longer in charge"):
        first.release()
    assert engine_of(store, name) == second.record
    second.close()


def test_a_released_lease_is_free_at_once_and_its_lanes_are_gone(store: StateStore, config: Any, name: str) -> None:
    Lease.acquire(store, name, ME).release()
    second = Lease.acquire(state_store(config), name, OTHER_HOST)
    assert second.predecessor is not None
    assert second.predecessor.state is EngineState.RELEASED
    assert second.predecessor_may_write_until == 0.0
    second.close()


def test_a_release_does_not_speak_for_lanes_of_the_engine_before(store: StateStore, config: Any, name: str) -> None:
    Lease.acquire(store, name, ME, ttl_ms=20_000).close()
    Lease.acquire(store, name, ME, ttl_ms=2_000, take_over=True).release()
    third = Lease.acquire(store, name, ME, ttl_ms=2_000)
    assert boottime() + 10 < third.predecessor_may_write_until < boottime() + 20
    third.close()
    fourth = Lease.acquire(store, name, ME, ttl_ms=2_000, take_over=True)
    assert boottime() + 10 < fourth.predecessor_may_write_until < boottime() + 20
    fourth.close()


def test_a_lease_that_a_command_ends_is_free_at_once_but_its_lanes_may_live(
    store: StateStore, config: Any, name: str
) -> None:
    first = Lease.acquire(store, name, OTHER_HOST, ttl_ms=20_000)
    end_lease(state_store(config), name)
    ended = engine_of(store, name)
    assert (ended.state, ended.settle_ms, ended.held_by_command) == (EngineState.RELEASED, 20_000, True)
    with pytest.raises(FencedByCommandError, match="no longer in charge"):
        first.heartbeat({0: Incarnation(1, 0)})
    second = Lease.acquire(store, name, ME, ttl_ms=2_000)
    assert boottime() + 10 < second.predecessor_may_write_until < boottime() + 20
    second.close()


def acquire_and_die(config: dict[str, Any], name: str) -> None:
    Lease.acquire(state_store(config), name, EngineIdentity.of_this_process()).heartbeat({0: Incarnation(1, 0)})
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_driver_killed_on_this_host_frees_the_lease_but_its_lanes_may_live(
    store: StateStore, config: Any, name: str
) -> None:
    killed = PROCESSES.Process(target=acquire_and_die, args=(config, name), daemon=True)
    killed.start()
    assert ended(killed) == -signal.SIGKILL
    assert engine_of(store, name).state is EngineState.RUNNING
    lease = Lease.acquire(store, name, ME)
    assert lease.predecessor is not None
    assert lease.predecessor.pid == killed.pid
    assert lease.predecessor_may_write_until > boottime() + 5
    lease.close()


def test_a_process_number_used_again_is_not_taken_for_the_engine(store: StateStore, name: str) -> None:
    write_engine(store, name, replace(ME, pid_start_time=ME.pid_start_time - 1))
    Lease.acquire(store, name, ME).close()


def test_a_living_engine_on_this_host_is_not_taken_for_dead(store: StateStore, name: str) -> None:
    write_engine(store, name, ME)
    with pytest.raises(RefusedError, match=f"process {os.getpid()} on {ME.host}"):
        Lease.acquire(store, name, replace(ME, pid=1))


def test_an_engine_elsewhere_that_has_long_been_silent_is_succeeded(store: StateStore, name: str) -> None:
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(60), ttl_ms=2_000)
    lease = Lease.acquire(store, name, ME)
    assert lease.predecessor_may_write_until > boottime()
    lease.close()


def test_an_engine_elsewhere_that_was_silent_for_a_moment_keeps_its_lease(store: StateStore, name: str) -> None:
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(3))
    with pytest.raises(RefusedError, match="process 7 on far-away"):
        Lease.acquire(store, name, ME)


@pytest.mark.slow
def test_an_engine_whose_clock_was_an_hour_ahead_is_watched_for_its_ttl(store: StateStore, name: str) -> None:
    """For an hour its last heartbeat says nothing of its age."""
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(-3600))
    Lease.acquire(store, name, ME).close()
    found = engine_of(store, name)
    assert found is not None
    assert (found.host, found.pid) == (ME.host, ME.pid)


@pytest.mark.parametrize("seconds_ago", [3600, -3600])
def test_an_engine_whose_clock_is_an_hour_off_is_seen_alive(
    store: StateStore, config: Any, name: str, seconds_ago: int
) -> None:
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(seconds_ago))
    elsewhere = threading.Timer(
        0.5, write_engine, (state_store(config), name, OTHER_HOST), {"last_seen_ms": now_ms(seconds_ago - 1)}
    )
    elsewhere.start()
    with pytest.raises(RefusedError, match="process 7 on far-away"):
        Lease.acquire(store, name, ME)
    elsewhere.join()


@pytest.mark.slow
@pytest.mark.parametrize("seconds_ago", [12, 90])
def test_an_engine_that_seems_dead_by_the_clock_may_send_a_heartbeat_late(
    store: StateStore, config: Any, name: str, seconds_ago: int
) -> None:
    """Its clock is behind, or no one could reach the destination; after 1.5 s without a heartbeat it was replaced."""
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(seconds_ago))
    renewed = {"last_seen_ms": now_ms(seconds_ago - 3)}
    late = threading.Timer(3, write_engine, (state_store(config), name, OTHER_HOST), renewed)
    late.start()
    with pytest.raises(RefusedError, match="process 7 on far-away"):
        Lease.acquire(store, name, ME)
    late.join()


def test_an_engine_elsewhere_whose_silence_was_watched_is_succeeded_soon(store: StateStore, name: str) -> None:
    silent = write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(12))
    began = time.monotonic()
    Lease.acquire(store, name, ME, silent=silent).close()
    assert time.monotonic() - began < silent.ttl_ms / 1000


def test_an_engine_fenced_by_one_that_did_not_take_over_continues(store: StateStore, config: Any, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    stray = StateWriter(state_store(config), "engine", name)
    stray.open(Deadline(30))
    lease.heartbeat({0: Incarnation(1, 0)}, (partition(name, 0, 5),))
    assert engine_of(store, name) == lease.record
    assert store.read().partition(name, "orders", 0) == partition(name, 0, 5)
    stray.close()
    lease.close()


def test_an_engine_whose_mirror_was_deleted_learns_it(
    store: StateStore, config: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.state.lease._ASSUMED_DELETED_S", 2.0)
    lease = Lease.acquire(store, name, ME)
    writer = StateWriter(state_store(config), "engine", name)
    writer.open(Deadline(30))
    writer.commit(Changes(tombstones=(("mirror", name), ("engine", name))), Deadline(30))
    writer.close()
    with pytest.raises(UnreachableError, match="cannot be read at the moment"):
        lease.heartbeat({})  # it may be a leader that hides its last records

    def try_until_told() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(UnreachableError):
                lease.heartbeat({})
            time.sleep(0.1)

    with pytest.raises(RefusedError, match="its lease is gone"):
        try_until_told()
    assert store.read_complete(Deadline(30)).engine(name) is None


def test_of_many_engines_at_once_one_gets_the_lease(store: StateStore, config: Any, name: str) -> None:
    outcomes: list[str] = []

    def begin(number: int) -> None:
        try:
            Lease.acquire(state_store(config), name, replace(OTHER_HOST, host=f"far-{number}"), timeout=60).close()
            outcomes.append("in charge")
        except RefusedError as refused:
            outcomes.append(str(refused.reason))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["FENCED", "FENCED", "FENCED", "in charge"]


def test_a_standby_waits_for_the_release(store: StateStore, config: Any, name: str) -> None:
    first = Lease.acquire(store, name, ME)
    found: list[Lease | None] = []

    def stand_by() -> None:
        found.append(Lease.standby(state_store(config), name, OTHER_HOST))

    waiting = threading.Thread(target=stand_by, daemon=True)
    waiting.start()
    try:
        with heartbeats(first):
            waiting.join(2.5)
            assert waiting.is_alive()
    finally:
        first.release()
        waiting.join()
    assert found[0] is not None
    assert found[0].predecessor_may_write_until == 0.0
    assert engine_of(store, name).host == "far-away"
    found[0].close()


def test_a_standby_succeeds_an_engine_elsewhere_that_falls_silent(store: StateStore, name: str) -> None:
    write_engine(store, name, OTHER_HOST, last_seen_ms=now_ms(-3600), ttl_ms=2_000)
    lease = Lease.standby(store, name, ME)
    assert lease is not None
    assert lease.predecessor_may_write_until > boottime()
    lease.close()


def test_a_standby_takes_no_lease_because_the_state_could_not_be_reached(
    destination_cluster: SandboxCluster, store: StateStore, config: Any, name: str
) -> None:
    """The engine could not reach it either: that there is no heartbeat right after the outage says nothing of it."""
    first, found, is_over = Lease.acquire(store, name, OTHER_HOST, ttl_ms=5_000), [], threading.Event()

    def stand_by() -> None:
        found.append(Lease.standby(state_store(config), name, ME, should_stop=is_over.is_set))

    (broker,), waiting = destination_cluster.brokers, threading.Thread(target=stand_by)
    with heartbeats(first, timeout=3.0):
        waiting.start()
        time.sleep(1)
        freeze(destination_cluster, broker.node_id)
        time.sleep(first.record.ttl_ms / 1000 + 1)
        frozen = first.record
        destination_cluster.signal(broker.node_id, signal.SIGCONT)
        wait_until(lambda: first.record != frozen or found)
        is_over.set()
        waiting.join()
    assert found == [None]
    first.close()


def test_a_standby_waits_while_the_state_may_not_be_read_but_does_not_begin_like_that(
    store: StateStore, config: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drill that denies engines everything for a moment must not end their standbys, which nothing restarts."""
    first, other = Lease.acquire(store, name, OTHER_HOST), state_store(config)
    denied = UnreachableError("denied", "grant READ", Reason.NOT_AUTHORIZED)
    read, answers = other.read, iter([True, True, False, False])

    def read_if_allowed(*arguments: Any) -> State:
        if next(answers, True):
            return read(*arguments)
        if first.record.state is not EngineState.RELEASED:
            first.release()
        raise denied

    monkeypatch.setattr(other, "read", read_if_allowed)
    taken = Lease.standby(other, name, ME)
    assert taken is not None
    taken.close()
    answers = iter([False])
    with pytest.raises(UnreachableError, match="denied"):
        Lease.standby(other, name, ME)


def test_a_standby_can_be_stopped(store: StateStore, name: str) -> None:
    lease = Lease.acquire(store, name, ME)
    stops = iter([False, False, True])
    assert Lease.standby(store, name, OTHER_HOST, should_stop=lambda: next(stops)) is None
    lease.close()


def test_a_heartbeat_without_an_answer_is_not_written_twice(
    monkeypatch: pytest.MonkeyPatch, store: StateStore, name: str
) -> None:
    lease = Lease.acquire(store, name, ME)
    answers = LostAnswers(monkeypatch, lambda _: answers.lost == 0)
    event = Event(1, name, "partition-failed", "engine", "DONE")
    lease.heartbeat({0: Incarnation(1, 0)}, (), (event,))
    assert answers.lost == 1
    assert store.read_events(name) == (event,)
    assert engine_of(store, name) == lease.record
    lease.close()


def test_a_heartbeat_with_an_unknown_outcome_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, store: StateStore, name: str
) -> None:
    lease = Lease.acquire(store, name, ME)
    with monkeypatch.context() as cut_off:
        LostAnswers(cut_off, lambda _: True, cuts_off=True)
        with pytest.raises(OutcomeUnknown, match="the answer was lost"):
            lease.heartbeat({0: Incarnation(1, 0)}, timeout=2)
        with pytest.raises(UnreachableError, match="connection refused"):
            lease.heartbeat({0: Incarnation(1, 0)}, timeout=1)
    lease.heartbeat({0: Incarnation(1, 1)})
    assert engine_of(store, name) == lease.record
    lease.close()
