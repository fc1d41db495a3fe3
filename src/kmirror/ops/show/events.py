"""`events`: who did what to which mirror, when, with what result."""

from __future__ import annotations

import json

from kmirror.columns import TEXT, TIME, Column, Table, Type
from kmirror.ops.context import Destination, now_ms, require_mirror
from kmirror.settings.durations import parse_timestamp
from kmirror.state.events import Event
from kmirror.words import at_time, one_line

EVENTS: Table[Event] = Table(
    (
        Column(
            "timeMs", TIME, "when it happened", lambda event: event.time_ms, "TIME", cell=lambda e: at_time(e.time_ms)
        ),
        Column("mirror", TEXT, "the mirror", lambda event: event.mirror, "MIRROR"),
        Column("what", TEXT, "the command, or the engine's decision", lambda event: event.what, "WHAT"),
        Column("actor", TEXT, "who did it: user@host, or the engine", lambda event: event.actor, "WHO"),
        Column(
            "result",
            TEXT,
            "how it ended, or how far it came, in a word",
            lambda event: event.result,
            "RESULT",
            code=lambda event: event.result,
        ),
        Column(
            "details",
            Type("object", "object"),
            "what else is known; its keys depend on `what`",
            lambda event: dict(event.details),
            "DETAILS",
            cell=lambda event: one_line(json.dumps(event.details, ensure_ascii=False)),
        ),
    ),
    "TIME MIRROR WHO WHAT RESULT DETAILS",
    none="no events",
)


def events(destination: Destination, mirror: str | None = None, since: str | None = None) -> tuple[Event, ...]:
    """Return the events of one mirror, or of all, oldest first; of a mirror that was deleted too.

    Raises:
        UsageError: `since` is no time.
        RefusedError: there is no such mirror, and never was.
        UnreachableError: the destination does not answer.
    """
    since_ms = None if since is None else parse_timestamp(since, now_ms(), "--since")
    found = destination.store.read_events(mirror, since_ms)
    if mirror is not None and not found and not destination.store.read_events(mirror):
        require_mirror(destination.state(), mirror)
    return found
