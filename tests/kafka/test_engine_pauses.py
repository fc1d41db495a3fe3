"""Pauses, resumes and adds while an engine is in charge whose lanes do not run: what it answers, and when.

What lanes would report is written by the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest

from kmirror.engine.driver.heartbeats import HEARTBEAT_SECONDS
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.settings.value_types import StartFrom
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease, end_lease
from kmirror.state.records import (
    PENDING_ADD,
    DesiredState,
    EngineRecord,
    EngineState,
    Guard,
    PartitionRecord,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from tests.support.idle_engine import ALIGNING, MIRRORING, PAUSED, Run, mirror, row, topic
from tests.support.mirrors import selector
from tests.support.waiting import PATIENCE_S

__all__ = ["mirror", "topic"]


@pytest.fixture
def operator(destination: Destination) -> Iterator[Operator]:
    with Destination.open(destination.properties) as opened, ThreadPoolExecutor(1) as pool:
        yield Operator(opened, pool)


class Operator:
    """An operator who pauses and resumes while the test has the engine work."""

    def __init__(self, destination: Destination, pool: ThreadPoolExecutor) -> None:
        self._destination, self._pool = destination, pool

    def pause(self, mirror: str) -> Future[VerbResult]:
        """Begin to pause a mirror."""
        return self._pool.submit(pause, self._destination, mirror)

    def resume(self, mirror: str) -> None:
        """Resume a mirror."""
        assert resume(self._destination, mirror).exit_code == 0


def results_of(done: Future[VerbResult], topic: str) -> list[Outcome]:
    return [row.result for row in done.result(PATIENCE_S).results if row.topic == topic]


def test_a_pause_right_after_a_resume_waits_until_the_engine_has_released_what_it_copies_again(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 5, begun=True))
        first = operator.pause(mirror)
        run.until(first.done, lanes_end=True)
        assert results_of(first, topic) == [Outcome.DONE]
        started = len(run.lanes.specs)
        operator.resume(mirror)
        # a lane has it again, and has said nothing yet: what is remembered is still that it is paused
        run.until(lambda: len(run.lanes.specs) > started)
        former = run.stored(topic)
        assert former.state is PAUSED
        second = operator.pause(mirror)
        for _ in range(4):
            run.heartbeat()
            assert wait([second], 0.5).not_done, "a lane copies it"
        run.until(second.done, lanes_end=True)
        assert results_of(second, topic) == [Outcome.DONE]
        found = run.stored(topic)
        assert found == replace(former, state_time_ms=found.state_time_ms, pause_id=found.pause_id)
        assert found.pause_id not in (None, former.pause_id)


def test_a_pause_is_answered_also_where_the_resume_before_it_was_not_acted_on(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        first = operator.pause(mirror)
        run.until(first.done, lanes_end=True)
        paused = destination.state().topic(mirror, topic)
        assert paused is not None
        # both at once
        resumed = replace(paused, desired=DesiredState.ACTIVE)
        change(destination, mirror, lambda _: Changes((resumed, replace(paused, pause_id="again"))))
        second = operator.pause(mirror)
        run.until(second.done, lanes_end=True)
        assert results_of(second, topic) == [Outcome.NOOP]
        run.until(lambda: run.stored(topic).pause_id == "again", lanes_end=True)


def test_an_engine_answers_what_was_paused_before_it_came(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    alone = operator.pause(mirror)
    # no engine is there that could answer
    assert results_of(alone, topic) == [Outcome.DONE]
    with Run(destination, mirror) as run:
        again = operator.pause(mirror)
        run.until(again.done)
        assert results_of(again, topic) == [Outcome.NOOP]
        run.until(lambda: run.stored(topic).state is PAUSED)
        assert run.lanes.specs == []


def test_what_is_added_to_a_paused_mirror_begins_where_the_add_has_decided(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    with Run(destination, mirror) as run:
        run.until(operator.pause(mirror).done)
        add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
        again = operator.pause(mirror)
        run.until(again.done)
        assert results_of(again, topic) == [Outcome.NOOP]
        run.until(lambda: run.stored(topic).state is PAUSED)
        assert run.stored(topic).first_offset == 5
        operator.resume(mirror)
        run.until(lambda: bool(run.lanes.specs))
        assert run.begins() == {(topic, 0): (5, False)}


def test_an_add_under_way_is_not_interfered_with(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    with Run(destination, mirror) as run:
        claim = TopicRecord(mirror, topic, topic, None, None, DesiredState.PAUSED, 1, TopicOrigin.CREATED, PENDING_ADD)
        change(destination, mirror, lambda _: Changes((claim,)))
        # no lane copies to it yet, and what the `add` writes of its partitions must not be overwritten
        done = operator.pause(mirror)
        run.until(done.done)
        assert results_of(done, topic) == [Outcome.NOOP]
        run.heartbeat()
        run.heartbeat()
        assert destination.state().partitions(mirror, topic) == ()


def test_what_is_rebuilt_while_it_is_paused_is_written_under_its_new_guard(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    assert results_of(operator.pause(mirror), topic) == [Outcome.DONE]
    with Run(destination, mirror) as run:
        run.until(operator.pause(mirror).done)
        paused = destination.state().topic(mirror, topic)
        assert paused is not None
        rebuilt = replace(paused, destination_topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
        fresh = PartitionRecord(mirror, topic, 0, ALIGNING, now_ms(), guard=Guard((1 << 62) + 7, 0, -1, 0))
        change(destination, mirror, lambda _: Changes((fresh, rebuilt)))
        again = operator.pause(mirror)
        run.until(again.done)
        run.until(lambda: run.stored(topic).state is PAUSED)
        found = run.stored(topic)
        assert (found.guard, found.pause_id) == (fresh.guard, paused.pause_id)
        operator.resume(mirror)
        run.until(lambda: bool(run.lanes.specs))
        assert [a.producer_id for a in run.lanes.specs[-1].assignments] == [(1 << 62) + 7]


def test_an_engine_is_given_a_turn_as_soon_as_a_heartbeat_is_due(
    destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        beats = run.engine.heartbeats

        def rests() -> bool:
            """Return whether none is being sent, and nothing else waits."""
            return beats.next_attempt == beats.attempts + 1 and not run.engine.has_news(beats.last_at)

        run.until(lambda: beats.last_at > 0 and rests())
        before = beats.last_at
        assert not run.engine.has_news(before)
        assert run.engine.has_news(before + HEARTBEAT_SECONDS)
        run.until(lambda: beats.last_at > before)


def test_a_pause_fences_only_the_engine_that_was_silent(
    destination: Destination, operator: Operator, mirror: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby takes over just before the pause does: its lease, and all topics with it, were lost."""
    add(destination, mirror, selector(topic))
    silent = EngineRecord(mirror, "its-lease", EngineState.RUNNING, "far-away", "b", 7, 7, None, None, 0, 0, 2_000)
    change(destination, mirror, lambda _: Changes((silent,)))

    def end_lease_late(store: StateStore, *args: Any) -> None:
        standby = Lease.acquire(store, mirror, EngineIdentity.of_this_process(), take_over=True)
        try:
            end_lease(store, *args)
        finally:
            standby.release()

    monkeypatch.setattr("kmirror.ops.mirrors.pause.end_lease", end_lease_late)
    done = operator.pause(mirror)
    assert results_of(done, topic) == [Outcome.DONE]
    assert done.result().warnings == ()
