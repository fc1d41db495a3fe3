"""A report: what it says of what is known and of what is not, as a page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from kmirror.errors import Reason
from kmirror.state.history_records import HistoryPoint, TimedPoint
from kmirror.status.engine_health import engine_health
from kmirror.web.look import GENERATOR
from kmirror.web.report_facts import ReportFacts
from kmirror.web.report_page import page
from kmirror.web.report_summary import period_of, skips_of, summary
from kmirror.web.spans import Health, Span, spans_of
from kmirror.words import visible_lines
from tests.support.page_script import drawn, inlined, text_of
from tests.support.report_facts import HOUR, MINUTE, NOW, history, report_facts
from tests.support.strict_html import StrictHtml

FINE = HistoryPoint(0, 5, 0, 5, 5, 5, 0, 0)
BEGAN = NOW - HOUR


def at(minute: float, point: HistoryPoint = FINE) -> TimedPoint:
    return BEGAN + int(minute * MINUTE), point


def summary_text(facts: ReportFacts) -> str:
    return "\n".join(summary(facts, period_of(facts)))


# -- health over time --------------------------------------------------------------------------------------------------


def spans(*points: TimedPoint, until: float = 60) -> list[tuple[float, float, Health | None]]:
    found = spans_of(points, BEGAN, BEGAN + int(until * MINUTE))
    return [((one.from_ms - BEGAN) / MINUTE, (one.until_ms - BEGAN) / MINUTE, one.health) for one in found]


def test_a_time_without_points_is_not_known_also_at_the_end() -> None:
    assert spans(at(1), at(2), at(12), at(13)) == [
        (0, 2, Health.COPIED),
        (2, 11, None),
        (11, 13, Health.COPIED),
        (13, 60, None),
    ]
    assert spans(until=10) == [(0, 10, None)]
    assert spans(at(1), at(3), until=4) == [(0, 3, Health.COPIED)]


@pytest.mark.parametrize(
    ("point", "health", "what"),
    [
        (FINE, Health.COPIED, "all were copied"),
        (FINE._replace(failed=2), Health.BROKEN, "2 FAILED"),
        (FINE._replace(phase="NO_WORKERS", failed=1), Health.BROKEN, "nothing was copied: NO_WORKERS, 1 FAILED"),
        (FINE._replace(not_copied=3, lag_unknown=1), Health.PARTLY, "3 not copied, lag of 1 unknown"),
        (FINE._replace(lag=None, phase="NOTHING_TO_COPY"), Health.PARTLY, "nothing was to be copied"),
    ],
)
def test_a_point_says_how_it_went(point: HistoryPoint, health: Health, what: str) -> None:
    assert spans_of([at(1, point)], BEGAN, BEGAN + MINUTE) == [Span(BEGAN, BEGAN + MINUTE, health, what)]


# -- the summary -------------------------------------------------------------------------------------------------------


def test_the_summary_says_what_happened() -> None:
    text = summary_text(report_facts())
    for sentence in (
        "Mirror dr copies 6 topics with 10 partitions from cluster Sa1Qk to cluster Db2Xy.",
        "1 partition is FAILED and not copied: SOURCE_DIVERGED (1); shop.orders-0000-0.",
        "the destination lacked 160 offsets of 8 partitions.",
        "How far 1 partition is behind is not known now.",
        "for 2h9m partitions were FAILED or nothing was copied",
        "of 1h nothing is known: no engine recorded anything",
        "The largest lag seen was 2,400,000 offsets",
        "20 offsets known lost",
        "RPO: 3.5 s",
        "20 offsets were skipped because the source had lost them",
        "shop.users was rebuilt at 2026-01-01T22:06:00Z; its old records are in shop.users.kmirror-archive.1.",
        "The last command was failover, by ann@ops",
    ):
        assert sentence in text


def test_without_an_engine_that_is_said_first_and_lag_is_what_the_clusters_say() -> None:
    facts = report_facts()
    assert "Nothing is copied now" not in summary_text(facts)
    dead = engine_health(facts.status.health.record, "dr", NOW + 3 * HOUR)
    facts = replace(facts, status=replace(facts.status, health=dead))
    assert (
        "Nothing is copied now: no engine copies mirror dr (node-7/app-1 last reported 3h ago by this host's clock)"
        in summary_text(facts)
    )


def test_a_source_that_is_down_leaves_no_lag_but_the_last_known_one() -> None:
    text = summary_text(report_facts(source_trouble_text="no answer from a1:9092"))
    assert "The source does not answer now: no answer from a1:9092." in text
    assert "lacked" not in text
    assert (
        "How far 9 partitions are behind is not known now; the last known lag of 8 of them was 160 offsets, seen"
        in text
    )
    topics = {one.topic: one.lag for one in report_facts(source_trouble_text="down").status.topics}
    assert topics["shop.orders-0001"] is None


def test_a_missing_history_is_not_reported_as_a_quiet_time() -> None:
    facts = replace(report_facts(), history=())
    assert "There is no history of the last 48 hours" in summary_text(facts)
    old = [(time_ms - 72 * HOUR, point) for time_ms, point in history()]
    assert period_of(replace(facts, history=tuple(old))) is None
    assert StrictHtml(drawn(page(facts))).count("svg") == 0


def shown_loss(facts: ReportFacts, topic: str) -> str | None:
    """Return what the table of losses shows of a topic; None if it is not there."""
    rows = [line.split("|") for line in text_of(page(facts)).splitlines() if line.count("|") == 3]
    return next((row[2] for row in rows if row[0] == topic), None)


@pytest.mark.slow
def test_an_unknown_loss_is_not_zero() -> None:
    facts = report_facts()
    (stop,) = facts.stops
    assert stop.at_stop is not None
    stale = replace(stop.at_stop, source_as_of_ms=stop.at_stop.time_ms - 60_000, records_per_second=2.5)
    for changed, shown in (
        (stop, "20"),
        (replace(stop, lag=0), "0"),
        (replace(stop, lag=None), "unknown"),
        (replace(stop, at_stop=replace(stale, records_per_second=None)), "≥ 20"),
        (replace(stop, lag=0, at_stop=stale), "≥ 0 + about 150"),
    ):
        assert shown_loss(replace(facts, stops=(changed,)), "shop.payments") == shown
    # what is skipped is lost also where nothing was stopped; and what is not stopped has not lost nothing
    assert shown_loss(facts, "shop.orders-0001") == "20"
    assert shown_loss(facts, "shop.orders-0002") is None
    assert [records for _, _, records in skips_of(facts.events)] == [20]


def test_what_a_newer_version_wrote_is_missed() -> None:
    assert "cannot read" not in summary_text(report_facts())
    assert "cannot read 3 stored records of the mirror" in summary_text(replace(report_facts(), unreadable=3))


def test_a_mirror_that_is_stopped_needs_no_engine() -> None:
    facts = report_facts()
    dead = engine_health(facts.status.health.record, "dr", NOW + 3 * HOUR)
    stopped = tuple(one for one in facts.status.topics if one.topic == "shop.payments")
    facts = replace(facts, status=replace(facts.status, health=dead, topics=stopped))
    assert "Nothing is copied now" not in summary_text(facts)


def test_topics_that_need_a_look_come_first() -> None:
    text = text_of(page(report_facts())).partition("ETA")[2]
    assert text.index("shop.orders-0000") < text.index("shop.orders-0001") < text.index("shop.users")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_page_is_whole_and_needs_nothing_else() -> None:
    document = page(report_facts())
    found = StrictHtml(document)
    assert found.count("link") == found.count("a") == found.count("img") == 0
    assert "@import" not in document
    assert "url(" not in document
    assert document.index(GENERATOR) < 2_000
    shown = StrictHtml(drawn(document))
    assert '"message": "<b>& \\"</b>"' in shown.text()
    assert shown.count("b") == 0
    assert shown.count("svg", "chart") == 4
    assert shown.count("svg", "strip") == 1


def test_the_summary_needs_no_script() -> None:
    facts = report_facts()
    text = StrictHtml(page(facts)).text()
    for sentence in summary(facts, period_of(facts)):
        assert sentence in text
    assert "Tables and charts need JavaScript." in text


def test_a_page_may_run_only_its_own_script_and_asks_no_one() -> None:
    document = page(report_facts())
    (policy,) = [
        attributes["content"] or ""
        for name, attributes in StrictHtml(document).found
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    assert document.index(policy) < document.index("<style>")
    for name in ("script", "style"):
        (part,) = re.findall(f"<{name}>(.*?)</{name}>", document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert rules[f"{name}-src"] == f"'sha256-{digest}'"


def test_an_hour_without_an_engine_is_a_gap_in_every_line() -> None:
    found = StrictHtml(drawn(page(report_facts())))
    # an hour without an engine, and ten minutes without workers; and two more of partitions whose lag is unknown then,
    # and in the end
    assert found.count("path", "line") == 4 * 3
    assert found.count("path", "line least") == 2


def test_every_point_and_span_is_drawn_at_its_time() -> None:
    facts = report_facts()
    (mirror,) = json.loads(inlined(page(facts)))["history"]["mirrors"]
    assert [row[0] for row in mirror["points"]] == [time_ms for time_ms, _ in facts.history]
    period = period_of(facts)
    assert period is not None
    assert mirror["spans"] == [[one.from_ms, one.until_ms, one.health] for one in period.spans]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("Db2Xy, b1:9092, Kafka 4.0 or later", "less than 1s before this report, by node-7/app-1", "up to 30s")),
        ({"engine_age_ms": 7_000}, ("7s before this report, by node-7/app-1",)),
        ({"source_trouble_text": "down"}, ("Sa1Qk, a1:9092,a2:9092, Kafka 3.9; does not answer now", "2s before")),
    ],
)
def test_clusters_and_ages_are_shown(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    text = text_of(page(report_facts(**changes)))
    for one in ("Made by eve@ops with kmirror 0.1.0: kmirror report --mirror dr --html FILE", *words):
        assert one in text


def test_what_failed_was_stopped_or_rebuilt_has_a_row() -> None:
    facts = report_facts()
    gone = replace(facts.topics[0], archive="orders.archive")
    text = text_of(page(replace(facts, topics=(gone, *facts.topics[1:]))))
    for row in (
        "shop.orders-0000-0|SOURCE_DIVERGED|2026-01-02T03:05:59Z|-|the logs differ from offset 900 on; FAILED since",
        "shop.payments-0|2026-01-02T01:06:00Z|FAILED_OVER|880|4|20|3.5s|shop.payments-0 is stopped at 880; 20 offsets",
        "shop.payments|880|20|",
        "shop.users|2026-01-01T22:06:00Z|shop.users.kmirror-archive.1, shop.users.kmirror-archive.2|-|",
        "shop.orders-0000|never|-|orders.archive|",
        "2025-12-31T23:05:30Z|1h|not known: no engine recorded anything|",
        "shop.orders-0001-0 continues without 20 offsets that its source had lost: 10 to 29",
    ):
        assert row in text


@pytest.mark.slow
def test_what_a_cluster_says_cannot_become_markup() -> None:
    facts = report_facts()
    for evil in ("<script>alert(1)</script>", "</script><script>alert(1)</script>", "<!--<script>", "\u2028$title</p>"):
        told = facts.status.changed(lambda row: replace(row, error_message=evil, reason=Reason.SOURCE_DIVERGED))  # noqa: B023
        document = page(
            replace(
                facts,
                status=replace(told, record=replace(facts.status.record, created_by=evil)),
                source=replace(facts.source, release=evil, trouble=evil),
                archives={"shop.users": (evil,)},
                made_by=evil,
            )
        )
        assert evil not in document
        assert not set("<>&\u2028") & set(inlined(document))
        sound, found = StrictHtml(drawn(page(facts))), StrictHtml(drawn(document))
        assert found.count("script") == sound.count("script")
        assert found.text().count(visible_lines(evil).replace("\\u2028", "")[-8:]) >= 5


@pytest.mark.slow
def test_a_page_of_5000_partitions_stays_small_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    document = page(report_facts(1000, 5))
    assert len(document.encode()) < 3_000_000
    assert "Left out here" not in text_of(document)
    monkeypatch.setattr("kmirror.web.report_page._MOST_ROWS", 1)
    monkeypatch.setattr("kmirror.web.report_page._MOST_EVENTS", 3)
    text = text_of(page(report_facts()))
    assert "Left out here: 1 topic." in text
    assert "Left out here: 2 earlier events." in text
