"""Durations and points in time as people type them: `10s`, `5m`, `1h30m`, `2026-03-01T12:00:00Z`.

Inside kmirror a duration is an integer of milliseconds, and a point in time milliseconds since 1970 (UTC), as in Kafka.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from kmirror.errors import UsageError

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<unit>ms|[dhms])")
_PLAIN_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DURATION_HINT = "give a duration such as 500ms, 10s, 5m or 1h30m"
_TIMESTAMP_HINT = "give a time such as 2026-03-01T12:00:00Z, epoch milliseconds, or 2h for two hours ago"

#: A larger number is a typing error.
LONGEST_DURATION_MS = 365 * _UNITS_MS["d"]


def parse_duration(text: str, name: str = "duration") -> int:
    """Return a duration in milliseconds; a number without a unit is seconds, zero is allowed.

    `name` is the flag or setting; errors begin with it.

    Raises:
        UsageError: empty, negative, longer than 365 days, or not a duration.
    """
    written = text.strip()
    if not written:
        raise UsageError(f"{name} is empty", _DURATION_HINT)
    if written.startswith("-"):
        raise UsageError(f"{name}: {written} is negative", _DURATION_HINT)
    duration_ms = _milliseconds(written)
    if duration_ms is None:
        raise UsageError(f"{name}: {written!r} is not a duration", _DURATION_HINT)
    if duration_ms > LONGEST_DURATION_MS:
        raise UsageError(f"{name}: {written} is longer than 365 days", _DURATION_HINT)
    return duration_ms


def format_duration(duration_ms: int) -> str:
    """Format a duration by its two largest units: `2d3h`, `1m5s`, `1.5s`, `20ms`; it can be parsed again."""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    if duration_ms < _UNITS_MS["m"]:
        return f"{duration_ms // 100 / 10:g}s"
    units = list(_UNITS_MS.items())
    larger = next(index for index, (_, unit_ms) in enumerate(units) if duration_ms >= unit_ms)
    (unit, unit_ms), (next_unit, next_unit_ms) = units[larger], units[larger + 1]
    count, rest_ms = divmod(duration_ms, unit_ms)
    next_count = rest_ms // next_unit_ms
    return f"{count}{unit}{next_count}{next_unit}" if next_count else f"{count}{unit}"


def parse_timestamp(text: str, now_ms: int, name: str = "time") -> int:
    """Return a point in time in epoch milliseconds.

    It may be ISO 8601 (a date, or date and time; without a zone it is UTC, as in Kafka's tools), epoch milliseconds
    with at least twelve digits, or a duration, which counts back from `now_ms`.

    Raises:
        UsageError: empty, or none of these.
    """
    written = text.strip()
    if not written:
        raise UsageError(f"{name} is empty", _TIMESTAMP_HINT)
    if re.fullmatch("[0-9]{12,15}", written):
        return int(written)
    if re.fullmatch("[0-9]{8,}", written):
        raise UsageError(f"{name}: {written} is neither epoch milliseconds nor a duration", _TIMESTAMP_HINT)
    duration_ms = _milliseconds(written)
    if duration_ms is not None:
        if duration_ms > LONGEST_DURATION_MS:
            raise UsageError(f"{name}: {written} ago is more than 365 days ago", _TIMESTAMP_HINT)
        return now_ms - duration_ms
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise UsageError(f"{name}: {written!r} is not a time", _TIMESTAMP_HINT) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch.days * 86_400 + since_epoch.seconds) * 1000 + since_epoch.microseconds // 1000


def _milliseconds(written: str) -> int | None:
    """Return the milliseconds of a duration, None if it is not one; each unit at most once, the largest first."""
    if _PLAIN_SECONDS.fullmatch(written):
        written += "s"
    total, position, last_unit_ms = 0.0, 0, float("inf")
    while position < len(written):
        part = _PART.match(written, position)
        if part is None or _UNITS_MS[part["unit"]] >= last_unit_ms:
            return None
        last_unit_ms = _UNITS_MS[part["unit"]]
        total += float(part["number"]) * last_unit_ms
        position = part.end()
    # endless digits would make an infinity; the cap is far above every limit
    return round(min(total, 1e18)) if position else None
