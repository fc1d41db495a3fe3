"""The log of `run`: a line when something changes, and a summary every minute.

`ChangeTracker` decides what is logged, without a clock: views carry their time. States and reasons, never texts, decide
the level of a line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kmirror import columns
from kmirror.columns import Column, document, one_of
from kmirror.engine.driver.driver import COPYING
from kmirror.engine.status.journal import Level
from kmirror.errors import NOT_COPYING, KmirrorError, Reason
from kmirror.ops.base.topic_results import Outcome
from kmirror.words import at_time, byte_rate, counted, json_text, one_line, visible

if TYPE_CHECKING:
    from kmirror.engine.driver.driver import RunView
    from kmirror.engine.driver.engines import NotCopied
    from kmirror.ops.base.results import VerbResult
    from kmirror.status.topic_status import TopicStatus

TEXT, JSON = "text", "json"
SUMMARY_SECONDS = 60.0
#: How many topics of one change, and how many failed results, are named; the others are counted.
_MOST_NAMES, _MOST_RESULTS = 5, 20
#: How many changes a minute are written, for topics that flap; the others are counted.
_MOST_CHANGES = 30

_LEVELS = {"FAILED": Level.ERROR, "LINK_FAILED": Level.ERROR, "SOURCE_UNAVAILABLE": Level.WARNING}
_COPIED_STATES = frozenset({"ACTIVE", "PENDING_MIRROR", "PENDING_STOPPED"})
_ASKED_FOR = frozenset({"PAUSED", "STOPPED"})
_SEVERITY = {Level.ERROR: 0, Level.WARNING: 1, Level.INFO: 2}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line; `fields` are in JSON only."""

    time_ms: int
    level: Level
    mirror: str
    message: str
    fields: Mapping[str, object] = field(default_factory=dict)

    def text(self) -> str:
        """Return it as `TIME LEVEL MIRROR MESSAGE`."""
        return f"{_time(self.time_ms)} {self.level:<7} {visible(self.mirror)} {one_line(self.message)}"

    def json(self) -> str:
        """Return it as one JSON object."""
        return json_text({**document(LINE, self), **self.fields})


#: The keys that every JSON line has.
LINE: tuple[Column[Entry], ...] = (
    Column("time", columns.TEXT, "when it was logged: ISO 8601, UTC", lambda entry: _time(entry.time_ms)),
    Column("level", one_of("log level", Level), "how much attention it needs", lambda entry: entry.level),
    Column("mirror", columns.TEXT, "the mirror; several are comma-separated, `*` is all", lambda entry: entry.mirror),
    Column("message", columns.TEXT, "the message, in one line", lambda entry: one_line(entry.message)),
)


class RunLog:
    """Write the log of one run, line by line."""

    def __init__(self, write: Callable[[str], None], log_format: str) -> None:
        self._write = write
        self._line = Entry.json if log_format == JSON else Entry.text
        self._changes = ChangeTracker()

    def take(self, view: RunView) -> None:
        """Write what is new in a view."""
        for entry in self._changes.entries(view):
            self._write(self._line(entry))

    def end(self, time_ms: int, done: VerbResult, headline: str) -> None:
        """Write how the run ended."""
        for entry in ended(time_ms, done, headline):
            self._write(self._line(entry))

    def fail(self, time_ms: int, mirrors: Sequence[str], error: KmirrorError) -> None:
        """Write what ended the run."""
        hint = f"; {one_line(error.hint)}" if error.hint else ""
        fields = {"reason": error.reason, "exitCode": int(error.exit_code)}
        entry = Entry(time_ms, Level.ERROR, ",".join(mirrors), f"{error.message}{hint}", fields)
        self._write(self._line(entry))


@dataclass(frozen=True, slots=True)
class _LastState:
    """The last state of a topic, and when it was first seen."""

    state: str
    reason: Reason | None
    since_ms: int


