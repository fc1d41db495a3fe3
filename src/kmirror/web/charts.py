"""Charts of a mirror's stored history, as SVG that stretches to any width, with its text outside, in HTML. Pure.

Unknown values are not drawn: a line ends, and a strip stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from kmirror.state.history_records import HistoryPoint, TimedPoint
from kmirror.web.html import Html, tag

#: A point describes the minute before it; after a longer gap, the time between two points is unknown.
POINT_MS = 60_000
GAP_MS = 150_000
_WIDTH, _HEIGHT = 720, 100


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


def health_of(point: HistoryPoint) -> tuple[Health, str]:
    """Return the health at a point, and its description."""
    troubles = []
    if point.phase is not None and point.phase != NOTHING_TO_COPY:
        troubles.append(f"nothing was copied: {point.phase}")
    if point.failed:
        troubles.append(f"{point.failed:,} FAILED")
    if troubles:
        return Health.BROKEN, ", ".join(troubles)
    if point.phase == NOTHING_TO_COPY:
        return Health.PARTLY, "nothing was to be copied"
    if point.not_copied:
        troubles.append(f"{point.not_copied:,} not copied")
    if point.lag_unknown:
        troubles.append(f"lag of {point.lag_unknown:,} unknown")
    return (Health.PARTLY, ", ".join(troubles)) if troubles else (Health.COPIED, "all were copied")


NOTHING_TO_COPY = "NOTHING_TO_COPY"
_UNKNOWN = "not known: no engine recorded anything"


def spans_of(points: Sequence[TimedPoint], from_ms: int, until_ms: int) -> list[Span]:
    """Return contiguous spans from one moment to another; `points` are in order."""
    spans: list[Span] = []
    at = from_ms
    for time_ms, point in points:
        if not from_ms < time_ms <= until_ms:
            continue
        begins = max(at, time_ms - POINT_MS) if time_ms - at > GAP_MS else at
        if begins > at:
            spans.append(Span(at, begins, None, _UNKNOWN))
        spans.append(Span(begins, time_ms, *health_of(point)))
        at = time_ms
    if until_ms - at > GAP_MS:
        spans.append(Span(at, until_ms, None, _UNKNOWN))
    return _merged(spans)


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged = []
    for (health, what), group in groupby(spans, key=lambda span: (span.health, span.what)):
        same = list(group)
        merged.append(Span(same[0].from_ms, same[-1].until_ms, health, what))
    return merged


def strip(spans: Sequence[Span]) -> Html:
    """Return spans as a coloured strip."""
    if not spans:
        return Html()
    began, whole = spans[0].from_ms, max(1, spans[-1].until_ms - spans[0].from_ms)
    bars = [
        tag(
            "rect",
            x=f"{(span.from_ms - began) / whole * _WIDTH:.2f}",
            y=0,
            width=f"{max(1.0, (span.until_ms - span.from_ms) / whole * _WIDTH):.2f}",
            height=_HEIGHT,
            class_=span.health,
        )
        for span in sorted(spans, key=_severity)
        if span.health is not None
    ]
    return _svg("strip", bars)


def _severity(span: Span) -> int:
    # the worst spans are drawn last, above their neighbours, however short they are
    return [Health.COPIED, None, Health.PARTLY, Health.BROKEN].index(span.health)


def line(
    points: Sequence[TimedPoint],
    value: Callable[[HistoryPoint], float | None],
    from_ms: int,
    until_ms: int,
    is_whole: Callable[[HistoryPoint], bool] = lambda _: True,
) -> Html:
    """Return a value over time as a line that ends where the value is unknown.

    Where `is_whole` is false, the value is a lower bound and the line is dashed.
    """
    top = max((found for _, point in points if (found := value(point)) is not None), default=0) or 1
    whole_ms = max(1, until_ms - from_ms)
    lines: list[Html] = []
    part: list[str] = []
    before: tuple[int, bool] | None = None

    def end() -> None:
        if part:
            # a single point becomes a dot
            drawn = part if len(part) > 1 else [part[0], "h0.01"]
            kind = "line" if before is None or before[1] else "line least"
            lines.append(tag("path", d="M" + " ".join(drawn), class_=kind))
        part.clear()

    for time_ms, found, whole in _thinned(points, value, is_whole, max(POINT_MS, whole_ms // _WIDTH)):
        if found is None or not from_ms <= time_ms <= until_ms:
            end()
            before = None
            continue
        x, y = (time_ms - from_ms) / whole_ms * _WIDTH, _HEIGHT - found / top * (_HEIGHT - 4) - 2
        if before is not None and time_ms - before[0] > max(GAP_MS, 2.5 * whole_ms / _WIDTH):
            end()
        elif before is not None and before[1] != whole:
            last = part[-1]
            end()
            part.append(last)
        before = time_ms, whole
        part.append(f"{x:.1f},{y:.1f}")
    end()
    return _svg("chart", lines)


def _thinned(
    points: Sequence[TimedPoint],
    value: Callable[[HistoryPoint], float | None],
    is_whole: Callable[[HistoryPoint], bool],
    each_ms: int,
) -> Iterable[tuple[int, float | None, bool]]:
    """Yield times and values, of those on the same pixel the largest."""
    for _, group in groupby(points, key=lambda timed: timed[0] // each_ms):
        same = list(group)
        known = [found for _, point in same if (found := value(point)) is not None]
        whole = all(is_whole(point) for _, point in same)
        yield same[-1][0], max(known, default=None), whole


def _svg(kind: str, content: Sequence[str]) -> Html:
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", content, class_=kind, viewBox=box, preserveAspectRatio="none", aria_hidden="true")
