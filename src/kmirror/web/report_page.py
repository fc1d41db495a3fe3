"""The page of a report: the page of a running engine with its data inlined, as one file. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kmirror import __version__
from kmirror.commands import on_mirror
from kmirror.ops.base.topic_results import TopicResult, estimated_in_all, is_current
from kmirror.ops.show.events import EVENTS
from kmirror.settings.durations import format_duration
from kmirror.state.records import TopicRecord
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.objective import BREACHES, breaches_of
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_status import TOPICS, TopicStatus
from kmirror.web.look import report_text
from kmirror.web.recent import POINT
from kmirror.web.report_facts import ClusterFacts, ReportFacts
from kmirror.web.report_summary import Period, period_of, skipped_by_topic, summary
from kmirror.web.spans import Health, Span
from kmirror.words import UNKNOWN, at_time, counted, one_line

#: The most rows of each table, so that browsers can cope; the page says how many it leaves out.
_MOST_ROWS, _MOST_EVENTS = 1_000, 300
#: A value of a table: one with a colour is a pair.
_Value = str | int | None | tuple[str, str]

T = TypeVar("T")


def page(facts: ReportFacts, more_tables: Sequence[dict[str, Any]] = ()) -> str:
    """Return the document, with `more_tables` after its own."""
    period = period_of(facts)
    data = {
        "status": {
            "mirrors": [MIRRORS.document(facts.status.row)],
            "topics": [TOPICS.document(topic) for topic in facts.status.topics],
        },
        "history": _history(facts, period),
        "facts": _facts(facts),
        "tables": [*_tables(facts, period), *more_tables],
    }
    name, command = facts.status.record.name, on_mirror("report", facts.status.record.name, "--html", "FILE")
    made = f"Made by {facts.made_by} with kmirror {__version__}: {command}"
    return report_text(f"Mirror {name}: report of {at_time(facts.made_ms)}", made, [*summary(facts, period)], data)


def _history(facts: ReportFacts, period: Period | None) -> dict[str, Any]:
    """Return the content of /history.json for the time of the report: each point as the values of its keys."""
    mirrors = []
    if period is not None:
        points = (timed for timed in facts.history if period.from_ms < timed[0] <= period.until_ms)
        mirrors.append(
            {
                "mirror": facts.status.record.name,
                "keys": [column.key for column in POINT],
                "points": [[column.value(timed) for column in POINT] for timed in points],
                "spans": [(span.from_ms, span.until_ms, span.health) for span in period.spans],
            }
        )
    return {
        "asOf": facts.made_ms,
        "from": period.from_ms if period is not None else None,
        "mirrors": mirrors,
        "events": [EVENTS.document(event) for event in facts.events[-_MOST_EVENTS:]],
        "breaches": [BREACHES.document(one) for one in breaches_of(facts.events)[-_MOST_EVENTS:]],
        "leftOut": _left_out(len(facts.events), _MOST_EVENTS, "earlier event"),
    }


def _facts(facts: ReportFacts) -> list[tuple[str, str, str]]:
    """Return what is known of clusters, engine and history: name, text and colour."""
    engine = facts.status.health
    heartbeat = "never: no engine ever ran"
    if engine.record is not None and engine.age_ms is not None:
        heartbeat = f"{_ago(engine.age_ms)}, by {engine.record.name}"
    living = [row for row in facts.status.partitions if not row.is_stopped]
    seen = [row.as_of_ms for row in living if row.as_of_ms is not None]
    source_age = "never" if living else "not read: no partition is to be copied"
    if seen:
        source_age = _ago(max(0, facts.made_ms - min(seen))) + (", the oldest of them" if len({*seen}) > 1 else "")
    history = f"up to {_ago(max(0, facts.made_ms - facts.history[-1][0]))}" if facts.history else "nothing"
    return [
        ("Source", *_cluster(facts.source)),
        ("Destination", *_cluster(facts.destination)),
        ("Last heartbeat", heartbeat, ""),
        ("Source's ends seen", source_age, ""),
        ("History of lag and rates", history, ""),
    ]


def _cluster(found: ClusterFacts) -> tuple[str, str]:
    parts = [f"cluster {found.cluster_id or UNKNOWN}", found.bootstrap_server, found.release]
    text = ", ".join(part for part in parts if part)
    return (f"{text}; does not answer now", "bad") if found.trouble else (text, "")


def _ago(age_ms: int) -> str:
    return f"{format_duration(age_ms // 1000 * 1000) if age_ms >= 1000 else 'less than 1s'} before this report"


def _tables(facts: ReportFacts, period: Period | None) -> list[dict[str, Any]]:
    skipped, stops = skipped_by_topic(facts), defaultdict(list)
    for stop in facts.stops:
        stops[stop.topic].append(stop)
    epochs = {(row.topic, row.partition): row.last_mirrored_epoch for row in facts.status.partitions}
    archived = [t for t in facts.topics if t.rebuild or t.rebuilt_at_ms or t.archive or t.topic in facts.archives]
    odd = [span for span in period.spans if span.health is not Health.COPIED] if period is not None else []
    found = (
        _table(
            "FAILED partitions",
            "",
            "partition",
            {"PARTITION": "prose", "REASON": "text", "SINCE": "time", "LAG": "number"}
            | {"WHAT HAPPENED, AND WHAT TO DO": "prose"},
            [row for row in facts.status.partitions if row.failed],
            _failed_row,
        ),
        _table(
            "Stopped topics and losses",
            "Known lost are offsets that the source had when the topic was stopped and the copy lacks, and offsets that"
            " the source had lost before they were copied; estimates follow a plus sign. Of no other topic a loss is"
            " known.",
            "topic",
            {"TOPIC": "prose", "LAST MIRRORED OFFSET": "number", "KNOWN LOST": "number"},
            [
                one
                for one in facts.status.topics
                if one.topic in stops or skipped[one.topic] or _offsets(one) is not None
            ],
            lambda topic: [topic.topic, _offsets(topic), _lost(stops[topic.topic], skipped[topic.topic])],
        ),
        _table(
            "Stopped partitions",
            "LMO and LME are the last mirrored offset (exclusive) and its leader epoch on the source. RPO is the time"
            " between the last mirrored record and the source's last one.",
            "partition",
            {"PARTITION": "prose", "STOPPED": "time", "REASON": "text", "LMO": "number", "LME": "number"}
            | {"KNOWN LOST": "number", "RPO": "number", "WHAT IS KNOWN": "prose"},
            # partitions that lost records, or may have, come first
            sorted(facts.stops, key=lambda row: (row.lag == 0, row.topic or "", row.partition or 0)),
            lambda row: _stop_row(row, epochs.get((row.topic or "", row.partition or 0))),
        ),
        _table(
            "Rebuilds and archives",
            "",
            "topic",
            {"TOPIC": "prose", "LAST REBUILT": "prose", "ARCHIVES THAT EXIST": "prose"}
            | {"ARCHIVE THAT IS GONE": "prose"},
            archived,
            lambda topic: _archive_row(topic, facts.archives.get(topic.topic, ())),
        ),
        _table(
            "When not all was copied",
            "The newest first.",
            "time",
            {"FROM": "time", "LASTED": "duration", "WHAT": "prose"},
            odd[::-1],
            _span_row,
            folded=True,
        ),
    )
    return [table for table in found if table["rows"]]


def _table(
    title: str,
    note: str,
    noun: str,
    columns: Mapping[str, str],
    rows: Sequence[T],
    row: Callable[[T], list[_Value]],
    *,
    folded: bool = False,
) -> dict[str, Any]:
    """Return a table for the script; `noun` is what a row is, `columns` are how values are shown, by heading."""
    return {
        "title": title,
        "note": note,
        "columns": [*columns.items()],
        "rows": [row(one) for one in rows[:_MOST_ROWS]],
        "more": _left_out(len(rows), _MOST_ROWS, noun),
        "folded": folded,
    }


def _left_out(count: int, most: int, noun: str) -> str:
    return f"Left out here: {counted(count - most, noun)}." if count > most else ""


def _failed_row(row: PartitionRow) -> list[_Value]:
    return [
        f"{row.topic}-{row.partition}",
        (str(row.reason or UNKNOWN), "bad"),
        row.state_time_ms,
        row.lag,
        one_line(row.error_message),
    ]


def _offsets(topic: TopicStatus) -> _Value:
    """Return the last mirrored offsets of a topic's partitions: one, or the least and the largest."""
    found = {row.last_mirrored_offset for row in topic.partitions if row.last_mirrored_offset is not None}
    if len(found) < 2:
        return next(iter(found), None)
    return f"{min(found):,} … {max(found):,}", ""


