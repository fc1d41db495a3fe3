"""What an engine does repeatedly beside copying: groups, settings, rights, discovery.

The jobs are passed in from above, and run in threads that all mirrors of the process share (`job_pool`): each reads
both clusters, changes what must be changed, and returns events. An error is reported once and the job retried; it never
ends the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.engine.status.journal import Level
from kmirror.errors import described_error
from kmirror.settings.table import Settings
from kmirror.state.engine_findings import JobFailure, NotAdded
from kmirror.state.records import MirrorRecord, PartitionRecord, TopicRecord
from kmirror.words import one_line

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
#: A job that fails for longer is shown wherever the mirror is: brokers are restarted and elections held in less.
_LASTING_MS = 30_000


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


@dataclass(frozen=True, slots=True)
class Discovered:
    """What discovery cannot add from now on; None: it adds all that it finds."""

    not_added: NotAdded | None


class SideJob(Protocol):
    """One job of one mirror; its runs follow each other, each in any thread."""

    @property
    def name(self) -> str:
        """Its name in sentences, such as `group offsets`."""

    def interval_s(self, settings: Settings) -> float:
        """Return the seconds from the end of one run to the next."""

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do; once they no longer do, it is run a last time."""

    def run(self, view: JobView) -> Iterable[JobEvent | Discovered]:
        """Run the job once. Raises KmirrorError or OutcomeUnknown when it failed: it is retried soon."""

    def close(self) -> None:
        """Close connections."""


class RepeatedSideJob:
    """A side job as the pool runs it. `view` and `report` are called in the threads of the pool."""

    def __init__(
        self, job: SideJob, view: Callable[[], JobView], report: Callable[[JobEvent | Discovered], None]
    ) -> None:
        self.name = job.name
        self._job, self._view, self._report = job, view, report
        self._failures, self.asleep_until = 0, 0.0
        self._had_work = False
        self._reported: str | None = None
        #: When it last succeeded; None if it never did.
        self.done_at: float | None = None
        self._failure: JobFailure | None = None

    @property
    def lasting_failure(self) -> JobFailure | None:
        """Why each run has failed for long; None if they have not."""
        failure = self._failure
        return failure if failure is not None and now_ms() - failure.since_ms >= _LASTING_MS else None

    def is_due(self, at: float) -> bool:
        """Return whether its pause is over; if there is nothing to do then, the next one begins."""
        if at < self.asleep_until:
            return False
        settings = self._view().settings
        if self._had_work or self._job.has_work(settings):
            return True
        self._failure, self.done_at, self.asleep_until = None, at, at + self._job.interval_s(settings)
        return False

    def run(self) -> None:
        """Run the job once."""
        view = self._view()
        self._had_work = self._job.has_work(view.settings)
        pause = self._job.interval_s(view.settings)
        try:
            for event in self._job.run(view):
                self._report(event)
        except Exception as error:  # also an answer that no broker should give: the copy goes on
            pause = min(pause, _LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
            self._failures += 1
            since_ms = now_ms() if self._failure is None else self._failure.since_ms
            text = described_error(error)
            self._failure = JobFailure(since_ms, one_line(text))
            if self._reported != text:
                self._reported = text
                self._report(JobEvent(f"{self.name} of {view.mirror.name}: {text}", level=Level.WARNING))
        else:
            self._failures, self._reported, self._failure = 0, None, None
            self.done_at = now()
        self.asleep_until = now() + pause

    def close(self) -> None:
        """Close the job's connections."""
        self._job.close()
