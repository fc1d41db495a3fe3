"""What an engine reports of its mirror: notes for watchers, and events that are stored on the destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kmirror.state.event_records import Event

#: How many events are kept while the destination takes none: later ones are dropped, as the first say how it began.
_MOST_EVENTS = 1000


class Level(StrEnum):
    """The level of a note."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for watchers; if it is `about_spark`, Spark's log may say more."""

    time_ms: int
    level: Level
    mirror: str
    text: str
    about_spark: bool = False


class MirrorJournal:
    """Collect one mirror's notes and events, oldest first; for one thread. `time_ms` returns the wall-clock time."""

    def __init__(self, mirror: str, actor: str, time_ms: Callable[[], int]) -> None:
        self._mirror = mirror
        self._actor = actor
        self.time_ms = time_ms
        #: Notes that were not shown yet; the watcher clears them.
        self.notes: list[Note] = []
        #: Events that no heartbeat has stored yet; after too many, one that says how many were dropped.
        self._events: list[Event] = []
        self._dropped = 0
        #: How many events there were since the engine started, by subject and result.
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, sentence: str, level: Level = Level.INFO, *, about_spark: bool = False) -> None:
        """Show a sentence to watchers."""
        self.notes.append(Note(self.time_ms(), level, self._mirror, sentence, about_spark))

    def record(self, what: str, result: str, details: Mapping[str, object]) -> None:
        """Store an event with one of the next heartbeats; after too many that are not stored it is only counted."""
        self.counts[what, result] += 1
        if len(self._events) < _MOST_EVENTS:
            self._events.append(Event(self.time_ms(), self._mirror, what, self._actor, result, dict(details)))
            return
        self._dropped += 1
        dropped = Event(self.time_ms(), self._mirror, "events", self._actor, "DROPPED", {"events": self._dropped})
        self._events[_MOST_EVENTS:] = [dropped]

    def unstored(self, most: int | None = None) -> tuple[Event, ...]:
        """Return the oldest events that are not stored."""
        return tuple(self._events[:most])

    def stored(self, count: int) -> None:
        """Note that so many of the oldest events are stored."""
        del self._events[:count]
        if len(self._events) < _MOST_EVENTS:
            self._dropped = 0
