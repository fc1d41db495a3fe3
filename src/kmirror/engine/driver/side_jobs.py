"""What an engine does repeatedly beside copying: groups, settings, rights, discovery.

The jobs are passed in from above, and each runs in a thread of its own: it reads both clusters, changes what must be
changed, and returns events. An error is reported once and the job retried; it never ends the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.status.journal import Level
from kmirror.engine.threads import guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.settings.table import Settings
from kmirror.state.records import MirrorRecord, PartitionRecord, TopicRecord

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class JobView:
    """What the engine knows now: the stored mirror, and all its topics, copied or not."""

    mirror: MirrorRecord
    settings: Settings
    topics: tuple[TopicRecord, ...]
    partitions: Mapping[TopicPartition, PartitionRecord]
    #: The destination's log ends as the lanes last reported them, of partitions that hold records of the source.
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A sentence for watchers and an event to store; either may be None."""

    note: str | None
    #: The subject of the event: `groups`, `settings`, `rights`, `discovery`.
    what: str | None = None
    result: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    level: Level = Level.INFO


class SideJob(Protocol):
    """One job of one mirror, in a thread of its own."""

    @property
    def name(self) -> str:
        """Its name in sentences, such as `group offsets`."""

    def interval_s(self, settings: Settings) -> float:
        """Return the seconds from the end of one run to the next."""

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Run the job once. Raises KmirrorError or OutcomeUnknown when it failed: it is retried soon."""

    def close(self) -> None:
        """Close connections."""


class SideJobs:
    """Run the jobs of one mirror until stopped. `view` and `report` are called in the jobs' threads."""

    def __init__(
        self, jobs: Sequence[SideJob], view: Callable[[], JobView], report: Callable[[JobEvent], None]
    ) -> None:
        self._jobs = tuple(jobs)
        self._view = view
        self._report = report
        #: By name, when a job last succeeded; jobs that never did are left out.
        self.done_at: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all jobs."""
        return tuple(job.name for job in self._jobs)

    def start(self, stop: threading.Event, broken: Callable[[Exception], None]) -> None:
        """Start the jobs, which end soon after `stop` is set. `broken` gets unexpected exceptions."""
        for job in self._jobs:
            guarded_thread(lambda job=job: self._repeat(job, stop), f"kmirror-{job.name}", broken).start()  # type: ignore[misc]

    def _repeat(self, job: SideJob, stop: threading.Event) -> None:
        failures, reported = 0, None
        try:
            while not stop.is_set():
                view = self._view()
                pause = job.interval_s(view.settings)
                try:
                    for event in job.run(view):
                        self._report(event)
                    failures, reported = 0, None
                    self.done_at[job.name] = now()
                except (KmirrorError, OutcomeUnknown) as error:
                    pause = min(pause, _LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
                    failures += 1
                    if reported != str(error):
                        reported = str(error)
                        self._report(JobEvent(f"{job.name} of {view.mirror.name}: {error}", level=Level.WARNING))
                stop.wait(pause)
        finally:
            job.close()
