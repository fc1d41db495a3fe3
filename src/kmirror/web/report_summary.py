"""The summary of a report: sentences for people who were not there. Pure: no I/O, no clock.

Unknown facts are reported as unknown, and every number that is not current comes with its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kmirror.ops.stop.report import totals_of, totals_sentences
from kmirror.settings.durations import format_duration
from kmirror.state.event_records import Event
from kmirror.state.history_records import HOUR_MS, KEPT_HOURS
from kmirror.status.objective import breaches_of
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.partition_row import PartitionRow
from kmirror.web.report_facts import ReportFacts
from kmirror.web.spans import Health, Span, spans_of
from kmirror.words import at_time, counted, listed, one_line, visible

#: Events that engines record about themselves; the others are commands, or decisions about topics.
_ENGINE_EVENTS = frozenset({"run", "lane", "workers", "source", "settings", "groups", "rights", "discovery"})
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Period:
    """The time that a report's charts show, and the mirror's health in it."""

    from_ms: int
    until_ms: int
    spans: tuple[Span, ...]

    def duration_ms(self, health: Health | None) -> int:
        """Return for how many milliseconds the mirror had this health; None: for how long it is unknown."""
        return sum(span.until_ms - span.from_ms for span in self.spans if span.health is health)


def period_of(facts: ReportFacts) -> Period | None:
    """Return the time since the first stored point, at most two days; None if there is none."""
    since = facts.made_ms - KEPT_HOURS * HOUR_MS
    first = next((time_ms for time_ms, _ in facts.history if time_ms > since), None)
    if first is None:
        return None
    # a point describes the minute before it
    from_ms = max(since, first - 60_000)
    return Period(from_ms, facts.made_ms, tuple(spans_of(facts.history, from_ms, facts.made_ms)))


def summary(facts: ReportFacts, period: Period | None) -> Iterator[str]:
    """Yield the sentences."""
    yield from _what_it_is(facts)
    if facts.unreadable:
        records = counted(facts.unreadable, "stored record")
        yield f"This kmirror cannot read {records} of the mirror: a newer version wrote them. They are left out."
    yield from _how_it_is(facts)
    yield from _how_it_went(facts, period)
    yield from _what_was_breached(facts)
    yield from _what_was_stopped(facts)
    yield from _what_was_lost(facts)
    yield from _what_was_rebuilt(facts)
    last = next((event for event in reversed(facts.events) if event.what not in (*_ENGINE_EVENTS, "partition")), None)
    if last is not None:
        yield f"The last command was {last.what}, by {last.actor} at {at_time(last.time_ms)} ({last.result})."


def _what_it_is(facts: ReportFacts) -> Iterator[str]:
    mirror, rows = facts.status.record, facts.status.partitions
    yield (
        f"Mirror {mirror.name} copies {counted(len(facts.topics), 'topic')} with"
        f" {counted(len(rows), 'partition')} from cluster {facts.source.cluster_id or 'unknown'} to cluster"
        f" {facts.destination.cluster_id}. {mirror.created_by} created it at {at_time(mirror.created_at_ms)}."
    )


def _how_it_is(facts: ReportFacts) -> Iterator[str]:
    living = [row for row in facts.status.partitions if not row.is_stopped]
    if facts.status.health.message is not None and living:
        yield f"Nothing is copied now: {facts.status.health.message}."
    if facts.source.trouble is not None:
        yield f"The source does not answer now: {one_line(facts.source.trouble)}."
    failed = [row for row in facts.status.partitions if row.failed]
    if failed:
        reasons = Counter(str(row.reason or "unknown") for row in failed)
        counts = ", ".join(f"{reason} ({count:,})" for reason, count in reasons.most_common())
        are = "is" if len(failed) == 1 else "are"
        yield f"{counted(len(failed), 'partition')} {are} FAILED and not copied: {counts}; {named(failed)}."
    if facts.status.record.paused:
        yield "The mirror is paused by an operator."
    idle = [row for row in facts.status.partitions if row.is_idle and row.reason != facts.status.health.reason]
    if idle:
        yield f"{counted(len(idle), 'partition')} not copied: {one_line(idle[0].error_message)}."
    if not living:
        return
    known = [row.lag for row in living if row.lag is not None]
    unknown = len(living) - len(known)
    if known:
        behind = sum(known)
        whole = "" if unknown == 0 else f" of {counted(len(known), 'partition')}"
        at = at_time(facts.made_ms)
        yield (
            f"At {at} the destination lacked {counted(behind, 'offset')}{whole}."
            if behind
            else f"At {at} the destination had all that the source had{whole}."
        )
    if unknown:
        unseen = [row for row in living if row.lag is None]
        last = [row.last_known_lag for row in unseen if row.last_known_lag is not None]
        seen = [row.as_of_ms for row in unseen if row.last_known_lag is not None and row.as_of_ms is not None]
        last_known = ""
        if last and seen:
            whole = "" if len(last) == unknown else f" of {len(last):,} of them"
            last_known = (
                f"; the last known lag{whole} was {counted(sum(last), 'offset')}, seen at {at_time(min(seen))} or later"
            )
        are = "is" if unknown == 1 else "are"
        yield f"How far {counted(unknown, 'partition')} {are} behind is not known now{last_known}."


def _how_it_went(facts: ReportFacts, period: Period | None) -> Iterator[str]:
    if period is None:
        yield f"There is no history of the last {KEPT_HOURS} hours: no engine recorded anything."
        return
    whole = format_duration(period.until_ms - period.from_ms)
    troubles = []
    if broken := period.duration_ms(Health.BROKEN):
        troubles.append(f"for {format_duration(broken)} partitions were FAILED or nothing was copied")
    if partly := period.duration_ms(Health.PARTLY):
        troubles.append(f"for {format_duration(partly)} some were not copied or their lag was not known")
    if unknown := period.duration_ms(None):
        troubles.append(f"of {format_duration(unknown)} nothing is known: no engine recorded anything")
    what = "; ".join(troubles) if troubles else "all partitions were copied throughout"
    yield f"In the {whole} since {at_time(period.from_ms)}: {what}."
    points = [timed for timed in facts.history if timed[0] > period.from_ms]
    lags = [(point.lag, time_ms) for time_ms, point in points if point.lag is not None]
    if lags:
        worst, when = max(lags)
        yield f"The largest lag seen was {counted(worst, 'offset')}, at {at_time(when)}."
    behind = [(point.time_lag_ms, time_ms) for time_ms, point in points if point.time_lag_ms]
    if behind:
        longest, when = max(behind)
        yield f"The longest time lag seen was {format_duration(longest // 1000 * 1000)}, at {at_time(when)}."


def _what_was_breached(facts: ReportFacts) -> Iterator[str]:
    now = [topic for topic in facts.status.topics if topic.objective_state is ObjectiveState.BREACHED]
    if now:
        are = "is" if len(now) == 1 else "are"
        names = listed([topic.topic for topic in now], _MOST_NAMED)
        yield f"{counted(len(now), 'topic')} {are} not within the objective: {names}."
    if found := breaches_of(facts.events):
        last = max(found, key=lambda one: one.from_ms)
        until = "it is not met again yet" if last.until_ms is None else f"it was met again at {at_time(last.until_ms)}"
        yield (
            f"Objectives were breached {counted(len(found), 'time')}, the last time by {visible(last.topic)} at"
            f" {at_time(last.from_ms)} ({last.cause}: {one_line(last.message)}); {until}."
        )


def _what_was_stopped(facts: ReportFacts) -> Iterator[str]:
    if not facts.stops:
        return
    topics = {row.topic for row in facts.stops}
    reasons = Counter(str(row.reason or "unknown") for row in facts.stops)
    times = [row.at_stop.time_ms for row in facts.stops if row.at_stop is not None]
    when = ""
    if times:
        first, last = at_time(min(times)), at_time(max(times))
        when = f" at {first}" if first == last else f" between {first} and {last}"
    losses = "; ".join(totals_sentences(totals_of(facts.stops, None)))
    yield f"{counted(len(topics), 'topic')} stopped{when} ({', '.join(reasons)}). {losses[:1].upper()}{losses[1:]}."


def _what_was_lost(facts: ReportFacts) -> Iterator[str]:
    skips = skips_of(facts.events)
    if skips:
        offsets = sum(skipped for _, _, skipped in skips)
        are = "was" if offsets == 1 else "were"
        yield (
            f"{counted(offsets, 'offset')} {are} skipped because the source had lost them before they were copied, "
            f"the last time at {at_time(skips[-1][0])}."
        )


def _what_was_rebuilt(facts: ReportFacts) -> Iterator[str]:
    for topic in facts.topics:
        if topic.rebuild is not None:
            yield (
                f"{topic.topic} is being rebuilt since {at_time(topic.rebuild.since_ms)} ({topic.rebuild.reason}); "
                f"its old records go to {topic.rebuild.archive}."
            )
    rebuilt = sorted((t for t in facts.topics if t.rebuilt_at_ms is not None), key=lambda t: -(t.rebuilt_at_ms or 0))
    for topic in rebuilt[:_MOST_NAMED]:
        archive = f"; its old records are in {topic.archive}" if topic.archive else ""
        yield f"{topic.topic} was rebuilt at {at_time(topic.rebuilt_at_ms or 0)}{archive}."
    if len(rebuilt) > _MOST_NAMED:
        yield f"{counted(len(rebuilt) - _MOST_NAMED, 'more topic was', 'more topics were')} rebuilt earlier."


def skips_of(events: Sequence[Event]) -> list[tuple[int, str, int]]:
    """Return what sources had lost before it was copied, and was skipped: time, topic, number of offsets."""
    return [
        (event.time_ms, str(event.details.get("topic")), records)
        for event in events
        if event.result == "LOSS_ACCEPTED" and isinstance(records := event.details.get("records"), int)
    ]


def skipped_by_topic(facts: ReportFacts) -> Counter[str]:
    """Return how many offsets of each topic were skipped since it was added."""
    added = {topic.topic: topic.added_at_ms or 0 for topic in facts.topics}
    skipped: Counter[str] = Counter()
    for time_ms, topic, records in skips_of(facts.events):
        if time_ms >= added.get(topic, 0):
            skipped[topic] += records
    return skipped


def named(rows: Sequence[PartitionRow]) -> str:
    """Return the names of the first few of these partitions, and the number of the others."""
    names = [f"{row.topic}-{row.partition}" for row in rows[:_MOST_NAMED]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")
