"""What `verify` returns: a row per partition, one exit code, and the evidence for `--report`. Pure.

`to_json()` returns exactly what `--json` prints. Unknown numbers are None, ends are exclusive as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.columns import (
    COUNT,
    DURATION,
    END,
    FLAG,
    OBJECT,
    OFFSET,
    REASON,
    TEXT,
    Column,
    Table,
    Type,
    columns_of,
    document,
    list_of,
    object_of,
    one_of,
    shown,
    table_row,
)
from kmirror.engine.bulk.runner import Where
from kmirror.engine.compare.difference import Difference, DifferenceKind, RecordSummary
from kmirror.engine.compare.verification import PartitionVerdict
from kmirror.errors import (
    UNMET_REASONS,
    BrokerError,
    ExitCode,
    KmirrorError,
    Reason,
    RefusedError,
    TimedOutError,
    UsageError,
)
from kmirror.ops.base.results import ERROR_OR_NULL, EXIT_CODE, ErrorInfo
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.topic_results import OUTCOME, Outcome
from kmirror.words import counted, one_line

#: Kinds of difference that show what happened; for others either side may have been changed.
_REASONS = {DifferenceKind.MISSING_TAIL: Reason.DESTINATION_TRUNCATED, DifferenceKind.CORRUPT: Reason.CORRUPT_BATCH}
_UNALIGNED = KmirrorError(
    "its log is still being aligned", "verify it once `kmirror describe` shows the topic as ACTIVE"
)
_CLUSTER_REASONS = frozenset({Reason.SOURCE_UNREACHABLE, Reason.DESTINATION_UNREACHABLE, Reason.AUTHENTICATION_FAILED})


class ComparisonResult(StrEnum):
    """How a comparison ended, as tables show it."""

    EQUAL = "equal"
    DIFFERENT = "DIFFERENT"
    NOT_COMPARED = "not-compared"


_UNCOMPARED = "the row is about the whole topic"
_RECORD: tuple[Column[RecordSummary], ...] = (
    Column("offset", OFFSET, "the record's offset", lambda record: record.offset),
    Column("timestamp", Type("integer", "epoch ms"), "the record's timestamp", lambda record: record.timestamp),
    Column(
        "checksum", TEXT, "BLAKE2b of key, value and headers, 128 bits, hexadecimal", lambda record: record.checksum
    ),
)
_RECORD_OR_NULL = object_of(_RECORD).null_when("it has none there")
_DIFFERENCE: tuple[Column[Difference], ...] = (
    Column("offset", OFFSET, "where the two logs first differ", lambda found: found.offset),
    Column("kind", one_of("kind of difference", DifferenceKind), "what is different", lambda found: found.kind),
    Column("message", TEXT, "the same in a sentence", lambda found: found.what),
    Column("source", _RECORD_OR_NULL, "the source's record", lambda found: found.source),
    Column("destination", _RECORD_OR_NULL, "the destination's record", lambda found: found.destination),
)


@table_row
class VerifyRow:
    """The result of one partition (`partition` None: the whole topic): DONE is equal, as far as it was compared.

    FAILED is `different`, or could not be compared. `end` is how far it was compared: the last mirrored offset, or the
    destination's end when the command began. `offsets` counts those compared, `lag` what the source has after the
    destination's end, which is not a difference.
    """

    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    partition: int | None = shown(COUNT.null_when(_UNCOMPARED), "the partition", "PARTITION")
    result: Outcome = shown(
        OUTCOME,
        "DONE: equal as far as compared; FAILED: different, or not compared",
        "RESULT",
        of_row=lambda row: row.verdict,
    )
    reason: Reason | None = shown(REASON.null_when("there is no code for it"), "why, as a code", default=None)
    message: str = shown(
        TEXT,
        "what was found, in a sentence",
        "MESSAGE",
        of_row=lambda row: "; ".join(one_line(text) for text in (row.message, *row.notes)),
    )
    different: bool = shown(FLAG, "whether the two logs differ", default=False)
    first_difference: Difference | None = shown(
        object_of(_DIFFERENCE).null_when("no difference was found"), "the first difference", default=None
    )
    start: int | None = shown(
        OFFSET.null_when(_UNCOMPARED), "the first offset to compare", key="startOffset", default=None
    )
    end: int | None = shown(
        END.null_when(_UNCOMPARED),
        "up to where to compare: the last mirrored offset, or the destination's log end",
        key="endOffset",
        default=None,
    )
    offsets: int = shown(COUNT, "how many offsets were compared", key="offsetsCompared", default=0)
    records: int = shown(COUNT, "how many records were compared", "RECORDS", key="recordsCompared", default=0)
    size_in_bytes: int = shown(COUNT, "their size as the source stores them", key="bytesCompared", default=0)
    lag: int | None = shown(COUNT.null_when("unknown"), "offsets that the destination lacks", default=None)
    last_mirrored_offset: int | None = shown(
        END.null_when("the partition was never stopped"), "the end of what came from the source", default=None
    )
    notes: tuple[str, ...] = shown(list_of(TEXT), "what else was found, in sentences", default=())
    source_topic: str | None = shown(
        TEXT.null_when("the topic was not looked at"), "the topic on the source", default=None
    )
    hint: str | None = None
    #: True if it could not be compared, and never will be until someone changes something.
    is_lasting: bool = False

    @property
    def verdict(self) -> ComparisonResult:
        """The result as tables show it."""
        if self.result is Outcome.DONE:
            return ComparisonResult.EQUAL
        return ComparisonResult.DIFFERENT if self.different else ComparisonResult.NOT_COMPARED


VERIFIED: Table[VerifyRow] = Table(
    columns_of(VerifyRow),
    "TOPIC PARTITION RESULT RECORDS MESSAGE",
)


_WHERE = one_of("where work is done", Where)


@table_row
class VerifyOutcome:
    """The result of `verify`; `how` says where contents were compared; `evidence` is the document of `--report`."""

    verb: str = shown(TEXT, "verify", default="verify")
    mirror: str = shown(TEXT, "the mirror")
    exit_code: ExitCode = shown(EXIT_CODE, "the exit code")
    rows: tuple[VerifyRow, ...] = shown(VERIFIED.type, "what was found, by partition", key="results")
    error: ErrorInfo | None = shown(ERROR_OR_NULL, "why not all is equal")
    where: Where | None = shown(
        _WHERE.null_when("there was nothing to compare"),
        "threads of the command, or Spark",
        key="comparedIn",
        default=None,
    )
    tasks: int = shown(COUNT, "in how many tasks", default=0)
    warnings: tuple[str, ...]
    how: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        return document(VERIFY, self)


VERIFY: tuple[Column[VerifyOutcome], ...] = columns_of(VerifyOutcome)


@table_row
class PlannedRange:
    """A range of offsets that one task compares; its size is an estimate, None if unknown."""

    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    partition: int = shown(COUNT, "the partition", "PARTITION")
    start: int = shown(OFFSET, "the first offset of the range", "START", key="startOffset")
    end: int = shown(END, "the end of the range", "END", key="endOffset")
    size_in_bytes: int | None = shown(COUNT.null_when("brokers do not tell"), "its size, about", "BYTES")
    task: int = shown(COUNT, "the task that compares it", "TASK")
    where: Where = shown(_WHERE, "threads of the command, or Spark", "WHERE", key="comparedIn")


VERIFY_PLAN: Table[PlannedRange] = Table(
    columns_of(PlannedRange),
    "TOPIC PARTITION START END BYTES TASK WHERE",
    "nothing to compare",
)


@dataclass(frozen=True, slots=True)
class VerifyEvidence:
    """How a comparison was done: its steps with their duration in milliseconds, the Spark master, the sample."""

    outcome: VerifyOutcome
    steps: tuple[tuple[str, int], ...]
    master: str
    sample: int | None


_STEP: tuple[Column[tuple[str, int]], ...] = (
    Column("step", TEXT, "the step", lambda step: step[0]),
    Column("durationMs", DURATION, "how long it took", lambda step: step[1]),
)
_OF_OUTCOME = {column.key: column for column in VERIFY}


def _of_outcome(key: str, new_key: str = "") -> Column[VerifyEvidence]:
    return _OF_OUTCOME[key].of_part(lambda work: work.outcome, new_key)


#: The evidence for `--report`, besides who ran the command, when and on which clusters.
VERIFY_EVIDENCE: tuple[Column[VerifyEvidence], ...] = (
    Column("steps", list_of(object_of(_STEP)), "how long each step took", lambda work: work.steps),
    Column("master", TEXT, "the Spark master", lambda work: work.master),
    Column(
        "sample",
        COUNT.null_when("every record was compared"),
        "how many random ranges of each partition were compared",
        lambda work: work.sample,
    ),
    _of_outcome("results", "partitions"),
    Column("groups", list_of(OBJECT), "always empty", lambda _: ()),
    Column("warnings", list_of(TEXT), "warnings for people", lambda work: work.outcome.warnings),
    *map(_of_outcome, ("exitCode", "error", "comparedIn", "tasks")),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One partition to compare, as of the start of the command; `notes` are known before anything is compared."""

    topic: str
    partition: int
    start: int
    end: int
    lag: int | None
    last_mirrored_offset: int | None = None
    #: Set if the source topic was recreated since the mirror was made.
    recreated: str | None = None
    notes: tuple[str, ...] = field(default=())
    #: Where the destination's log starts, if that is below `start`.
    destination_start: int | None = None
    #: True until an engine has aligned the start of the destination's log: until then filler is normal.
    unaligned: bool = False

    @property
    def has_work(self) -> bool:
        """True if there is something to compare."""
        return self.end > self.start or self.destination_start is not None


