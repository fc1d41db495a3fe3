"""What is remembered of how a mirror went: a record an hour, a point a minute. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOUR_MS = 3_600_000
#: Hours that are kept beside the present one.
KEPT_HOURS = 48


class HistoryPoint(NamedTuple):
    """Sum up some moments by the worst of them; rates are averages. Unknown numbers are None.

    The names are also the columns of the stored form; `second` counts from the beginning of the hour.
    """

    second: int
    #: In offsets, over the partitions whose lag is known; None where it is known of none.
    lag: int | None
    #: Partitions whose lag is not known.
    lag_unknown: int
    time_lag_ms: int | None
    bytes_per_second: float | None
    records_per_second: float | None
    #: Partitions that are FAILED; and others that are not copied, whyever.
    failed: int
    not_copied: int
    #: What kept the engine from copying anything, such as NO_WORKERS; None while it copied.
    phase: str | None = None


#: A point and its time in epoch milliseconds.
TimedPoint = tuple[int, HistoryPoint]


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """Hold the points of one hour, counted since 1970; whoever reads them sorts them: clocks may go back."""

    mirror: str
    hour: int
    points: tuple[HistoryPoint, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("history", self.mirror, self.hour)


def points_of(records: Iterable[HistoryRecord]) -> list[TimedPoint]:
    """Return the points of these hours with their times, oldest first."""
    timed = [(record.hour * HOUR_MS + point.second * 1000, point) for record in records for point in record.points]
    return sorted(timed, key=lambda one: one[0])
