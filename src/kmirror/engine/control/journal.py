"""What an engine says of its mirror: sentences for watchers, and events that are stored on the destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kmirror.engine.clock import now_ms
from kmirror.state.events import Event


class Level(StrEnum):
    """Name how much attention a note needs."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for watchers; with `about_spark`, Spark's own log may say more."""

    time_ms: int
    level: Level
    mirror: str
    text: str
    about_spark: bool = False


class Journal:
    """Collect one mirror's notes and events, oldest first; for one thread."""

    def __init__(self, mirror: str, actor: str) -> None:
        self._mirror = mirror
        self._actor = actor
        #: What was not shown yet; the watcher empties it.
        self.notes: list[Note] = []
        #: Events that no heartbeat has stored yet.
        self.events: list[Event] = []
        #: How many events there were since the engine began, by what they are about and their result.
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, sentence: str, level: Level = Level.INFO, *, about_spark: bool = False) -> None:
        """Show a sentence to watchers."""
        self.notes.append(Note(now_ms(), level, self._mirror, sentence, about_spark))

    def record(self, what: str, result: str, details: Mapping[str, object]) -> None:
        """Have an event stored with the next heartbeat."""
        self.counts[what, result] += 1
        self.events.append(Event(now_ms(), self._mirror, what, self._actor, result, dict(details)))
