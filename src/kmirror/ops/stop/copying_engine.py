"""The engine that copies while a promote waits: the mirror's own, or one that the promote starts."""

from __future__ import annotations

import time

from kmirror.ops.base.context import now_ms
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.stop.promote_request import Show
from kmirror.state.snapshot import State
from kmirror.status.engine_health import engine_in_charge

#: Least time between two starts of our own engine.
_RESTART_ENGINE_S = 5.0


class CopyingEngine:
    """Make sure that an engine copies while topics wait."""

    def __init__(self, own: OwnEngine, mirror: str, show: Show) -> None:
        self._own = own
        self._mirror = mirror
        self._show = show
        self._started_at = 0.0

    def ensure(self, state: State) -> None:
        """Start our own engine if none is in charge."""
        if engine_in_charge(state, self._mirror, now_ms()) is not None or self._own.is_running:
            return
        if time.monotonic() - self._started_at > _RESTART_ENGINE_S:
            said = self._own.error_text()
            self._show.say("no engine is in charge: one is started" + (f" again ({said})" if said else ""))
            self._started_at = time.monotonic()
            self._own.start()

    def trouble(self, state: State) -> str | None:
        """Return why nothing copies although our own engine was started; None if an engine is in charge."""
        if not self._started_at or engine_in_charge(state, self._mirror, now_ms()) is not None:
            return None
        ended = (
            "has not started yet" if self._own.is_running else f"ended: {self._own.error_text() or 'no reason known'}"
        )
        return f"no engine is in charge of mirror {self._mirror}; the one that promote started {ended}"
