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
    assert links == ["status.json", "history.json", "metrics", "readyz", "healthz"]
    # every place that the script fills is there
    ids = {attributes["id"] for _, attributes in found.found if "id" in attributes}
    assert set(re.findall(r'(?:by|put)\("([a-z-]+)"', script())) <= ids


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
    assert (found[0], found[-1]) == ("shop.orders-0001", "shop.payments")


HOUR = [NOW - 3_600_000, NOW]


def lines(js: Script, *points: dict[str, object], key: str = "lag") -> list[tuple[str | None, int]]:
    """Return the class of each line that is drawn, and its number of points."""
    found = StrictHtml(js("line", points, key, *HOUR)).found
    return [(attributes["class"], (attributes["d"] or "").count(",")) for name, attributes in found if name == "path"]


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
    history = {"asOf": NOW, "mirrors": [{"mirror": "dr", "points": [point(1), point(2)]}]}
    found = StrictHtml(js("mirrorsShown", status(), history))
    assert found.count("svg", "chart") == 4
    for words in ("Mirror dr", "FAILED (SOURCE_DIVERGED)", "120 offsets", "1 FAILED", "most: 5 offsets", "most: 9 B/s"):
        assert words in found.text()
    assert (
        "not known"
        in StrictHtml(js("mirrorsShown", status(), {**history, "mirrors": [{"mirror": "dr", "points": []}]})).text()
    )


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
    assert js("mirrorsShown", waiting, None) == "<p>Nothing is copied yet: waiting: &#60;host&#62; is in charge.</p>"
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
    made = js("mirrorsShown", shown, {"asOf": NOW, "mirrors": []}) + js("eventsTable", [event])
    made += "".join(js("topicRow", topic, True) for topic in topics)
    found = StrictHtml(made)
    assert found.count("img") == 0
    assert found.text().count(evil) >= 12


def test_an_engine_that_answers_slowly_is_asked_less_often(js: Script) -> None:
    assert [js("pause", took, 2000) for took in (5, 500, 60_000)] == [2000, 10_000, 60_000]


def test_the_page_refreshes_and_shows_when_it_gets_no_answer() -> None:
    page = Script(BROWSER)

    def answer(path: str, code: int, document: object) -> None:
        page.run(f"answer({json.dumps(path)}, {code}, {json.dumps(json.dumps(document))}) ?? null")

    def shown(name: str, what: str = "") -> Any:
        what = what or ("innerHTML" if name == "alarm" else "textContent")
        return page.run(f"elements[{json.dumps(name)}].{what}")

    assert page.run("questions.map(one => one.path)") == ["status.json", "history.json"]
    answer("history.json", 200, history())
    answer("status.json", 200, status())
    assert shown("alarm", "hidden") is True
    assert shown("age") == "kmirror 0.1.0, copying; as of 03:06:00 UTC, 0s ago"
    assert "Mirror dr" in shown("mirrors", "innerHTML")
    assert shown("mirrors", "innerHTML").count('class="line"') == 4
    assert shown("rows", "innerHTML").count("<tr>") == 5
    # the newest first
    assert shown("events", "innerHTML").index("FAILED") < shown("events", "innerHTML").index("LOSS_ACCEPTED")

    page.run("(elements.filter.value = 'users', elements.filter.heard.input(), 0)")
    assert (shown("rows", "innerHTML").count("<tr>"), shown("more")) == (1, "1 of 5 topics")
    page.run("(elements.filter.value = '', elements.heads.heard.click({ target: { dataset: { head: 'LAG' } } }), 0)")
    assert shown("heads", "innerHTML").count('aria-sort="descending"') == 1

    # nothing comes: the clock runs on, and what is shown becomes old
    page.run("(clock += 30000, everySecond(), 0)")
    assert shown("alarm") == "What is shown here is 30s old and may be wrong."
    assert (shown("shown", "className"), shown("age", "className")) == ("old", "bad")
    page.run("(turn(), 0)")
    answer("status.json", 503, {"error": {"message": "the driver is stuck"}})
    assert shown("alarm").startswith("The engine does not answer: the driver is stuck. What is shown here is 30s old")
    page.run("(turn(), 0)")
    page.run("(questions.pop().fail(new TypeError('Failed to fetch')), 0)")
    assert shown("alarm").startswith("The engine does not answer: it cannot be reached.")
    page.run("(turn(), 0)")
    answer("status.json", 200, status(asOf=NOW))
    assert shown("alarm", "hidden") is True
    assert page.run("document.title") == "kmirror dr"
