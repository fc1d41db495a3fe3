"""Two commands at once: nothing is lost or doubled, and the one that lost the race gets an error."""

from __future__ import annotations

import os
import random
import signal
import string
from typing import Any

import pytest

from kmirror.cluster.writing.transactional_writer import TransactionalWriter
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.state.event_records import Event
from kmirror.state.lock import take_lock_ahead, transact
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter
from tests.support.spawned import PROCESSES, ended, exit_code_of
from tests.support.stores import LostAnswers, state_store
from tests.support.waiting import wait_until

AT_ONCE, INCREMENTS = 8, 6


def counter(name: str, count: int) -> MirrorRecord:
    return MirrorRecord(name, {}, {}, None, "eve@ops", count)


def random_letters(count: int) -> str:
    """Return what takes more than half of its size when it is compressed."""
    return "".join(random.Random(1).choices(string.ascii_letters, k=count))


def increment(store: StateStore, name: str, timeout: float = 120) -> None:
    def decide(state: State) -> Changes:
        found = state.mirror(name)
        count = 1 if found is None else found.created_at_ms + 1
        return Changes((counter(name, count),), events=(Event(count, name, "increment", "eve@ops", "DONE"),))

    transact(store, name, decide, timeout)


def increment_often(config: dict[str, Any], name: str) -> None:
    store = state_store(config)
    for _ in range(INCREMENTS):
        increment(store, name)


@pytest.mark.slow
def test_increments_of_many_processes_at_once_are_all_counted(
    store: StateStore, config: dict[str, Any], name: str
) -> None:
    processes = [PROCESSES.Process(target=increment_often, args=(config, name), daemon=True) for _ in range(AT_ONCE)]
    for process in processes:
        process.start()
    assert [ended(process) for process in processes] == [0] * AT_ONCE
    assert store.read().mirror(name) == counter(name, AT_ONCE * INCREMENTS)
    # each increment was recorded once, in the order of the counts: no decision was based on outdated state
    assert [event.time_ms for event in store.read_events(name)] == list(range(1, AT_ONCE * INCREMENTS + 1))


def test_who_was_overtaken_decides_again(store: StateStore, config: dict[str, Any], name: str) -> None:
    seen: list[int | None] = []

    def decide(state: State) -> Changes:
        found = state.mirror(name)
        seen.append(None if found is None else found.created_at_ms)
        if len(seen) == 1:
            increment(state_store(config), name)
        return Changes((counter(name, 100 + (found.created_at_ms if found else 0)),))

    written = transact(store, name, decide)
    assert seen == [None, 1]
    assert written.records == (counter(name, 101),)
    assert store.read().mirror(name) == counter(name, 101)


def test_who_was_overtaken_and_may_no_longer_is_fenced(store: StateStore, config: dict[str, Any], name: str) -> None:
    reads = 0

    def create(state: State) -> Changes:
        nonlocal reads
        reads += 1
        if state.mirror(name) is not None:
            raise RefusedError(f"mirror {name!r} exists", "choose another name")
        if reads == 1:
            increment(state_store(config), name)
        return Changes((counter(name, 99),))

    with pytest.raises(RefusedError, match="exists") as fenced:
        transact(store, name, create)
    assert fenced.value.reason is Reason.FENCED
    assert store.read().mirror(name) == counter(name, 1)
    with pytest.raises(RefusedError, match="exists") as refused:
        transact(store, name, create)
    assert refused.value.reason is None


def test_deciding_to_do_nothing_writes_nothing(store: StateStore, name: str) -> None:
    increment(store, name)
    assert transact(store, name, lambda state: Changes()) == Changes()
    assert store.read().mirror(name) == counter(name, 1)


