"""What an engine says of its mirror: sentences for watchers, and events that are stored on the destination."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.engine.clock import now_ms
from kmirror.state.events import Event


class Journal:
    """Collect one mirror's notes and events, oldest first; for one thread."""

    def __init__(self, mirror: str, actor: str) -> None:
        self._mirror = mirror
        self._actor = actor
        #: Sentences that were not shown yet; the watcher empties it.
        self.notes: list[str] = []
        #: Events that no heartbeat has stored yet.
        self.events: list[Event] = []

    def note(self, sentence: str) -> None:
        """Show a sentence to watchers."""
        self.notes.append(sentence)

    def record(self, what: str, result: str, details: Mapping[str, object]) -> None:
        """Have an event stored with the next heartbeat."""
        self.events.append(Event(now_ms(), self._mirror, what, self._actor, result, dict(details)))
