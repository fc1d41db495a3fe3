"""The past in /history.json: any span of what is stored, never more than fits into a chart, and the worst of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kmirror.state.event_records import Event
from kmirror.state.history_records import HOUR_MS, HistoryPoint, HistoryRecord
from kmirror.state.snapshot import State
from kmirror.web.past import Past, thinned
from kmirror.web.recent import KEPT_MS, Events
from kmirror.web.served import WATCHING, ClusterStatus, ServedMirror, ServedStatus
from tests.support.json_documents import check
from tests.support.live_engine import NOW_MS, row, snapshot, turning
from tests.support.scraped import asking

MINUTE_MS = 60_000


def point(second: int = 0, lag: int | None = 0, rate: float | None = 1.0, failed: int = 0) -> HistoryPoint:
    return HistoryPoint(second, lag, 0, lag, rate, rate, failed, 0)


def test_few_points_stay_as_they_are() -> None:
    points = [(index * MINUTE_MS, point(lag=index)) for index in range(720)]
    assert thinned(points, 0, 720 * MINUTE_MS) == points


def test_of_many_points_the_worst_of_each_stretch_is_kept_and_the_average_of_rates() -> None:
    points = [(index * MINUTE_MS, point(lag=index % 7, rate=float(index % 4))) for index in range(2880)]
    points[1234] = points[1234][0], point(lag=99, rate=None, failed=3)
    points[2000] = points[2000][0], replace_phase(points[2000][1], "NO_WORKERS")
    found = thinned(points, 0, 2880 * MINUTE_MS)
    assert len(found) <= 720
    assert [time for time, _ in found] == sorted({time for time, _ in found})
    assert max(one.lag or 0 for _, one in found) == 99
    assert sum(one.failed for _, one in found) == 3
    assert [one.phase for _, one in found if one.phase] == ["NO_WORKERS"]
    full = [one for _, one in found if one.bytes_per_second is not None]
    assert sum(one.bytes_per_second or 0 for one in full) / len(full) == pytest.approx(1.5, abs=0.1)
    unknown = [(index * MINUTE_MS, point(lag=None, rate=None)) for index in range(2880)]
    assert {(one.lag, one.bytes_per_second) for _, one in thinned(unknown, 0, 2880 * MINUTE_MS)} == {(None, None)}


def replace_phase(found: HistoryPoint, phase: str) -> HistoryPoint:
    return found._replace(phase=phase)


def test_a_run_has_the_stored_minutes_before_the_points_that_its_engine_remembers() -> None:
    hour = NOW_MS // HOUR_MS
    stored = HistoryRecord("m", hour - 5, tuple(point(60 * index, lag=7) for index in range(60)))
    recent = ((NOW_MS - 30_000, point(lag=1)), (NOW_MS - 15_000, point(lag=2)))
    with turning(replace(snapshot(row(copied=100), records=[stored]), history=recent)) as found:
        get = asking(found)

        def lags(query: str) -> list[int]:
            status, body = get(f"/history.json{query}")
            assert status == 200
            check("history", json.loads(body))
            (mirror,) = json.loads(body)["mirrors"]
            return [one["lag"] for one in mirror["points"]]

        assert lags("") == [1, 2]
        assert lags(f"?mirror=m&from={NOW_MS - 6 * HOUR_MS}") == [7] * 60 + [1, 2]
        begin = (hour - 5) * HOUR_MS
        assert lags(f"?from={begin}&until={begin + 10 * MINUTE_MS}") == [7] * 11
        assert lags(f"?from={NOW_MS}&until={begin}") == []
        assert get("/history.json?mirror=other")[0] == 404
        for wrong in ("from=-1", "until=1e9", "from=", "until=١٢", "from=9999999999999999999"):
            status, body = get(f"/history.json?{wrong}")
            check("error", json.loads(body))
            assert status == 400


def watched(*mirrors: str) -> ServedStatus:
    state = State.of(snapshot(row(copied=100)).stored.values())
    clusters = tuple(ClusterStatus(name, "id", f"{name}:9092", NOW_MS, is_fresh=True) for name in ("a", "b"))
    served = tuple(ServedMirror(name, "a", NOW_MS, state, None, None, None) for name in mirrors)
    return ServedStatus(WATCHING, NOW_MS, None, served, clusters=clusters)


def event(age_ms: int, what: str, mirror: str = "m") -> Event:
    return Event(NOW_MS - age_ms, mirror, what, "eve@ops", "OK")


def test_events_are_those_of_the_span_of_all_clusters_in_order_with_what_is_not_known() -> None:
    read = [
        ("a", Events((event(2 * HOUR_MS, "old"), event(3_000, "first"), event(1_000, "third")))),
        ("b", Events((event(2_000, "second", "gone"),), "not answered")),
        ("c", Events(None, "never read")),
    ]
    past = Past.of(watched("m"), read)
    assert past.events is not None
    assert [(cluster, one.what) for cluster, one in past.events] == [("a", "first"), ("b", "second"), ("a", "third")]
    assert past.trouble == "b: not answered\nc: never read"
    longer = Past.of(watched("m"), read, mirror="m", from_ms=NOW_MS - 3 * HOUR_MS, until_ms=NOW_MS - 2_000)
    assert longer.events is not None
    assert [one.what for _, one in longer.events] == ["old", "first"]
    assert Past.of(watched("m"), [read[2]]).events is None


def test_no_more_is_promised_than_is_kept() -> None:
    past = Past.of(watched("m"), [], from_ms=0)
    assert (past.from_ms, past.until_ms) == (NOW_MS - KEPT_MS - HOUR_MS, NOW_MS)
