"""The stored history of a mirror: one record an hour, one point a minute. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HOUR_MS = 3_600_000
#: Hours kept, besides the current one.
KEPT_HOURS = 48


class HistoryPoint(NamedTuple):
    """The worst values of a minute, and averages for rates. Unknown numbers are None.

    The names are also the columns of the stored form; `second` counts from the beginning of the hour.
    """

    second: int
    #: In offsets, summed over the partitions whose lag is known; None if it is known of none.
    lag: int | None
    #: Partitions whose lag is not known.
    lag_unknown: int
    time_lag_ms: int | None
    bytes_per_second: float | None
    records_per_second: float | None
    #: Partitions that are FAILED; and others that are not copied for any reason.
    failed: int
    not_copied: int
    #: Why the engine copied nothing, such as NO_WORKERS; None while it copied.
    phase: str | None = None


#: A point and its time in epoch milliseconds.
TimedPoint = tuple[int, HistoryPoint]


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The points of one hour, counted since 1970; readers must sort them, because clocks may go back."""

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
