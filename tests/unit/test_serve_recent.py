"""The events of the last hour: read by a thread, and never older than what is said of them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.engine.clock import now_ms
from kmirror.errors import UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.state.event_records import Event, EventPage
from kmirror.web import recent
from kmirror.web.recent import RecentEvents
from kmirror.words import at_time


class Store:
    """Replace a destination that answers at once, with an error, or when it is let; the answers are given."""

    def __init__(self, *answers: EventPage | Exception) -> None:
        self.answers = list(answers)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.opened = self.closed = 0

    def open(self) -> Destination:
        self.opened += 1
        return cast(Destination, SimpleNamespace(store=self, close=self.close))

    def close(self) -> None:
        self.closed += 1

    def read_event_page(self, after: EventPage, mirror: str | None, since_ms: int, timeout: float) -> EventPage:
        assert self.may_answer.wait(20)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def event(what: str, age_ms: int = 0) -> Event:
    return Event(now_ms() - age_ms, "m", what, "eve@ops", "OK")


def page(*events: Event, topic_id: str = "T") -> EventPage:
    return EventPage(events, 7, topic_id)


def names(found: recent.Events) -> list[str] | None:
    return None if found.found is None else [one.what for one in found.found]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_SAME_SECONDS", 0.0)
    monkeypatch.setattr(recent, "_PATIENCE_SECONDS", 0.05)


def read(events: RecentEvents) -> recent.Events:
    """Return what is known once the thread has read."""
    events.last()
    thread: Any = events._reading
    if thread is not None:
        thread.join(20)
    return events._last


def test_events_are_added_to_those_before_until_two_days_are_over() -> None:
    store = Store(
        page(event("old", recent.KEPT_MS + 60_000), event("add")),
        page(event("pause")),
        page(event("new"), topic_id="U"),
    )
    events = RecentEvents(store.open)
    assert read(events).trouble is None
    read(events)
    assert names(events._last) == ["old", "add", "pause"]
    # a topic that is another one now is read from its beginning
    assert names(read(events)) == ["new"]
    store.answers.append(page(event("old", recent.KEPT_MS + 60_000), event("last"), topic_id="U"))
    reported = read(events)
    assert names(reported) == ["new", "old", "last"]
    store.answers.append(page(topic_id="U"))
    assert names(events.last()) == ["new", "last"]
    events.close()
    assert (store.opened, store.closed) == (1, 1)


def test_a_destination_that_goes_away_leaves_what_was_known_and_says_so() -> None:
    store = Store(page(event("add")), UnreachableError("gone"), page(event("pause")))
    events = RecentEvents(store.open)
    read(events)
    known = read(events)
    assert names(known) == ["add"]
    assert known.trouble is not None
    assert known.trouble.endswith("are not known: gone")
    again = read(events)
    assert (names(again), again.trouble) == (["add", "pause"], None)
    assert (store.opened, store.closed) == (2, 1)


def test_a_destination_that_hangs_holds_up_no_answer_and_makes_old_what_was_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(page(event("add")), page())
    events = RecentEvents(store.open)
    read(events)
    store.may_answer.clear()
    assert events.last().trouble is None
    monkeypatch.setattr(recent, "_OLD_MS", -1)
    late = events.last()
    assert names(late) == ["add"]
    since = at_time(events._known_until_ms or 0)
    assert late.trouble == f"events after {since} are not known: the destination has not answered yet"
    # closing does not wait, and the thread lets go of the destination when it comes back
    reading = events._reading
    assert reading is not None
    events.close()
    assert store.closed == 0
    store.may_answer.set()
    reading.join(20)
    assert store.closed == 1
