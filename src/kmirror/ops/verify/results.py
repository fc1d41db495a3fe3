"""What `verify` hands back: a row per partition, one exit code, and the evidence for `--report`. Pure.

`to_json()` gives exactly what `--json` prints. Unknown numbers are None, offsets are exclusive as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.engine.compare.difference import Difference, Kind, RecordSummary
from kmirror.engine.compare.verification import Verdict
from kmirror.errors import ExitCode, KmirrorError, Reason
from kmirror.ops.results import ErrorInfo, Outcome

#: Where a difference tells what happened; elsewhere either side may have been changed.
_REASONS = {Kind.MISSING_TAIL: Reason.DESTINATION_TRUNCATED, Kind.CORRUPT: Reason.CORRUPT_BATCH}
_UNALIGNED = KmirrorError(
    "its log is still being aligned", "verify it once `kmirror describe` shows the topic as ACTIVE"
)
_CLUSTER_REASONS = frozenset({Reason.SOURCE_UNREACHABLE, Reason.DESTINATION_UNREACHABLE, Reason.AUTHENTICATION_FAILED})


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """Say how one partition (`partition` None: the whole topic) compares: DONE is equal, as far as it was looked at.

    FAILED is `different`, or could not be compared. `end` is how far it was compared: the last mirrored offset, or the
    destination's end when the command began. `offsets` counts those looked at, `lag` what the source has beyond the
    destination's end, which is no difference.
    """

    topic: str
    partition: int | None
    result: Outcome
    message: str
    reason: Reason | None = None
    different: bool = False
    first_difference: Difference | None = None
    start: int | None = None
    end: int | None = None
    offsets: int = 0
    records: int = 0
    size_in_bytes: int = 0
    lag: int | None = None
    last_mirrored_offset: int | None = None
    notes: tuple[str, ...] = ()
    hint: str | None = None

    @property
    def verdict(self) -> str:
        """The result in a word for people."""
        if self.result is Outcome.DONE:
            return "equal"
        return "DIFFERENT" if self.different else "not-compared"

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "result": self.result.value,
            "reason": self.reason.value if self.reason else None,
            "message": self.message,
            "different": self.different,
            "firstDifference": _difference_json(self.first_difference),
            "startOffset": self.start,
            "endOffset": self.end,
            "offsetsCompared": self.offsets,
            "recordsCompared": self.records,
            "bytesCompared": self.size_in_bytes,
            "lag": self.lag,
            "lastMirroredOffset": self.last_mirrored_offset,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """Hold what `verify` found; `evidence` is the document of `--report`."""

    mirror: str
    exit_code: ExitCode
    rows: tuple[VerifyRow, ...]
    error: ErrorInfo | None
    warnings: tuple[str, ...]
    evidence: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        return {
            "verb": "verify",
            "mirror": self.mirror,
            "exitCode": int(self.exit_code),
            "results": [row.to_json() for row in self.rows],
            "error": self.error.to_json() if self.error else None,
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """One partition as it stood when the command began; `notes` are what is known before anything is compared."""

    topic: str
    partition: int
    start: int
    end: int
    lag: int | None
    last_mirrored_offset: int | None = None
    #: Set when the source topic is not the one the mirror was made from.
    recreated: str | None = None
    notes: tuple[str, ...] = field(default=())
    #: Where the destination's log starts, if that is below `start`.
    destination_start: int | None = None
    #: True until an engine has brought the destination's log to its start: filler is in order then.
    unaligned: bool = False

    @property
    def has_work(self) -> bool:
        """True when there is something to look at."""
        return self.end > self.start or self.destination_start is not None


def row_of(subject: Subject, verdict: Verdict) -> VerifyRow:
    """Return the row for what was found of one partition."""
    difference, trouble = verdict.first_difference, verdict.trouble
    reason: Reason | None = None
    hint = None
    if difference is not None and difference.kind is Kind.FILLER and subject.unaligned:
        difference, trouble = None, _UNALIGNED
    if difference is not None:
        result, message = Outcome.FAILED, f"differs at offset {difference.offset}: {difference.what}"
        reason = _REASONS.get(difference.kind)
        if subject.recreated:
            reason, message = Reason.SOURCE_TOPIC_RECREATED, f"{message}; {subject.recreated}"
    elif trouble is not None:
        result, message = Outcome.FAILED, f"could not be compared: {trouble}"
        reason, hint = trouble.reason, trouble.hint
    elif verdict.obstacle is not None:
        result, message = Outcome.FAILED, f"could not be compared: {verdict.obstacle}"
    else:
        result, message = Outcome.DONE, _sentence(subject, verdict)
    recreated = (subject.recreated,) if subject.recreated and difference is None else ()
    sides = _sides(difference) if difference is not None else ()
    return VerifyRow(
        subject.topic,
        subject.partition,
        result,
        message,
        reason,
        difference is not None,
        difference,
        subject.start,
        subject.end,
        verdict.offsets,
        verdict.records,
        verdict.size_in_bytes,
        subject.lag,
        subject.last_mirrored_offset,
        (*sides, *recreated, *subject.notes, *verdict.notes),
        hint,
    )


def _sides(difference: Difference) -> tuple[str, ...]:
    """Return what each side has where they differ, a sentence each."""
    return tuple(
        f"{name}: offset {record.offset}, timestamp {record.timestamp}, checksum {record.checksum}"
        if record is not None
        else f"{name}: no record at offset {difference.offset}"
        for name, record in (("source", difference.source), ("destination", difference.destination))
    )


def _sentence(subject: Subject, verdict: Verdict) -> str:
    lag = f", lag {subject.lag}" if subject.lag else ""
    offsets = subject.end - subject.start
    if offsets <= 0:
        return f"nothing to compare{lag}"
    if verdict.offsets < offsets:
        return f"equal in {verdict.offsets} of {offsets} offsets up to {subject.end}{lag}"
    return f"equal up to offset {subject.end}{lag}"


def exit_code_of(rows: Iterable[VerifyRow]) -> ExitCode:
    """Return 7 with any difference; else 4 with anything not compared, 6 when a cluster let us compare nothing."""
    all_rows = tuple(rows)
    failed = [row for row in all_rows if row.result is not Outcome.DONE]
    if any(row.different for row in failed):
        return ExitCode.HISTORIES_DIFFER
    if not failed:
        return ExitCode.OK
    if len(failed) == len(all_rows) and all(row.reason in _CLUSTER_REASONS for row in failed):
        return ExitCode.UNREACHABLE
    return ExitCode.PARTLY_DONE


def error_of(rows: Iterable[VerifyRow], code: ExitCode) -> ErrorInfo | None:
    """Sum up what went wrong in a sentence, None when nothing did."""
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
            f"{len(of)} of {len(all_rows)} partitions {what}"
            for of, what in ((different, "differ"), (failed, "could not be compared"))
            if of
        ]
        message = f"{', '.join(counts)}; the first, {where}, {first.message}"
    hint = first.hint
    if different:
        hint = "compare the records of both sides at that offset"
    return ErrorInfo(code, message, hint, first.reason)


def _difference_json(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    return {
        "offset": difference.offset,
        "kind": difference.kind.value,
        "message": difference.what,
        "source": _record_json(difference.source),
        "destination": _record_json(difference.destination),
    }


def _record_json(record: RecordSummary | None) -> dict[str, Any] | None:
    return None if record is None else record._asdict()