class ChangeTracker:
    """Compare each view of a run with the one before."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._summary_at = 0.0
        self._last: dict[tuple[str, str], _LastState] = {}
        #: The mirrors that no engine of this run copied at the last view, with level and reason.
        self._not_copied: dict[str, tuple[Level, str]] = {}
        #: Since when changes are counted, and how many were shown and hidden.
        self._counted_from = 0.0
        self._changes_shown = self._changes_hidden = 0

    def entries(self, view: RunView) -> list[Entry]:
        """Return the entries to log for a view."""
        found = [
            Entry(note.time_ms, note.level, note.mirror, note.text + (_see(view) if note.about_spark else ""))
            for note in view.notes
        ]
        is_summary_due = view.phase != self._phase or view.elapsed_seconds - self._summary_at >= SUMMARY_SECONDS
        found += self._engine_changes(view, in_summary=is_summary_due)
        found += self._limited(list(self._topic_changes(view)))
        if view.elapsed_seconds - self._counted_from >= SUMMARY_SECONDS:
            if self._changes_hidden:
                hidden = f"{counted(self._changes_hidden, 'more change')} of topics not shown"
                found.append(Entry(view.time_ms, Level.WARNING, ",".join(view.mirrors), hidden))
            self._counted_from, self._changes_shown, self._changes_hidden = view.elapsed_seconds, 0, 0
        if is_summary_due:
            self._phase, self._summary_at = view.phase, view.elapsed_seconds
            found += self._summaries(view)
        return found

    def _limited(self, changes: list[Entry]) -> list[Entry]:
        """Return the changes that this minute's limit still allows."""
        shown = changes[: _MOST_CHANGES - self._changes_shown]
        self._changes_shown += len(shown)
        self._changes_hidden += len(changes) - len(shown)
        return shown

    def _engine_changes(self, view: RunView, *, in_summary: bool) -> Iterator[Entry]:
        """Yield the mirrors that lost their engine here, or for another reason, and those that have one again."""
        not_copied = {mirror: (one.level, one.reason or one.why) for mirror, one in view.not_copied.items()}
        for mirror, cause in view.not_copied.items():
            if self._not_copied.get(mirror) != not_copied[mirror] and not in_summary:
                yield _not_copied(view, mirror, cause)
        for mirror in sorted(self._not_copied.keys() - not_copied.keys()):
            if mirror in view.mirrors:
                yield Entry(view.time_ms, Level.INFO, mirror, "this engine is in charge")
        self._not_copied = not_copied

    def _topic_changes(self, view: RunView) -> Iterator[Entry]:
        """Yield one entry for all topics of a mirror with the same change."""
        alike: defaultdict[tuple[str, str, Reason | None, str], list[TopicStatus]] = defaultdict(list)
        for topic in sorted(view.topics, key=lambda one: (one.mirror, one.topic)):
            place, (state, reason) = (topic.mirror, topic.topic), _state_of(topic)
            before = self._last.get(place)
            if before is not None and (before.state, before.reason) == (state, reason):
                continue
            self._last[place] = _LastState(state, reason, view.time_ms)
            was = _words(before.state, before.reason) if before is not None else ""
            alike[topic.mirror, state, reason, was].append(topic)
        for (mirror, state, reason, was), topics in alike.items():
            why = f": {one_line(topics[0].error_message)}" if reason is not None else ""
            more = f" and {len(topics) - _MOST_NAMES:,} more" if len(topics) > _MOST_NAMES else ""
            names = [topic.topic for topic in topics[:_MOST_NAMES]]
            before_it = f" (was {was})" if was else ""
            see = _see(view) if reason in NOT_COPYING else ""
            yield Entry(
                view.time_ms,
                _level(state, reason),
                mirror,
                f"{', '.join(names)}{more}: {_words(state, reason)}{before_it}{why}{see}",
                {"state": state, "reason": reason, "topics": names, "topicCount": len(topics)},
            )

    def _summaries(self, view: RunView) -> Iterator[Entry]:
        fields = {"phase": view.phase}
        wanted = [topic for topic in view.topics if topic.is_wanted]
        if not wanted and not view.not_copied and view.phase != COPYING:
            yield Entry(view.time_ms, view.level, ",".join(view.mirrors), view.phase, fields)
            return
        for mirror in view.mirrors:
            if (not_copied := view.not_copied.get(mirror)) is not None:
                yield _not_copied(view, mirror, not_copied)
            elif own := [topic for topic in wanted if topic.mirror == mirror]:
                yield self._summary(view, mirror, own)
            else:
                phase = "not copying" if view.phase == COPYING else view.phase
                yield Entry(view.time_ms, view.level, mirror, f"{phase}: no topics to copy", {"phase": phase})

    def _summary(self, view: RunView, mirror: str, topics: Sequence[TopicStatus]) -> Entry:
        is_copying = any(topic.state in _COPIED_STATES for topic in topics)
        phase = "not copying" if view.phase == COPYING and not is_copying else view.phase
        partitions = sum(topic.partition_count for topic in topics)
        states = Counter(topic.state for topic in topics)
        rate = sum(topic.bytes_per_second or 0 for topic in topics)
        lag = _Lag.of(topics)
        worst = min(topics, key=lambda one: (_SEVERITY[_level(one.state, one.reason)], one.topic))
        level = _level(worst.state, worst.reason)
        others = "".join(f", {count:,} {state}" for state, count in sorted(states.items()) if state != "ACTIVE")
        return Entry(
            view.time_ms,
            level,
            mirror,
            f"{phase}: {counted(len(topics), 'topic')}, {counted(partitions, 'partition')}, {lag.text()}, "
            f"{byte_rate(rate)}{others}{self._cause(view, worst)}",
            {
                "phase": phase,
                "topics": len(topics),
                "partitions": partitions,
                "lag": lag.known if not lag.unknown else None,
                "lagAsOfMs": lag.as_of_ms if not lag.unknown else None,
                "bytesPerSecond": round(rate),
                "topicStates": dict(states),
                "reason": worst.reason,
            },
        )

    def _cause(self, view: RunView, topic: TopicStatus) -> str:
        """Return why a topic needs attention, and since when at least."""
        if topic.reason is None:
            return ""
        since = at_time(self._last[topic.mirror, topic.topic].since_ms)
        see = _see(view) if topic.reason in NOT_COPYING else ""
        what = _words(topic.state, topic.reason)
        return f"; {topic.topic} {what} since {since} or longer: {one_line(topic.error_message)}{see}"


