"""Durations and points in time as people type them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kmirror.errors import UsageError
from kmirror.settings.durations import LONGEST_DURATION_MS, format_duration, parse_duration, parse_timestamp

NOW_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1m500ms", 60_500),
        ("1.5s", 1500),
        ("0.5h", 1_800_000),
        ("30", 30_000),
        ("0.25", 250),
        ("0", 0),
        (" 7s ", 7000),
        ("365d", LONGEST_DURATION_MS),
    ],
)
def test_parse_duration(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--timeout is empty"),
        ("  ", "--timeout is empty"),
        ("-5s", "--timeout: -5s is negative"),
        ("366d", "--timeout: 366d is longer than 365 days"),
        ("99999999999", "--timeout: 99999999999 is longer than 365 days"),
        ("9" * 400, f"--timeout: {'9' * 400} is longer than 365 days"),
        ("soon", "--timeout: 'soon' is not a duration"),
        ("5 m", "--timeout: '5 m' is not a duration"),
        ("5x", "--timeout: '5x' is not a duration"),
        ("1m1h", "--timeout: '1m1h' is not a duration"),
        ("1h1h", "--timeout: '1h1h' is not a duration"),
        ("1h30", "--timeout: '1h30' is not a duration"),
        ("1e3", "--timeout: '1e3' is not a duration"),
        ("nan", "--timeout: 'nan' is not a duration"),
        ("٣s", "--timeout: '٣s' is not a duration"),
    ],
)
def test_durations_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_duration(text, "--timeout")
    assert refusal.value.message == message
    assert refusal.value.hint == "give a duration such as 500ms, 10s, 5m or 1h30m"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0ms"),
        (20, "20ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (1999, "1.9s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (65_000, "1m5s"),
        (3_600_000, "1h"),
        (5_400_000, "1h30m"),
        (3_630_000, "1h"),
        (183_600_000, "2d3h"),
        (172_800_000, "2d"),
    ],
)
def test_format_duration(milliseconds: int, text: str) -> None:
    assert format_duration(milliseconds) == text
    assert 0 <= milliseconds - parse_duration(text) <= milliseconds * 0.1, "parses again, to two units"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T12:00:00Z", NOW_MS),
        ("2026-03-01T13:00:00+01:00", NOW_MS),
        ("2026-03-01T12:00:00", NOW_MS),
        ("2026-03-01 12:00", NOW_MS),
        ("2026-03-01", NOW_MS - 43_200_000),
        ("2026-03-01T12:00:00.123Z", NOW_MS + 123),
        ("1969-12-31T23:59:59.5Z", -500),
        (str(NOW_MS), NOW_MS),
        ("2h", NOW_MS - 7_200_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("90", NOW_MS - 90_000),
    ],
)
def test_parse_timestamp(text: str, expected: int) -> None:
    assert parse_timestamp(text, NOW_MS) == expected


@pytest.fixture
def _in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_in_tokyo")
def test_a_time_without_a_zone_is_utc_wherever_one_is() -> None:
    assert parse_timestamp("2026-03-01T12:00:00", NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--since is empty"),
        ("yesterday", "--since: 'yesterday' is not a time"),
        ("2026-13-01", "--since: '2026-13-01' is not a time"),
        ("-2h", "--since: '-2h' is not a time"),
        ("1772366400", "--since: 1772366400 is neither epoch milliseconds nor a duration"),
        ("400d", "--since: 400d ago is more than 365 days ago"),
    ],
)
def test_timestamps_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_timestamp(text, NOW_MS, "--since")
    assert refusal.value.message == message
    assert "2026-03-01T12:00:00Z" in str(refusal.value.hint)
