"""A report: what it says of what is known and of what is not, as a page that needs nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.errors import Reason
from kmirror.state.history_records import HistoryPoint, TimedPoint
from kmirror.status.engine_health import engine_health
from kmirror.web.charts import Health, Span, line, spans_of, strip
from kmirror.web.html import Html, join, tag
from kmirror.web.report_facts import ReportFacts
from kmirror.web.report_page import GENERATOR, page
from kmirror.web.report_summary import losses_of, period_of, summary
from tests.support.report_facts import HOUR, MINUTE, NOW, history, report_facts
from tests.support.strict_html import StrictHtml

FINE = HistoryPoint(0, 5, 0, 5, 5, 5, 0, 0)
BEGAN = NOW - HOUR


def at(minute: float, point: HistoryPoint = FINE) -> TimedPoint:
    return BEGAN + int(minute * MINUTE), point


def summary_text(facts: ReportFacts) -> str:
    return "\n".join(summary(facts, period_of(facts)))


# -- markup ------------------------------------------------------------------------------------------------------------


def test_text_is_escaped_and_markup_is_not() -> None:
    made = tag("td", "<b>&", [Html("<i>x</i>"), None], class_='"', data_head="'")
    assert made == '<td class="&quot;" data-head="&#x27;">&lt;b&gt;&amp;<i>x</i></td>'
    assert join("a", ["<", [">"]]) == "a&lt;&gt;"


# -- charts ------------------------------------------------------------------------------------------------------------


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


def drawn(*points: TimedPoint) -> list[tuple[str | None, int]]:
    """Return the class of each line that is drawn, and its number of points."""
    found = StrictHtml(line(points, lambda p: p.lag, BEGAN, BEGAN + HOUR, lambda p: not p.lag_unknown)).found
    return [(attributes["class"], (attributes["d"] or "").count(",")) for name, attributes in found if name == "path"]


def test_a_line_ends_where_nothing_is_known() -> None:
    unknown, least = FINE._replace(lag=None), FINE._replace(lag_unknown=1)
    assert drawn() == []
    assert drawn(at(1), at(2)) == [("line", 2)]
    assert drawn(at(1), at(2, unknown), at(3), at(4)) == [("line", 1), ("line", 2)]
    assert drawn(at(1), at(2), at(12), at(13)) == [("line", 2), ("line", 2)]
    assert drawn(at(1), at(2), at(3, least), at(4, least)) == [("line", 2), ("line least", 3)]


def test_a_nothing_that_is_known_is_drawn_at_the_bottom() -> None:
    (path,) = [
        a
        for name, a in StrictHtml(line([at(0, FINE._replace(lag=0))], lambda p: p.lag, BEGAN, NOW)).found
        if name == "path"
    ]
    assert path["d"] == "M0.0,98.0 h0.01"


def test_a_strip_leaves_its_ground_where_nothing_is_known() -> None:
    bars = StrictHtml(strip(spans_of([at(1), at(30, FINE._replace(failed=1))], BEGAN, NOW)))
    assert (bars.count("rect"), bars.count("rect", "ok"), bars.count("rect", "bad")) == (2, 1, 1)


# -- the summary -------------------------------------------------------------------------------------------------------


def test_the_summary_says_what_happened() -> None:
    text = summary_text(report_facts())
    for sentence in (
        "Mirror dr copies 6 topics with 10 partitions from cluster Sa1Qk to cluster Db2Xy.",
        "1 partition is FAILED and not copied: SOURCE_DIVERGED (1); shop.orders-0000-0.",
        "the destination lacked 160 offsets.",
        "for 2h9m partitions were FAILED or nothing was copied",
        "of 1h nothing is known: no engine recorded anything",
        "The largest lag seen was 2,400,000 offsets",
        "20 records known lost",
        "RPO: 3.5 s",
        "20 records were skipped because the source had lost them",
        "shop.users was rebuilt at 2026-01-01T22:06:00Z; its old records are in shop.users.kmirror-archive.1.",
        "The last command was failover, by ann@ops",
    ):
        assert sentence in text


def test_without_an_engine_that_is_said_first_and_lag_is_what_the_clusters_say() -> None:
    facts = report_facts()
    assert "Nothing is copied now" not in summary_text(facts)
    dead = engine_health(facts.engine.record, "dr", NOW + 3 * HOUR)
    facts = replace(facts, status=replace(facts.status, health=dead))
    assert "Nothing is copied now: no engine copies mirror dr (node-7/app-1 last reported 3h ago)" in summary_text(
        facts
    )


def test_a_source_that_is_down_leaves_no_lag_but_the_last_known_one() -> None:
    text = summary_text(report_facts(source_trouble_text="no answer from a1:9092"))
    assert "The source does not answer now: no answer from a1:9092." in text
    assert "lacked" not in text
    assert "How far 9 partitions are behind is not known now; the last known lag was 160 offsets, seen at" in text
    topics = {one.topic: one.lag for one in report_facts(source_trouble_text="down").status.topics}
    assert topics["shop.orders-0001"] is None


def test_a_missing_history_is_not_reported_as_a_quiet_time() -> None:
    facts = replace(report_facts(), history=())
    assert "There is no history of the last 48 hours" in summary_text(facts)
    old = [(time_ms - 72 * HOUR, point) for time_ms, point in history()]
    assert period_of(replace(facts, history=tuple(old))) is None
    assert StrictHtml(page(facts)).count("svg") == 0


def shown_loss(facts: ReportFacts, topic: str) -> str:
    """Return what the table of topics shows of a topic's loss."""
    text = StrictHtml(page(replace(facts, history=())).replace("</td>", "|</td>").replace("</tr>", "\n</tr>")).text()
    (row,) = [line for line in text.splitlines() if line.startswith(f"{topic}|") and line.count("|") == 9]
    return row.split("|")[8]


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
    assert shown_loss(facts, "shop.orders-0002") == "-"
    assert [loss.records for loss in losses_of(facts.events)] == [20]


