"""What `serve` derives again of many mirrors, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.errors import Reason
from kmirror.ops.show.open_transactions import OpenTransaction
from kmirror.state.record_kinds import Record
from kmirror.state.records import DesiredState, MirrorRecord, PartitionRecord, PartitionState
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS
from kmirror.web import mirror_cache
from kmirror.web.mirror_cache import MirrorCache
from kmirror.web.served import SERVED_MIRRORS, ServedMirror
from kmirror.web.stored_mirror import OffsetLook
from tests.support.live_engine import NOW_MS, mirror_record, row, silent, snapshot, topic_record


def state_of(known: MirrorSnapshot, *records: Record) -> State:
    """Return what is stored, with other records."""
    return State.of({**known.stored, **{one.key: one for one in records}}.values())


class Asked:
    """A cache that is asked again and again."""

    def __init__(self) -> None:
        self.cache = MirrorCache("dr")

    def mirror(
        self, state: State, time_ms: int = NOW_MS, *, look: OffsetLook | None = None, exact: Iterable[str] = ()
    ) -> ServedMirror:
        """Return the only mirror."""

        def is_exact(record: MirrorRecord) -> bool:
            return record.name in exact

        (found,) = self.cache.mirrors(state, lambda _: look, time_ms, is_exact)
        return found


def shown(mirror: ServedMirror) -> dict[str, Any]:
    """Return what is shown of a mirror and its topics."""
    return {**SERVED_MIRRORS.document(mirror), "all": [TOPICS.document(topic) for topic in mirror.topics]}


def look_at(state: State, time_ms: int, end: int, **more: Any) -> OffsetLook:
    """Return a look at both clusters, whose logs end there."""
    ends = {TopicPartition("t", 0): end}
    here = ClusterSnapshot(time_ms, high_watermark=ends)
    there = ClusterSnapshot(time_ms, last_stable_offset=ends, high_watermark=ends)
    return OffsetLook(here, there, {topic.topic: topic for topic in state.topics("m")}, **more)


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


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(snapshot(row(copied=100, source_seen_ms=NOW_MS - 4_000)), id="the source answers no more"),
        pytest.param(silent(snapshot(row(copied=100)), 5), id="a lane is silent"),
        pytest.param(silent(snapshot(row(copied=100)), 25), id="a lane has been silent for long"),
        pytest.param(
            snapshot(
                row(copied=100, state=PartitionState.LOG_ALIGNMENT),
                records=[PartitionRecord("m", "t", 0, PartitionState.FAILED, NOW_MS + 500, Reason.FENCED)],
            ),
            id="a report follows on a record",
        ),
        pytest.param(snapshot(row(copied=90)), id="a lag grows older"),
    ],
)
def test_what_time_alone_changes_is_shown_though_all_that_is_stored_and_reported_is_the_same(
    known: MirrorSnapshot,
) -> None:
    asked, told = Asked(), []
    for seconds in (0, 1, 4, 12, 70):
        by_ms = 1000 * seconds
        report: Any = known.stored["progress", "m", 0]
        engine = replace(known.engine, last_seen_ms=known.engine.last_seen_ms + by_ms)
        state = state_of(known, engine, replace(report, time_ms=report.time_ms + by_ms))
        told.append(shown(asked.mirror(state, NOW_MS + by_ms)))
        assert told[-1] == shown(Asked().mirror(state, NOW_MS + by_ms)), "the same as without anything kept"
    assert told[0]["all"] != told[-1]["all"]


def test_how_long_an_engine_has_been_silent_grows() -> None:
    asked, state = Asked(), state_of(snapshot(row(copied=100)))
    for age_ms in (15_000, 25_000, 70_000, 90_000):
        assert shown(asked.mirror(state, NOW_MS + age_ms)) == shown(Asked().mirror(state, NOW_MS + age_ms))


def test_a_look_that_finds_the_same_derives_nothing_and_one_that_finds_something_else_does() -> None:
    known, asked = snapshot(row(copied=100), records=[topic_record("u")]), Asked()
    state = state_of(known)
    before = asked.mirror(state, look=look_at(state, NOW_MS - 60_000, 100))
    again = asked.mirror(state, NOW_MS + 1_000, look=look_at(state, NOW_MS - 2_000, 100))
    assert again.partitions is before.partitions
    ends = {TopicPartition("u", 0): 7}
    other = replace(
        look_at(state, NOW_MS - 2_000, 100), destination=ClusterSnapshot(NOW_MS - 2_000, high_watermark=ends)
    )
    found = asked.mirror(state, NOW_MS + 2_000, look=other)
    assert [one.destination_offset for one in found.partitions] == [100, 7]
    assert [one.destination_offset for one in asked.mirror(state, NOW_MS + 3_000).partitions] == [100, None]


def test_a_transaction_that_stays_open_is_named_once_it_is_old_though_each_look_finds_the_same() -> None:
    known, asked = snapshot(row(copied=100, source_high_watermark=120)), Asked()
    state, at = state_of(known), TopicPartition("t", 0)
    opened = {at: OpenTransaction(7, 100, NOW_MS - 50_000)}
    reasons = []
    for seconds in (0, 5, 15):
        time_ms, alive = NOW_MS + 1000 * seconds, replace(known.engine, last_seen_ms=NOW_MS + 1000 * seconds)
        look = look_at(state, NOW_MS - 5_000, 100, transactions=opened)
        reasons.append(asked.mirror(state_of(known, alive), time_ms, look=look).topics[0].reason)
    assert reasons == [None, None, Reason.OPEN_TRANSACTION]
