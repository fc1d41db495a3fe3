"""Jobs of many mirrors share few threads, and those of a slow mirror delay no other's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import pytest

from kmirror.engine.clock import now
from kmirror.engine.driver import side_jobs
from kmirror.engine.driver.job_pool import JobPool
from kmirror.engine.driver.side_jobs import JobEvent, JobView, RepeatedSideJob
from kmirror.errors import KmirrorError
from kmirror.settings.table import Settings
from kmirror.state.engine_findings import JobFailure
from kmirror.state.records import MirrorRecord
from tests.support.waiting import PATIENCE_S, wait_until

#: A job that takes a second is never slow in a test that does not say so.
FAST = 1_000.0


class Job:
    """Counts its runs, and waits in each until it may end; due until it has run so often."""

    name, asleep_until = "tested", 0.0

    def __init__(self, *, blocked: bool = False, most_runs: float = inf, fails: bool = False) -> None:
        self.runs = self.closed = self.at_once = self.most_at_once = 0
        self.may_end = threading.Event()
        if not blocked:
            self.may_end.set()
        self.most_runs, self._fails = most_runs, fails
        self._lock = threading.Lock()

    def is_due(self, at: float) -> bool:
        return self.runs < self.most_runs

    def run(self) -> None:
        with self._lock:
            assert not self.closed
            self.runs += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may_end.wait(PATIENCE_S)
        with self._lock:
            self.at_once -= 1
        if self._fails:
            raise TypeError("unhashable")

    def close(self) -> None:
        assert not self.at_once
        self.closed += 1


class Groups:
    """The groups of one pool."""

    def __init__(self, pool: JobPool) -> None:
        self._pool = pool
        self.broken: list[Exception] = []
        self.ends: list[Callable[[], None]] = []
        self.jobs: list[Job] = []

    def add(self, *jobs: Job, at_once: int = 1) -> None:
        self.jobs += jobs
        self.ends.append(self._pool.add(jobs, self.broken.append, at_once))

    def until(self, condition: Callable[[], object]) -> None:
        """Let the pool work until something holds."""

        def holds() -> object:
            self._pool.tick()
            return condition()

        wait_until(holds)

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return sum(job.at_once for job in self.jobs)


@contextmanager
def pool(most: int, slow_seconds: float = FAST) -> Iterator[Groups]:
    """Give a pool; when all its groups have ended, each job must be closed once."""
    groups = Groups(JobPool(most, slow_seconds))
    yield groups
    for end in groups.ends:
        end()
    for job in groups.jobs:
        job.may_end.set()
    wait_until(lambda: all(job.closed for job in groups.jobs))
    assert {job.closed for job in groups.jobs} <= {1}


def threads() -> int:
    return sum(thread.name == "kmirror-tested" for thread in threading.enumerate())


def test_many_groups_share_few_threads_and_each_gets_its_turns() -> None:
    with pool(4) as groups:
        for _ in range(8):
            groups.add(*(Job(blocked=True) for _ in range(3)), at_once=2)
        groups.until(lambda: groups.running >= 4)
        groups.until(lambda: threads() == groups.running)
        assert groups.running == 4
        for job in groups.jobs:
            job.may_end.set()
        groups.until(lambda: all(job.runs >= 2 for job in groups.jobs))
        assert {job.most_at_once for job in groups.jobs} == {1}


def test_a_group_that_blocks_leaves_threads_to_the_others() -> None:
    with pool(4) as groups:
        groups.add(*(Job(blocked=True) for _ in range(6)), at_once=2)
        groups.until(lambda: groups.running == 2)
        other = Job()
        groups.add(other)
        groups.until(lambda: other.runs >= 5)
        assert sum(job.runs for job in groups.jobs if job is not other) == 2


def test_a_group_with_fewer_running_jobs_comes_first() -> None:
    first, many, other = Job(blocked=True, most_runs=1), [Job(blocked=True) for _ in range(3)], Job(blocked=True)
    with pool(3) as groups:
        groups.add(first)
        groups.until(lambda: first.at_once)
        groups.add(*many, at_once=3)
        groups.until(lambda: groups.running == 3)
        groups.add(other)
        first.may_end.set()
        groups.until(lambda: groups.running == 3 and not first.at_once)
        assert other.at_once == 1


def test_groups_that_were_slow_before_share_half_of_the_threads() -> None:
    with pool(4, slow_seconds=0.0) as groups:
        slow = [Job() for _ in range(6)]
        for job in slow:
            groups.add(job)
        groups.until(lambda: all(job.runs >= 2 for job in slow))
        for job in slow:
            job.may_end.clear()
        fresh = [Job(blocked=True) for _ in range(2)]
        groups.until(lambda: groups.running == 2)
        for job in fresh:
            groups.add(job)
        groups.until(lambda: all(job.at_once for job in fresh))
        assert groups.running == 4


def test_a_job_that_takes_long_makes_its_group_slow_before_it_ends() -> None:
    with pool(4, slow_seconds=0.0) as groups:
        later = [Job(most_runs=0) for _ in range(2)]
        for job in later:
            groups.add(Job(blocked=True), job, at_once=2)
        groups.until(lambda: groups.running == 2)
        for job in later:
            job.most_runs = 1
        other = Job()
        groups.add(other)
        groups.until(lambda: other.runs)
        assert [job.runs for job in later] == [0, 0]


def test_a_job_that_was_slow_counts_as_slow_while_it_runs_again() -> None:
    with pool(4, slow_seconds=0.2) as groups:
        slow = [Job(blocked=True) for _ in range(4)]
        for job in slow:
            groups.add(job)
        groups.until(lambda: groups.running == 4)
        time.sleep(0.3)
        groups.until(lambda: True)
        for job in slow:
            job.most_runs = 1
            job.may_end.set()
        groups.until(lambda: not groups.running)
        for job in slow:
            job.may_end.clear()
            job.most_runs = 2
        groups.until(lambda: groups.running == 2)
        other = Job()
        groups.add(other)
        groups.until(lambda: other.runs >= 5)
        assert sum(job.at_once for job in slow) == 2


def test_a_job_runs_only_when_it_is_due() -> None:
    with pool(2) as groups:
        once, busy = Job(most_runs=1), Job()
        groups.add(once)
        groups.add(busy)
        groups.until(lambda: busy.runs >= 10)
        assert once.runs == 1


def test_a_sleeping_job_is_not_asked_until_it_wakes() -> None:
    with pool(2) as groups:
        asleep, busy = Job(), Job()
        asleep.asleep_until = inf
        groups.add(asleep)
        groups.add(busy)
        groups.until(lambda: busy.runs >= 10)
        assert asleep.runs == 0
        asleep.asleep_until = now()
        groups.until(lambda: asleep.runs)


def test_an_ended_group_runs_no_more_and_is_closed_after_its_current_run() -> None:
    with pool(3) as groups:
        waiting, current, other = Job(), Job(blocked=True), Job()
        groups.add(waiting, current, at_once=2)
        groups.add(other)
        groups.until(lambda: waiting.runs and current.at_once)
        groups.ends.pop(0)()
        # a run for which there was a thread already may still begin
        most, before = waiting.runs + 1, other.runs
        groups.until(lambda: other.runs >= before + 5)
        assert current.closed == 0
        assert waiting.runs <= most
        current.may_end.set()
        groups.until(lambda: waiting.closed and current.closed)
        assert current.runs == 1


def test_what_a_job_raises_is_handed_on_once_and_its_group_is_run_no_more() -> None:
    with pool(2) as groups:
        failing, other = Job(fails=True), Job()
        groups.add(failing)
        groups.add(other)
        groups.until(lambda: groups.broken and other.runs >= 5)
        assert failing.runs == 1
        assert [repr(error) for error in groups.broken] == ["TypeError('unhashable')"]


class Switched:
    """A side job that a setting switches on and off."""

    name = "tested"

    def __init__(self) -> None:
        self.runs: list[bool] = []

    def interval_s(self, settings: Settings) -> float:
        return float(settings.refresh_interval_seconds)

    def has_work(self, settings: Settings) -> bool:
        return settings.sync_group_offsets_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        self.runs.append(view.settings.sync_group_offsets_enabled)
        return ()

    def close(self) -> None:
        """Close nothing."""


def test_a_side_job_with_nothing_to_do_takes_no_thread_but_runs_once_more_when_switched_off() -> None:
    job, view = Switched(), JobView(MirrorRecord("m", {}, {}, None, "eve@ops", 0), Settings(), (), {}, {})
    shown = [view]
    repeated = RepeatedSideJob(job, lambda: shown[0], lambda _: None)

    def has_run(*, enabled: bool) -> bool:
        shown[0] = replace(view, settings=replace(view.settings, sync_group_offsets_enabled=enabled))
        repeated.asleep_until = 0.0
        if is_due := repeated.is_due(now()):
            repeated.run()
        assert not repeated.is_due(now()), "its pause has begun"
        assert repeated.done_at is not None
        return is_due

    switched = [False, False, True, True, False, False, True]
    assert [has_run(enabled=enabled) for enabled in switched] == [False, False, True, True, True, False, True]
    assert job.runs == [True, True, False, True]


class Failing(Switched):
    """A side job that fails as long as it has an error."""

    error: Exception | None = KmirrorError("no\nright")

    def run(self, view: JobView) -> Iterable[JobEvent]:
        if self.error is not None:
            raise self.error
        return ()


def test_a_side_job_has_failed_for_long_when_each_run_of_half_a_minute_did(monkeypatch: pytest.MonkeyPatch) -> None:
    job, at_ms = Failing(), 1_000_000
    view = JobView(MirrorRecord("m", {}, {}, None, "eve@ops", 0), Settings(), (), {}, {})
    repeated = RepeatedSideJob(job, lambda: view, lambda _: None)
    monkeypatch.setattr(side_jobs, "now_ms", lambda: at_ms)

    def after(seconds: int) -> JobFailure | None:
        nonlocal at_ms
        at_ms += seconds * 1000
        repeated.run()
        return repeated.lasting_failure

    assert [after(0), after(29), after(1)] == [None, None, JobFailure(1_000_000, "no right")]
    job.error = None
    assert after(60) is None
    job.error = KeyError("another")  # an answer without it, which no broker should give, does not end the copy
    assert [after(0), after(29), after(31)] == [None, None, JobFailure(1_090_000, "KeyError: 'another'")]
    view = replace(view, settings=replace(view.settings, sync_group_offsets_enabled=False))
    assert after(31) is not None, "it has run once more"
    repeated.asleep_until = 0.0
    assert not repeated.is_due(now())
    assert repeated.lasting_failure is None, "it is switched off"