@dataclass(frozen=True, slots=True)
class _Lag:
    """The lag of some topics: the sum of the known ones, as of when, and for how many it is unknown."""

    known: int
    as_of_ms: int | None
    unknown: int
    topics: int

    @classmethod
    def of(cls, topics: Sequence[TopicStatus]) -> _Lag:
        """Sum up."""
        known = [topic for topic in topics if topic.lag is not None and not topic.lag_unknown]
        as_of = [topic.lag_as_of_ms for topic in known if topic.lag_as_of_ms is not None]
        return cls(
            sum(topic.lag or 0 for topic in known), min(as_of, default=None), len(topics) - len(known), len(topics)
        )

    def text(self) -> str:
        """Return it as text."""
        if self.unknown == self.topics:
            return "total lag unknown"
        as_of = f" as of {at_time(self.as_of_ms)}" if self.as_of_ms is not None else ""
        if not self.unknown:
            return f"total lag {self.known:,}{as_of}"
        return f"total lag at least {self.known:,}{as_of}, unknown for {counted(self.unknown, 'topic')}"


def ended(time_ms: int, done: VerbResult, headline: str) -> Iterator[Entry]:
    """Yield how a run ended: failures and warnings, then the headline."""
    bad = [row for row in done.results if row.result in (Outcome.FAILED, Outcome.TIMED_OUT)]
    for row in bad[:_MOST_RESULTS]:
        place = "" if row.topic is None else row.topic if row.partition is None else f"{row.topic}-{row.partition}"
        fields = {"topic": row.topic, "partition": row.partition, "result": row.result, "reason": row.reason}
        text = f"{place}: {row.result} {row.message or ''}".removeprefix(": ")
        yield Entry(time_ms, Level.ERROR, done.mirror, text, {**fields, "lag": row.lag})
    if len(bad) > _MOST_RESULTS:
        yield Entry(time_ms, Level.ERROR, done.mirror, f"{counted(len(bad) - _MOST_RESULTS, 'more partition')} failed")
    for warning in done.warnings:
        yield Entry(time_ms, Level.WARNING, done.mirror, warning)
    level = Level.INFO if done.exit_code == 0 else Level.ERROR
    yield Entry(time_ms, level, done.mirror, headline, {"exitCode": int(done.exit_code)})


def _not_copied(view: RunView, mirror: str, not_copied: NotCopied) -> Entry:
    text = f"not copied by this engine: {one_line(not_copied.why)}"
    return Entry(view.time_ms, not_copied.level, mirror, text, {"phase": view.phase, "reason": not_copied.reason})


def _state_of(topic: TopicStatus) -> tuple[str, Reason | None]:
    """Return what is logged of a topic; the state of one that is paused or stopped says why, too."""
    if topic.is_stopping:
        return "STOPPING", None
    return topic.state, None if topic.state in _ASKED_FOR else topic.reason


def _level(state: str, reason: Reason | None) -> Level:
    return _LEVELS.get(state, Level.INFO if reason is None else Level.WARNING)


def _words(state: str, reason: Reason | None) -> str:
    return state if reason is None else f"{state} {reason}"


def _see(view: RunView) -> str:
    return f"; Spark logs to {view.spark_log}" if view.spark_log else ""


def _time(epoch_ms: int) -> str:
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{epoch_ms % 1000:03}Z"
