"""The fleet's view of the page: all mirrors of all clusters, worst first, and what is not known in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import fleet_page
from tests.support.page_script import BROWSER, Script
from tests.support.report_facts import NOW
from tests.support.strict_html import StrictHtml


@pytest.fixture(scope="module")
def js() -> Script:
    return Script()


def mirror(name: str) -> dict[str, Any]:
    return next(one for one in fleet_page.mirrors() if one["mirror"] == name)


def shown(js: Script, *rows: dict[str, Any], charge: object = None) -> str:
    """Return the words of a table of mirrors."""
    found = fleet_page.fleet(mirrors=rows)
    table = js("fleetTable", js("fleetRows", found), found, fleet_page.history(), charge)
    return StrictHtml(table.replace("</div>", "|</div>").replace("<small", " <small")).text()


def test_the_worst_mirrors_are_first(js: Script) -> None:
    rows = js("fleetRows", fleet_page.fleet())
    assert [(one["mirror"], one["health"]) for one in rows] == [
        ("orders", "bad"),
        ("payments", "bad"),
        ("sessions", "warn"),
        ("clickstream", "warn"),
        ("audit", "warn"),
        ("inventory", "ok"),
        ("metrics", "ok"),
        ("warehouse-2025", "soft"),
    ]


@pytest.mark.slow
def test_a_mirror_is_a_row_of_words(js: Script) -> None:
    text = shown(js, mirror("payments"))
    for words in (
        "payments oregon|",
        "LINK_FAILED NO_ENGINE",
        "no engine copies mirror payments",
        "≥ 84,310 12m34s|",
        "none since 02:53 UTC (12m34s)|",
    ):
        assert words in text
    text = shown(js, mirror("clickstream"))
    for words in ("1,204,377 1m35s|", "85.4 MB/s done in 5m12s|", "eve@node-11 alive|", "2 breached, 10 within|"):
        assert words in text
    assert "OBJECTIVES" not in shown(js, mirror("orders"))
    silent = {**mirror("orders"), "reason": "ENGINE_SILENT", "engineLastSeenMs": NOW - 60_000}
    assert "eve@node-6 silent since 03:05 UTC|" in shown(js, silent)
    assert "none none ever ran|" in shown(js, {**mirror("payments"), "engineLastSeenMs": None})
    assert "as of 02:53 UTC" in shown(js, mirror("audit"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"asOf": None}, "Nothing is known of it."),
        ({"asOf": NOW - 60_000}, "What is shown of its 1 mirror is of 03:05 UTC."),
        ({"asOf": NOW - 60_000, "name": "another"}, ""),
        ({"errorSince": NOW - 65_000, "asOf": None}, "sydney cannot be read since 03:04 UTC (1m5s): <refused>."),
        ({"errorSince": NOW - 172_800_000}, "since Dec 31 03:06 UTC (2d)"),
        ({"errorSince": None}, "sydney cannot be read: <refused>."),
    ],
)
def test_a_cluster_that_does_not_answer_is_reported_in_words(js: Script, changes: dict[str, Any], words: str) -> None:
    silent = {**fleet_page.clusters()[2], "error": "<refused>", **changes}
    found = StrictHtml(js("clusterNotices", [silent], fleet_page.mirrors(), NOW)).text()
    assert words in found
    assert found
    assert js("clusterNotices", fleet_page.clusters()[:2], fleet_page.mirrors(), NOW) == ""


@pytest.mark.parametrize(
    ("words", "health", "names"),
    [
        ("", "soft", ["warehouse-2025"]),
        ("oregon e", None, ["payments", "inventory", "warehouse-2025"]),
        ("no_engine", None, ["payments"]),
        ("node-9", "ok", ["inventory"]),
        ("nothing", None, []),
    ],
)
def test_mirrors_are_chosen(js: Script, words: str, health: str | None, names: list[str]) -> None:
    rows = js("fleetRows", fleet_page.fleet())
    assert [one["mirror"] for one in js("fleetChosen", rows, words, health)] == names


def end(cluster: str | None, cluster_id: str | None, is_in_charge: bool | None, reason: str | None = None) -> Any:
    return {"mirror": "orders", "cluster": cluster, "clusterId": cluster_id, "inCharge": is_in_charge, "reason": reason}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("here", "there", "words", "color"),
    [
        (False, True, "source lyon", ""),
        (True, False, "destination frankfurt", ""),
        (True, True, "both clusters", "bad"),
        (None, None, "not certain", "warn"),
        (None, False, "not certain", "warn"),
        (None, True, "source lyon; the other is not certain", "warn"),
        (False, False, "neither cluster", "warn"),
    ],
)
def test_who_is_in_charge(js: Script, here: bool | None, there: bool | None, words: str, color: str) -> None:
    row, clusters = mirror("orders"), fleet_page.clusters()
    ends = [end("frankfurt", clusters[0]["clusterId"], here, "why"), end("lyon", row["sourceClusterId"], there, "why")]
    other = {**end("frankfurt", clusters[0]["clusterId"], True), "mirror": "another"}
    found = js("chargeOf", row, clusters, [other, *ends])
    assert found[:2] == [words, color]
    assert (found[2] == "why") == bool(color)
    assert words in shown(js, row, charge=ends)
    assert js("chargeOf", row, clusters, [other]) is None
    assert "IN CHARGE" not in shown(js, row)


def test_what_any_cluster_says_cannot_become_markup(js: Script) -> None:
    evil = "\"><img src=x onerror=alert(1)>'"
    texts = ("mirror", "cluster", "state", "reason", "engine", "missing", "sourceClusterId", "sourceBootstrapServer")
    row = mirror("orders") | dict.fromkeys(texts, evil) | {"failed": 0, "objectivesBreached": 1}
    silent = {**fleet_page.clusters()[0], "name": evil, "error": evil}
    charge = [{**end(evil, None, None, evil), "mirror": evil}]
    found = fleet_page.fleet(clusters=[silent], mirrors=[row])
    made = js("fleetTable", js("fleetRows", found), found, None, charge) + js("clusterNotices", [silent], [row], NOW)
    made += js("mirrorSection", row, None, {"clusters": [silent], "charge": charge, "nowMs": NOW})
    made += js("nothingShown", {"mirrors": None, "missing": evil})
    document = StrictHtml(made)
    assert document.count("img") == 0
    assert document.text().count(evil) >= 15


class FleetPage:
    """The page of a fleet in as much of a browser as it touches; each of its questions is answered."""

    def __init__(self) -> None:
        self.script = Script(BROWSER)
        self.asked: list[str] = []
        self.answer_all()

    def answer_all(self) -> None:
        while questions := self.script.run("questions.map(one => one.path)"):
            path, _, query = questions[-1].partition("?")
            self.asked.append(questions[-1])
            found = fleet_page.answer(f"/{path}", query)
            code = 404 if found is None else 200
            text = json.dumps(json.dumps(found or {"error": {"message": "there is no such mirror here"}}))
            self.script.run(f"answer({json.dumps(path)}, {code}, {text}) ?? null")

    def go(self, link: str) -> list[str]:
        """Follow a link; return what is asked for."""
        self.asked = []
        self.script.run(f"(go({json.dumps(link)}), 0)")
        self.answer_all()
        return self.asked

    def shows(self, name: str, what: str = "innerHTML") -> Any:
        return self.script.run(f"elements[{json.dumps(name)}].{what}")


@pytest.mark.slow
def test_the_fleet_leads_to_a_mirror_and_its_topics_and_back() -> None:
    page = FleetPage()
    assert set(page.asked) == {"fleet.json", "history.json", "in-charge.json"}
    assert page.shows("fleet-rows").count("<tr class=") == 8
    assert page.shows("notices").count("<strong>sydney</strong> cannot be read") == 1
    assert page.shows("alarm", "hidden") is True
    assert page.script.run("document.title") == "⚠ 2 not copied - kmirror"

    of = "mirror=orders&cluster=frankfurt"
    asked = page.go("#/mirror/frankfurt/orders")
    # a mirror's view asks for its own, and for no partitions
    assert asked == [f"history.json?{of}", f"status.json?{of}&partitions=false", "fleet.json"]
    assert [page.shows(name, "hidden") for name in ("fleet", "mirror", "topic")] == [True, False, True]
    assert "Mirror orders" in page.shows("mirrors")
    assert page.shows("alarm") == "Not all records flow: orders.placed-3 FAILED"
    assert 'href="#/mirror/frankfurt/orders/topic/orders.placed"' in page.shows("rows")
    assert page.shows("ranges").count("<a ") == 3

    assert f"history.json?{of}&from={NOW - 6 * 3_600_000}" in page.go("#/mirror/frankfurt/orders?range=6h")
    assert 'range=6h" aria-current="true"' in page.shows("ranges")

    asked = page.go("#/mirror/frankfurt/orders/topic/orders.placed")
    assert f"status.json?{of}&topic=orders.placed" in asked
    assert page.shows("topic").count("<tr>") == 1 + 3
    assert "orders.placed breached its objective of 30s" in page.shows("topic")

    page.go("#")
    assert [page.shows(name, "hidden") for name in ("fleet", "mirror", "topic")] == [False, True, True]


@pytest.mark.slow
def test_a_link_to_a_mirror_that_is_not_there_says_so() -> None:
    page = FleetPage()
    page.go("#/mirror/frankfurt/gone")
    assert page.shows("mirrors") == "<p>there is no such mirror here</p>"
    assert page.shows("alarm", "hidden") is True
    assert '<a href="#">All mirrors</a>' in page.shows("crumbs")
