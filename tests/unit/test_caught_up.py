"""`run --until-caught-up` reports as done only what it has copied up to the source's ends.

A mirror that another engine took in mid-copy was reported as DONE, with exit code 0 and a sync of its groups: with
`--all`, the run ended in the turn in which it lost the mirror, before anything had asked why that engine ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.driver import Ending, Limits, RunView, drive
from kmirror.engine.driver.engines import Engines
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.errors import ExitCode, Reason, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.run import supervisor
from kmirror.ops.run.outcome import outcome
from kmirror.ops.run.supervisor import EngineSupervisor
from kmirror.state.records import MirrorRecord, PartitionState, ProgressRow
from kmirror.state.snapshot import State
from tests.unit.test_engines import FENCED, FakeEngine, broken, run_to_its_end

REQUEST = RunRequest((), all_mirrors=True, until_caught_up=True)


class CopyingEngine(FakeEngine):
    """An engine that copies partition t-0, whose source ended at 10 when it started."""

    def __init__(self, mirror: str, turn: Callable[[], None] = lambda: None, *, end: int | None = 10) -> None:
        super().__init__(mirror, turn)
        self.caught_up = end == 10
        row = ProgressRow("t", 0, 10, 10, 0, end, None, PartitionState.MIRRORING, begun=True)
        at = TopicPartition("t", 0)
        self.partitions = SimpleNamespace(targets={at: 10}, rows={at: row})
        self.orders = SimpleNamespace(assignments=list)
        self.source = SimpleNamespace(lacking_starts={})


class _DeadStore:
    """A state that cannot be read after the start."""

    def __init__(self) -> None:
        self.store = self

    def read(self) -> State:
        raise UnreachableError("no answer")

    def give_back(self) -> None:
        """Keep nothing."""


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what copies all mirrors with these engines until they have caught up, and returns how that ended."""
    monkeypatch.setattr(supervisor, "SharedStore", SimpleNamespace(take=lambda _: _DeadStore()))

    def run(*fakes: FakeEngine) -> tuple[Any, list[RunView]]:
        by_mirror, views = {fake.mirror: fake for fake in fakes}, list[RunView]()
        state = State.of([MirrorRecord(name, {}, {}, None, "eve@ops", 0) for name in by_mirror])
        monkeypatch.setattr(EngineSupervisor, "_start", lambda _, member, __: by_mirror[member.record.name])
        engines = Engines()
        destination = cast(Destination, SimpleNamespace(config=None))
        with closing(EngineSupervisor(destination, REQUEST, state)) as everyone:
            ending = drive(engines, threading.Event(), Limits(until_caught_up=True), views.append, 0.0, everyone)
            assert ending is Ending.CAUGHT_UP
            return outcome(REQUEST, engines, ending, everyone.not_copied), views

    return run


def test_a_mirror_that_another_engine_took_in_mid_copy_is_refused(run_all: Callable[..., Any]) -> None:
    taken = CopyingEngine("taken", end=4)
    taken._turn = lambda: setattr(taken, "lost", FENCED)
    done, views = run_all(taken, CopyingEngine("good"))
    rows = [(row.topic, row.result, row.reason) for row in done.results]
    assert rows == [(None, Outcome.REFUSED, Reason.FENCED), ("t", Outcome.DONE, None)]
    assert (done.exit_code, views[-1].not_copied["taken"].reason) == (ExitCode.PARTLY_DONE, Reason.FENCED)


def test_a_mirror_whose_engine_broke_is_failed(run_all: Callable[..., Any]) -> None:
    done, _ = run_all(CopyingEngine("bad", broken, end=4), CopyingEngine("good"))
    assert [(row.topic, row.result) for row in done.results] == [(None, Outcome.FAILED), ("t", Outcome.DONE)]
    assert (done.exit_code, "never seen before" in str(done.results[0].message)) == (ExitCode.PARTLY_DONE, True)


@pytest.mark.parametrize(
    ("end", "missing"), [(4, "6 records are missing"), (None, "the number of missing records is unknown")]
)
def test_what_falls_back_while_the_run_ends_is_not_done(end: int | None, missing: str) -> None:
    engine = CopyingEngine("m")
    _, ending, _ = run_to_its_end(engine)
    assert ending is Ending.CAUGHT_UP
    for at, row in engine.partitions.rows.items():
        engine.partitions.rows[at] = row._replace(destination_offset=end)
    request = replace(REQUEST, all_mirrors=False, mirrors=("m",))
    done = outcome(request, cast(Engines, SimpleNamespace(last=[cast(MirrorEngine, engine)])), ending, {})
    assert [row.result for row in done.results] == [Outcome.TIMED_OUT]
    assert done.results[0].message == f"t-0 has not caught up in time: {missing}"
    assert done.exit_code == ExitCode.TIMED_OUT


@pytest.mark.parametrize(
    ("until_caught_up", "end", "result", "code"),
    [
        (True, 4, Outcome.TIMED_OUT, ExitCode.TIMED_OUT),
        (True, 10, Outcome.DONE, ExitCode.OK),
        (False, 4, Outcome.DONE, ExitCode.OK),
    ],
)
def test_a_run_that_is_stopped_before_it_has_caught_up_is_not_done(
    until_caught_up: bool, end: int, result: Outcome, code: ExitCode
) -> None:
    engines = cast(Engines, SimpleNamespace(last=[cast(MirrorEngine, CopyingEngine("m", end=end))]))
    done = outcome(RunRequest(("m",), until_caught_up=until_caught_up), engines, Ending.STOPPED, {})
    assert ([row.result for row in done.results], done.exit_code) == ([result], code)
    if code is not ExitCode.OK:
        assert done.results[0].message == "t-0 has not caught up before the run was stopped: 6 records are missing"
