"""The page of a report: one self-contained HTML document. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kmirror import __version__
from kmirror.columns import Column
from kmirror.commands import on_mirror
from kmirror.ops.base.topic_results import TopicResult
from kmirror.settings.durations import format_duration
from kmirror.state.event_records import Event
from kmirror.state.history_records import HistoryPoint, TimedPoint
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS_ON_PAGE, TopicStatus
from kmirror.web.charts import Health, line, strip
from kmirror.web.html import Content, Html, join, tag
from kmirror.web.look import BAD_RESULTS, ORDER, color_of, kind_of, style
from kmirror.web.report_facts import ClusterFacts, ReportFacts
from kmirror.web.report_summary import Period, TopicLoss, losses_by_topic, period_of, summary
from kmirror.words import UNKNOWN, at_time, counted, json_text, one_line

#: Marks a page that `kmirror report` may overwrite.
GENERATOR = '<meta name="generator" content="kmirror report">'
#: The most rows of each table, so that browsers can cope; the page says how many it leaves out.
_MOST_TOPICS, _MOST_PARTITIONS, _MOST_EVENTS, _MOST_SPANS = 1_500, 1_000, 300, 100
_LONGEST_DETAIL = 400

_TIME = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)")


def page(facts: ReportFacts) -> str:
    """Return the document."""
    title = f"Mirror {facts.mirror.name}: report of {at_time(facts.made_ms)}"
    period = period_of(facts)
    sentences = list(summary(facts, period))
    body = join(
        tag("h1", f"Mirror {facts.mirror.name}"),
        _header(facts),
        _section("Summary", [tag("p", _with_times(sentence)) for sentence in sentences]),
        _charts(facts, period),
        _topics(facts),
        _troubles(facts),
        _stops(facts),
        _archives(facts),
        _events(facts),
        _footer(facts),
    )
    head = join(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html(GENERATOR),
        tag("title", title),
        tag("style", Html(style())),
    )
    return f'<!doctype html>\n<html lang="en">\n{tag("head", head)}\n{tag("body", body)}\n</html>\n'


def _section(title: str, *content: Content) -> Html:
    return tag("section", tag("h2", title), *content)


def _with_times(text: str) -> Html:
    """Return a text with its times marked, so that they are not broken at the end of a line."""
    parts = _TIME.split(text)
    return join([tag("time", part) if index % 2 else part for index, part in enumerate(parts)])


def _header(facts: ReportFacts) -> Html:
    engine = facts.engine
    heartbeat = "never: no engine ever ran"
    if engine.record is not None and engine.age_ms is not None:
        heartbeat = f"{_ago(engine.age_ms)} before this report, by {engine.record.name}"
    living = [row for row in facts.rows if not row.is_stopped]
    seen = [row.as_of_ms for row in living if row.as_of_ms is not None]
    source_age = "not read: no partition is to be copied" if not living else "never"
    if seen:
        oldest = "" if min(seen) == max(seen) else ", the oldest of them"
        source_age = f"{_ago(max(0, facts.made_ms - min(seen)))} before this report{oldest}"
    history = "nothing"
    if facts.history:
        history = f"up to {_ago(max(0, facts.made_ms - facts.history[-1][0]))} before this report"
    rows = [
        ("State", _state(facts)),
        ("Source", _cluster(facts.source)),
        ("Destination", _cluster(facts.destination)),
        ("Report made", f"{at_time(facts.made_ms)} by {facts.made_by}, kmirror {__version__}"),
        ("Last heartbeat of an engine", heartbeat),
        ("Source's ends seen", source_age),
        ("History of lag and rates", history),
    ]
    return tag("dl", [join(tag("dt", name), tag("dd", value)) for name, value in rows])


def _state(facts: ReportFacts) -> Html:
    listed = facts.status.row
    state, reason = listed.state, listed.reason
    if state is None:
        return Html("no topics")
    text = f"{state} ({reason})" if reason is not None else str(state)
    failed = sum(topic.failed for topic in facts.status.topics)
    return tag("strong", text, class_=color_of(state, [reason] if reason is not None else [], failed))


def _cluster(found: ClusterFacts) -> Html:
    parts = [f"cluster {found.cluster_id or UNKNOWN}", found.bootstrap_server, found.release]
    text = ", ".join(part for part in parts if part)
    return join(text, tag("span", "; does not answer now", class_="bad") if found.trouble else None)


def _ago(age_ms: int) -> str:
    return format_duration(age_ms // 1000 * 1000) if age_ms >= 1000 else "less than 1s"


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    value: Callable[[HistoryPoint], float | None]
    words: Callable[[float], str]
    is_whole: Callable[[HistoryPoint], bool] = lambda _: True


def _is_whole(point: HistoryPoint) -> bool:
    return not point.lag_unknown


_CHARTS = (
    _Chart("Lag", lambda p: p.lag, lambda value: counted(int(value), "offset"), _is_whole),
    _Chart("Time lag", lambda p: p.time_lag_ms, lambda value: _ago(int(value)) if value else "0s", _is_whole),
    _Chart("Copied", lambda p: p.bytes_per_second, lambda value: f"{_amount(value)}B/s"),
    _Chart(
        "Records copied",
        lambda p: p.records_per_second,
        lambda value: f"{value:,.0f} records/s" if value >= 10 else f"{value:g} records/s",
    ),
)


def _charts(facts: ReportFacts, period: Period | None) -> Html:
    if period is None:
        return _section("How it went", tag("p", "There is no history of the last two days.", class_="soft"))
    points = [timed for timed in facts.history if period.from_ms < timed[0] <= period.until_ms]
    return _section(
        "How it went",
        tag(
            "p",
            "Each point is the worst of a minute, rates are averages. Unknown values are not drawn; a dashed line"
            " leaves out partitions whose lag was unknown.",
            class_="soft",
        ),
        _states(period),
        [_figure(chart, points, period) for chart in _CHARTS],
    )


def _figure(chart: _Chart, points: Sequence[TimedPoint], period: Period) -> Html:
    known = [found for _, point in points if (found := chart.value(point)) is not None]
    largest = f"largest: {chart.words(max(known))}" if known else "never known"
    return tag(
        "figure",
        tag("figcaption", tag("strong", chart.title), tag("span", largest)),
        line(points, chart.value, period.from_ms, period.until_ms, chart.is_whole),
        _axis(period),
    )


def _states(period: Period) -> Html:
    odd = [span for span in period.spans if span.health is not Health.COPIED]
    named = [
        ("ok", "copied"),
        ("warn", "some partitions not copied or unknown"),
        ("bad", "FAILED, or nothing copied"),
        ("soft", "empty: not known"),
    ]
    legend = tag(
        "span", [tag("span", ("■ " if kind != "soft" else "□ ") + text + " ", class_=kind) for kind, text in named]
    )
    rows = [
        [
            _text(at_time(span.from_ms)),
            _text(format_duration((span.until_ms - span.from_ms) // 1000 * 1000)),
            _cell(span.what, f"{span.health or 'soft'} prose"),
        ]
        for span in odd[-_MOST_SPANS:]
    ]
    table = (
        _table(("FROM", "LASTED", "WHAT"), rows, "table")
        if rows
        else tag("p", "All partitions were copied throughout.")
    )
    return join(
        tag("figure", tag("figcaption", tag("strong", "States"), legend), strip(period.spans), _axis(period)),
        tag("details", tag("summary", f"When not all was copied ({len(odd):,})"), table) if odd else table,
        _left_out(len(odd) - len(rows), "earlier time", "earlier times"),
    )


def _axis(period: Period) -> Html:
    middle = (period.from_ms + period.until_ms) // 2
    times = (period.from_ms, middle, period.until_ms)
    return tag(
        "div", [tag("span", at_time(time_ms)[5:16].replace("T", " ") + " UTC") for time_ms in times], class_="axis"
    )


def _amount(value: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.3g} "


@dataclass(frozen=True, slots=True)
class _Cell:
    content: Html
    kind: str | None = None
    is_number: bool = False


def _text(text: str) -> _Cell:
    return _Cell(join(text))


def _prose(text: str) -> _Cell:
    """Return a cell that may have several lines."""
    return _Cell(_with_times(text), "prose")


def _cell(text: str, kind: str | None) -> _Cell:
    return _Cell(join(text), kind)


def _number(value: int | None, bound: str = "") -> _Cell:
    return _Cell(join(UNKNOWN if value is None else f"{bound}{value:,}"), None, is_number=True)


def _duration(duration_ms: int | None) -> _Cell:
    text = UNKNOWN if duration_ms is None else format_duration(duration_ms) if duration_ms else "0s"
    return _Cell(join(text), None, is_number=True)


def _table(heads: Sequence[str], rows: Iterable[Sequence[_Cell]], kind: str = "table wide") -> Html:
    """Return a table; on a narrow screen each row becomes a list of its cells."""
    shown = list(rows)
    numbers = [any(row[index].is_number for row in shown) for index in range(len(heads))]
    head = [tag("th", name, class_="number" if right else None) for name, right in zip(heads, numbers, strict=True)]
    body = [
        tag(
            "tr",
            [
                tag(
                    "td",
                    tag("span", cell.content, class_=cell.kind),
                    class_="number" if cell.is_number else None,
                    data_head=name,
                )
                for name, cell in zip(heads, row, strict=True)
            ],
        )
        for row in shown
    ]
    return tag("div", tag("table", tag("thead", tag("tr", head)), tag("tbody", body)), class_=kind)


def _left_out(count: int, noun: str, plural: str | None = None) -> Html | None:
    return tag("p", f"Left out here: {counted(count, noun, plural)}.", class_="soft") if count > 0 else None


def _topics(facts: ReportFacts) -> Html:
    topics = sorted(facts.status.topics, key=lambda one: (ORDER.index(one.state), one.topic))
    losses = losses_by_topic(facts)
    if not topics:
        return _section("Topics", tag("p", "No topic is mirrored yet."))
    rows = [
        [
            *(_topic_cell(column, one) for column in TOPICS_ON_PAGE.shown),
            _offsets([row.last_mirrored_offset for row in one.partitions if row.last_mirrored_offset is not None]),
            _lost(losses[one.topic], is_stopped=one.state is TopicState.STOPPED),
        ]
        for one in topics[:_MOST_TOPICS]
    ]
    heads = (*TOPICS_ON_PAGE.headers.split(), "LAST MIRRORED OFFSET", "KNOWN LOST")
    return _section(
        "Topics",
        tag(
            "p",
            f"As of {at_time(facts.made_ms)}, in offsets; {UNKNOWN} is unknown, or has no meaning in that state."
            " Known lost are records that the source had when the topic was stopped and the copy lacks, and records"
            " that the source had lost before they were copied; estimates follow a plus sign.",
            class_="soft",
        ),
        _table(heads, rows, "table"),
        _left_out(len(topics) - len(rows), "topic"),
    )


def _topic_cell(column: Column[TopicStatus], topic: TopicStatus) -> _Cell:
    """Return a cell of the table of topics, as the page of a running engine shows it."""
    if column.key == "topic":
        return _prose(topic.topic)
    if column.key == "state":
        text = " ".join([topic.state, *(f"({reason})" for reason in topic.reasons[:3])])
        return _cell(text, f"{color_of(topic.state, topic.reasons, topic.failed)} words")
    value: Any = column.value(topic)
    match kind_of(column):
        case "duration":
            return _duration(value)
        case "rate":
            return _Cell(join(UNKNOWN if value is None else f"{_amount(value)}B/s"), None, is_number=True)
        case "number":
            return _number(value, "≥ " if column.key == "lag" and topic.lag_unknown else "")
    return _text(UNKNOWN if value is None else str(value))


def _lost(loss: TopicLoss, *, is_stopped: bool = True) -> _Cell:
    """Return the cell of a known loss, marked as a lower bound if it is not whole."""
    if loss.records is None:
        return _Cell(Html("unknown"), "bad", is_number=True) if is_stopped else _number(None)
    bound = "" if loss.is_whole else "≥ "
    least = f"{loss.estimated_more_at_loss:,} to " if loss.estimated_more_at_loss < loss.estimated_more else ""
    more = f" + about {least}{loss.estimated_more:,}" if loss.estimated_more else ""
    kind = "bad" if loss.records or more else "warn" if bound else None
    return _Cell(join(f"{bound}{loss.records:,}{more}"), kind, is_number=True)


def _offsets(found: Sequence[int]) -> _Cell:
    if not found:
        return _number(None)
    low, high = min(found), max(found)
    return _Cell(join(f"{low:,}" if len(found) == 1 else f"{low:,} … {high:,}"), None, is_number=True)


def _troubles(facts: ReportFacts) -> Html | None:
    failed = [row for row in facts.rows if row.failed]
    if not failed:
        return None
    shown = failed[:_MOST_PARTITIONS]
    return _section(
        "FAILED partitions",
        _table(("PARTITION", "REASON", "SINCE", "LAG", "WHAT HAPPENED, AND WHAT TO DO"), map(_failed_row, shown)),
        _left_out(len(failed) - len(shown), "FAILED partition"),
    )


def _failed_row(row: PartitionRow) -> list[_Cell]:
    return [
        _prose(f"{row.topic}-{row.partition}"),
        _cell(str(row.reason or UNKNOWN), "bad"),
        _text(UNKNOWN if row.state_time_ms is None else at_time(row.state_time_ms)),
        _number(row.lag),
        _prose(one_line(row.error_message)),
    ]


def _stops(facts: ReportFacts) -> Html | None:
    if not facts.stops:
        return None
    epochs = {(row.topic, row.partition): row.last_mirrored_epoch for row in facts.rows}
    # partitions that lost records, or may have, come first
    ordered = sorted(facts.stops, key=lambda row: (row.lag == 0, row.topic or "", row.partition or 0))
    shown = ordered[:_MOST_PARTITIONS]
    heads = ("PARTITION", "STOPPED", "REASON", "LMO", "LME", "KNOWN LOST", "RPO", "WHAT IS KNOWN")
    return _section(
        "Stopped partitions",
        tag(
            "p",
            "LMO and LME are the last mirrored offset (exclusive) and its leader epoch on the source. RPO is the time"
            " between the last mirrored record and the source's last one.",
            class_="soft",
        ),
        _table(heads, [_stop_row(row, epochs.get((row.topic or "", row.partition or 0))) for row in shown]),
        _left_out(len(ordered) - len(shown), "stopped partition"),
    )


def _stop_row(row: TopicResult, epoch: int | None) -> list[_Cell]:
    return [
        _prose(f"{row.topic}-{row.partition}"),
        _text(UNKNOWN if row.at_stop is None else at_time(row.at_stop.time_ms)),
        _text(str(row.reason or UNKNOWN)),
        _number(row.last_mirrored_offset),
        _number(epoch),
        _lost(TopicLoss.of([row])),
        _duration(row.rpo_ms),
        _prose(one_line(row.message)),
    ]


def _archives(facts: ReportFacts) -> Html | None:
    topics = [t for t in facts.topics if t.rebuild or t.rebuilt_at_ms or t.archive or t.topic in facts.archives]
    if not topics:
        return None
    rows = []
    for topic in topics[:_MOST_TOPICS]:
        step = "never"
        if topic.rebuild is not None:
            step = f"under way since {at_time(topic.rebuild.since_ms)}: {topic.rebuild.step}, {topic.rebuild.reason}"
        elif topic.rebuilt_at_ms is not None:
            step = at_time(topic.rebuilt_at_ms)
        there = facts.archives.get(topic.topic, ())
        gone = [topic.archive] if topic.archive and topic.archive not in there else []
        rows.append(
            [
                _prose(topic.topic),
                _prose(step),
                _prose(", ".join(there) or UNKNOWN),
                _cell(", ".join(gone), "bad prose") if gone else _text(UNKNOWN),
            ]
        )
    return _section(
        "Rebuilds and archives",
        _table(("TOPIC", "LAST REBUILT", "ARCHIVES THAT EXIST", "ARCHIVE THAT IS GONE"), rows),
        _left_out(len(topics) - len(rows), "topic"),
    )


def _events(facts: ReportFacts) -> Html:
    shown = facts.events[-_MOST_EVENTS:][::-1]
    if not shown:
        return _section("Events", tag("p", "No events are stored."))
    rows = [
        [
            _text(at_time(one.time_ms)),
            _prose(one.actor),
            _text(one.what),
            _cell(one.result, "bad" if one.result in BAD_RESULTS else None),
            _prose(_details(one)),
        ]
        for one in shown
    ]
    return _section(
        "Events",
        tag("p", "The newest first: what operators did, and what kmirror decided.", class_="soft"),
        _table(("TIME", "WHO", "WHAT", "RESULT", "DETAILS"), rows),
        _left_out(len(facts.events) - len(shown), "earlier event"),
    )


def _details(event: Event) -> str:
    text = one_line(json_text(event.details)) if event.details else UNKNOWN
    return text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]}… (`kmirror events` shows all)"


def _footer(facts: ReportFacts) -> Html:
    command = on_mirror("report", facts.mirror.name, "--html", "FILE")
    sources = (
        "Times are UTC. State, lag and offsets are those of kmirror describe at the time of this report; lag, rates and"
        " states over time were recorded by engines once a minute and are kept for two days; events are kept forever."
        " Made by"
    )
    return tag("footer", tag("p", sources, " ", tag("code", command), "."))
