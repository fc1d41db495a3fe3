"""`events`: who did what to which mirror, when, with what result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from kmirror.columns import OBJECT, TEXT, TIME, Column, Table
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, known_mirror
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.show.event_sentences import sentence
from kmirror.state.event_records import Event, EventPage
from kmirror.state.internal_topics import EVENTS_TOPIC, hidden_note
from kmirror.words import at_time, json_text, one_line

#: The pause between two reads, and the time-out of one.
_FOLLOW_S, _FOLLOW_TIMEOUT_S = 1.0, 5.0

EVENTS: Table[Event] = Table(
    (
        Column(
            "timeMs", TIME, "when it happened", lambda event: event.time_ms, "TIME", cell=lambda e: at_time(e.time_ms)
        ),
        Column("mirror", TEXT, "the mirror", lambda event: event.mirror, "MIRROR"),
        Column("what", TEXT, "the command, or the engine's decision", lambda event: event.what, "WHAT"),
        Column("actor", TEXT, "who did it: user@host; for an engine, who runs it", lambda event: event.actor, "WHO"),
        Column(
            "result",
            TEXT,
            "the result, or the step reached, as one word",
            lambda event: event.result,
            "RESULT",
            code=lambda event: event.result,
        ),
        Column(
            "details",
            OBJECT,
            "further facts; the keys depend on `what`",
            lambda event: dict(event.details),
            "DETAILS",
            cell=lambda event: one_line(json_text(event.details)),
        ),
        Column("sentence", TEXT, "the same as a sentence, for people: its words may change", sentence),
    ),
    "TIME MIRROR WHO WHAT RESULT DETAILS",
    none="no events",
)


def events(destination: Destination, mirror: str | None = None, since_ms: int | None = None) -> EventPage:
    """Return the events of one mirror, also of a deleted one, or of all, oldest first; `hidden_notes` says what lacks.

    Raises:
        RefusedError: there is no such mirror, and never was.
        UnreachableError: the destination does not answer.
    """
    return _first_page(destination, mirror, since_ms)


def hidden_notes(page: EventPage) -> tuple[str, ...]:
    """Return a sentence if an open transaction hides what follows these events."""
    return () if page.hidden_from is None else (hidden_note(page.hidden_from, EVENTS_TOPIC),)


def follow_events(
    destination: Destination, mirror: str | None, since_ms: int | None, warn: Callable[[str], None]
) -> Iterator[tuple[Event, ...]]:
    """Yield the existing events, then new ones, forever.

    If the destination stops answering, it is retried; `warn` gets a sentence when that begins and when it ends. It gets
    one when an open transaction begins to hide events.

    Raises:
        RefusedError, UnreachableError: as `events`, at the start.
        KmirrorError: the destination refuses us later.
    """
    page = _first_page(destination, mirror, since_ms)
    is_silent, hidden_from = False, None
    while True:
        if page.events:
            yield page.events
        if page.hidden_from != hidden_from:
            hidden_from = page.hidden_from
            for note in hidden_notes(page):
                warn(note)
        time.sleep(_FOLLOW_S)
        try:
            page = destination.store.read_event_page(page, mirror, since_ms, _FOLLOW_TIMEOUT_S)
        except (KmirrorError, OutcomeUnknown) as error:
            if not is_transient(error) and getattr(error, "reason", None) is not Reason.DESTINATION_UNREACHABLE:
                raise
            if not is_silent:
                warn(f"the destination does not answer, retrying until it does: {one_line(str(error))}")
            is_silent, page = True, replace(page, events=())
        else:
            if is_silent:
                warn("the destination answers again")
            is_silent = False


def _first_page(destination: Destination, mirror: str | None, since_ms: int | None) -> EventPage:
    page = destination.store.read_event_page(EventPage(()), mirror, since_ms)
    if mirror is not None and not page.events and not destination.store.read_events(mirror):
        known_mirror(destination.state(), mirror)
    return page