def test_what_a_newer_version_wrote_is_missed() -> None:
    assert "cannot read" not in summary_text(report_facts())
    assert "cannot read 3 stored records of the mirror" in summary_text(replace(report_facts(), unreadable=3))


def test_a_mirror_that_is_stopped_needs_no_engine() -> None:
    facts = report_facts()
    dead = engine_health(facts.engine.record, "dr", NOW + 3 * HOUR)
    stopped = tuple(one for one in facts.status.topics if one.topic == "shop.payments")
    facts = replace(facts, status=replace(facts.status, health=dead, topics=stopped))
    assert "Nothing is copied now" not in summary_text(facts)


def test_topics_that_need_a_look_come_first() -> None:
    text = StrictHtml(page(report_facts())).text().partition("KNOWN LOST")[2]
    assert text.index("shop.orders-0000") < text.index("shop.orders-0001") < text.index("shop.users")


# -- the page ----------------------------------------------------------------------------------------------------------


def test_a_page_is_whole_and_needs_nothing_else() -> None:
    document = page(report_facts())
    found = StrictHtml(document)
    assert found.count("script") == found.count("link") == 0
    assert "@import" not in document
    assert "url(" not in document
    assert document.index(GENERATOR) < 2_000
    assert '"message": "<b>& \\"</b>"' in found.text()
    assert found.count("b") == 0
    assert found.count("svg", "chart") == 4
    assert found.count("svg", "strip") == 1


def test_an_hour_without_an_engine_is_a_gap_in_every_line() -> None:
    found = StrictHtml(page(report_facts()))
    # an hour without an engine, ten minutes without workers, and partitions whose lag is unknown in the end
    assert found.count("path", "line") == 4 * 3
    # one more where a pixel has both minutes with all lanes and minutes with none
    assert found.count("path", "line least") == 2 * 2


def test_what_a_cluster_says_cannot_become_markup() -> None:
    facts = report_facts()
    evil = "<script>alert(1)</script>"
    told = facts.status.changed(lambda row: replace(row, error_message=evil, reason=Reason.SOURCE_DIVERGED))
    facts = replace(
        facts,
        status=replace(told, record=replace(facts.mirror, created_by=evil)),
        source=replace(facts.source, release=evil, trouble=evil),
        archives={"shop.users": (evil,)},
        made_by=evil,
    )
    found = StrictHtml(page(facts))
    assert found.count("script") == 0
    assert found.text().count(evil) >= 5


def test_a_page_of_5000_partitions_stays_small_and_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    document = page(report_facts(1000, 5))
    assert len(document.encode()) < 3_000_000
    assert "Left out here" not in document
    monkeypatch.setattr("kmirror.web.report_page._MOST_TOPICS", 2)
    assert "Left out here: 4 topics." in page(report_facts())