def row_of(subject: Subject, verdict: PartitionVerdict) -> VerifyRow:
    """Return the row of one partition."""
    difference, trouble = verdict.first_difference, verdict.trouble
    reason: Reason | None = None
    hint, is_lasting = None, False
    if difference is not None and difference.kind is DifferenceKind.FILLER and subject.unaligned:
        difference, trouble = None, _UNALIGNED
    if difference is not None:
        result, message = Outcome.FAILED, f"differs at offset {difference.offset}: {difference.what}"
        reason = _REASONS.get(difference.kind)
        if subject.recreated:
            reason, message = Reason.SOURCE_TOPIC_RECREATED, f"{message}; {subject.recreated}"
    elif trouble is not None:
        is_passing = isinstance(trouble, TimedOutError)
        result = Outcome.TIMED_OUT if is_passing else Outcome.FAILED
        message, reason, hint = f"could not be compared: {trouble}", trouble.reason, trouble.hint
        is_lasting = isinstance(trouble, BrokerError | CorruptBatchError | RefusedError | UsageError)
        is_lasting = is_lasting and not is_transient(trouble)
    else:
        result, message = Outcome.DONE, _sentence(subject, verdict)
    recreated = (subject.recreated,) if subject.recreated and difference is None else ()
    sides = _sides(difference) if difference is not None else ()
    return VerifyRow(
        topic=subject.topic,
        partition=subject.partition,
        result=result,
        message=message,
        reason=reason,
        different=difference is not None,
        first_difference=difference,
        start=subject.start,
        end=subject.end,
        offsets=verdict.offsets,
        records=verdict.records,
        size_in_bytes=verdict.size_in_bytes,
        lag=subject.lag,
        last_mirrored_offset=subject.last_mirrored_offset,
        notes=(*sides, *recreated, *subject.notes, *verdict.notes),
        hint=hint,
        is_lasting=is_lasting,
    )