def _lost(stops: Sequence[TopicResult], skipped: int = 0) -> _Value:
    """Return the known loss of stopped partitions and of records skipped before, as a lower bound if it is not whole.

    It is not whole if the loss of a partition is unknown, or its source's end was last read some time before the stop.
    """
    known = [stop.lag for stop in stops if stop.lag is not None]
    if stops and not known and not skipped:
        return "unknown", "bad"
    if not stops and not skipped:
        return None
    records, more, at_loss = sum(known) + skipped, estimated_in_all(stops), estimated_in_all(stops, at_loss=True)
    is_whole = all(stop.is_complete or (stop.at_stop is not None and is_current(stop.at_stop)) for stop in stops)
    bound = "" if is_whole and len(known) == len(stops) else "≥ "
    estimate = f" + about {f'{at_loss:,} to ' if at_loss < more else ''}{more:,}" if more else ""
    return f"{bound}{records:,}{estimate}", "bad" if records or more else "warn" if bound else ""


def _stop_row(row: TopicResult, epoch: int | None) -> list[_Value]:
    return [
        f"{row.topic}-{row.partition}",
        row.at_stop.time_ms if row.at_stop is not None else None,
        row.reason,
        row.last_mirrored_offset,
        epoch,
        _lost([row]),
        None if row.rpo_ms is None else (format_duration(row.rpo_ms) if row.rpo_ms else "0s", ""),
        one_line(row.message),
    ]


def _archive_row(topic: TopicRecord, there: Sequence[str]) -> list[_Value]:
    step = "never"
    if topic.rebuild is not None:
        step = f"under way since {at_time(topic.rebuild.since_ms)}: {topic.rebuild.step}, {topic.rebuild.reason}"
    elif topic.rebuilt_at_ms is not None:
        step = at_time(topic.rebuilt_at_ms)
    gone = topic.archive if topic.archive not in there else None
    return [topic.topic, step, ", ".join(there) or UNKNOWN, (gone, "bad prose") if gone else UNKNOWN]


def _span_row(span: Span) -> list[_Value]:
    return [span.from_ms, span.until_ms - span.from_ms, (span.what, f"{span.health or 'soft'} prose")]
