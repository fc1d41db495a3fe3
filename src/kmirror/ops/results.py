"""What a verb hands back: one frozen document per command.

`to_json()` gives exactly what `--json` prints; nothing here prints. Unknown numbers are None, times are epoch
milliseconds, offsets are exclusive as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Any

from kmirror.columns import Column, Table
from kmirror.errors import HISTORY_REASONS, ExitCode, KmirrorError, Reason
from kmirror.state.group_records import GroupReason
from kmirror.state.records import AtStop
from kmirror.words import one_line

#: What is older than this says from when it is, and what the source's rate makes of the time since.
STALE_MS = 10_000


class Outcome(StrEnum):
    """Name how one item of a verb ended."""

    DONE = "DONE"
    NOOP = "NOOP"
    REFUSED = "REFUSED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"


#: Reasons that mean a cluster refuses us or does not answer: exit code 6 when nothing else happened.
_UNREACHABLE_REASONS = frozenset(
    {
        Reason.SOURCE_UNREACHABLE,
        Reason.DESTINATION_UNREACHABLE,
        Reason.AUTHENTICATION_FAILED,
        Reason.NOT_AUTHORIZED,
        Reason.SECRET_UNRESOLVED,
    }
)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Say how a verb ended for one topic (`partition` None), one partition, or the mirror itself (`topic` None)."""

    topic: str | None
    partition: int | None
    result: Outcome
    message: str | None = None
    reason: Reason | None = None
    _: KW_ONLY
    last_mirrored_offset: int | None = None
    lag: int | None = None
    #: What to do next, for people; shown in the summary's error, not a key of its own.
    hint: str | None = None
    #: What was known when the partition was stopped, for verbs that stop; `lag` is then what is known to be lost.
    at_stop: AtStop | None = None

    @property
    def estimated_more(self) -> int | None:
        """Return what the source's last known rate makes of the time since it was seen; None where that is short."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or known.records_per_second is None:
            return None
        age_ms = known.time_ms - known.source_as_of_ms
        return round(known.records_per_second * age_ms / 1000) if age_ms > STALE_MS else None

    @property
    def rpo_ms(self) -> int | None:
        """Return the time between the last mirrored record and the source's last one; None where it is not known."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or self.lag is None:
            return None
        if self.lag == 0:
            return 0 if known.time_ms - known.source_as_of_ms <= STALE_MS else None
        if known.source_max_timestamp_ms is None or known.last_timestamp_ms is None:
            return None
        return max(0, known.source_max_timestamp_ms - known.last_timestamp_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        row = RESULTS.document(self)
        known = self.at_stop
        if known is not None:
            row |= {
                "stopTimeMs": known.time_ms,
                "logEnd": known.log_end,
                "sourceOffset": known.source_offset,
                "sourceHighWatermark": known.source_high_watermark,
                "asOf": known.source_as_of_ms,
                "estimatedMoreRecords": self.estimated_more,
                "recordsPerSecond": known.records_per_second,
                "rpoMs": self.rpo_ms,
                "failureReason": known.failure.value if known.failure else None,
                "failureMessage": known.failure_message,
                "foreignRecords": known.foreign_records,
                "foreignProducerId": known.foreign_producer_id,
            }
        return row


_RESULT: tuple[Column[TopicResult], ...] = (
    Column("topic", lambda row: row.topic, "TOPIC"),
    Column("partition", lambda row: row.partition, "PARTITION", is_number=True),
    Column("result", lambda row: row.result, "RESULT"),
    Column("reason", lambda row: row.reason),
    Column(
        "message",
        lambda row: row.message,
        "MESSAGE",
        cell=lambda row: f"{row.reason}: {one_line(row.message)}" if row.reason else one_line(row.message),
    ),
    Column("lastMirroredOffset", lambda row: row.last_mirrored_offset),
    Column("lag", lambda row: row.lag),
)
RESULTS = Table(_RESULT, "TOPIC RESULT MESSAGE")
PARTITION_RESULTS = Table(_RESULT, "TOPIC PARTITION RESULT MESSAGE")


@dataclass(frozen=True, slots=True)
class StopTotals:
    """Sum up what a stop of partitions lost; unknown numbers are None, times are epoch milliseconds.

    `known_lost_records` is a lower bound as of `as_of_ms`, the oldest moment at which one of the sources' ends was
    seen; None where none ever was. `rpo_ms` is the longest time between a last mirrored record and its source's last
    one; where it is not known of all partitions, `rpo_at_least_ms` is what the others say.
    """

    partitions: int
    failed_partitions: int
    known_lost_records: int | None
    partitions_unknown: int
    estimated_more_records: int
    foreign_records: int
    rpo_ms: int | None
    rpo_at_least_ms: int | None
    last_mirrored_timestamp_ms: int | None
    as_of_ms: int | None
    stopped_ms: int | None
    source_trouble: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the totals as `--json` prints them."""
        return {
            "partitions": self.partitions,
            "failedPartitions": self.failed_partitions,
            "knownLostRecords": self.known_lost_records,
            "partitionsUnknown": self.partitions_unknown,
            "estimatedMoreRecords": self.estimated_more_records,
            "foreignRecords": self.foreign_records,
            "rpoMs": self.rpo_ms,
            "rpoAtLeastMs": self.rpo_at_least_ms,
            "lastMirroredTimestampMs": self.last_mirrored_timestamp_ms,
            "asOf": self.as_of_ms,
            "sourceAnswers": self.source_trouble is None,
        }


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Say how a verb ended for one consumer group on one partition; both offsets are committed ones."""

    group: str
    topic: str
    partition: int
    from_offset: int | None
    to_offset: int | None
    result: Outcome
    reason: Reason | GroupReason | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return {
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "from": self.from_offset,
            "to": self.to_offset,
            "result": self.result.value,
            "reason": self.reason.value if self.reason else None,
        }


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Say why a command as a whole did not do all that was asked; `code` is the exit code."""

    code: ExitCode
    message: str
    hint: str | None = None
    reason: Reason | None = None

    @classmethod
    def of(cls, error: KmirrorError) -> ErrorInfo:
        """Return what an error says."""
        return cls(error.exit_code, error.message, error.hint, error.reason)

    def to_json(self) -> dict[str, Any]:
        """Return the error as `--json` prints it."""
        return {
            "code": int(self.code),
            "message": self.message,
            "hint": self.hint,
            "reason": self.reason.value if self.reason else None,
        }


@dataclass(frozen=True, slots=True)
class VerbResult:
    """Say what a verb did, or with `dry_run` would do; make it with `of` or `failed`."""

    verb: str
    mirror: str
    dry_run: bool
    exit_code: ExitCode
    results: tuple[TopicResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    error: ErrorInfo | None = None
    #: Sentences for people that change nothing about the outcome; `--json` leaves them to stderr.
    warnings: tuple[str, ...] = ()
    #: What was lost in all, for verbs that stop topics; people are then shown only the rows that need a look.
    totals: StopTotals | None = None

    @classmethod
    def of(
        cls,
        verb: str,
        mirror: str,
        results: Iterable[TopicResult],
        *,
        dry_run: bool = False,
        groups: Iterable[GroupResult] = (),
        warnings: Iterable[str] = (),
        totals: StopTotals | None = None,
    ) -> VerbResult:
        """Return the document for these rows, exit code and error summed up from them."""
        rows = tuple(results)
        code = exit_code_of(rows)
        return cls(verb, mirror, dry_run, code, rows, tuple(groups), _summary(rows, code), tuple(warnings), totals)

    @classmethod
    def failed(cls, verb: str, mirror: str, error: KmirrorError, *, dry_run: bool = False) -> VerbResult:
        """Return the document of a verb that ended with an error before it came to any topic."""
        return cls(verb, mirror, dry_run, error.exit_code, error=ErrorInfo.of(error))

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        totals = {} if self.totals is None else {"totals": self.totals.to_json()}
        return {
            "verb": self.verb,
            "mirror": self.mirror,
            "dryRun": self.dry_run,
            "exitCode": int(self.exit_code),
            **totals,
            "results": [row.to_json() for row in self.results],
            "groups": [row.to_json() for row in self.groups],
            "error": self.error.to_json() if self.error else None,
        }


def exit_code_of(rows: Iterable[TopicResult]) -> ExitCode:
    """Return the one exit code for rows of which several may have gone wrong: 7 over 4 over 5.

    3 and 6 say that nothing was changed, so they need every row to be refused; 6 that a cluster refused each of them.
    """
    all_rows = tuple(rows)
    bad = [row for row in all_rows if row.result not in (Outcome.DONE, Outcome.NOOP)]
    if not bad:
        return ExitCode.OK
    if any(row.result is Outcome.FAILED and row.reason in HISTORY_REASONS for row in bad):
        return ExitCode.HISTORIES_DIFFER
    if all(row.result is Outcome.TIMED_OUT for row in bad):
        return ExitCode.TIMED_OUT
    if len(bad) < len(all_rows):
        return ExitCode.PARTLY_DONE
    if all(row.reason in _UNREACHABLE_REASONS for row in bad):
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED if all(row.result is Outcome.REFUSED for row in bad) else ExitCode.PARTLY_DONE


def _summary(rows: tuple[TopicResult, ...], code: ExitCode) -> ErrorInfo | None:
    bad = [row for row in rows if row.result not in (Outcome.DONE, Outcome.NOOP)]
    if not bad:
        return None
    first = bad[0]
    if len(bad) == 1:
        return ErrorInfo(code, first.message or first.result.value, first.hint, first.reason)
    hints = {row.hint for row in bad}
    reasons = {row.reason for row in bad}
    return ErrorInfo(
        code,
        f"{len(bad)} of {len(rows)} failed; the first: {first.message or first.result.value}",
        first.hint if len(hints) == 1 else "see the message of each row",
        first.reason if len(reasons) == 1 else None,
    )
