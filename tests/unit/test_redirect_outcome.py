"""What a move of clients came to is judged by the log that counts at the end, and by what the clients printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.redirect.clients import KINDS, Event, Kept
from bench.redirect.outcome import Outcome, outcome
from bench.redirect.results import BEGIN, END, PAGE, TITLES, stored, table

#: Ten records a second to one partition from 1 s to 3 s and, after a move that began at 3 s, from 5 s to 9 s.
WRITTEN = [*range(1_000, 3_000, 100), *range(5_000, 9_000, 100)]
ACKNOWLEDGED = [Event(at, "acknowledged", number, 0, number) for number, at in enumerate(WRITTEN)]
READ = [replace(event, at=event.at + 20, what="read") for event in ACKNOWLEDGED]
LOG = [Kept(event.number, 0, event.offset) for event in ACKNOWLEDGED]
EVENTS = [Event(900, "started", side="writer"), Event(900, "started", side="reader"), *ACKNOWLEDGED, *READ]


def judged(events: list[Event], log: list[Kept]) -> Outcome:
    return outcome("franz-go", events, log, 3_000, 9_000)


def test_a_client_that_lost_nothing_was_only_absent() -> None:
    assert judged(EVENTS, LOG) == Outcome("franz-go", 60, 2.1, 2.1, 0, 0, 0, 0, 0, 0, 0)
    assert judged(EVENTS, LOG).is_exact


@pytest.mark.parametrize(
    ("log", "lost", "doubled", "misplaced"),
    [
        (LOG[:-1], 1, 0, 0),
        ([*LOG, Kept(7, 0, 60)], 0, 1, 0),
        ([*LOG[:-1], Kept(59, 0, 60)], 0, 0, 1),
        ([*LOG[:-1], Kept(59, 1, 59)], 0, 0, 1),
    ],
)
def test_the_log_decides(log: list[Kept], lost: int, doubled: int, misplaced: int) -> None:
    found = judged(EVENTS, log)
    assert (found.lost, found.doubled, found.misplaced, found.is_exact) == (lost, doubled, misplaced, False)


def test_a_client_that_does_not_return_is_not_said_to_have_paused() -> None:
    gone = [event for event in EVENTS if event.at < 3_000]
    found = judged(gone, LOG[:20])
    assert (found.seconds_without_write, found.seconds_without_read, found.is_exact) == (None, None, False)
    assert judged([event for event in EVENTS if event.at < 6_000], LOG).seconds_without_write is None


def test_what_was_passed_over_and_what_came_again_is_counted() -> None:
    reads = [event for event in EVENTS if event.what != "read" or event.number != 30]
    again = replace(READ[12], at=5_100)
    found = judged([*reads, again], LOG)
    assert (found.unread, found.read_again) == (1, 1)
    assert judged([event for event in EVENTS if event.what != "read" or event.number < 30], LOG).unread == 0


def test_errors_and_new_clients_count_from_the_move_on() -> None:
    old = Event(2_000, "error", side="writer", text="TimeoutException: old")
    errors = [
        Event(3_500, "error", side="writer", text="TopicAuthorizationException: Not authorized: [a]"),
        Event(3_600, "error", side="writer", text="TopicAuthorizationException: Not authorized: [b]"),
        Event(3_700, "error", side="reader", text="unable to dial"),
        Event(3_800, "started", side="reader"),
    ]
    found = judged([old, *EVENTS, *errors], LOG)
    assert (found.refused, found.restarts) == (2, 1)
    assert found.errors == ("TopicAuthorizationException", "unable to dial")


def test_the_page_says_what_was_measured() -> None:
    """`python -m bench.redirect --page` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    for scenario in TITLES:
        printed = table(stored(), scenario)
        assert BEGIN.format(scenario) + printed + END in page
        # only those go back that had come
        assert scenario not in stored().keys() - {"back"} or all(
            f"| {kind.title} |" in printed for kind in KINDS if kind.is_in(scenario)
        )
