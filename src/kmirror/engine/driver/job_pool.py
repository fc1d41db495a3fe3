"""Repeated jobs of many mirrors in a bounded number of threads, so that a slow mirror delays no other.

Jobs come in groups, one for each mirror. Of a group only a few run at once, and groups with fewer running jobs go
first. A group is slow while a job of it takes long, as calls to a cluster that does not answer do, until that job is
fast again. Slow groups share half of the threads: the rest is for the others, however many are slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from kmirror.engine.clock import now
from kmirror.engine.driver.renewals import LeaseRenewals
from kmirror.engine.threads import ReusedThreads, call_in_thread

#: How often to look for jobs beside heartbeats that are due: there are several of each mirror.
_TICK_SECONDS = 0.25


class PooledJob(Protocol):
    """A job that is run again and again, never twice at once, each time in another thread."""

    name: str
    #: Until then it need not be asked whether it is due.
    asleep_until: float

    def is_due(self, at: float) -> bool:
        """Return whether it must run now; not called while it runs."""

    def run(self) -> None:
        """Run once."""

    def close(self) -> None:
        """Close connections, after the last run."""


@dataclass(slots=True, eq=False)
class _Group:
    at_once: int
    broken: Callable[[Exception], None]
    has_ended: bool = False


@dataclass(slots=True, eq=False)
class _Member:
    job: PooledJob
    group: _Group
    #: Its current run, and when its last one began.
    run: Future[None] | None = None
    began: float = 0.0
    #: Its current run takes long, or its last one did.
    is_slow: bool = False


class JobPool:
    """Run at most `most` jobs at the same time; for one thread, which calls `tick` many times a second."""

    def __init__(self, most: int = 16, slow_seconds: float = 3.0) -> None:
        self._most, self._slow_seconds = most, slow_seconds
        self._members: list[_Member] = []
        #: Those that run, also of groups that have ended.
        self._running: list[_Member] = []
        self._some_ended = False
        self._threads = ReusedThreads()

    def add(
        self, jobs: Iterable[PooledJob], broken: Callable[[Exception], None], at_once: int = 1
    ) -> Callable[[], None]:
        """Run a group of jobs, at most `at_once` at the same time; return what ends them, each after its current run.

        `broken` gets an unexpected exception, in the thread that calls `tick`; then none of them is run again.
        """
        group = _Group(at_once, broken)
        members = [_Member(job, group) for job in jobs]
        self._members += members

        def close() -> None:
            wait([run for member in members if (run := member.run) is not None])
            with ExitStack() as stack:
                for member in members:
                    stack.callback(member.job.close)

        def end() -> None:
            group.has_ended = self._some_ended = True
            call_in_thread(close)

        return end

    def tick(self) -> None:
        """Start the jobs that are due, as far as there are threads for them."""
        at = now()
        for member in self._running:
            if (run := member.run) is not None:
                takes_long = at - member.began >= self._slow_seconds
                # until it has ended fast, a job that was slow the last time is slow
                member.is_slow = takes_long or (member.is_slow and not run.done())
                if run.done():
                    member.run = None
                    if isinstance(error := run.exception(), Exception):
                        member.group.has_ended = self._some_ended = True
                        member.group.broken(error)
        self._running = [member for member in self._running if member.run]
        if self._some_ended:
            self._some_ended = False
            self._members = [member for member in self._members if not member.group.has_ended]
        awake = [member for member in self._members if not member.run and at >= member.job.asleep_until]
        due = [member for member in awake if member.job.is_due(at)]
        if not due:
            return
        running = Counter(member.group for member in self._running)
        slow = {member.group for member in self._members if member.is_slow}
        while (chosen := self._next(due, running, slow)) is not None:
            due.remove(chosen)
            running[chosen.group] += 1
            chosen.began = at
            self._running.append(chosen)
            chosen.run = self._threads.call(chosen.job.run, f"kmirror-{chosen.job.name}")

    def close(self) -> None:
        """End the threads that run nothing; after all groups have ended."""
        self._threads.close()

    def _next(self, due: Iterable[_Member], running: Counter[_Group], slow: Collection[_Group]) -> _Member | None:
        """Return which of these jobs to run now; None if there is no thread for any."""
        room = self._most - running.total()
        room_for_slow = min(room, self._most // 2 - sum(running[group] for group in slow))
        allowed = [
            member
            for member in due
            if running[member.group] < member.group.at_once and (room_for_slow if member.group in slow else room) > 0
        ]
        return min(allowed, key=lambda member: (running[member.group], member.began), default=None)


class Pools:
    """The pools of a process: what one of them waits for holds up neither of the others."""

    def __init__(self) -> None:
        # more threads, and patience: on a busy machine all take long, and those without an answer three seconds
        self.heartbeats = JobPool(32, slow_seconds=2.5)
        self.renewals = LeaseRenewals()
        # a source that does not answer delays side jobs much longer than its monitor
        self.side_jobs, self.monitors = JobPool(), JobPool()
        self._ticked_at = 0.0

    def tick(self) -> None:
        """Start what is due; often, since heartbeats wait for it."""
        self.renewals.tick()
        self.heartbeats.tick()
        if (at := now()) - self._ticked_at >= _TICK_SECONDS:
            self._ticked_at = at
            self.side_jobs.tick()
            self.monitors.tick()

    def close(self) -> None:
        """End all threads that run nothing."""
        for pool in (self.renewals, self.heartbeats, self.side_jobs, self.monitors):
            pool.close()