def _sides(difference: Difference) -> tuple[str, ...]:
    """Return what each side has at the difference, as a text each."""
    return tuple(
        f"{name}: offset {record.offset}, timestamp {record.timestamp}, checksum {record.checksum}"
        if record is not None
        else f"{name}: no record at offset {difference.offset}"
        for name, record in (("source", difference.source), ("destination", difference.destination))
    )


def _sentence(subject: Subject, verdict: PartitionVerdict) -> str:
    lag = f", lag {subject.lag}" if subject.lag else ""
    offsets = subject.end - subject.start
    if offsets <= 0:
        return f"nothing to compare{lag}"
    if verdict.offsets < offsets:
        return f"equal in {verdict.offsets:,} of {counted(offsets, 'offset')} up to {subject.end}{lag}"
    return f"equal up to offset {subject.end}{lag}"


def exit_code_of(rows: Iterable[VerifyRow]) -> ExitCode:
    """Return 7 for any difference; else 4 for anything not compared, 6 if the clusters allowed no comparison, 3 if a
    right was missing for all, or 5 if trying again later may help.
    """
    all_rows = tuple(rows)
    failed = [row for row in all_rows if row.result is not Outcome.DONE]
    if any(row.different for row in failed):
        return ExitCode.HISTORIES_DIFFER
    if not failed:
        return ExitCode.OK
    if len(failed) == len(all_rows) and all(row.reason in _CLUSTER_REASONS for row in failed):
        return ExitCode.UNREACHABLE
    if len(failed) == len(all_rows) and all(row.reason in UNMET_REASONS for row in failed):
        return ExitCode.REFUSED
    if all(row.result is Outcome.TIMED_OUT for row in failed):
        return ExitCode.TIMED_OUT
    return ExitCode.PARTLY_DONE


def error_of(rows: Iterable[VerifyRow], code: ExitCode) -> ErrorInfo | None:
    """Return what is wrong in one sentence, None if nothing is."""
    all_rows = tuple(rows)
    different = [row for row in all_rows if row.different]
    failed = [row for row in all_rows if row.result is not Outcome.DONE and not row.different]
    if not different and not failed:
        return None
    first = (different or failed)[0]
    where = first.topic if first.partition is None else f"{first.topic}-{first.partition}"
    if len(different) + len(failed) == 1:
        message = f"{where} {first.message}"
    else:
        counts = [
            f"{len(of):,} of {counted(len(all_rows), 'partition')} {what}"
            for of, what in ((different, "differ"), (failed, "could not be compared"))
            if of
        ]
        message = f"{', '.join(counts)}; the first, {where}, {first.message}"
    hint = first.hint
    if different:
        hint = "compare the records of both sides at that offset"
    return ErrorInfo(code, message, hint, first.reason)
