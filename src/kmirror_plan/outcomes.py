"""What was predicted of each wave, and what came of it, for the report of a mirror. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kmirror.settings.durations import format_duration
from kmirror.state.records import TopicRecord
from kmirror.status.partition_row import PartitionRow
from kmirror.words import counted


@dataclass(frozen=True, slots=True)
class WaveOutcome:
    """One wave, by its place in the order: its predicted and its actual time from `add` to the end of the first copy.

    There is no actual time if not everything is copied yet, or it is not known when it was.
    """

    wave: int
    topics: int
    predicted_seconds: float | None
    actual_seconds: float | None
    message: str


def wave_outcomes(
    plan: Mapping[str, Any], topics: Sequence[TopicRecord], partitions: Sequence[PartitionRow]
) -> list[WaveOutcome]:
    """Return what came of the waves of a plan (its document), as far as this mirror has their topics."""
    by_source = {topic.source_topic: topic for topic in topics}
    rows: dict[str, list[PartitionRow]] = {}
    for row in partitions:
        rows.setdefault(row.topic, []).append(row)
    return [_outcome(wave, by_source, rows) for wave in plan.get("waves", ())]


def _outcome(
    wave: Mapping[str, Any], by_source: Mapping[str, TopicRecord], rows: Mapping[str, Sequence[PartitionRow]]
) -> WaveOutcome:
    names = wave["topics"]
    found = [by_source[name] for name in names if name in by_source]
    of_all = [row for topic in found for row in rows.get(topic.topic, ())]
    copied = [topic for topic in found if all(row.initial_copy_complete for row in rows.get(topic.topic, ()))]
    predicted, actual = wave.get("copySeconds"), None
    times = [row.initial_copy_ms for row in of_all]
    began = [topic.added_at_ms for topic in found if topic.added_at_ms is not None]
    if not found:
        message = "not added to this mirror"
    elif len(copied) < len(names):
        message = f"{len(copied):,} of {counted(len(names), 'topic is', 'topics are')} copied"
    elif None in times or len(began) < len(found):
        message = "copied; when is not known: an older version copied it"
    else:
        actual = max(0, max(time for time in times if time is not None) - min(began)) / 1000
        message = "copied" if predicted is None else f"copied in {_ratio(actual, predicted)}"
    return WaveOutcome(
        wave=wave["number"], topics=len(names), predicted_seconds=predicted, actual_seconds=actual, message=message
    )


def _ratio(actual: float, predicted: float) -> str:
    if predicted <= 0:
        return format_duration(round(1000 * actual))
    return f"{actual / predicted:.2f} × the predicted time"


def outcomes_table(
    plan: Mapping[str, Any], topics: Sequence[TopicRecord], partitions: Sequence[PartitionRow]
) -> dict[str, Any]:
    """Return the table for the page of a report."""
    return {
        "title": "Waves as planned and as they went",
        "note": "The time is from the first add of a wave's topics until each partition had what its source had then.",
        "columns": [
            ("WAVE", "number"),
            ("TOPICS", "number"),
            ("PREDICTED", "text"),
            ("ACTUAL", "text"),
            ("WHAT IS KNOWN", "prose"),
        ],
        "rows": [
            [one.wave, one.topics, _text(one.predicted_seconds), _text(one.actual_seconds), one.message]
            for one in wave_outcomes(plan, topics, partitions)
        ],
        "more": "",
        "folded": False,
    }


def _text(seconds: float | None) -> str | None:
    return None if seconds is None else format_duration(round(1000 * seconds))
