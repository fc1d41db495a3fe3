"""The evidence of a rehearsal: what was done, how long it took, what was lost, what would lack. Pure.

`REHEARSAL` declares the document that `--json` prints and `--out` stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.columns import (
    COUNT,
    DURATION,
    FLAG,
    TEXT,
    TIME,
    Column,
    Table,
    Type,
    columns_of,
    document,
    list_of,
    object_of,
    one_of,
    showing,
    shown,
    table_row,
)
from kmirror.errors import ExitCode
from kmirror.ops.base.hook_runs import HOOK_RUNS, HookRun
from kmirror.ops.base.results import EXIT_CODE, ErrorInfo
from kmirror.settings.durations import format_duration
from kmirror_rehearse.rehearsal_findings import FINDINGS, Finding, FindingLevel, Kind

VERSION = 1
SECONDS = Type("number", "seconds", minimum=0)


class PhaseName(StrEnum):
    """The phases, in their order."""

    START = "start"
    COPY = "copy"
    LIVE = "live"
    CUT = "cut"
    FAILOVER = "failover"
    WRITE = "write"
    CHECK = "check"
    COMPARE = "compare"
    FAILBACK = "failback"
    REMOVE = "remove"


class PhaseResult(StrEnum):
    """How a phase ended."""

    DONE = "DONE"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


def _shown_seconds(seconds: float) -> str:
    return format_duration(round(1000 * seconds))


@table_row
class RehearsalPhase:
    """One phase."""

    phase: PhaseName = shown(one_of("phase", PhaseName), "what was done", "PHASE")
    result: PhaseResult = shown(one_of("result of a phase", PhaseResult), "how it ended", "RESULT")
    began_ms: int | None = shown(TIME.null_when("it was skipped"), "when it began", default=None)
    seconds: float | None = shown(
        SECONDS.null_when("it was skipped"), "how long it took", "TIME", default=None, cell=_shown_seconds
    )
    message: str = shown(TEXT, "what was done, or why not", "MESSAGE", default="")


@table_row
class RehearsedTopic:
    """One topic, by its name at the source."""

    topic: str = shown(TEXT, "the topic at the source", "TOPIC")
    partitions: int = shown(COUNT, "its partitions", "PARTITIONS")
    offsets: int | None = shown(
        COUNT.null_when("the failover did not come so far"), "offsets copied to the destination", "OFFSETS"
    )
    reported: int | None = shown(
        COUNT.null_when("the failover did not know it"),
        "records lost, as the failover reported",
        "LOST-REPORTED",
        key="lostReported",
    )
    lost: int | None = shown(
        COUNT.null_when("it could not be counted"), "records lost, as counted", "LOST-COUNTED", key="lostCounted"
    )
    written: bool | None = shown(
        FLAG.null_when("it was not tried"), "whether it took a record after the failover", "WRITTEN"
    )
    read: bool | None = shown(FLAG.null_when("it was not tried"), "whether that record was read back", "READ")


@table_row
class FailoverStep:
    """One step of the failover."""

    step: str = shown(TEXT, "the step")
    seconds: float = shown(SECONDS, "how long it took")


@table_row
class RecoveryTimes:
    """The RTO by phase: seconds from the moment when the source was cut off."""

    noticed: float | None = shown(
        SECONDS.null_when("`describe` did not say so in time"),
        "until `describe` said that the source is gone",
        default=None,
    )
    failed_over: float | None = shown(SECONDS.null_when("it failed"), "until `failover` ended", default=None)
    written: float | None = shown(SECONDS.null_when("not all did"), "until all topics had taken a record", default=None)
    checked: float | None = shown(
        SECONDS.null_when("there was no --check, or it failed"), "until --check had ended", default=None
    )
    steps: tuple[FailoverStep, ...] = shown(
        list_of(object_of(columns_of(FailoverStep))), "the steps of the failover", default=()
    )

    @property
    @showing(SECONDS.null_when("clients could not write"), "the RTO", after="checked")
    def seconds(self) -> float | None:
        """The RTO as far as kmirror knows it: until clients could write, and the check had passed."""
        known = [one for one in (self.written, self.checked) if one is not None]
        return max(known) if self.written is not None else None


@table_row
class Loss:
    """What was lost, as the failover reported it and as it was counted."""

    reported_least: int | None = shown(COUNT.null_when("the failover did not know"), "lost offsets reported: at least")
    reported_most: int | None = shown(
        COUNT.null_when("the failover did not know"),
        "lost offsets reported: at most, had the source died when it was cut off",
    )
    counted: int | None = shown(
        COUNT.null_when("it could not be counted"), "lost records counted in the files of the source's stand-in"
    )
    behind: int | None = shown(
        COUNT.null_when("it could not be counted"),
        "records that the source had and its stand-in lacked when it was cut off: a copy of the real source loses them",
        default=None,
    )


@table_row
class ClusterUsed:
    """One of the clusters."""

    cluster_id: str = shown(TEXT, "id of the cluster")
    bootstrap_server: str = shown(TEXT, "its addresses, comma-separated")
    is_sandbox: bool = shown(FLAG, "whether it was started for the rehearsal and is gone", default=False)


PHASES: Table[RehearsalPhase] = Table(columns_of(RehearsalPhase), "PHASE RESULT TIME MESSAGE")
TOPICS: Table[RehearsedTopic] = Table(
    columns_of(RehearsedTopic), "TOPIC PARTITIONS OFFSETS LOST-REPORTED LOST-COUNTED WRITTEN READ"
)


@table_row
class Rehearsal:
    """The evidence; `window_ms` is None if topics were copied from their beginning."""

    version: int = shown(COUNT, "the version of this document", default=VERSION)
    verb: str = shown(TEXT, "rehearse", default="rehearse")
    began_ms: int = shown(TIME, "when it began")
    ended_ms: int = shown(TIME, "when it ended")
    operator: str = shown(TEXT, "who ran it: user@host")
    source: ClusterUsed = shown(object_of(columns_of(ClusterUsed)), "the source, which was only read")
    destination: ClusterUsed = shown(object_of(columns_of(ClusterUsed)), "the destination")
    window_ms: int | None = shown(
        DURATION.null_when("topics were copied from their beginning"), "how old the oldest copied records were at most"
    )
    phases: tuple[RehearsalPhase, ...] = shown(PHASES.type, "what was done, in its order")
    recovery: RecoveryTimes = shown(object_of(columns_of(RecoveryTimes)), "the RTO by phase")
    loss: Loss = shown(object_of(columns_of(Loss)), "what was lost")
    topics: tuple[RehearsedTopic, ...] = shown(TOPICS.type, "the topics")
    findings: tuple[Finding, ...] = shown(FINDINGS.type, "what is wrong, or would lack")
    checks: tuple[HookRun, ...] = shown(list_of(object_of(HOOK_RUNS)), "how --check ended", default=())

    @property
    def bad(self) -> list[Finding]:
        """The findings that make it fail."""
        return [one for one in self.findings if one.level is FindingLevel.BAD]

    @property
    @showing(EXIT_CODE, "the exit code", after="verb")
    def exit_code(self) -> ExitCode:
        """7 if contents differ, 4 if anything else is wrong."""
        if any(one.kind is Kind.CONTENTS_DIFFER for one in self.bad):
            return ExitCode.HISTORIES_DIFFER
        return ExitCode.PARTLY_DONE if self.bad else ExitCode.OK

    @property
    def error(self) -> ErrorInfo | None:
        """Why it failed."""
        if not self.bad:
            return None
        first = self.bad[0]
        message = f"{first.subject}: {first.message}"
        if len(self.bad) > 1:
            message = f"the rehearsal found {len(self.bad)} things that are wrong; the first: {message}"
        return ErrorInfo(self.exit_code, message, first.hint or "see the findings")

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        return document(REHEARSAL, self)


REHEARSAL: tuple[Column[Rehearsal], ...] = columns_of(Rehearsal)


def lost_records(
    places: Iterable[TopicPartition], ends: Mapping[TopicPartition, int], mirrored: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | None]:
    """Return what partitions had when they were cut off and the destination lacks; None if either is not known."""
    return {at: max(0, ends[at] - mirrored[at]) if at in ends and at in mirrored else None for at in places}


def sum_if_known(known: Mapping[TopicPartition, int | None], places: Iterable[TopicPartition]) -> int | None:
    """Return the sum for partitions; None if that of one is not known."""
    found = [known.get(at) for at in places]
    return None if None in found else sum(one for one in found if one is not None)
