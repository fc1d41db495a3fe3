"""The mirrors of one watched cluster as they were last derived: again only where something is new.

Deriving the status of thousands of partitions takes work, and a browser asks every two seconds. A mirror about which
nothing new is stored or reported, and none of whose lags grows older, is the same but for the time of its engine's
heartbeat. What changes all the time, as lags of busy partitions do, is derived as often as a small part of a core
allows, and at least every thirty seconds: so is what a look found at the clusters of a mirror whose engine reports all
of it. Where one mirror alone is asked for, no other is derived.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kmirror.engine.clock import now
from kmirror.state.engine_identity import has_ended
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE
from kmirror.status.engine_health import engine_health
from kmirror.web.served import ServedMirror
from kmirror.web.stored_mirror import OffsetLook, stored_mirror

#: A mirror derived this long ago is not derived again.
_SAME_SECONDS = 1.0
#: The part of a core that may be used for what changes all the time, and the longest pause that makes.
SHARE, LONGEST_PAUSE_SECONDS = 0.005, 30.0


@dataclass(frozen=True, slots=True)
class _Derived:
    """A mirror as it was derived, and from what: what is stored of it, a look at its clusters, what lanes reported."""

    mirror: ServedMirror
    at: float
    stored: tuple[object, ...]
    look: OffsetLook | None
    reported: tuple[object, ...]


class MirrorCache:
    """Derive the mirrors of a cluster; for one thread at a time.

    `heard_of` returns when a mirror's engine was alive, as `HeardEngines` does.
    """

    def __init__(self, cluster: str, heard_of: Callable[[str], int | None] = lambda _: None) -> None:
        self._cluster, self._heard_of = cluster, heard_of
        self._derived: dict[str, _Derived] = {}
        self._not_before = 0.0

    def mirrors(
        self,
        state: State,
        look_of: Callable[[str], OffsetLook | None],
        time_ms: int,
        is_exact: Callable[[MirrorRecord], bool],
        mirror: str | None = None,
    ) -> tuple[ServedMirror, ...]:
        """Return the mirrors of a state, by name, or only one; those that must be `exact` as they are now."""
        began, used = now(), time.thread_time()
        may_refresh = began >= self._not_before
        before, self._derived = self._derived, {}
        for record in state.mirrors:
            known = before.get(record.name)
            if mirror not in (None, record.name):
                if known is not None:
                    self._derived[record.name] = known
                continue
            exact = is_exact(record) and (known is None or began - known.at > _SAME_SECONDS)
            look = look_of(record.name)
            self._derived[record.name] = self._one(
                state, record, look, time_ms, known, exact=exact, may_refresh=may_refresh
            )
        if may_refresh and mirror is None:
            pause = (time.thread_time() - used) / SHARE
            self._not_before = began + min(LONGEST_PAUSE_SECONDS, pause)
        return tuple(one.mirror for name, one in self._derived.items() if mirror in (None, name))

    def _one(
        self,
        state: State,
        record: MirrorRecord,
        look: OffsetLook | None,
        time_ms: int,
        known: _Derived | None,
        *,
        exact: bool,
        may_refresh: bool,
    ) -> _Derived:
        engine = state.engine(record.name)
        ended = None if engine is None else has_ended(engine)
        heard_ms = self._heard_of(record.name)
        health = engine_health(engine, record.name, time_ms, has_ended=ended, heard_ms=heard_ms)
        is_here = ended is False
        topics, promote = state.topics(record.name), state.workflow(record.name, PROMOTE)
        stored: tuple[object, ...] = (
            record,
            topics,
            tuple(state.partitions(record.name, topic.topic) for topic in topics),
            (health.reason, health.problem, is_here, promote is not None and promote.is_alive(time_ms)),
            None if engine is None else replace(engine, last_seen_ms=0),
            state.unreadable(record.name),
        )
        reported = tuple(
            (
                report.run,
                report.rows,
                report.pages,
                report.path_connections,
                report.seen_within_ms,
                tuple(pages.values()),
            )
            for report, pages in state.lanes(record.name)
        )
        if known is not None and not exact and known.stored == stored:
            is_looked_at, is_same = known.look == look, known.reported == reported and known.mirror.is_settled
            may_wait = is_looked_at or known.mirror.is_reported
            if (is_looked_at and is_same) or (may_wait and not may_refresh):
                kept = look if is_looked_at else known.look
                return replace(known, mirror=known.mirror.later(state, health, time_ms), look=kept)
        mirror = stored_mirror(self._cluster, state, record, look, health, time_ms, is_here=is_here)
        return _Derived(mirror, now(), stored, look, reported)
