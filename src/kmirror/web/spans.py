"""How well a mirror was over time, by its stored history. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from kmirror.state.history_records import HistoryPoint, TimedPoint

#: A point describes the minute before it; after a longer gap, the time between two points is unknown.
_POINT_MS = 60_000
_GAP_MS = 150_000
_NOTHING_TO_COPY, _UNKNOWN = "NOTHING_TO_COPY", "not known: no engine recorded anything"


class Health(StrEnum):
    """The health of a mirror at some time, for its colour; unknown health is None."""

    COPIED = "ok"
    PARTLY = "warn"
    BROKEN = "bad"


@dataclass(frozen=True, slots=True)
class Span:
    """A time span in epoch milliseconds, with its health and what was wrong; health None: unknown."""

    from_ms: int
    until_ms: int
    health: Health | None
    what: str


def _health_of(point: HistoryPoint) -> tuple[Health, str]:
    """Return the health at a point, and its description."""
    troubles = []
    if point.phase not in (None, _NOTHING_TO_COPY):
        troubles.append(f"nothing was copied: {point.phase}")
    if point.failed:
        troubles.append(f"{point.failed:,} FAILED")
    if troubles:
        return Health.BROKEN, ", ".join(troubles)
    if point.phase == _NOTHING_TO_COPY:
        return Health.PARTLY, "nothing was to be copied"
    if point.not_copied:
        troubles.append(f"{point.not_copied:,} not copied")
    if point.lag_unknown:
        troubles.append(f"lag of {point.lag_unknown:,} unknown")
    return (Health.PARTLY, ", ".join(troubles)) if troubles else (Health.COPIED, "all were copied")


def spans_of(points: Sequence[TimedPoint], from_ms: int, until_ms: int) -> list[Span]:
    """Return contiguous spans from one moment to another; `points` are in order."""
    spans: list[Span] = []
    at = from_ms
    for time_ms, point in points:
        if not from_ms < time_ms <= until_ms:
            continue
        begins = max(at, time_ms - _POINT_MS) if time_ms - at > _GAP_MS else at
        if begins > at:
            spans.append(Span(at, begins, None, _UNKNOWN))
        spans.append(Span(begins, time_ms, *_health_of(point)))
        at = time_ms
    if until_ms - at > _GAP_MS:
        spans.append(Span(at, until_ms, None, _UNKNOWN))
    merged = [list(group) for _, group in groupby(spans, key=lambda span: (span.health, span.what))]
    return [Span(same[0].from_ms, same[-1].until_ms, same[0].health, same[0].what) for same in merged]
