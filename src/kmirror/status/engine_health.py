"""Judge by an engine's record whether it is alive and its workers report. Pure: no I/O, no clock.

The engine itself judges its lanes and its source (`engine/status/health.py`), and records that with each heartbeat;
here only the record's age is judged. Ages compare the clocks of two machines: if the engine's clock is ahead, its
record may be of any age, so the engine counts as silent. A reader that reads repeatedly sees heartbeats
arrive, whatever the engine's clock says (`HeardEngines`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kmirror.cluster.protocol.quota import throttle_text
from kmirror.commands import on_mirror
from kmirror.errors import Reason
from kmirror.settings.durations import format_duration
from kmirror.state.records import EngineRecord, EngineState, ProgressRecord
from kmirror.state.snapshot import State
from kmirror.words import at_time

#: A running engine writes its record every second.
ENGINE_SILENCE_MS = 10_000
#: Lanes end by themselves half a minute after their engine's last heartbeat: after this long nothing is copied, and an
#: engine on another machine counts as gone.
ENGINE_GONE_MS = 60_000
#: For this long a lane that has just been started may not have reported, and is no trouble yet.
LANE_SILENCE_MS = 10_000


@dataclass(frozen=True)
class EngineHealth:
    """The health of a mirror's engine; `record` is its last one, `reason` why it copies nothing.

    With STATE_UNREADABLE the health is unknown: `problem` names the record that this version cannot read.
    """

    mirror: str
    record: EngineRecord | None
    age_ms: int | None
    reason: Reason | None
    problem: str | None = None
    #: What the engine itself knows of its silence.
    silence: str | None = None

    @cached_property
    def name(self) -> str | None:
        """Return the engine that is in charge, or may still be; None without one."""
        return self.record.name if self.record is not None and self.reason is not Reason.NO_ENGINE else None

    @property
    def last_seen_ms(self) -> int | None:
        return self.record.last_seen_ms if self.record is not None else None

    @cached_property
    def message(self) -> str | None:
        """Return the sentence for the reason, with what to do."""
        if self.reason is None or self.problem is not None:
            return self.problem
        last = f"{self.record.name} last reported {self._when()}" if self.record else ""
        if self.reason is Reason.ENGINE_SILENT and self.record is not None:
            if self.silence is not None:
                return self.silence
            process = f"process {self.record.pid} on {self.record.host}"
            if self.age_ms is None:
                ahead = ", from a clock that is ahead of this host's: whether it still runs is unknown"
                return f"the engine cannot be judged: {last}{ahead}; set the clocks, and check {process}"
            take_over = f"`{on_mirror('run', self.mirror)} --take-over` replaces it"
            what = f"the engine does not report: {last}"
            if self.record.throttled_by is not None:
                return f"{what}; {throttle_text(self.record.throttled_by)}; if it is not late, check {process}"
            return f"{what}; check {process}, or {take_over}"
        in_brackets = f" ({last})" if last else ""
        return f"no engine copies mirror {self.mirror}{in_brackets}; `{on_mirror('run', self.mirror)}` starts one"

    def _when(self) -> str:
        if self.age_ms is not None:
            return f"{format_duration(self.age_ms // 1000 * 1000)} ago by this host's clock"
        return f"at {at_time(self.last_seen_ms)}" if self.last_seen_ms is not None else "at an unknown time"


def engine_in_charge(state: State, mirror: str, now_ms: int) -> EngineRecord | None:
    """Return the mirror's engine while its lease is fresh, by the clock of this machine."""
    engine = state.engine(mirror)
    if engine is None or engine.state is EngineState.RELEASED or now_ms - engine.last_seen_ms >= engine.ttl_ms:
        return None
    return engine


class HeardEngines:
    """Know, for a reader of the stored state, when engines were alive by its own clock."""

    def __init__(self) -> None:
        #: By mirror: the last heartbeat, when it was last read, and when the one before it was.
        self._read: dict[str, tuple[tuple[str, int], int, int | None]] = {}

    def take(self, state: State, now_ms: int) -> None:
        """Take what was read now."""
        read = {}
        for mirror in state.mirrors:
            if (engine := state.engine(mirror.name)) is not None:
                beat = engine.lease_id, engine.last_seen_ms
                known, read_ms, heard_ms = self._read.get(mirror.name, (beat, now_ms, None))
                read[mirror.name] = beat, now_ms, heard_ms if known == beat else read_ms
        self._read = read  # at once: other threads ask

    def heard_ms(self, mirror: str) -> int | None:
        """Return when a mirror's engine was alive, as it has sent a heartbeat since; None if that is unknown."""
        known = self._read.get(mirror)
        return None if known is None else known[2]


