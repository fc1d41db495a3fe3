"""The recent history of a mirror: samples of the last hour for watchers, and a point a minute to store. No I/O.

`at` is in seconds of the engine's clock; times in epoch milliseconds, as other engines' points are compared with ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kmirror.engine.status.counters import Counters
from kmirror.errors import KmirrorError, Reason
from kmirror.state.history_records import HOUR_MS, KEPT_HOURS, HistoryPoint, HistoryRecord, TimedPoint, points_of
from kmirror.state.records import Key
from kmirror.status.topic_status import TopicStatus, totals

SAMPLE_SECONDS = 15.0
POINT_SECONDS = 60.0
_RECENT = int(3600 / SAMPLE_SECONDS)
#: After a clock was set back, an hour may have more points than minutes; older points are dropped.
_MOST_POINTS = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a mirror at a time; unknown numbers are None. See HistoryPoint for the fields.

    `bytes_copied` and `records_copied` count since the engine started; None while no lane reports.
    """

    lag: int | None
    lag_unknown: int
    time_lag_ms: int | None
    bytes_copied: int | None
    records_copied: int | None
    failed: int
    not_copied: int
    phase: str | None = None

    @classmethod
    def of(cls, topics: Sequence[TopicStatus], counters: Counters, source_trouble: KmirrorError | None) -> Sample:
        """Sum up a mirror's topics."""
        rows = [row for topic in topics for row in topic.partitions if not row.is_stopped]
        wanted = [row for topic in topics if topic.is_wanted for row in topic.partitions if not row.is_stopped]
        phase: str | None = None
        if not wanted:
            phase = "NOTHING_TO_COPY"
        elif all(row.is_idle for row in wanted):
            phase = wanted[0].reason
        elif source_trouble is not None:
            phase = source_trouble.reason or Reason.SOURCE_UNREACHABLE
        sums, is_reported = totals(rows), any(row.is_reported for row in wanted)
        return cls(
            lag=sums.lag,
            lag_unknown=sums.unknown_lags,
            time_lag_ms=max((row.time_lag_ms for row in rows if row.time_lag_ms is not None), default=None),
            bytes_copied=sum(one.bytes for one in counters.copied.values()) if is_reported else None,
            records_copied=sum(one.records for one in counters.copied.values()) if is_reported else None,
            failed=sum(row.failed for row in rows),
            not_copied=len(rows) - len(wanted) + sum(row.is_idle for row in wanted),
            phase=phase,
        )


class _Speed:
    """Measure how fast a mirror is copied from one sample with counts to the next."""

    def __init__(self, at: float) -> None:
        self._at, self._bytes, self._records = at, 0, 0

    def take(self, sample: Sample, at: float) -> tuple[float | None, float | None]:
        """Return bytes and records a second since the last sample with counts; None without counts."""
        if sample.bytes_copied is None or sample.records_copied is None or at <= self._at:
            return None, None
        seconds = at - self._at
        size, records = sample.bytes_copied - self._bytes, sample.records_copied - self._records
        self._at, self._bytes, self._records = at, sample.bytes_copied, sample.records_copied
        return _short(size / seconds), _short(records / seconds)


class History:
    """Keep one mirror's points; for one thread. Records whose keys are `unreadable` are not overwritten."""

    def __init__(
        self, mirror: str, at: float, stored: Iterable[HistoryRecord] = (), unreadable: Collection[Key] = ()
    ) -> None:
        self._mirror = mirror
        self._hours = {record.hour: record for record in stored}
        self._unreadable = frozenset(unreadable)
        self._sampled_at = self._stored_at = at
        self._recent_speed, self._stored_speed = _Speed(at), _Speed(at)
        self._recent: deque[TimedPoint] = deque(points_of(self._hours.values()), _RECENT)
        self._since_stored: list[Sample] = []
        #: What no heartbeat has stored yet.
        self.unsent: dict[Key, HistoryRecord] = {}
        #: The keys of hours to remove.
        self.expired: tuple[Key, ...] = ()

    def recent(self, now_ms: int) -> list[TimedPoint]:
        """Return the points of the last hour, oldest first; those before this engine come from the stored history."""
        return [timed for timed in self._recent if timed[0] > now_ms - HOUR_MS]

    def is_due(self, at: float) -> bool:
        """Return whether it is time for the next sample."""
        return at - self._sampled_at >= SAMPLE_SECONDS

    def take(self, sample: Sample, at: float, now_ms: int, *, is_last: bool = False) -> None:
        """Take a sample; `is_last` when the engine stops the mirror."""
        self._sampled_at = at
        second = now_ms % HOUR_MS // 1000
        self._since_stored.append(sample)
        self._recent.append((now_ms, _point(second, [sample], *self._recent_speed.take(sample, at))))
        # samples come a little late, and every fourth makes a stored point
        if is_last or at - self._stored_at >= POINT_SECONDS - SAMPLE_SECONDS / 2:
            self._stored_at = at
            self._store(now_ms // HOUR_MS, _point(second, self._since_stored, *self._stored_speed.take(sample, at)))
            self._since_stored.clear()

    def stored(self, records: Iterable[HistoryRecord], tombstones: Iterable[Key]) -> None:
        """Note that a heartbeat has stored and removed these."""
        for record in records:
            if self.unsent.get(record.key) is record:
                del self.unsent[record.key]
        gone = set(tombstones)
        self.expired = tuple(key for key in self.expired if key not in gone)

    def _store(self, hour: int, point: HistoryPoint) -> None:
        record = self._hours.get(hour) or HistoryRecord(self._mirror, hour, ())
        if record.key in self._unreadable:
            return  # a newer kmirror wrote it
        points = (*record.points, point)[-_MOST_POINTS:]
        record = self._hours[hour] = HistoryRecord(self._mirror, hour, points, record.extra)
        self.unsent[record.key] = record
        for old in [known for known in self._hours if known < hour - KEPT_HOURS]:
            key = self._hours.pop(old).key
            self.unsent.pop(key, None)
            self.expired = (*self.expired, key)


def _point(
    second: int, samples: Collection[Sample], bytes_per_second: float | None, records_per_second: float | None
) -> HistoryPoint:
    """Combine samples: the worst value of each field."""
    return HistoryPoint(
        second,
        max((one.lag for one in samples if one.lag is not None), default=None),
        max(one.lag_unknown for one in samples),
        max((one.time_lag_ms for one in samples if one.time_lag_ms is not None), default=None),
        bytes_per_second,
        records_per_second,
        max(one.failed for one in samples),
        max(one.not_copied for one in samples),
        next((one.phase for one in samples if one.phase is not None), None),
    )


def _short(rate: float) -> float:
    """Return a rate with three significant digits, as an integer if it is one, which takes fewer bytes."""
    short = float(f"{rate:.3g}")
    return int(short) if short.is_integer() else short
