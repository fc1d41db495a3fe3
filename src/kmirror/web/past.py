"""The content of /history.json: the points and events of mirrors in a span of time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from statistics import fmean
from typing import TypeVar

from kmirror.columns import TEXT, TIME, Column, columns_of, list_of, object_of, shown, table_row
from kmirror.ops.show.events import EVENTS
from kmirror.state.event_records import Event
from kmirror.state.history_records import HOUR_MS, HistoryPoint, TimedPoint
from kmirror.status.objective import BREACHES, Breach, breaches_of
from kmirror.web.recent import KEPT_MS, POINT, Events
from kmirror.web.served import CLUSTER, ServedMirror, ServedStatus, documents, in_clusters

#: Of one mirror, and of an answer.
_MOST_POINTS, _MOST_EVENTS = 720, 500

T = TypeVar("T")


_MIRROR: tuple[Column[tuple[ServedMirror, list[TimedPoint]]], ...] = (
    CLUSTER.of_part(lambda one: one[0].cluster),
    Column("mirror", TEXT, "the mirror", lambda one: one[0].name),
    Column(
        "points",
        list_of(object_of(POINT)),
        "its points, oldest first: of the last hour every 15 seconds if the engine that copied it answers, otherwise"
        " every minute; of spans with more than 720 points, the worst of each 720th and the average rates",
        lambda one: one[1],
    ),
)


@table_row(kw_only=False)
class Past:
    """The past of mirrors in a span of time; rows come with the name of their cluster, None for `run`."""

    time_ms: int = shown(TIME, "the time of this snapshot", key="asOf")
    from_ms: int = shown(TIME, "the begin of the span of time", key="from")
    until_ms: int = shown(TIME, "its end", key="until")
    mirrors: tuple[tuple[ServedMirror, list[TimedPoint]], ...] = shown(
        list_of(object_of(_MIRROR)), "the mirrors that this engine copies, or of the watched clusters"
    )
    events: tuple[tuple[str | None, Event], ...] | None = shown(
        in_clusters(EVENTS).null_when("they were never read"),
        "what happened to them, oldest first, at most the last 500, as `events` shows it",
        value=lambda past: documents(EVENTS, past.events),
    )
    breaches: tuple[tuple[str | None, Breach], ...] | None = shown(
        in_clusters(BREACHES).null_when("events were never read"),
        "when topics were not within their objectives, by the events of the last two days, in the order in which they"
        " began",
        value=lambda past: documents(BREACHES, past.breaches),
    )
    trouble: str | None = shown(
        TEXT.null_when("they are current"), "why the events, or the newest ones, are not known", key="eventsTrouble"
    )

    @classmethod
    def of(
        cls,
        status: ServedStatus,
        events: Iterable[tuple[str | None, Events]],
        *,
        mirror: str | None = None,
        from_ms: int | None = None,
        until_ms: int | None = None,
    ) -> Past:
        """Return the past of the mirrors of a status, or of those of one name; by default the last hour."""
        until_ms = status.time_ms if until_ms is None else until_ms
        from_ms = until_ms - HOUR_MS if from_ms is None else from_ms
        # the current hour is kept besides
        from_ms = max(from_ms, status.time_ms - KEPT_MS - HOUR_MS)
        shown = [one for one in status.mirrors if mirror in (None, one.name)]
        ours = {one.name for one in status.mirrors} | set(status.not_copied)
        found: list[tuple[str | None, Event]] = []
        breaches: list[tuple[str | None, Breach]] = []
        troubles, is_known = [], False
        for cluster, read in events:
            if read.trouble is not None:
                troubles.append(read.trouble if cluster is None else f"{cluster}: {read.trouble}")
            if read.found is None:
                continue
            is_known = True
            # of a watched cluster also those of mirrors that are deleted
            of_mirrors = [
                one
                for one in read.found
                if one.time_ms <= until_ms
                and mirror in (None, one.mirror)
                and (status.clusters is not None or one.mirror in ours)
            ]
            found += ((cluster, one) for one in of_mirrors if one.time_ms >= from_ms)
            breaches += (
                (cluster, one) for one in breaches_of(of_mirrors) if one.until_ms is None or one.until_ms >= from_ms
            )
        found.sort(key=lambda one: one[1].time_ms)
        return cls(
            status.time_ms,
            from_ms,
            until_ms,
            tuple((one, thinned(one.points(from_ms, until_ms), from_ms, until_ms)) for one in shown),
            tuple(found[-_MOST_EVENTS:]) if is_known else None,
            tuple(breaches) if is_known else None,
            "\n".join(troubles) or None,
        )


def thinned(points: Sequence[TimedPoint], from_ms: int, until_ms: int) -> list[TimedPoint]:
    """Return points that are not more than fit into a chart: of each stretch of time the worst, and average rates."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretch_ms = max(1, -(-(until_ms - from_ms + 1) // _MOST_POINTS))
    stretches = groupby(points, key=lambda one: (one[0] - from_ms) // stretch_ms)
    return [_worst([*found]) for _, found in stretches]


def _worst(points: Sequence[TimedPoint]) -> TimedPoint:
    """Return one point for several, at the time of the last one."""
    found = [point for _, point in points]
    time_ms, last = points[-1]
    return time_ms, HistoryPoint(
        last.second,
        _of_known(max, (one.lag for one in found)),
        max(one.lag_unknown for one in found),
        _of_known(max, (one.time_lag_ms for one in found)),
        _of_known(fmean, (one.bytes_per_second for one in found)),
        _of_known(fmean, (one.records_per_second for one in found)),
        max(one.failed for one in found),
        max(one.not_copied for one in found),
        next((one.phase for one in found if one.phase is not None), None),
    )


def _of_known(combine: Callable[[list[T]], T], values: Iterable[T | None]) -> T | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None


HISTORY: tuple[Column[Past], ...] = columns_of(Past)
