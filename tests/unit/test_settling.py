"""Which settings are settled for where a cluster refuses those asked for."""

from __future__ import annotations

import pytest

from kmirror.cluster.topics.settling import _USUAL, Settings, settled_for, with_settled
from kmirror.sync.setting_changes import MIRROR_VALUES

BATCH, TIME = "max.message.bytes", "retention.ms"
DAY_MS = 86_400_000
WANTED: Settings = {**MIRROR_VALUES, "cleanup.policy": "delete"}


def at_most(**limits: int) -> list[Settings]:
    """Return what was asked, of a cluster with these limits, with `_` for `.`; the last one is what it accepts."""
    asked: list[Settings] = []

    def accepts(settings: Settings) -> bool:
        asked.append(settings)
        return all(
            (value := settings.get(key.replace("_", "."))) is None or 0 < int(value) <= most
            for key, most in limits.items()
        )

    settled = settled_for(WANTED, accepts)
    assert settled is not None
    assert accepts(with_settled(WANTED, settled))
    return asked


@pytest.mark.parametrize("limit", [1, 1_048_588, 8_000_000, 20_971_520, 2**31 - 2])
def test_a_limit_in_bytes_is_found_exactly(limit: int) -> None:
    asked = at_most(max_message_bytes=limit)
    assert asked[-1] == {**WANTED, BATCH: str(limit)}
    assert len(asked) < 50


def test_a_limit_in_time_is_found_to_the_hour_and_nothing_else_is_changed() -> None:
    asked = at_most(retention_ms=30 * DAY_MS + 1, max_message_bytes=8_388_608)
    assert asked[-1] == {**WANTED, TIME: str(30 * DAY_MS), BATCH: "8388608"}


def test_usual_limits_are_found_with_few_questions() -> None:
    for usual in _USUAL.values():
        assert [*usual] == sorted({*usual}, reverse=True)
    assert len(at_most(max_message_bytes=8_000_000)) <= 12
    assert len(at_most(max_message_bytes=20 * 1024 * 1024, retention_ms=30 * DAY_MS)) <= 18
    assert len(at_most(max_message_bytes=8_000_001, retention_ms=17 * DAY_MS)) <= 60


def test_a_setting_that_may_not_be_set_at_all_is_omitted() -> None:
    def accepts(settings: Settings) -> bool:
        return not {"compression.type", TIME} & settings.keys()

    assert settled_for(WANTED, accepts) == {"compression.type": None, TIME: None}


def test_what_a_copy_needs_and_what_was_asked_for_by_name_is_never_changed() -> None:
    assert settled_for(WANTED, lambda settings: "message.timestamp.type" not in settings) is None
    assert settled_for(WANTED, lambda settings: settings.get(TIME) != "-1", kept=[TIME]) is None
    without: Settings = {"message.timestamp.type": "LogAppendTime"}
    assert settled_for(without, lambda settings: not settings, kept=[]) == {"message.timestamp.type": None}
    assert settled_for({"cleanup.policy": "compact"}, lambda settings: True) is None


@pytest.mark.parametrize(
    ("wanted", "least", "most", "settled"),
    [
        (3_600_000, DAY_MS, 30 * DAY_MS, DAY_MS),
        (3_600_000, 5 * DAY_MS, 30 * DAY_MS, 7 * DAY_MS),
        (40 * DAY_MS, 1, 30 * DAY_MS, 30 * DAY_MS),
        (40 * DAY_MS, 1, 50 * DAY_MS, 40 * DAY_MS),
        (5000, 1, 1000, None),
        (20 * 365 * DAY_MS, 1, 30 * DAY_MS, 30 * DAY_MS),
    ],
)
def test_a_value_may_be_too_small_as_well_as_too_large(wanted: int, least: int, most: int, settled: int | None) -> None:
    def accepts(settings: Settings) -> bool:
        value = settings.get(TIME)
        return value is None or least <= int(value) <= most

    changes: Settings = {TIME: str(wanted)}
    found = {} if accepts(changes) else settled_for(changes, accepts)
    assert found is not None
    assert with_settled(changes, found) == ({} if settled is None else {TIME: str(settled)})


def test_a_removal_is_kept_or_omitted_as_a_value_is() -> None:
    changes: Settings = {TIME: "-1", "segment.ms": None}
    assert with_settled(changes, {TIME: None}) == {"segment.ms": None}
    assert with_settled(changes, {"segment.ms": None, "other": "1"}) == {TIME: "-1"}
