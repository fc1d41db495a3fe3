"""What is told of topics that are stopped: where each copy ended, and what is known to be missing. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kmirror.cluster.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.ops.results import Outcome, TopicResult
from kmirror.state.records import FRESH_SECONDS, PartitionRecord, ProgressRow, TopicRecord
from kmirror.state.snapshot import State

_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """What the mirror's lanes last said of a partition, and when."""

    row: ProgressRow
    #: When the source had said what the row says of it, at the latest.
    as_of_ms: int


def last_seen(state: State, mirror: str) -> dict[TopicPartition, Seen]:
    """Return what lanes last said of the partitions of a mirror."""
    found: dict[TopicPartition, Seen] = {}
    for progress in sorted(state.progress(mirror), key=lambda one: one.time_ms):
        for row in progress.rows:
            fresh_ms = progress.time_ms - int(FRESH_SECONDS * 1000)
            as_of_ms = fresh_ms if row.source_seen_ms is None else row.source_seen_ms
            found[TopicPartition(row.topic, row.partition)] = Seen(row, as_of_ms)
    return found


def places_of(topic: TopicRecord) -> list[TopicPartition]:
    """Return the partitions of a mirror topic."""
    return [TopicPartition(topic.topic, partition) for partition in range(topic.partitions)]


def loss_told(end: int, seen: Seen | None) -> tuple[int | None, str]:
    """Return how many records the source is known to hold beyond `end`, and that in words to follow an offset."""
    if seen is None or seen.row.source_offset is None:
        return None, "; how much the source holds beyond it was never seen"
    loss = max(0, seen.row.source_offset - end)
    when = time.strftime("%H:%M:%SZ", time.gmtime(seen.as_of_ms / 1000))
    return loss, f"; the source ended at {seen.row.source_offset} at {when}: {loss} records known beyond it"


def stopped_row(
    place: TopicPartition, record: PartitionRecord | None, seen: Seen | None, reason: Reason
) -> TopicResult:
    """Return the result of a partition that is stopped: where, and what the source is known to hold beyond it."""
    lmo = record.last_mirrored_offset if record else None
    loss, told = loss_told(lmo or 0, seen)
    return TopicResult(
        *place, Outcome.DONE, f"{place} is stopped at {lmo}{told}", reason, last_mirrored_offset=lmo, lag=loss
    )


def incomplete_told(
    state: State, mirror: str, topics: Iterable[TopicRecord], seen: Mapping[TopicPartition, Seen]
) -> list[str]:
    """Return a sentence that names the partitions whose first copy was never complete, where there are some."""
    partial = [
        str(place)
        for topic in topics
        for place in places_of(topic)
        if not ((record := state.partition(mirror, *place)) and record.initial_copy_complete)
        and not (place in seen and seen[place].row.source_offset == 0)
    ]
    more = len(partial) - _MOST_NAMED
    some = ", ".join(partial[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return [f"the first copy was not complete: {some}"] if partial else []


def spread_told(topics: Iterable[TopicRecord], seen: Mapping[TopicPartition, Seen]) -> list[str]:
    """Return a sentence on how far apart in time the topics' last mirrored records are, where they are."""
    latest: dict[str, int] = {}
    for topic in topics:
        for place in places_of(topic):
            at = seen[place].row.last_timestamp_ms if place in seen else None
            if at is not None:
                latest[topic.topic] = max(at, latest.get(topic.topic, at))
    spread = max(latest.values(), default=0) - min(latest.values(), default=0)
    if not spread:
        return []
    behind, ahead = min(latest, key=lambda t: latest[t]), max(latest, key=lambda t: latest[t])
    return [
        f"the topics' last records are {spread / 1000:.3f} s apart by their timestamps: {behind} is the furthest "
        f"behind, {ahead} the furthest ahead"
    ]
