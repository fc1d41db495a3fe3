"""What an engine reports of its mirror: notes for watchers, and events that are stored on the destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kmirror.engine.clock import now_ms
from kmirror.state.event_records import Event


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
    """Collect one mirror's notes and events, oldest first; for one thread."""

    def __init__(self, mirror: str, actor: str) -> None:
        self._mirror = mirror
        self._actor = actor
        #: Notes that were not shown yet; the watcher clears them.
        self.notes: list[Note] = []
        #: Events that no heartbeat has stored yet.
        self.events: list[Event] = []
        #: How many events there were since the engine started, by subject and result.
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, sentence: str, level: Level = Level.INFO, *, about_spark: bool = False) -> None:
        """Show a sentence to watchers."""
        self.notes.append(Note(now_ms(), level, self._mirror, sentence, about_spark))

    def record(self, what: str, result: str, details: Mapping[str, object]) -> None:
        """Store an event with the next heartbeat."""
        self.counts[what, result] += 1
        self.events.append(Event(now_ms(), self._mirror, what, self._actor, result, dict(details)))
