"""The page of a running engine: what its script makes of the documents, run by a real engine of JavaScript."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kmirror.ops.show.events import EVENTS
from kmirror.state.event_records import Event
from kmirror.status.topic_status import TOPICS_ON_PAGE
from kmirror.web.look import page_text, script
from tests.support.page_script import BROWSER, Script
from tests.support.page_server import history, point, status
from tests.support.report_facts import NOW
from tests.support.strict_html import StrictHtml


@pytest.fixture(scope="module")
def js() -> Script:
    return Script()


def test_the_page_is_self_contained() -> None:
    document = page_text().decode()
    found = StrictHtml(document)
    # the page's own script, and the place of a report's data
    assert (found.count("script"), found.count("style")) == (2, 1)
    assert [text for tag, text in found.texts if tag == "script"] == [script()]
    assert "$" not in document.replace(script(), "")
    links = [attributes.get("href") for name, attributes in found.found if name == "a"]
    assert links == ["fleet.json", "status.json", "history.json", "metrics", "readyz", "healthz"]
    # every place that the script fills is there
    ids = {attributes["id"] for _, attributes in found.found if "id" in attributes}
    assert set(re.findall(r'(?:by|put|listen)\("([a-z-]+)"', script())) <= ids


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("number", [None], "-"),
        ("number", [0], "0"),
        ("number", [1234567, "≥ "], "≥ 1,234,567"),
        ("duration", [None], "-"),
        ("duration", [0], "0s"),
        ("duration", [300], "<1s"),
        ("duration", [65_000], "1m5s"),
        ("duration", [3_605_000], "1h"),
        ("duration", [90_061_000], "1d1h"),
        ("rate", [None], "-"),
        ("rate", [12], "12 B/s"),
        ("rate", [2_400_000], "2.4 MB/s"),
        ("atTime", [NOW], "2026-01-02T03:06:00Z"),
        ("atTime", [9e15], "9000000000000000 ms"),
        ("counted", [1, "offset"], "1 offset"),
        ("prose", ["<since 2026-01-02T03:06:00Z"], "&#60;since <time>2026-01-02T03:06:00Z</time>"),
        ("escaped", ["<a href='x'>&\""], "&#60;a href=&#39;x&#39;&#62;&#38;&#34;"),
    ],
)
def test_amounts_have_words(js: Script, function: str, arguments: list[object], words: str) -> None:
    assert js(function, *arguments) == words


def test_what_is_unknown_stays_unknown(js: Script) -> None:
    topics = {one["topic"]: one for one in status()["topics"]}
    failed, partly, unknown = (topics[f"shop.orders-{number:04d}"] for number in range(3))
    assert "FAILED (SOURCE_DIVERGED), 1 FAILED" in StrictHtml(f"<table>{js('topicRow', failed, False)}</table>").text()
    partly |= {"lag": 0, "lagUnknown": 1, "timeLagMs": None}
    assert "≥ 0" in js("topicRow", partly, False)
    unknown |= {"lag": None, "lagUnknown": 2, "timeLagMs": None, "etaMs": None, "bytesPerSecond": None}
    shown = StrictHtml(f"<table>{js('topicRow', unknown, False)}</table>").text()
    assert shown.endswith("2------")
    filling = {**partly, "offsetsToFill": 12_000}
    assert "12,000 offsets without records to fill" in js("topicRow", filling, False)
    assert "to fill" not in js("topicRow", partly, False)


def test_breached_objectives_are_listed_the_newest_first(js: Script) -> None:
    common = {"mirror": "m", "objectiveMs": 30_000, "cause": "THROTTLE", "message": "<limited>"}
    over = {"topic": "t", "fromMs": NOW, "untilMs": NOW + 60_000, "lastedMs": 60_000, **common}
    left = {"topic": "u", "fromMs": NOW + 1000, "untilMs": None, **common}
    text = StrictHtml(js("breachesSection", [over, left])).text()
    assert text.startswith(
        "Breached objectivesFROMUNTILLASTEDTOPICOBJECTIVECAUSEWHY2026-01-02T03:06:01Znot met yet-u30s"
    )
    assert text.endswith("2026-01-02T03:06:00Z2026-01-02T03:07:00Z1mt30sTHROTTLE<limited>")
    assert js("breachesSection", []) == js("breachesSection", None) == ""


def test_the_columns_are_those_that_topics_declare(js: Script) -> None:
    columns = js.run("COLUMNS")
    assert [head for _, head, _ in columns] == TOPICS_ON_PAGE.headers.split()
    assert {key: kind for key, _, kind in columns if kind in ("duration", "rate")} == {
        "timeLagMs": "duration",
        "objectiveMs": "duration",
        "bytesPerSecond": "rate",
        "etaMs": "duration",
    }
    topics = status()["topics"]
    optional = [head for _, head, _ in columns if head not in [one for _, one, _ in js("columnsOf", topics)]]
    assert optional == ["OBJECTIVE", "RPO"]
    behind = {**topics[0], "objectiveMs": 1000, "objectiveState": "BREACHED"}
    assert js("columnsOf", [*topics, behind]) == columns
    assert '<span class="bad">BREACHED</span>' in js("topicRow", behind, False)
    row = StrictHtml(js("topicRow", topics[0], False)).found
    assert [attributes["data-head"] for name, attributes in row if name == "td"] == [head for _, head, _ in columns]


@pytest.mark.parametrize(
    ("words", "column", "down", "first", "count"),
    [
        ("", "STATE", False, "shop.orders-0000", 5),
        ("", "TOPIC", True, "shop.users", 5),
        ("", "LAG", True, "shop.orders-0000", 5),
        ("ORDERS", "TOPIC", False, "shop.orders-0000", 3),
        ("orders active", "TOPIC", False, "shop.orders-0001", 2),
        ("failed_over", "TOPIC", False, "shop.payments", 1),
        ("dr", "nonsense", False, "shop.orders-0000", 5),
    ],
)
def test_topics_are_filtered_and_sorted(
    js: Script, words: str, column: str, down: bool, first: str, count: int
) -> None:
    topics = status()["topics"]
    found = [one["topic"] for one in js("chosen", topics, words, column, down)]
    assert (found[0], len(found)) == (first, count)


def test_what_is_not_known_may_be_the_largest_and_what_has_stopped_is_not_behind(js: Script) -> None:
    topics = status()["topics"]
    topics[1] |= {"lag": 1, "lagUnknown": 1}
    found = [one["topic"] for one in js("chosen", topics, "", "LAG", True)]
    assert (set(found[:2]), found[-1]) == ({"shop.orders-0000", "shop.orders-0001"}, "shop.payments")


HOUR = [NOW - 3_600_000, NOW]


def lines(js: Script, *points: dict[str, object], key: str = "lag") -> list[tuple[str | None, int]]:
    """Return the class of each line that is drawn, and its number of points."""
    found = [one for name, one in StrictHtml(js("line", points, key, *HOUR)).found if name == "path"]
    return [(one["class"], (one["d"] or "").count(",")) for one in found if one["class"] != "fill"]


def test_a_line_ends_where_nothing_is_known(js: Script) -> None:
    assert lines(js) == []
    assert lines(js, point(1), point(1.25), point(2)) == [("line", 3)]
    assert lines(js, point(1), point(2, lag=None), point(3)) == [("line", 1), ("line", 1)]
    assert lines(js, point(1), point(9), point(10)) == [("line", 1), ("line", 2)]
    assert lines(js, point(-1), point(61)) == []
    assert 'd="M0.0,98.0 h0.01"' in js("line", [point(0, lag=0)], "lag", *HOUR)


def test_a_line_is_dashed_where_the_lag_of_partitions_is_not_known(js: Script) -> None:
    points = [point(1), point(2), point(3, lagUnknown=1), point(4, lagUnknown=1)]
    assert lines(js, *points) == [("line", 2), ("line least", 3)]
    assert lines(js, *points, key="bytesPerSecond") == [("line", 4)]


def test_a_strip_leaves_its_ground_where_nothing_is_known(js: Script) -> None:
    spans = [(HOUR[0], NOW - 60_000, "bad"), (NOW - 60_000, NOW - 30_000, "ok"), (NOW - 30_000, NOW, None)]
    bars = StrictHtml(js("strip", spans, *HOUR))
    # the worst is drawn last
    assert [attributes["class"] for name, attributes in bars.found if name == "rect"] == ["ok", "bad"]


def test_a_mirror_is_shown_with_its_hour(js: Script) -> None:
    found, of = status(), {"cluster": None, "mirror": "dr"}
    text = StrictHtml(js("mirrorSection", found["mirrors"][0], found["topics"], {"nowMs": NOW})).text()
    for words in ("Mirror dr", "FAILED SOURCE_DIVERGED", "120 offsets", "1 FAILED", "app-1, alive"):
        assert words in text
    history = {"asOf": NOW, "mirrors": [{"mirror": "dr", "points": [point(1), point(2)]}]}
    drawn = StrictHtml(js("historyShown", history, of, None))
    assert (drawn.count("svg", "chart"), drawn.count("svg", "strip")) == (4, 1)
    for words in ("most: 5 offsets", "most: 9 B/s", "02:10", "03:00"):
        assert words in drawn.text()
    empty = {**history, "mirrors": [{"mirror": "dr", "points": []}]}
    assert "not known" in StrictHtml(js("historyShown", empty, of, None)).text()
    assert js("historyShown", history, {**of, "cluster": "another"}, None) == ""


@pytest.mark.parametrize(
    ("most", "key", "ticks"),
    [
        (0, "lag", [0, 1]),
        (3, "lag", [0, 1, 2, 3]),
        (39_080, "lag", [0, 10_000, 20_000, 30_000, 40_000]),
        (11_000, "timeLagMs", [0, 5_000, 10_000, 15_000]),
        (7_200_000, "timeLagMs", [0, 1_800_000, 3_600_000, 5_400_000, 7_200_000]),
        (400 * 86_400_000, "timeLagMs", [0, 1e10, 2e10, 3e10, 4e10]),
        (3_700_000, "bytesPerSecond", [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]),
        (0.5, "recordsPerSecond", [0, 0.2, 0.4, 0.6]),
    ],
)
def test_an_axis_has_few_round_values_up_to_the_most(js: Script, most: float, key: str, ticks: list[float]) -> None:
    assert js("ticksOf", most, key) == pytest.approx(ticks)


def test_an_axis_has_round_times(js: Script) -> None:
    names = [name for _, name in js("timeTicks", *HOUR)]
    assert names == ["02:10", "02:20", "02:30", "02:40", "02:50", "03:00"]
    assert [name for _, name in js("timeTicks", NOW - 48 * 3_600_000, NOW)] == ["12:00", "Jan 1", "12:00", "Jan 2"]


def test_the_health_of_a_mirror_over_time_is_that_of_its_points(js: Script) -> None:
    points = [
        *(point(minute, failed=0, notCopied=0, lagUnknown=0, phase=None) for minute in (1, 2, 3)),
        *(point(minute, failed=0, notCopied=2, lagUnknown=0, phase=None) for minute in (4, 5)),
        point(30, failed=1, notCopied=0, lagUnknown=0, phase=None),
    ]
    spans = [
        ((begin - HOUR[0]) / 60_000, (end - HOUR[0]) / 60_000, health)
        for begin, end, health in js("spansOf", points, *HOUR)
    ]
    assert spans == [(0, 3, "ok"), (3, 5, "warn"), (5, 29, None), (29, 30, "bad"), (30, 60, None)]


def test_a_chart_can_be_read_at_any_time(js: Script) -> None:
    points = [point(10, lag=0), point(20, lag=1000, lagUnknown=1), point(30, lag=None)]
    at = js("cursorAt", "lag", points, *HOUR, HOUR[0] + 19 * 60_000)
    assert (at["time"], at["value"]) == ("02:26:00 UTC", "≥ 1,000 offsets")
    assert (round(at["x"], 3), at["y"]) == (33.333, 2)
    unknown = js("cursorAt", "lag", points, *HOUR, NOW)
    assert (unknown["value"], unknown["y"]) == ("not known", None)
    assert js("cursorAt", "lag", [], *HOUR, NOW) is None
    times = [one["timeMs"] for one in points]
    walk = [(None, -1, 2), (times[2], -1, 1), (times[0], -1, 0), (times[0], 1, 1), (times[1], 10, 2)]
    for ms, by, index in walk:
        assert js("neighbour", points, ms, by) == times[index], (ms, by)
    assert js("neighbour", [], None, -1) is None


@pytest.mark.parametrize(
    ("route", "link"),
    [
        ({"cluster": "eu", "mirror": "dr", "rangeMs": 3_600_000}, "#/mirror/eu/dr"),
        ({"cluster": None, "mirror": "dr", "rangeMs": 21_600_000}, "#/mirror//dr?range=6h"),
        ({"cluster": "a:9092,b:9092", "mirror": "x/y ?#%'", "rangeMs": 3_600_000, "topic": "a/b"}, None),
        ({"cluster": "<img src=x>", "mirror": "ü&", "rangeMs": 172_800_000}, None),
    ],
)
def test_a_link_leads_to_what_it_was_made_of(js: Script, route: dict[str, Any], link: str | None) -> None:
    made = js("linkTo", route["cluster"], route["mirror"], {"topic": route.get("topic"), "rangeMs": route["rangeMs"]} if
              "topic" in route else {"rangeMs": route["rangeMs"]})  # fmt: skip
    assert link in (None, made)
    assert not set(made) & set("<>\"' ")
    attribute = StrictHtml(f'<a href="{made}"></a>').found[0][1]["href"]
    view = "topic" if "topic" in route else "mirror"
    found = js("routeOf", attribute)
    assert {key: found.get(key) for key in ("view", *route)} == {"view": view, **route}


@pytest.mark.parametrize("hash_", ["", "#", "#/", "#/mirror", "#/mirror/a", "#/mirror/a/", "#/mirror/%/%", "#/x/a/b"])
def test_an_address_that_names_no_mirror_is_that_of_the_fleet(js: Script, hash_: str) -> None:
    assert js("routeOf", hash_) == {"view": "fleet"}


def test_the_page_does_not_call_it_copying_where_all_topics_are_stopped(js: Script) -> None:
    stopped = [{"state": "STOPPED"}, {"state": "STOPPED"}]
    assert js("phaseOf", status() | {"topics": stopped}) == "nothing to copy: all topics are stopped"
    assert js("phaseOf", status() | {"topics": [*stopped, {"state": "ACTIVE"}]}) == "copying"
    assert js("phaseOf", status() | {"topics": []}) == "copying"


def test_before_copying_begins_that_is_said(js: Script) -> None:
    waiting = status(
        phase="waiting", mirrors=None, partitions=None, ready=False, missing="waiting: <host> is in charge"
    )
    waiting["topics"] = None
    assert js("nothingShown", waiting) == "<p>Nothing is copied yet: waiting: &#60;host&#62; is in charge.</p>"
    assert js("alarmOf", waiting, None, 0) is None


@pytest.mark.parametrize(
    ("document", "trouble", "age_ms", "alarm"),
    [
        (status(), None, 900, None),
        (status(), None, 60_000, "What is shown here is 1m old and may be wrong."),
        (status(), "why", 5_000, "The engine does not answer: why. What is shown here is 5s old and may be wrong."),
        (None, "why", None, "The engine does not answer: why. Nothing is known."),
        (None, None, None, None),
        (status(ready=False, missing="dr: no worker"), None, 900, "Not all records flow: dr: no worker"),
    ],
)  # fmt: skip
def test_old_numbers_and_trouble_raise_an_alarm(
    js: Script, document: dict[str, Any] | None, trouble: str | None, age_ms: int | None, alarm: str | None
) -> None:
    assert js("alarmOf", document, trouble, age_ms) == alarm


def test_what_a_cluster_says_cannot_become_markup(js: Script) -> None:
    evil = "<img src=x onerror=alert(1)>"
    shown = status()
    shown["mirrors"][0] |= {"mirror": evil, "state": evil, "reason": evil, "sourceBootstrapServer": evil}
    topics = [row | {"topic": evil, "errorMessage": evil, "reasons": [evil], "state": evil} for row in shown["topics"]]
    event = EVENTS.document(Event(NOW, evil, evil, evil, evil, {"message": evil}))
    made = js("mirrorSection", shown["mirrors"][0], topics, {"nowMs": NOW}) + js("eventsList", [event], True)
    made += "".join(js("topicRow", topic, True, js.run("COLUMNS"), True) for topic in topics)
    made += js("topicShown", topics[0], [one | {"worker": evil, "limitedBy": evil} for one in shown["partitions"]], [])
    found = StrictHtml(made)
    assert found.count("img") == 0
    assert found.text().count(evil) >= 12


def test_an_engine_that_answers_slowly_is_asked_less_often(js: Script) -> None:
    assert [js("pause", took, 2000) for took in (5, 500, 60_000)] == [2000, 10_000, 60_000]


def shown(page: Script, name: str, what: str = "") -> Any:
    """Return what is at a place of the page."""
    what = what or ("innerHTML" if name == "alarm" else "textContent")
    return page.run(f"elements[{json.dumps(name)}].{what}")


def answer(page: Script, path: str, code: int, document: object) -> None:
    page.run(f"answer({json.dumps(path)}, {code}, {json.dumps(json.dumps(document))}) ?? null")


def fleet_of_one(**changes: object) -> dict[str, Any]:
    """Return what /fleet.json says of an engine with one mirror."""
    return {**status(), "clusters": [], **changes}


def test_the_page_refreshes_and_shows_when_it_gets_no_answer() -> None:
    page = Script(BROWSER)
    assert page.run("questions.map(one => one.path)") == ["fleet.json", "history.json"]
    answer(page, "fleet.json", 200, fleet_of_one())
    # a lone mirror is shown instead of the fleet
    asked = page.run("questions.map(one => one.path)")
    assert asked[-2:] == ["status.json?mirror=dr&partitions=false", "history.json?mirror=dr"]
    answer(page, "history.json", 200, history())
    answer(page, "status.json", 200, status())
    assert shown(page, "alarm", "hidden") is True
    assert shown(page, "crumbs", "hidden") is True
    assert shown(page, "age") == "kmirror 0.1.0, copying; as of 03:06:00 UTC, 0s ago"
    assert "Mirror dr" in shown(page, "mirrors", "innerHTML")
    assert shown(page, "charts", "innerHTML").count('class="line"') >= 4
    assert shown(page, "rows", "innerHTML").count("<tr>") == 5
    # the newest first
    events = shown(page, "events", "innerHTML")
    assert events.index("FAILED") < events.index("continues without 20 offsets")

    page.run("(elements.filter.value = 'users', elements.filter.heard.input(), 0)")
    assert (shown(page, "rows", "innerHTML").count("<tr>"), shown(page, "more")) == (1, "1 of 5 topics")
    page.run("(elements.filter.value = '', elements.heads.heard.click({ target: { dataset: { head: 'LAG' } } }), 0)")
    assert shown(page, "heads", "innerHTML").count('aria-sort="descending"') == 1

    # nothing comes: the clock runs on, and what is shown becomes old
    page.run("(clock += 30000, everySecond(), 0)")
    assert shown(page, "alarm") == "What is shown here is 30s old and may be wrong."
    assert (shown(page, "shown", "className"), shown(page, "age", "className")) == ("old", "bad")
    page.run("(turn(), 0)")
    answer(page, "status.json", 503, {"error": {"message": "the driver is stuck"}})
    assert shown(page, "alarm").startswith("The engine does not answer: the driver is stuck. What is shown here is 30s")
    page.run("(turn(), 0)")
    page.run("(newest('status.json').fail(new TypeError('Failed to fetch')), 0)")
    assert shown(page, "alarm").startswith("The engine does not answer: it cannot be reached.")
    page.run("(turn(), 0)")
    answer(page, "status.json", 200, status(asOf=NOW))
    assert shown(page, "alarm", "hidden") is True
    assert page.run("document.title") == "kmirror dr"


def test_an_engine_that_waits_says_so() -> None:
    page = Script(BROWSER)
    waiting = {"phase": "waiting", "ready": False, "missing": "waiting: node-7 is in charge", "mirrors": None}
    answer(page, "fleet.json", 200, fleet_of_one(**waiting))
    assert "Nothing is copied yet: waiting: node-7 is in charge." in shown(page, "fleet-rows", "innerHTML")
    assert shown(page, "alarm", "hidden") is True
