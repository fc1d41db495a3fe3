"""A rehearsal under way: what was asked for, what is known so far, and its phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import now_ms
from kmirror.ops.base.hook_runs import HookCommand, HookRun
from kmirror.settings.patterns import TopicSelector
from kmirror_rehearse.rehearsal_evidence import Loss, PhaseName, PhaseResult, RecoveryTimes, RehearsalPhase
from kmirror_rehearse.rehearsal_findings import Finding, Kind, Side, bad

Progress = Callable[[str], None]

WINDOW_MS, LIVE_MS, COPY_MS = 3_600_000, 20_000, 1_800_000


@dataclass(frozen=True, slots=True)
class RehearsalRequest:
    """What was asked for; times in milliseconds. Without `destination` a cluster is started for it.

    `window_ms` None copies topics from their beginning; `most_ms` is the RTO that is allowed.
    """

    mirror_config: Mapping[str, str]
    topics: TopicSelector | None = None
    destination: Mapping[str, str] | None = None
    expect_cluster_id: str | None = None
    window_ms: int | None = WINDOW_MS
    live_ms: int = LIVE_MS
    copy_ms: int = COPY_MS
    most_ms: int | None = None
    check: HookCommand | None = None


@dataclass(slots=True)
class Source:
    """The source, and what was read of it."""

    client: ClusterClient
    cluster_id: str
    properties: Mapping[str, str]
    topics: dict[str, int]


class PhaseError(Exception):
    """A phase failed; what is wrong is among the findings."""


@dataclass(slots=True)
class RehearsalRun:
    """A rehearsal under way, and what is known so far."""

    request: RehearsalRequest
    source: Source
    progress: Progress
    began_ms: int = field(default_factory=now_ms)
    findings: list[Finding] = field(default_factory=list)
    phases: list[RehearsalPhase] = field(default_factory=list)
    recovery: RecoveryTimes = field(default_factory=lambda: RecoveryTimes(noticed=None))
    loss: Loss = field(default_factory=lambda: Loss(reported_least=None, reported_most=None, counted=None))
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    lost: dict[TopicPartition, int | None] = field(default_factory=dict)
    reported: dict[TopicPartition, int | None] = field(default_factory=dict)
    written: dict[str, bool] = field(default_factory=dict)
    read: dict[str, bool] = field(default_factory=dict)
    checks: list[HookRun] = field(default_factory=list)
    #: Source topics that are mirrored, with their names at the destination.
    names: dict[str, str] = field(default_factory=dict)
    side: Side = field(default_factory=Side)

    @contextmanager
    def phase(self, name: PhaseName, what: str, *, catches: bool = True) -> Iterator[None]:
        """Record a phase; an error in it becomes a finding, unless nothing `catches` it.

        Raises:
            PhaseError: it failed.
        """
        self.progress(what)
        began_ms, began = now_ms(), time.monotonic()
        result, message = PhaseResult.FAILED, what
        try:
            yield
            result = PhaseResult.DONE
        except (KmirrorError, OutcomeUnknown) as error:
            if not catches:
                raise
            kind = Kind.FAILBACK_FAILED if name is PhaseName.FAILBACK else Kind.PHASE_FAILED
            self.findings.append(bad(kind, name, str(error), error.hint if isinstance(error, KmirrorError) else None))
            message = f"{what}: {error}"
            raise PhaseError from error
        except BaseException:
            message = f"{what}: interrupted"
            raise
        finally:
            seconds = round(time.monotonic() - began, 3)
            done = RehearsalPhase(phase=name, result=result, began_ms=began_ms, seconds=seconds, message=message)
            self.phases.append(done)

    def skip_rest(self) -> None:
        """Record the phases that were not reached."""
        seen = {one.phase for one in self.phases}
        for name in PhaseName:
            if name not in seen and (name is not PhaseName.CHECK or self.request.check is not None):
                self.phases.append(RehearsalPhase(phase=name, result=PhaseResult.SKIPPED))
        order = list(PhaseName)
        self.phases.sort(key=lambda one: order.index(one.phase))
