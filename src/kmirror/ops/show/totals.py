"""Totals over partitions: of a topic, a mirror, or all. Pure.

STOPPED partitions do not count. A value that is unknown for one of the others is unknown for the whole, except sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kmirror.ops.show.tables import PartitionRow, eta_ms
from kmirror.state.records import PartitionState


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over partitions.

    `lag` is the sum of the known lags, None if none is known; it is unknown for `unknown_lags` partitions.
    `bytes_per_second` is None if no lane reports. `time_lag_ms` is the largest, `eta_ms` the time until all are done.
    """

    lag: int | None
    unknown_lags: int
    bytes_per_second: int | None
    time_lag_ms: int | None
    eta_ms: int | None

    @property
    def shown_lag(self) -> str | None:
        """Return the lag for people, as a lower bound if it is unknown for some."""
        return None if self.lag is None else f"{'≥' if self.unknown_lags else ''}{self.lag:,}"


def totals(rows: Iterable[PartitionRow]) -> Totals:
    """Sum up these partitions."""
    wanted = [row for row in rows if row.state is not PartitionState.STOPPED]
    lags = [row.lag for row in wanted if row.lag is not None]
    rates = [row.bytes_per_second for row in wanted if row.bytes_per_second is not None]
    time_lags = [row.time_lag_ms for row in wanted if row.time_lag_ms is not None]
    return Totals(
        lag=sum(lags) if lags else None,
        unknown_lags=len(wanted) - len(lags),
        bytes_per_second=sum(rates) if rates else None,
        time_lag_ms=max(time_lags) if time_lags and len(time_lags) == len(wanted) else None,
        eta_ms=_eta_of(wanted),
    )


def _eta_of(rows: Sequence[PartitionRow]) -> int | None:
    """Return the time until all are done if they share their speed: one that is done leaves its share to the others."""
    lacking = [row for row in rows if row.lag != 0]
    if not lacking:
        return 0 if rows else None
    if any(row.lag is None or row.closing_speed is None for row in lacking):
        return None
    behind = [row for row in lacking if not row.keeps_up] or lacking
    return eta_ms(sum(row.lag or 0 for row in behind), sum(row.closing_speed or 0 for row in behind))
