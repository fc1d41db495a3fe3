"""Engines of one run: what becomes of one is nothing to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from kmirror.engine.driver.driver import COPYING, Ending, Limits, RunView, drive, view_of
from kmirror.engine.driver.engines import Engines, NotCopied
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.run.outcome import outcome
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus
from tests.support.statuses import topic_of
from tests.support.waiting import PATIENCE_S, wait_until

FENCED = RefusedError("process 7 on h took over", None, Reason.FENCED)


class FakeEngine:
    """Do in a turn what the test says."""

    caught_up = is_busy = True

    def __init__(
        self, mirror: str, turn: Callable[[], None] = lambda: None, closes: Callable[[], object] = lambda: None
    ) -> None:
        self.mirror = mirror
        self.journal = MirrorJournal(mirror, "eve", lambda: 0)
        self.lost: KmirrorError | None = None
        self.calls: list[str] = []
        self._turn, self._closes = turn, closes
        self.finished = False
        self.balancer = self
        self.sharing = 0

    def has_news(self, _: float) -> bool:
        return self.is_busy

    def share_machine(self, mirrors: int) -> None:
        self.sharing = mirrors

    def topics(self) -> tuple[TopicStatus, ...]:
        return (topic_of("t", mirror=self.mirror, state=TopicState.PAUSED),)

    def start(self, *_: object) -> None:
        self.calls.append("start")

    def tick(self) -> None:
        self.calls.append("tick")
        self._turn()

    def stop(self) -> None:
        self.calls.append("stop")
        self.finished = True

    def leave(self) -> None:
        self.calls.append("leave")

    def close(self) -> None:
        self._closes()
        self.calls.append("close")
        self.journal.note("closed")


def engines_of(*fakes: FakeEngine) -> Engines:
    return Engines(cast(MirrorEngine, fake) for fake in fakes)


def until_closed(engines: Engines, fake: FakeEngine) -> None:
    """Give turns until an engine is closed, which is done in a thread."""

    def is_closed() -> bool:
        engines.tick()
        return fake not in cast(Sequence[object], engines.running)

    wait_until(is_closed)
    assert fake.calls[-2:] == ["leave", "close"]


def broken() -> None:
    raise ValueError("never seen before")


def test_one_that_is_fenced_ends_and_the_other_copies_on() -> None:
    lost, good = FakeEngine("lost"), FakeEngine("good")
    engines = engines_of(lost, good)
    engines.tick()
    lost.lost = FENCED
    until_closed(engines, lost)
    engines.tick()
    assert lost.calls == ["start", "tick", "tick", "stop", "leave", "close"]
    assert good.calls[:4] == ["start", "tick", "tick", "tick"]
    assert [engine.mirror for engine in engines.running] == ["good"]
    assert engines.not_copied == {"lost": NotCopied("process 7 on h took over", Level.ERROR, Reason.FENCED)}
    view = view_of(engines, COPYING, 1.0)
    assert (view.mirrors, view.not_copied, view.phase) == (("good", "lost"), engines.not_copied, COPYING)
    assert [note.text for note in view.notes] == ["closed"]
    assert [(one.mirror, one.topic, one.is_wanted) for one in view.topics] == [("good", "t", False)]
    assert view_of(engines, COPYING, 2.0).notes == ()


def test_one_that_breaks_ends_alone() -> None:
    bad, good = FakeEngine("bad", broken), FakeEngine("good")
    engines = engines_of(bad, good)
    until_closed(engines, bad)
    engines.tick()
    assert bad.calls == ["start", "tick", "leave", "close"]
    assert good.calls[:3] == ["start", "tick", "tick"]
    assert engines.not_copied["bad"].why == "never seen before"


def test_the_turns_of_others_do_not_wait_for_one_that_is_closed() -> None:
    may_end = threading.Event()
    slow = [FakeEngine(f"slow {number}", closes=lambda: may_end.wait(PATIENCE_S)) for number in range(20)]
    good = FakeEngine("good")
    engines = engines_of(*slow, good)
    for one in slow:
        engines.end(cast(MirrorEngine, one))
    engines.tick()
    ticks = len(good.calls)
    engines.tick()
    assert len(good.calls) == ticks + 1
    assert sum(thread.name == "kmirror-close" for thread in threading.enumerate()) == 16
    may_end.set()
    for one in slow:
        until_closed(engines, one)


def test_an_engine_without_news_has_its_turns_less_often_the_more_there_are() -> None:
    idle, busy = [FakeEngine(f"idle {number}") for number in range(40)], FakeEngine("busy")
    for one in idle:
        one.is_busy = False
    engines = engines_of(*idle, busy)
    for _ in range(3):
        engines.tick()
    assert ({len(one.calls) for one in idle}, len(busy.calls)) == ({2}, 4)

    def all_had_another() -> bool:
        engines.tick()
        return all(len(one.calls) > 2 for one in idle)

    wait_until(all_had_another)


def test_engines_know_how_many_share_the_machine_and_of_those_to_come() -> None:
    first, second = FakeEngine("first"), FakeEngine("second")
    engines = engines_of(first)
    engines.tick()
    assert first.sharing == 1
    engines.expected = lambda: 9
    engines.tick()
    engines.add(cast(MirrorEngine, second))
    assert [first.sharing, second.sharing] == [9, 9]
    engines.expected = lambda: 0
    engines.tick()
    assert [first.sharing, second.sharing] == [2, 2]


def test_of_one_that_is_let_go_nothing_is_said() -> None:
    gone, good = FakeEngine("gone"), FakeEngine("good")
    engines = engines_of(gone, good)
    engines.drop("gone")
    until_closed(engines, gone)
    assert gone.calls == ["start", "stop", "tick", "leave", "close"]
    assert [engine.mirror for engine in engines.last] == ["good"]
    assert (engines.not_copied, view_of(engines, COPYING, 1.0).mirrors) == ({}, ("good",))


def test_of_one_that_was_lost_before_it_is_let_go_nothing_is_said_either() -> None:
    gone = FakeEngine("gone", broken)
    engines = engines_of(gone, FakeEngine("good"))
    until_closed(engines, gone)
    engines.drop("gone")
    assert (engines.not_copied, view_of(engines, COPYING, 1.0).mirrors) == ({}, ("good",))


def test_a_mirror_whose_engines_keep_breaking_leaves_one_error_and_no_more() -> None:
    engines = engines_of()
    for _ in range(3):
        engines.add(cast(MirrorEngine, bad := FakeEngine("bad", broken)))
        until_closed(engines, bad)
    assert (len(engines.last), len(engines._broken)) == (1, 1)
    engines.add(cast(MirrorEngine, bad := FakeEngine("bad", broken)))
    engines.drop("bad")
    until_closed(engines, bad)
    assert (engines.running, engines.last, engines._dropped) == ((), (), set())


def run_to_its_end(*fakes: FakeEngine) -> tuple[Engines, Ending, list[RunView]]:
    engines, views = engines_of(*fakes), list[RunView]()
    ending = drive(engines, threading.Event(), Limits(until_caught_up=True), views.append, 0.0)
    return engines, ending, views


def test_a_run_whose_only_mirror_is_lost_fails_with_the_cause() -> None:
    lost = FakeEngine("m")
    lost.lost = FENCED
    engines, ending, views = run_to_its_end(lost)
    assert (ending, views[-1].not_copied["m"].reason) == (Ending.LOST, Reason.FENCED)
    with pytest.raises(RefusedError, match="took over"):
        outcome(RunRequest(("m",)), engines, ending, engines.not_copied)
    engines, ending, _ = run_to_its_end(FakeEngine("m", broken))
    with pytest.raises(ValueError, match="never seen before"):
        outcome(RunRequest(("m",)), engines, ending, engines.not_copied)


@pytest.mark.parametrize(
    ("not_copied", "ending", "result", "code"),
    [
        (NotCopied("fenced", Level.ERROR, Reason.FENCED), Ending.STOPPED, Outcome.REFUSED, ExitCode.REFUSED),
        (NotCopied("another one copies it", Level.INFO, Reason.FENCED), Ending.STOPPED, Outcome.NOOP, ExitCode.OK),
        (
            NotCopied("no answer", reason=Reason.SOURCE_UNREACHABLE),
            Ending.TIMED_OUT,
            Outcome.TIMED_OUT,
            ExitCode.TIMED_OUT,
        ),
        (
            NotCopied("no answer", reason=Reason.SOURCE_UNREACHABLE),
            Ending.STOPPED,
            Outcome.FAILED,
            ExitCode.UNREACHABLE,
        ),
        (NotCopied("no idea"), Ending.STOPPED, Outcome.FAILED, ExitCode.PARTLY_DONE),
    ],
)
def test_how_a_run_ends_for_a_mirror_without_an_engine(
    not_copied: NotCopied, ending: Ending, result: Outcome, code: ExitCode
) -> None:
    done = outcome(RunRequest(("m",)), Engines(), ending, {"m": not_copied})
    assert [(row.topic, row.result, row.reason) for row in done.results] == [(None, result, not_copied.reason)]
    assert (done.exit_code, done.mirror) == (code, "m")
    assert (done.results[0].message or "").startswith("mirror m: ")
