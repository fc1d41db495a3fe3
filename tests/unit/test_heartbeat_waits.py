"""How long a slow destination has kept an engine's heartbeats waiting: what they do beside that is tested elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kmirror.engine.driver import heartbeats as module
from kmirror.engine.driver.heartbeats import Heartbeats
from kmirror.errors import OutcomeUnknown, UnreachableError
from kmirror.state.records import EngineRecord, EngineState


class Clock:
    at = 1000.0

    def now(self) -> float:
        return self.at


class SlowLease:
    """Stores heartbeats after so many seconds, or raises."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.takes = 0.0
        self.error: Exception | None = None

    def store(self, *_: object) -> None:
        self._clock.at += self.takes
        if self.error:
            raise self.error

    def settle(self, _: float) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now", clock.now)
    return clock


def test_what_waits_is_counted_from_the_first_try_to_the_answer(clock: Clock) -> None:
    lease = SlowLease(clock)
    beside: Any = SimpleNamespace(
        before_heartbeat=lambda: None,
        claims=dict,
        revisions=dict,
        unsent=(),
        fences=0,
        places={},
        changed={},
        unstored=lambda *_: (),
        trouble=None,
        lacking={},
        sent=lambda *_: None,
        stored=lambda *_: None,
        heartbeat_now=False,
    )
    history: Any = SimpleNamespace(unsent={}, expired=(), stored=lambda *_: None)
    beats = Heartbeats(lease, beside, beside, beside, history)  # type: ignore[arg-type]

    def beat(takes: float, error: Exception | None = None) -> float:
        lease.takes, lease.error = takes, error
        beats.put_together(EngineRecord("m", "L", EngineState.RUNNING, "h", "b", 7, 1, None, None, 0, 0, 5000))
        beats.run()
        assert beats.take_answer() is None
        return beats.waited_seconds(clock.at)

    assert beats.waited_seconds(clock.at) == 0
    assert beat(0.5) == 0
    clock.at += 3600  # nothing waits
    assert beat(0.9) == 0
    assert beat(5) == pytest.approx(4)
    # the next ones are tries of one that waits
    assert beat(3, OutcomeUnknown("no answer")) == pytest.approx(6)
    clock.at += 10
    assert beats.waited_seconds(clock.at) == pytest.approx(16)
    assert beat(2, UnreachableError("no answer")) == pytest.approx(18)
    assert beat(0.1) == pytest.approx(18.1)
    clock.at += 100
    assert beats.waited_seconds(clock.at) == pytest.approx(18.1)
    assert beat(0.1) == pytest.approx(18.1)
