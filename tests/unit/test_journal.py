"""What an engine keeps of its events while the destination takes none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from kmirror.engine.status import journal as module
from kmirror.engine.status.journal import MirrorJournal

MOST = 5


@pytest.fixture(autouse=True)
def few_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_EVENTS", MOST)


@pytest.fixture
def journal() -> MirrorJournal:
    clock: Iterator[int] = count(1000)
    return MirrorJournal("m", "eve", lambda: next(clock))


def results(journal: MirrorJournal, most: int | None = None) -> list[str]:
    return [event.result for event in journal.unstored(most)]


def record(journal: MirrorJournal, *results: str) -> None:
    for result in results:
        journal.record("partition", result, {})


def test_events_are_stored_in_order_and_in_parts(journal: MirrorJournal) -> None:
    record(journal, "a", "b", "c")
    assert [event.time_ms for event in journal.unstored()] == [1000, 1001, 1002]
    assert results(journal, 2) == ["a", "b"]
    journal.stored(2)
    record(journal, "d")
    assert results(journal) == ["c", "d"]


def test_more_than_can_be_kept_are_counted_and_the_number_of_dropped_ones_is_stored(journal: MirrorJournal) -> None:
    record(journal, *"abcdefgh")
    assert results(journal) == [*"abcde", "DROPPED"]
    assert dict(journal.unstored()[-1].details) == {"events": 3}
    assert journal.counts["partition", "h"] == 1
    journal.stored(2)
    record(journal, "i", "j", "k")
    # there is room for two, after the event about the first three
    assert results(journal) == [*"cde", "DROPPED", "i", "DROPPED"]
    assert [event.details for event in journal.unstored() if event.result == "DROPPED"] == [
        {"events": 3},
        {"events": 2},
    ]
