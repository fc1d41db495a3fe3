"""The events of `__kmirror_events`: who did what to which mirror, when, with what result.

One event a command and one per automatic decision, kept for ever. The key is the mirror's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.state.stored import SCHEMA_VERSION, UNREADABLE, dump, parse, read


@dataclass(frozen=True, slots=True)
class Event:
    """Tell who did what to a mirror and how it ended; `actor` is user@host, `details` is JSON."""

    time_ms: int
    mirror: str
    what: str
    actor: str
    result: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Hold what one read brought, and where the next one begins: at an offset of the topic with this id."""

    events: tuple[Event, ...]
    next_offset: int | None = None
    topic_id: str | None = None


def encode_event(event: Event) -> tuple[bytes, bytes]:
    """Return an event's key (the mirror) and value as they are stored."""
    return event.mirror.encode(), dump(
        {
            "v": SCHEMA_VERSION,
            "time_ms": event.time_ms,
            "mirror": event.mirror,
            "what": event.what,
            "actor": event.actor,
            "result": event.result,
            "details": event.details,
        }
    )


def decode_event(key: bytes, value: bytes, time_ms: int) -> Event:
    """Read one stored event; one that cannot be read says so, with the record's mirror and time."""
    try:
        return read(Event, parse(value))
    except UNREADABLE as error:
        mirror = key.decode(errors="replace")
        return Event(time_ms, mirror, "unreadable", "unknown", "UNREADABLE", {"problem": str(error)})
