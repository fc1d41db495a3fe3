"""How old a look at both clusters may be, and when the next one begins.

A mirror without an engine was shown with a look of up to two minutes ago, that of a mirror that an engine reports: with
a scrape every minute each sample was one scrape old, a lag of 0 and an objective that is met.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.errors import Reason, UnreachableError
from kmirror.ops.show.describe import Looked
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot
from kmirror.web import offset_looks
from kmirror.web.offset_looks import WANTED_SECONDS, OffsetLooks
from tests.support.live_engine import NOW_MS, mirror_record, topic_record
from tests.support.waiting import PATIENCE_S

STATE = State.of([one for name in "mn" for one in (mirror_record(name), topic_record(f"t-{name}", mirror=name))])


class Clusters:
    """Clusters that are looked at: the time, what a look costs, and at which mirrors there was one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu_seconds, self.is_down = 1000.0, 0.0, False
        self.looked: list[list[str]] = []
        #: What the sources answer with.
        self.trouble: UnreachableError | None = None
        self.looks = OffsetLooks(lambda: self)  # type: ignore[arg-type,return-value]
        self._used = 0.0
        monkeypatch.setattr(offset_looks, "now", lambda: self.now)
        monkeypatch.setattr("time.process_time", self._process_time)
        monkeypatch.setattr(offset_looks, "Prober", lambda _: self)
        monkeypatch.setattr(offset_looks, "look_at", self._look_at)

    def close(self) -> None:
        """Close nothing."""

    def ask_sources(self, questions: object) -> dict[str, Any]:
        """Name no transactions."""
        return {}

    def ask(self, **mirrors: bool) -> None:
        """Ask for these mirrors, true if no engine reports them, and wait for the look if there is one."""
        looking = self.looks.ask(STATE, mirrors)
        if looking is not None:
            looking.join(PATIENCE_S)

    def known(self, *mirrors: str) -> list[bool]:
        """Return of which of these there is a look."""
        return [self.looks.last(one) is not None for one in mirrors]

    def _process_time(self) -> float:
        self._used += self.cpu_seconds
        return self._used

    def _look_at(self, _: object, state: State, topics: Any, mirrors: object) -> Looked:
        self.looked.append(sorted({one.mirror for one in topics}))
        if self.is_down:
            raise UnreachableError("down", None)
        found = {name: (state.mirror(name), list(state.topics(name))) for name in self.looked[-1]}
        ends = ClusterSnapshot(NOW_MS)
        return Looked(found, ends, dict.fromkeys(found, replace(ends, trouble=self.trouble)))  # type: ignore[arg-type]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(monkeypatch)


@pytest.mark.parametrize("cpu_seconds", [0.0, 0.5, 5.0])
def test_a_look_from_the_last_scrape_a_minute_ago_says_nothing_without_an_engine(
    clusters: Clusters, cpu_seconds: float
) -> None:
    clusters.cpu_seconds = cpu_seconds
    clusters.ask(m=True, n=False)
    assert clusters.known("m", "n") == [True, True]
    clusters.now += 59
    assert clusters.known("m", "n") == [False, True]
    clusters.is_down = True
    clusters.ask(m=True, n=False)
    assert clusters.looked[-1] == ["m"]
    assert clusters.known("m", "n") == [False, True]


def test_a_look_is_judged_by_whether_an_engine_reports_the_mirror_now(clusters: Clusters) -> None:
    clusters.ask(m=False)
    clusters.now += 40
    assert clusters.known("m") == [True]
    clusters.is_down = True
    clusters.ask(m=True)  # its engine has died
    assert clusters.known("m") == [False]


@pytest.mark.parametrize(("cpu_seconds", "pause"), [(0.0, 5), (0.1, 10), (30.0, 15)])
def test_while_someone_may_ask_again_there_is_always_a_look_of_now(
    clusters: Clusters, cpu_seconds: float, pause: int
) -> None:
    clusters.cpu_seconds = cpu_seconds
    clusters.ask(m=True, n=False)
    for second in range(1, int(WANTED_SECONDS) + 1):
        clusters.now += 1
        clusters.ask()  # the turn of the thread that reads the state
        assert clusters.known("m", "n") == [True, True], second
    assert clusters.looked.count(["m"]) + 1 >= WANTED_SECONDS // pause
    assert len(clusters.looked) <= 1 + WANTED_SECONDS // pause
    clusters.now += 100
    seen = len(clusters.looked)
    clusters.ask()
    assert len(clusters.looked) == seen, "no one has asked for long"


def test_mirrors_that_are_gone_are_looked_at_no_more(clusters: Clusters) -> None:
    clusters.ask(m=True, gone=True)
    assert clusters.looked == [["m"]]
    clusters.looks.ask(State.of([mirror_record("n")]))
    assert clusters.known("m") == [False]


def test_looks_at_a_source_that_still_does_not_answer_are_equal(clusters: Clusters) -> None:
    found = []
    for why in ("down", "down", "gone"):
        clusters.trouble = UnreachableError(why, "check it", Reason.SOURCE_UNREACHABLE)
        clusters.ask(m=True, n=True)
        found.append(clusters.looks.last("m"))
        clusters.now += 15
    assert found[0] == found[1] != found[2]
    assert found[1] is not found[0], "each has its own time"
