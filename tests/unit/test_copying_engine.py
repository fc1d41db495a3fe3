"""When a promote starts an engine of its own, however long each look at its topics takes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.stop.copying_engine import CopyingEngine
from kmirror.ops.stop.promote_request import Show
from kmirror.state.records import EngineRecord, EngineState
from kmirror.state.snapshot import State

ENGINE = EngineRecord("m", "L", EngineState.RUNNING, "elsewhere", "b", 1, 2, None, None, 3, 4, 5_000)


class Promote:
    """Reads the state at times of its own; its engine never ends."""

    at = 0.0
    is_running = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kmirror.state.engine_identity.boottime", lambda: self.at)
        self.engine = CopyingEngine(cast(OwnEngine, self), "m", cast(Show, self))

    def start(self) -> None:
        self.is_running = True

    def error_text(self) -> str | None:
        return None

    def say(self, text: str) -> None:
        pass

    def reads(self, record: EngineRecord, asked_at: float, at: float) -> bool:
        """Ask for the state and have it answered; return whether the promote has an engine of its own then."""
        self.at = asked_at
        self.engine.ask()
        self.at = at
        self.engine.ensure(State.of([record]))
        return self.is_running


@pytest.fixture
def promote(monkeypatch: pytest.MonkeyPatch) -> Promote:
    return Promote(monkeypatch)


def test_a_dead_engine_is_replaced_after_its_lease_also_if_each_look_takes_long(promote: Promote) -> None:
    """Each look counted as 1.5 s, so that five of them went by."""
    assert not promote.reads(ENGINE, 0.0, 0.1)
    assert not promote.reads(replace(ENGINE, last_seen_ms=5), 10.0, 10.1)
    assert promote.reads(replace(ENGINE, last_seen_ms=5), 20.0, 20.1)


def test_while_the_state_does_not_answer_no_time_counts_although_it_is_asked_for_again(promote: Promote) -> None:
    for asked_at, at in ((0.0, 0.1), (1.0, 1.1), (2.0, 2.1)):
        assert not promote.reads(replace(ENGINE, last_seen_ms=round(10 * at)), asked_at, at)
    promote.at = 3.0
    promote.engine.ask()
    assert not promote.reads(replace(ENGINE, last_seen_ms=21), 30.0, 60.0)
    assert not promote.reads(replace(ENGINE, last_seen_ms=21), 61.0, 61.1)
    assert promote.reads(replace(ENGINE, last_seen_ms=21), 63.0, 63.1)


def test_a_state_that_is_looked_at_twice_counts_once(promote: Promote) -> None:
    assert not promote.reads(ENGINE, 0.0, 0.1)
    assert not promote.reads(replace(ENGINE, last_seen_ms=5), 10.0, 10.1)
    promote.engine._started_at = 1.0
    for promote.at in range(12, 30):
        assert promote.engine.trouble(State.of([replace(ENGINE, last_seen_ms=5)])) is None