def test_who_is_always_overtaken_gives_up_in_time(store: StateStore, config: dict[str, Any], name: str) -> None:
    rival = state_store(config)

    def decide(state: State) -> Changes:
        increment(rival, name)
        return Changes((counter(name, 0),))

    with pytest.raises(TimedOutError, match="other processes kept changing") as gave_up:
        transact(store, name, decide, timeout=4)
    assert "nothing was changed" in str(gave_up.value.hint)
    found = store.read().mirror(name)
    assert found is not None
    assert found.created_at_ms > 0


def test_a_record_of_a_newer_version_is_left_alone(store: StateStore, config: dict[str, Any], name: str) -> None:
    from confluent_kafka import Producer

    increment(store, name)
    producer = Producer(config)
    producer.produce("__kmirror_state", key=f'["mirror","{name}"]', value='{"v":2,"name":"new"}', partition=0)
    assert producer.flush(30) == 0
    with pytest.raises(RefusedError, match="schema version is 2"):
        increment(store, name)
    increment(store, f"{name}-other")
    # other tests use this cluster too
    producer.produce("__kmirror_state", key=f'["mirror","{name}"]', value=None, partition=0)
    assert producer.flush(30) == 0


def die_in_the_middle(config: dict[str, Any], name: str) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    TransactionalWriter._commit = die  # type: ignore[assignment]
    increment(state_store(config), name)


def test_a_command_killed_in_the_middle_leaves_nothing_and_blocks_no_other(
    store: StateStore, config: dict[str, Any], name: str
) -> None:
    increment(store, name)
    assert exit_code_of(die_in_the_middle, config, name) == -signal.SIGKILL
    increment(store, name)
    assert store.read().mirror(name) == counter(name, 2)
    assert [event.time_ms for event in store.read_events(name)] == [1, 2]


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_commit_without_an_answer_is_neither_doubled_nor_lost(
    monkeypatch: pytest.MonkeyPatch, store: StateStore, name: str, carried_out: bool
) -> None:
    increment(store, name)
    answers = LostAnswers(monkeypatch, lambda _: answers.lost == 0, carried_out=carried_out)
    increment(store, name)
    assert answers.lost == 1
    assert store.read().mirror(name) == counter(name, 2)
    assert [event.time_ms for event in store.read_events(name)] == [1, 2]


def test_a_commit_with_an_unknown_outcome_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, store: StateStore, name: str
) -> None:
    increment(store, name)
    with monkeypatch.context() as cut_off:
        LostAnswers(cut_off, lambda _: True, cuts_off=True)
        with pytest.raises(OutcomeUnknown, match=r"not confirmed .*the answer was lost.* connection refused"):
            increment(store, name, timeout=2)
    assert store.read_complete(Deadline(30)).mirror(name) == counter(name, 2)


@pytest.mark.slow
def test_a_record_too_large_for_the_broker_is_a_known_failure(store: StateStore, name: str) -> None:
    increment(store, name)
    big = MirrorRecord(name, {}, {"topics.include": random_letters(3_500_000)}, None, "eve@ops", 7)
    with pytest.raises(BrokerError, match=r"writing to __kmirror_state and __kmirror_events: .*(?i:too.large)"):
        transact(store, name, lambda state: Changes((counter(f"{name}-with", 1), big)), timeout=20)
    increment(store, name)
    assert store.read().mirror(name) == counter(name, 2)
    assert store.read().mirror(f"{name}-with") is None


def test_an_unreachable_cluster_is_reported_at_once(name: str) -> None:
    with pytest.raises(UnreachableError, match="connection refused"):
        transact(state_store({"bootstrap.servers": "127.0.0.1:1"}), name, lambda state: Changes(), timeout=250)


def test_a_lock_taken_ahead_is_granted_however_late_its_thread_runs(
    monkeypatch: pytest.MonkeyPatch, store: StateStore, name: str
) -> None:
    increment(store, name)
    real = StateWriter.open

    def late(writer: StateWriter, *given: Any) -> None:
        wait_until(lambda: name in store.kept)
        real(writer, *given)

    monkeypatch.setattr(StateWriter, "open", late)
    take_lock_ahead(store, name)
    assert store.kept[name].writer().is_open
