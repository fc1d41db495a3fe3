"""Which mirrors `run --all` copies, when it takes one that another engine had, and what keeps one from its engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.engine.status.journal import Level
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.run.supervisor import (
    OtherEngines,
    is_left_out,
    not_copied_because,
    unreadable_mirrors,
    wanted_mirrors,
)
from kmirror.ops.stop.stop import is_being_stopped
from kmirror.state.record_kinds import Unknown
from kmirror.state.records import DesiredState, EngineRecord, EngineState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State

RECORD = MirrorRecord("m", {}, {}, None, "eve@ops", 0)
FAILED_OVER = replace(RECORD, discovery_ended=True)
TOPIC = TopicRecord("m", "t", "t", None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
STOPPED = replace(TOPIC, desired=DesiredState.STOPPED)
STOPPING = replace(STOPPED, pending_operation="stop")
ENGINE = EngineRecord("m", "L", EngineState.RUNNING, "elsewhere", "b", 1, 2, None, None, 3, 4, 5_000)

EVERY = RunRequest((), all_mirrors=True)
CAUGHT_UP = replace(EVERY, until_caught_up=True)


@pytest.mark.parametrize(
    ("record", "topic", "is_wanted", "stops"),
    [
        (RECORD, None, True, False),
        (RECORD, STOPPED, True, False),
        (FAILED_OVER, TOPIC, True, False),
        (FAILED_OVER, STOPPING, True, True),
        (FAILED_OVER, STOPPED, False, True),
    ],
)
def test_which_mirrors_there_is_something_to_copy_of(
    record: MirrorRecord, topic: TopicRecord | None, is_wanted: bool, stops: bool
) -> None:
    state = State.of([record, topic] if topic else [record])
    assert (("m" in wanted_mirrors(state)), is_being_stopped(state, record.name)) == (is_wanted, stops)


@pytest.mark.parametrize("key", [("mirror", "m"), ("topic", "m", "t")])
def test_what_a_newer_version_keeps_is_left_alone_and_not_taken_for_deleted(key: tuple[str, ...]) -> None:
    state = State.of([RECORD, replace(RECORD, name="n"), Unknown(key, "of version 9")])
    assert list(wanted_mirrors(state)) == ["n"]
    (reported,) = unreadable_mirrors(state).items()
    assert (reported[0], reported[1].level, "of version 9" in reported[1].why) == ("m", Level.ERROR, True)


class Clock:
    """Reads what is stored of the engine, at times of its own."""

    at = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kmirror.state.engine_identity.boottime", lambda: self.at)
        self.others = OtherEngines()

    def reads(self, record: EngineRecord | None, *times: float) -> bool:
        """Read it at each of these times; return whether the mirror may then be taken."""
        for self.at in times:
            self.others.take("m", record)
        return self.others.has_left("m")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_lease_is_taken_when_the_engine_that_had_it_has_left(clock: Clock) -> None:
    assert not clock.others.has_left("m"), "no one has looked"
    assert clock.reads(None, 0.0)
    assert not clock.reads(ENGINE, 10.0)
    renewed = replace(ENGINE, last_seen_ms=5)
    assert not clock.reads(renewed, 14.0, 15.0, 16.0, 17.0, 18.0)
    assert clock.others.silent("m") is None
    clock.at = 19.1
    assert clock.others.silent("m") == renewed
    assert not clock.reads(replace(ENGINE, last_seen_ms=6), 19.2)
    assert clock.reads(replace(ENGINE, state=EngineState.RELEASED), 19.4)


def test_time_in_which_the_state_does_not_answer_says_nothing_of_an_engine(clock: Clock) -> None:
    assert not clock.reads(ENGINE, 0.0, 1.0)
    clock.at = 20.0
    assert not clock.others.has_left("m"), "nothing was read"
    assert not clock.reads(ENGINE, 20.0, 21.0, 22.0)
    assert clock.reads(ENGINE, 22.6)
    # where each answer takes long, a dead engine is not waited for forever
    assert clock.reads(replace(ENGINE, last_seen_ms=5), *range(30, 55, 5))


FENCED = RefusedError("in charge", None, Reason.FENCED)
DOWN = UnreachableError("no answer", None, Reason.SOURCE_UNREACHABLE)
REFUSED = UnreachableError("wrong password", None, Reason.AUTHENTICATION_FAILED)


@pytest.mark.parametrize(
    ("error", "level", "given_up"),
    [
        (FENCED, Level.WARNING, True),
        (DOWN, Level.WARNING, False),
        (OutcomeUnknown("no answer"), Level.WARNING, False),
        (REFUSED, Level.ERROR, True),
        (KmirrorError("odd"), Level.ERROR, True),
        (ValueError("never seen"), Level.ERROR, True),
    ],
)
def test_what_keeps_a_mirror_from_its_engine(error: Exception, level: Level, given_up: bool) -> None:
    not_copied = not_copied_because(error, EVERY)
    assert (not_copied.level, not_copied.reason) == (level, getattr(error, "reason", None))
    assert not is_left_out(error, EVERY)
    assert is_left_out(error, replace(CAUGHT_UP, timeout_ms=1000)) is given_up
    assert is_left_out(error, CAUGHT_UP)


def test_for_a_standby_it_is_fine_that_another_engine_copies() -> None:
    assert not_copied_because(FENCED, replace(EVERY, standby=True)).level is Level.INFO
    assert not is_left_out(FENCED, replace(CAUGHT_UP, standby=True))
