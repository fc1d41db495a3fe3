"""`run --on-event CMD`: pass the events that this process stores on to a command of the operator.

One process at a time, and at most one start in each interval. Events that come meanwhile are passed on together. All of
it happens in a thread of its own: what stores events only adds them to a list of limited length.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf

from kmirror.columns import COUNT, Column, columns_of, document, object_of, one_of, shown, table_row
from kmirror.engine.clock import now, now_ms
from kmirror.engine.status.journal import Level, Note
from kmirror.engine.threads import guarded_thread
from kmirror.ops.base.context import Destination
from kmirror.ops.base.evidence import DESTINATION
from kmirror.ops.base.hook_process import run_hook
from kmirror.ops.base.hook_runs import HookCommand, HookRun, When, how_it_ended, trouble_text
from kmirror.ops.show.events import EVENTS
from kmirror.state.event_records import Event
from kmirror.state.writer import event_listeners

DEFAULT_INTERVAL_MS = 10_000
#: How many events one run is given at most; the first say how it began.
_MOST_EVENTS = 500
#: How long the last events may take at the end of a run.
_LAST_MS = 1_000


@table_row
class EventInput:
    """What the command is given."""

    when: When = shown(one_of("when", When), "always on-event", default=When.EVENT)
    destination: Destination = shown(object_of(DESTINATION), "the destination of the mirrors")
    events: tuple[Event, ...] = shown(EVENTS.type, "the events since the last run of the command, oldest first")
    dropped: int = shown(COUNT, "how many later events are not in the list")


#: The document on its stdin.
EVENT_INPUT: tuple[Column[EventInput], ...] = columns_of(EventInput)


class WaitingEvents:
    """Collect events, and decide when they are passed on; `interval` in seconds. Pure."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._events: list[Event] = []
        self._dropped = 0
        self._started_at = -inf

    def add(self, events: Sequence[Event]) -> None:
        """Add events; of too many only the number is kept."""
        room = _MOST_EVENTS - len(self._events)
        self._events += events[:room]
        self._dropped += max(0, len(events) - room)

    def wait_s(self, at: float) -> float | None:
        """Return how long to wait before the next start; None if there is nothing to pass on."""
        return max(0.0, self._started_at + self._interval - at) if self._events else None

    def take(self, at: float) -> tuple[tuple[Event, ...], int]:
        """Return what to pass on now, and how many events were dropped."""
        found = tuple(self._events), self._dropped
        self._events, self._dropped, self._started_at = [], 0, at
        return found


class EventHook:
    """Pass events on to a command during a `with` block of `running`; `take_notes` is for one other thread."""

    def __init__(
        self,
        command: HookCommand,
        mirrors: str,
        interval_ms: int = DEFAULT_INTERVAL_MS,
        last_ms: int = _LAST_MS,
    ) -> None:
        self._command = command
        #: Named in notes.
        self._mirrors = mirrors
        self._last_s = last_ms / 1000
        self._waiting = WaitingEvents(interval_ms / 1000)
        #: Guards all fields; notified of events and of the end.
        self._changed = threading.Condition()
        self._notes: list[Note] = []
        #: How the last run ended, if not well.
        self._trouble: str | None = None
        #: When everything must have ended; infinite before the end of the run.
        self._end_at = inf

    @contextmanager
    def running(self, destination: Destination) -> Iterator[None]:
        """Pass on what this process stores; at the end what is left, for `last_ms` at most."""
        thread = guarded_thread(lambda: self._work(destination), "kmirror-on-event", self._broken)
        thread.start()
        event_listeners.append(self._take)
        try:
            yield
        finally:
            event_listeners.remove(self._take)
            with self._changed:
                self._end_at = now() + self._last_s
                self._changed.notify_all()
            # killing takes no second; the thread does not keep the process
            thread.join(self._last_s + 1)

    def take_notes(self) -> tuple[Note, ...]:
        """Return the notes that were not taken before."""
        with self._changed:
            found, self._notes = tuple(self._notes), []
        return found

    def _take(self, events: Sequence[Event]) -> None:
        with self._changed:
            self._waiting.add(events)
            self._changed.notify_all()

    def _next(self) -> tuple[tuple[Event, ...], int] | None:
        """Wait until events are due and return them; None when it is time to end."""
        with self._changed:
            while True:
                at = now()
                left = self._waiting.wait_s(at)
                if self._end_at < inf:
                    return None if left is None or at >= self._end_at else self._waiting.take(at)
                if left == 0:
                    return self._waiting.take(at)
                self._changed.wait(left)

    def _work(self, destination: Destination) -> None:
        while (found := self._next()) is not None:
            events, dropped = found
            given = EventInput(destination=destination, events=events, dropped=dropped)
            content = json.dumps(document(EVENT_INPUT, given)).encode()
            self._report(run_hook(self._command, content, lambda: now() >= self._end_at))

    def _report(self, run: HookRun) -> None:
        """Note that the command fails, or that it does not any more."""
        trouble = None if run.is_done else how_it_ended(self._command, run)
        if trouble != self._trouble:
            text = (
                f"the {self._command.flag} command works again" if trouble is None else trouble_text(self._command, run)
            )
            self._note(text, Level.INFO if trouble is None else Level.WARNING)
        self._trouble = trouble

    def _broken(self, error: Exception) -> None:
        self._note(f"the {self._command.flag} command is not run any more: {error}", Level.ERROR)

    def _note(self, text: str, level: Level) -> None:
        with self._changed:
            self._notes.append(Note(now_ms(), level, self._mirrors, text))
