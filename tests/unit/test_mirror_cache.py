"""What `serve` derives again of many mirrors, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.errors import Reason
from kmirror.state.record_kinds import Record
from kmirror.state.records import DesiredState, MirrorRecord, PartitionState
from kmirror.state.snapshot import State
from kmirror.status.topic_state import TopicState
from kmirror.web import mirror_cache
from kmirror.web.mirror_cache import MirrorCache
from kmirror.web.served import ServedMirror
from tests.support.live_engine import NOW_MS, mirror_record, row, snapshot, topic_record


def state_of(known: MirrorSnapshot, *records: Record) -> State:
    """Return what is stored, with other records."""
    return State.of({**known.stored, **{one.key: one for one in records}}.values())


class Asked:
    """A cache that is asked again and again."""

    def __init__(self) -> None:
        self.cache = MirrorCache("dr")

    def mirror(self, state: State, time_ms: int = NOW_MS, *, exact: Iterable[str] = ()) -> ServedMirror:
        """Return the only mirror."""

        def is_exact(record: MirrorRecord) -> bool:
            return record.name in exact

        (found,) = self.cache.mirrors(state, lambda _: None, time_ms, is_exact)
        return found


@pytest.fixture(autouse=True)
def never_pausing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_cache, "SHARE", float("inf"))
    monkeypatch.setattr(mirror_cache, "_SAME_SECONDS", 0.0)


def test_a_mirror_with_nothing_new_is_kept_with_the_time_of_its_engine_s_last_heartbeat() -> None:
    known, asked = snapshot(row(copied=100), row(partition=1, copied=100)), Asked()
    before = asked.mirror(state_of(known))
    assert (before.is_settled, before.is_reported, before.missing) == (True, True, None)
    seen_ms = NOW_MS + 2_500
    later = asked.mirror(state_of(known, replace(known.engine, last_seen_ms=seen_ms)), NOW_MS + 3_000)
    assert later.partitions is before.partitions
    assert later.row is not None
    assert (later.row.engine_last_seen_ms, later.row.engine_age_ms) == (seen_ms, 500)
    assert replace(later.row, engine_last_seen_ms=0, engine_age_ms=0) == replace(
        before.row,  # type: ignore[type-var]
        engine_last_seen_ms=0,
        engine_age_ms=0,
    )
    exact = asked.mirror(state_of(known, replace(known.engine, last_seen_ms=seen_ms)), NOW_MS + 3_000, exact=["m"])
    assert {one.engine_last_seen_ms for one in exact.partitions} == {seen_ms}


def test_where_one_mirror_is_asked_for_no_other_is_derived() -> None:
    known, cache = snapshot(row(copied=90)), MirrorCache("dr")
    state = state_of(known, mirror_record("n"))

    def asked(time_ms: int, mirror: str | None = None) -> list[tuple[str, int]]:
        found = cache.mirrors(state, lambda _: None, time_ms, lambda _: True, mirror)
        return [(one.name, one.time_ms) for one in found]

    assert asked(NOW_MS, "n") == [("n", NOW_MS)]
    assert asked(NOW_MS + 1) == [("m", NOW_MS + 1), ("n", NOW_MS + 1)]
    assert asked(NOW_MS + 2, "n") == [("n", NOW_MS + 2)]
    kept = cache.mirrors(state, lambda _: None, NOW_MS + 2, lambda _: False)
    assert [one.time_ms for one in kept] == [NOW_MS + 2, NOW_MS + 2]
    assert asked(NOW_MS + 3, "gone") == []


def test_a_lag_that_grows_older_is_derived_again() -> None:
    known, asked = snapshot(row(copied=90)), Asked()
    first, second = asked.mirror(state_of(known)), asked.mirror(state_of(known), NOW_MS + 1_000)
    assert not first.is_settled
    assert (second.partitions[0].time_lag_ms or 0) - (first.partitions[0].time_lag_ms or 0) == 1_000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topic": {"desired": DesiredState.PAUSED}}, (TopicState.PAUSED, Reason.PAUSED_BY_OPERATOR)),
        ({"report": {"state": PartitionState.FAILED, "reason": Reason.FENCED}}, (TopicState.FAILED, Reason.FENCED)),
        ({"engine": {"source_reason": Reason.SOURCE_UNREACHABLE}}, (TopicState.ACTIVE, None)),
        ({"engine": {"lease_id": "another"}}, (TopicState.ACTIVE, None)),
        ({"engine": {"silent_lanes": {0: NOW_MS - 60_000}}}, (TopicState.LINK_FAILED, Reason.NO_WORKERS)),
    ],
)
def test_what_is_new_shows_at_once(change: dict[str, Any], expected: tuple[TopicState, Reason | None]) -> None:
    known, asked = snapshot(row(copied=100)), Asked()
    asked.mirror(state_of(known))
    records: list[Record] = []
    if "topic" in change:
        stored = known.stored["partition", "m", "t", 0]
        records = [topic_record("t", **change["topic"]), replace(stored, state=PartitionState.PAUSED)]  # type: ignore[list-item,arg-type]
    if "report" in change:
        report = known.stored["progress", "m", 0]
        records = [replace(report, rows=(row(copied=100, **change["report"]),))]  # type: ignore[list-item,arg-type]
    if "engine" in change:
        records = [replace(known.engine, **change["engine"])]
    state = state_of(known, *records)
    found, fresh = asked.mirror(state), Asked().mirror(state)
    assert found.partitions == fresh.partitions, "the same as without anything kept"
    assert (found.topics[0].state, found.topics[0].reason) == expected


def test_an_engine_that_stops_responding_shows_though_nothing_new_is_stored() -> None:
    known, asked = snapshot(row(copied=100)), Asked()
    state = state_of(known)
    assert asked.mirror(state).missing is None
    reasons = [asked.mirror(state, NOW_MS + age_ms).row.reason for age_ms in (5_000, 15_000, 70_000)]  # type: ignore[union-attr]
    assert reasons == [None, Reason.ENGINE_SILENT, Reason.NO_ENGINE]


def test_where_a_refresh_costs_much_only_what_changes_all_the_time_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_cache, "SHARE", 1e-9)
    known, asked = snapshot(row(copied=90)), Asked()
    before = asked.mirror(state_of(known))
    report = known.stored["progress", "m", 0]
    moved = replace(report, rows=(row(copied=95),))  # type: ignore[arg-type]
    assert asked.mirror(state_of(known, moved)).totals.lag == before.totals.lag == 10  # type: ignore[arg-type]
    assert asked.mirror(state_of(known, moved), exact=["m"]).totals.lag == 5  # type: ignore[arg-type]
    paused = topic_record("t", desired=DesiredState.PAUSED)
    assert asked.mirror(state_of(known, moved, paused)).topics[0].state is TopicState.PAUSED  # type: ignore[arg-type]
