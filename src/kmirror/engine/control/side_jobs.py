"""What an engine does beside copying, again and again: groups, settings, rights, discovery.

Each job has a thread of its own, and is given from above: it looks at both clusters, changes what is to be changed, and
returns what is to be reported. What it raises is reported once and retried; it never ends the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.control.journal import Level
from kmirror.engine.threads import guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.settings.table import Settings
from kmirror.state.records import MirrorRecord, PartitionRecord, TopicRecord

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class JobView:
    """What the engine knows at the moment: the mirror as it is stored, and its topics, those being copied or not."""

    mirror: MirrorRecord
    settings: Settings
    topics: tuple[TopicRecord, ...]
    partitions: Mapping[TopicPartition, PartitionRecord]
    #: The destination's log ends as the lanes last reported them, of partitions that hold records of the source.
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something to report: a sentence for watchers, and an event to keep; either may be None."""

    note: str | None
    #: What it is about, as the event has it: `groups`, `settings`, `rights`, `discovery`.
    what: str | None = None
    result: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    level: Level = Level.INFO


class SideJob(Protocol):
    """One job of one mirror; called in a thread of its own."""

    @property
    def name(self) -> str:
        """Its name in sentences: `group offsets`."""

    def interval_s(self, settings: Settings) -> float:
        """Return how long after its end it is to be done again, in seconds."""

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Do it once. Raises KmirrorError or OutcomeUnknown when it could not be done: it is tried again soon."""

    def close(self) -> None:
        """Close connections."""


class SideJobs:
    """Run the jobs of one mirror until stopped. `view` and `tell` are called in the jobs' threads."""

    def __init__(self, jobs: Sequence[SideJob], view: Callable[[], JobView], tell: Callable[[JobEvent], None]) -> None:
        self._jobs = tuple(jobs)
        self._view = view
        self._tell = tell
        #: By name, when a job was last done without an error; those that never were are left out.
        self.done_at: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all jobs."""
        return tuple(job.name for job in self._jobs)

    def start(self, stop: threading.Event, broken: Callable[[Exception], None]) -> None:
        """Begin; each job ends soon after `stop` is set. `broken` is given what no job should raise."""
        for job in self._jobs:
            guarded_thread(lambda job=job: self._repeat(job, stop), f"kmirror-{job.name}", broken).start()  # type: ignore[misc]

    def _repeat(self, job: SideJob, stop: threading.Event) -> None:
        failures, said = 0, None
        try:
            while not stop.is_set():
                view = self._view()
                pause = job.interval_s(view.settings)
                try:
                    for told in job.run(view):
                        self._tell(told)
                    failures, said = 0, None
                    self.done_at[job.name] = now()
                except (KmirrorError, OutcomeUnknown) as error:
                    pause = min(pause, _LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
                    failures += 1
                    if said != str(error):
                        said = str(error)
                        self._tell(JobEvent(f"{job.name} of {view.mirror.name}: {error}", level=Level.WARNING))
                stop.wait(pause)
        finally:
            job.close()
