"""The events of `__kmirror_events`: who did what to which mirror, when, with what result.

One event for each command and each automatic decision, kept forever. The key is the mirror's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kmirror.state.stored import SCHEMA_VERSION, UNREADABLE, cut, dump, parse, read


@dataclass(frozen=True, slots=True)
class Event:
    """Who did what to a mirror and how it ended; `actor` is user@host, `details` is JSON."""

    time_ms: int
    mirror: str
    what: str
    actor: str
    result: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventPage:
    """The events of one read, and where the next read begins: an offset of the topic with this id.

    `hidden_from` is that offset if an open transaction hides what follows.
    """

    events: tuple[Event, ...]
    next_offset: int | None = None
    topic_id: str | None = None
    hidden_from: int | None = None


def encode_event(event: Event) -> tuple[bytes, bytes]:
    """Return an event's stored key (the mirror) and value."""
    stored = {one.name: getattr(event, one.name) for one in fields(event)}
    return event.mirror.encode(), dump({"v": SCHEMA_VERSION, **stored})


def decode_event(key: bytes, value: bytes, time_ms: int) -> Event:
    """Decode a stored event; an unreadable one becomes an event that says so, with the record's mirror and time."""
    try:
        return read(Event, parse(value))
    except UNREADABLE as error:
        mirror = key.decode(errors="replace")
        return Event(time_ms, mirror, "unreadable", "unknown", "UNREADABLE", {"problem": cut(str(error))})
