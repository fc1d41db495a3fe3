"""The engine that copies while a promote waits: the mirror's own, or one that the promote starts."""

from __future__ import annotations

import time

from kmirror.ops.base.context import now_ms
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.stop.promote_request import Show
from kmirror.state.engine_identity import EngineSilence, process_of
from kmirror.state.records import EngineState
from kmirror.state.snapshot import State
from kmirror.status.engine_health import engine_in_charge

#: Least time between two starts of our own engine.
_RESTART_ENGINE_S = 5.0
#: An engine that counts as dead by the clock may have another one: time in which it would show that it lives.
_WATCH_S = 3.0


class CopyingEngine:
    """Make sure that an engine copies while topics wait."""

    def __init__(self, own: OwnEngine, mirror: str, show: Show) -> None:
        self._own = own
        self._mirror = mirror
        self._show = show
        self._started_at = 0.0
        #: That it has replaced an engine, for people.
        self.warnings: list[str] = []
        self._silence = EngineSilence()
        #: True once a heartbeat was seen to follow another.
        self._is_beating = False

    def ask(self) -> None:
        """Note that the state for `ensure` is read from now on."""
        self._silence.ask()

    def ensure(self, state: State) -> None:
        """Start our own engine if none is in charge of the state that was read now."""
        if (engine := state.engine(self._mirror)) != self._silence.record:
            self._is_beating = self._silence.record is not None
        self._silence.take(engine)
        if self._is_in_charge(state) or self._own.is_running:
            return
        if not self._started_at and engine is not None and engine.state is not EngineState.RELEASED:
            text = f"the engine of mirror {self._mirror}, {process_of(engine)}, sends no heartbeat"
            self.warnings.append(f"{text}: promote started another one, which ends with promote")
        if time.monotonic() - self._started_at > _RESTART_ENGINE_S:
            said = self._own.error_text()
            self._show.say("no engine is in charge: one is started" + (f" again ({said})" if said else ""))
            self._started_at = time.monotonic()
            self._own.start()

    def trouble(self, state: State) -> str | None:
        """Return why nothing copies although our own engine was started; None if an engine is in charge."""
        if not self._started_at or self._is_in_charge(state):
            return None
        ended = (
            "has not started yet" if self._own.is_running else f"ended: {self._own.error_text() or 'no reason known'}"
        )
        return f"no engine is in charge of mirror {self._mirror}; the one that promote started {ended}"

    def _is_in_charge(self, state: State) -> bool:
        """Return whether an engine's heartbeats arrive; until one did, its clock counts as being right.

        Without one for the length of its lease there is none, however far ahead the clock was of its last one.
        """
        engine = state.engine(self._mirror)
        if engine is None or engine.state is EngineState.RELEASED:
            return False
        if engine == self._silence.record and self._silence.outlasts_lease:
            return False
        is_fresh = engine_in_charge(state, self._mirror, now_ms()) is not None
        return self._is_beating or is_fresh or self._silence.seconds < _WATCH_S
