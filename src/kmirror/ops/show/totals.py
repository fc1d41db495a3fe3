"""How far a number of partitions is together: a topic, a mirror, all of them. Pure.

STOPPED partitions do not count. What is not known of one of the others is not known of the whole, but for what sums up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kmirror.ops.show.speed import closing_speed, eta
from kmirror.ops.show.tables import PartitionRow
from kmirror.state.records import PartitionState


@dataclass(frozen=True, slots=True)
class Totals:
    """Sum up partitions.

    `lag` is the sum of those that are known, and None where none is; of `unknown_lags` partitions it is not known.
    `bytes_per_second` is None where no lane reports. `time_lag_ms` is the largest, `eta_ms` when the last one is done.
    """

    lag: int | None
    unknown_lags: int
    bytes_per_second: int | None
    time_lag_ms: int | None
    eta_ms: int | None


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
    """Return when all of these are done: by what they do together, and not before the last one by itself."""
    lacking = [row for row in rows if row.lag != 0]
    if not lacking:
        return 0 if rows else None
    lag, closing, last = 0, 0.0, 0
    for row in lacking:
        speed, growth = row.records_per_second, row.source_records_per_second
        if row.lag is None or speed is None or growth is None or not row.is_copied:
            return None
        if speed > 0 and row.eta_ms is None:
            return None  # its source outruns the copy; one that stands for a moment is another partition's turn
        lag += row.lag
        closing += closing_speed(row.time_lag_ms, speed, growth)
        last = max(last, row.eta_ms or 0)
    together = eta(lag, closing)
    return None if together is None else max(last, together)
