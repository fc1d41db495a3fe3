"""Whether Spark's workers report on a mirror's lanes; when they stop and when they resume is announced."""

from __future__ import annotations

from kmirror.engine.clock import now_ms
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.status.health import LANE_SILENCE_SECONDS, MirrorHealth
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.errors import Reason
from kmirror.status.engine_health import no_workers_text


class Workers:
    """Watch the workers of one mirror; `master` is their Spark master."""

    def __init__(
        self, mirror: str, master: str | None, lanes: Lanes, health: MirrorHealth, journal: MirrorJournal
    ) -> None:
        self._mirror = mirror
        self._master = master
        self._lanes = lanes
        self._health = health
        self._journal = journal
        #: True once it was announced that workers do not report.
        self._are_silent = False

    def check(self, at: float, *, are_readable: bool, throttled_by: str | None = None) -> None:
        """Determine which lanes no worker reports on, and announce it once that has lasted.

        Without `are_readable` it is the destination that keeps their reports from us; `throttled_by` is its broker that
        throttles us.
        """
        silent, late = self._lanes.silent(at), self._lanes.are_late(at)
        if self._health.take_silence(silent, late=late):
            self._lanes.heartbeat_now = True
        lasts = self._health.silence(at) > LANE_SILENCE_SECONDS
        if lasts and are_readable and not self._are_silent:
            self._are_silent = True
            self._journal.note(f"{self._mirror}: {self._text(at, throttled_by)}", Level.ERROR, about_spark=True)
            self._journal.record("workers", Reason.NO_WORKERS, {"lanes": sorted(silent), "master": self._master})
        elif not silent and self._are_silent:
            self._are_silent = False
            self._journal.note(f"{self._mirror}: all lanes report again")
            self._journal.record("workers", "REPORT_AGAIN", {})

    def silent_lanes_ms(self, at: float) -> dict[int, int]:
        """Return the lanes that no worker reports on, with the time of their last report, or of the engine's start."""
        at_ms = now_ms()
        return {lane: at_ms - int(1000 * (at - since)) for lane, since in self._health.silent_lanes.items()}

    def _text(self, at: float, throttled_by: str | None) -> str:
        silent_ms = int(1000 * self._health.silence(at))
        return no_workers_text(self._health.silent_lanes, silent_ms, self._master, throttled_by)
