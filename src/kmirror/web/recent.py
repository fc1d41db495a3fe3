"""The recent past of mirrors: their points, and the events stored at the destination, of the last two days.

Events are read on demand, by a thread of their own: a destination that hangs delays neither the copy nor an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kmirror import columns
from kmirror.columns import COUNT, DURATION, TIME, Column, Type
from kmirror.engine.clock import now, now_ms
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination
from kmirror.ops.show.events import hidden_notes
from kmirror.state.event_records import Event, EventPage
from kmirror.state.history_records import HOUR_MS, KEPT_HOURS, TimedPoint
from kmirror.words import at_time, one_line

#: A client that asks more often gets the same events again.
_SAME_SECONDS = 5.0
#: How long an answer waits for the destination, and how long a request to it may take.
_PATIENCE_SECONDS, _TIMEOUT_SECONDS = 2.0, 5.0
#: If the destination takes longer than this, the events that were read before count as old.
_OLD_MS = 10_000
_MOST_EVENTS = 5_000
#: For how long points and events are kept.
KEPT_MS = KEPT_HOURS * HOUR_MS

_NONE_KNOWN = "it is unknown for every partition"
_PER_SECOND = Type("number", "per second").null_when("no lane reported")

POINT: tuple[Column[TimedPoint], ...] = (
    Column("timeMs", TIME, "the time of the point", lambda timed: timed[0]),
    Column(
        "lag",
        COUNT.null_when(_NONE_KNOWN),
        "offsets that the destination lacked, of the partitions whose lag was known",
        lambda timed: timed[1].lag,
    ),
    Column("lagUnknown", COUNT, "partitions whose lag was not known", lambda timed: timed[1].lag_unknown),
    Column(
        "timeLagMs",
        DURATION.null_when(_NONE_KNOWN),
        "the longest time lag, of the partitions where it was known",
        lambda timed: timed[1].time_lag_ms,
    ),
    Column("bytesPerSecond", _PER_SECOND, "bytes copied since the last point", lambda timed: timed[1].bytes_per_second),
    Column(
        "recordsPerSecond",
        _PER_SECOND,
        "records copied since the last point",
        lambda timed: timed[1].records_per_second,
    ),
    Column("failed", COUNT, "partitions that were FAILED", lambda timed: timed[1].failed),
    Column("notCopied", COUNT, "partitions that were not copied", lambda timed: timed[1].not_copied),
    Column(
        "phase",
        columns.TEXT.null_when("it was copying"),
        "what kept the engine from copying anything, such as NO_WORKERS",
        lambda timed: timed[1].phase,
    ),
)


@dataclass(frozen=True, slots=True)
class Events:
    """The events of two days, oldest first, None before any were read; `trouble` says why they are not current."""

    found: tuple[Event, ...] | None = None
    trouble: str | None = None


class RecentEvents:
    """Read the events of the last two days, at most 5,000; for any thread. Call `close` at the end."""

    def __init__(self, open_destination: Callable[[], Destination]) -> None:
        self._open = open_destination
        self._lock = threading.Lock()
        self._reading: threading.Thread | None = None
        self._read_at: float | None = None
        self._page = EventPage(())
        self._last = Events(trouble="the events are not known yet")
        self._destination: Destination | None = None
        #: When they were last read; None for never.
        self._known_until_ms: int | None = None
        self._closed = False

    def ask(self) -> threading.Thread | None:
        """Start to read what is new, unless that was done lately; return the thread that reads, if one does."""
        with self._lock:
            is_due = self._read_at is None or now() - self._read_at >= _SAME_SECONDS
            if self._reading is None and is_due and not self._closed:
                self._reading = threading.Thread(target=self._read, name="kmirror-events", daemon=True)
                self._reading.start()
            return self._reading

    def last(self) -> Events:
        """Return them as they were a few seconds ago at most, if the destination answers."""
        reading = self.ask()
        if reading is not None:
            reading.join(_PATIENCE_SECONDS)
        at_ms, last, known_until_ms = now_ms(), self._last, self._known_until_ms
        found = None if last.found is None else tuple(e for e in last.found if e.time_ms >= at_ms - KEPT_MS)
        trouble = last.trouble
        if trouble is None and known_until_ms is not None and at_ms - known_until_ms > _OLD_MS:
            trouble = f"events after {at_time(known_until_ms)} are not known: the destination has not answered yet"
        return Events(found, trouble)

    def close(self) -> None:
        """Close the connection to the destination; a read in progress closes it when it ends."""
        with self._lock:
            self._closed = True
            if self._reading is None:
                self._disconnect()

    def _read(self) -> None:
        at_ms, before = now_ms(), self._page
        try:
            if self._destination is None:
                self._destination = self._open()
            self._page = self._destination.store.read_event_page(before, None, at_ms - KEPT_MS, _TIMEOUT_SECONDS)
            # another topic of that name is read from its beginning
            kept = self._last.found or () if self._page.topic_id == before.topic_id else ()
            trouble = next((self._unknown(note) for note in hidden_notes(self._page)), None)
            self._last = Events((*kept, *self._page.events)[-_MOST_EVENTS:], trouble)
            self._known_until_ms = at_ms if trouble is None else self._known_until_ms
        except (KmirrorError, OutcomeUnknown) as error:
            self._last = Events(self._last.found, self._unknown(one_line(str(error))))
            self._disconnect()
        finally:
            with self._lock:
                self._reading, self._read_at = None, now()
                if self._closed:
                    self._disconnect()

    def _unknown(self, why: str) -> str:
        which = "the events" if self._known_until_ms is None else f"events after {at_time(self._known_until_ms)}"
        return f"{which} are not known: {why}"

    def _disconnect(self) -> None:
        if self._destination is not None:
            self._destination.close()
            self._destination = None