def engine_health(
    record: EngineRecord | None,
    mirror: str,
    now_ms: int,
    *,
    has_ended: bool | None = None,
    heard_ms: int | None = None,
) -> EngineHealth:
    """Judge an engine by its last record.

    `has_ended`: whether its process is gone, None if unknown; `heard_ms`: as in `HeardEngines`, None if unknown.
    """
    if record is None:
        return EngineHealth(mirror, None, None, Reason.NO_ENGINE)
    ahead_ms = record.last_seen_ms - now_ms
    if heard_ms is not None and (ahead_ms > ENGINE_SILENCE_MS or heard_ms > record.last_seen_ms):
        ahead_ms = heard_ms - now_ms
    age_ms = None if ahead_ms > ENGINE_SILENCE_MS else max(0, -ahead_ms)
    reason = None
    if record.state is EngineState.RELEASED or has_ended or (has_ended is None and (age_ms or 0) >= ENGINE_GONE_MS):
        reason = Reason.NO_ENGINE
    elif age_ms is None or age_ms >= ENGINE_SILENCE_MS:
        reason = Reason.ENGINE_SILENT
    return EngineHealth(mirror, record, age_ms, reason)


def clock_trouble(record: EngineRecord, now_ms: int) -> str | None:
    """Return how far the clock of an engine that just wrote its record is off from ours (`now_ms`)."""
    ahead_ms = record.last_seen_ms - now_ms
    if abs(ahead_ms) <= ENGINE_SILENCE_MS:
        return None
    way = "ahead of" if ahead_ms > 0 else "behind"
    return f"the clock of its host, {record.host}, is {format_duration(abs(ahead_ms) // 1000 * 1000)} {way} this one's"


def is_reported(health: EngineHealth, report: ProgressRecord | None) -> bool:
    """Return whether a lane's last report on a partition is from a live lane of the engine in charge."""
    engine = health.record
    if health.reason is not None or engine is None or report is None or report.lease_id != engine.lease_id:
        return False
    return report.lane in engine.lanes and report.lane not in (engine.silent_lanes or {})


def copy_trouble(health: EngineHealth, now_ms: int) -> tuple[Reason, str] | None:
    """Return why engine or workers do not copy partitions that no live lane reports; None if it may be a moment's gap.

    A partition that has just moved to another lane, or whose lane has just been started, has no report for a moment:
    that counts only if a lane has been silent for longer, by the engine's clock.
    """
    engine = health.record
    if health.reason is not None or engine is None:
        return health.reason or Reason.NO_ENGINE, health.message or ""
    if not engine.lanes:
        return Reason.NO_WORKERS, f"the engine {engine.name} has not started a worker for it yet"
    before_ms = engine.last_seen_ms - LANE_SILENCE_MS
    lasting = {lane: since_ms for lane, since_ms in (engine.silent_lanes or {}).items() if since_ms <= before_ms}
    if not lasting:
        return None
    silent_ms = max(0, now_ms - min(lasting.values()))
    return Reason.NO_WORKERS, no_workers_text(lasting, silent_ms, engine.master, engine.throttled_by)


def no_workers_text(lanes: Iterable[int], silent_ms: int, master: str | None, throttled_by: str | None) -> str:
    """Return the sentence for lanes that no worker reports on, with what to check."""
    named = ", ".join(map(str, sorted(lanes)))
    where = f"the workers of Spark master {master}" if master else "the Spark workers"
    whose = f"lanes {named}" if "," in named else f"lane {named}"
    what = f"no worker has reported on {whose} for {format_duration(silent_ms // 1000 * 1000)}"
    if throttled_by is not None:
        return f"{what}; {throttle_text(throttled_by)}; otherwise check {where}"
    return f"{what}; check {where}"
