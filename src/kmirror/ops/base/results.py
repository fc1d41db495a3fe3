"""What a verb returns: one frozen document per command.

`to_json()` returns exactly what `--json` prints; nothing here prints. Unknown numbers are None, times are epoch
milliseconds, offsets are exclusive as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from math import ceil
from typing import Any

from kmirror.columns import (
    COUNT,
    DURATION,
    END,
    FLAG,
    REASON,
    TEXT,
    TIME,
    Column,
    Only,
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
from kmirror.errors import HISTORY_REASONS, ExitCode, KmirrorError, Reason
from kmirror.ops.base.blocked_producers import BLOCKED, BlockedTopic
from kmirror.ops.base.client_gaps import CLIENTS, ClientGaps, gap_sentences
from kmirror.ops.base.converted_keys import KEYS, KeyRow
from kmirror.state.group_records import GroupReason
from kmirror.state.records import AtStop
from kmirror.words import one_line

#: The greatest age of a source's end that counts as current where it is not recorded who reported it.
STALE_MS = 10_000


def is_current(known: AtStop) -> bool:
    """Return whether the source's end is from the stop: a source that did not answer may have received more since."""
    if known.source_as_of_ms is None:
        return False
    if known.source_answered is not None:
        return known.source_answered
    return known.time_ms - known.source_as_of_ms <= STALE_MS


class Outcome(StrEnum):
    """The result of a verb for one topic, partition or group."""

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
    }
)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result of a verb for one topic (`partition` None), one partition, or the mirror itself (`topic` None)."""

    topic: str | None
    partition: int | None
    result: Outcome
    message: str | None = None
    reason: Reason | None = None
    _: KW_ONLY
    last_mirrored_offset: int | None = None
    lag: int | None = None
    #: What to do next, for people; shown in the summary's error, not as a key.
    hint: str | None = None
    #: What was known when the partition was stopped, for verbs that stop; `lag` is then the known loss.
    at_stop: AtStop | None = None
    #: The consumer group of the row, and how many offsets it has not read; None: unknown.
    group: str | None = None
    offsets_left: int | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the partition was promoted with all that its source had: nothing of it is lost."""
        return self.reason is Reason.PROMOTED and self.lag == 0

    @property
    def estimated_more(self) -> int | None:
        """Return an estimate, by the last known rate, of records since the source was read; None: it is current."""
        known = self.at_stop
        return None if known is None or self.is_complete else _rounded(_more_until(known.time_ms, known))

    @property
    def estimated_more_at_loss(self) -> int | None:
        """Return the estimate if the source died when a connection to it broke; None: none broke, or it is current."""
        known = self.at_stop
        lost_ms = None if known is None or self.is_complete else known.source_lost_ms
        return None if known is None or lost_ms is None else _rounded(_more_until(lost_ms, known))

    @property
    def rpo_ms(self) -> int | None:
        """Return the time between the last mirrored record and the source's last one; None: unknown."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or self.lag is None:
            return None
        if self.lag == 0:
            return 0 if self.is_complete or is_current(known) else None
        if known.source_max_timestamp_ms is None or known.last_timestamp_ms is None:
            return None
        return max(0, known.source_max_timestamp_ms - known.last_timestamp_ms)

    @property
    def rpo_at_loss_ms(self) -> int | None:
        """Return an upper bound of `rpo_ms` if the source died when a connection to it broke; None: unknown."""
        known = self.at_stop
        if known is None or known.source_as_of_ms is None or known.source_lost_ms is None or is_current(known):
            return self.rpo_ms
        since_ms = known.source_as_of_ms if self.lag == 0 else known.last_timestamp_ms
        return None if since_ms is None or self.lag is None else max(0, known.source_lost_ms - since_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return document(_RESULT, self)


def _more_until(time_ms: int, known: AtStop) -> float | None:
    if known.source_as_of_ms is None or known.records_per_second is None or is_current(known):
        return None
    return max(0.0, known.records_per_second * (time_ms - known.source_as_of_ms) / 1000)


def _rounded(records: float | None) -> int | None:
    return None if records is None else round(records)


def estimated_in_all(stops: Iterable[TopicResult], *, at_loss: bool = False) -> int:
    """Return the sum of `estimated_more`, or with `at_loss` of what it would be had the source died when it was lost.

    What is too little to count in one partition counts in many. Where no connection broke, both are the same.
    """
    known = [row.at_stop for row in stops if row.at_stop is not None and not row.is_complete]
    until = [one.source_lost_ms if at_loss and one.source_lost_ms is not None else one.time_ms for one in known]
    return ceil(sum(_more_until(time_ms, one) or 0.0 for time_ms, one in zip(until, known, strict=True)))


OUTCOME = one_of("result", Outcome)
_AT_STOP: Only[TopicResult] = Only("a partition that was stopped", lambda row: row.at_stop)
_OF_GROUP: Only[TopicResult] = Only("what a group lacks, in `wait --for drained`", lambda row: row.group)
_UNSEEN = "the source was never read"


def _stop_column(key: str, kind: Type, meaning: str, value: Callable[[AtStop], object]) -> Column[TopicResult]:
    """Return a column of what was known when a partition was stopped."""
    return Column(key, kind, meaning, lambda row: row.at_stop and value(row.at_stop), only=_AT_STOP)


_RESULT: tuple[Column[TopicResult], ...] = (
    Column(
        "topic",
        TEXT.null_when("the row is about the mirror itself"),
        "the topic on the destination",
        lambda row: row.topic,
        "TOPIC",
    ),
    Column(
        "partition",
        COUNT.null_when("the row is about the whole topic"),
        "the partition",
        lambda row: row.partition,
        "PARTITION",
        is_number=True,
    ),
    Column("result", OUTCOME, "how it ended", lambda row: row.result, "RESULT"),
    Column("reason", REASON.null_when("there is no code for it"), "why, as a code", lambda row: row.reason),
    Column(
        "message",
        TEXT.null_when("there is nothing to report"),
        "what was done, or what is wrong, as a sentence",
        lambda row: row.message,
        "MESSAGE",
        cell=lambda row: f"{row.reason}: {one_line(row.message)}" if row.reason else one_line(row.message),
    ),
    Column(
        "lastMirroredOffset",
        END.null_when("unknown, or the verb does not stop partitions"),
        "the end of what came from the source",
        lambda row: row.last_mirrored_offset,
    ),
    Column(
        "lag",
        COUNT.null_when("unknown, or the verb does not read it"),
        "offsets that the destination is behind; for a stopped partition the records known to be lost",
        lambda row: row.lag,
    ),
    Column("group", TEXT, "the group that has not read everything", lambda row: row.group, only=_OF_GROUP),
    Column(
        "offsetsLeft",
        COUNT.null_when("unknown"),
        "offsets of the source that the group has not read",
        lambda row: row.offsets_left,
        only=_OF_GROUP,
    ),
    _stop_column("stopTimeMs", TIME, "when it was stopped", lambda stop: stop.time_ms),
    _stop_column("logEnd", END, "the destination's log end then", lambda stop: stop.log_end),
    _stop_column(
        "sourceOffset",
        END.null_when(_UNSEEN),
        "the source's last stable offset, the newest one known",
        lambda stop: stop.source_offset,
    ),
    _stop_column(
        "sourceHighWatermark",
        END.null_when(_UNSEEN),
        "the source's high watermark, the newest one known",
        lambda stop: stop.source_high_watermark,
    ),
    _stop_column(
        "asOf", TIME.null_when(_UNSEEN), "when the source's offsets were read", lambda stop: stop.source_as_of_ms
    ),
    Column(
        "estimatedMoreRecords",
        COUNT.null_when("the source answered the stop, or the rate is unknown"),
        "estimate of records that the source has received since asOf",
        lambda row: row.estimated_more,
        only=_AT_STOP,
    ),
    _stop_column(
        "sourceLostAt",
        TIME.null_when("none broke"),
        "when a connection to the source broke, the first time after asOf",
        lambda stop: stop.source_lost_ms,
    ),
    Column(
        "estimatedMoreAtLossRecords",
        COUNT.null_when("no connection broke, the source answered the stop, or the rate is unknown"),
        "the estimate if the source died at sourceLostAt",
        lambda row: row.estimated_more_at_loss,
        only=_AT_STOP,
    ),
    _stop_column(
        "recordsPerSecond",
        Type("number", "records per second").null_when("never measured"),
        "how fast the source's log grew when that was last measured",
        lambda stop: stop.records_per_second,
    ),
    Column(
        "rpoMs",
        DURATION.null_when("unknown"),
        "time between the last mirrored record and the source's last one",
        lambda row: row.rpo_ms,
        only=_AT_STOP,
    ),
    Column(
        "rpoAtLossMs",
        DURATION.null_when("unknown"),
        "the most that rpoMs can be if the source died at sourceLostAt",
        lambda row: row.rpo_at_loss_ms,
        only=_AT_STOP,
    ),
    _stop_column(
        "failureReason",
        REASON.null_when("it had not FAILED"),
        "why it had FAILED before the stop",
        lambda stop: stop.failure,
    ),
    _stop_column(
        "failureMessage",
        TEXT.null_when("it had not FAILED, or there is no message"),
        "the same as a sentence",
        lambda stop: stop.failure_message,
    ),
    _stop_column(
        "foreignRecords",
        COUNT,
        "records after lastMirroredOffset that are not the source's",
        lambda stop: stop.foreign_records,
    ),
    _stop_column(
        "foreignProducerId",
        Type("integer", "producer id").null_when("there are none, or it is unknown"),
        "who wrote them; -1 is a producer without an id",
        lambda stop: stop.foreign_producer_id,
    ),
)
RESULTS = Table(_RESULT, "TOPIC RESULT MESSAGE")
PARTITION_RESULTS = Table(_RESULT, "TOPIC PARTITION RESULT MESSAGE")
#: What people are shown of a dry run, which has done nothing and waited for nothing.
_PLANNED = {Outcome.DONE: "OK", Outcome.TIMED_OUT: "WAITS"}


def planned(table: Table[TopicResult]) -> Table[TopicResult]:
    """Return the table of results for a dry run."""
    columns = tuple(
        replace(one, cell=lambda row: _PLANNED.get(row.result, row.result)) if one.header == "RESULT" else one
        for one in table.columns
    )
    return replace(table, columns=columns)


@table_row
class StopTotals:
    """The total loss of a stop; unknown numbers are None, times are epoch milliseconds.

    `known_lost_records` is a lower bound as of `as_of_ms`, when the oldest of the source ends was seen, `age_ms` before
    its partition was stopped; None if none ever was. Partitions that were promoted with all that their sources had
    count in `partitions` and `complete_partitions` only. `rpo_ms` is the longest time between a last mirrored record
    and its source's last one; if it is unknown for some partitions, `rpo_at_least_ms` is the longest of the others.
    Had the sources died when connections to them broke, the last time at `source_lost_ms`,
    `estimated_more_at_loss_records` more were lost, and the RPO at most `rpo_at_loss_ms`.
    """

    partitions: int = shown(COUNT, "all partitions")
    complete_partitions: int = shown(
        COUNT, "those that were promoted with all that their sources had; the other keys are about the rest"
    )
    failed_partitions: int = shown(COUNT, "partitions that had FAILED")
    known_lost_records: int | None = shown(
        COUNT.null_when("no source end was ever read"), "records that the sources had and the copies lack"
    )
    partitions_unknown: int = shown(COUNT, "partitions whose loss is unknown")
    estimated_more_records: int = shown(
        COUNT, "estimate of records that sources have received since their ends were read"
    )
    estimated_more_at_loss_records: int = shown(
        COUNT, "the same estimate if the sources died when connections to them broke"
    )
    foreign_records: int = shown(COUNT, "records that are not the sources'")
    rpo_ms: int | None = shown(DURATION.null_when("unknown of a partition"), "the longest rpoMs")
    rpo_at_least_ms: int | None = shown(
        DURATION.null_when("unknown of every partition"), "the longest rpoMs among those that are known"
    )
    rpo_at_loss_ms: int | None = shown(
        DURATION.null_when("unknown of a partition, or no connection broke"),
        "the most that rpoMs can be if the sources died at sourceLostAt",
    )
    source_lost_ms: int | None = shown(
        TIME.null_when("none broke, or a source answered"),
        "when the last connection to a source broke",
        key="sourceLostAt",
    )
    last_mirrored_timestamp_ms: int | None = shown(
        TIME.null_when("unknown, or nothing follows the last mirrored records"),
        "the timestamp of the last mirrored record: the earliest of those partitions that were receiving records",
    )
    as_of_ms: int | None = shown(
        TIME.null_when("no source end was ever read"), "when the oldest of the source ends was read", key="asOf"
    )
    age_ms: int | None
    source_trouble: str | None

    @property
    @showing(FLAG, "whether the source answers now")
    def source_answers(self) -> bool:
        """Whether the source answers now."""
        return self.source_trouble is None

    def to_json(self) -> dict[str, Any]:
        """Return the totals as `--json` prints them."""
        return document(TOTALS, self)


TOTALS: tuple[Column[StopTotals], ...] = columns_of(StopTotals)


@table_row(kw_only=False)
class GroupResult:
    """The result of a verb for one consumer group on one partition; both offsets are committed ones."""

    group: str = shown(TEXT, "the group on the destination")
    topic: str = shown(TEXT, "the topic on the destination")
    partition: int = shown(COUNT, "the partition")
    from_offset: int | None = shown(END.null_when("there was none"), "the offset committed before", key="from")
    to_offset: int | None = shown(END.null_when("there is none"), "the offset committed now", key="to")
    result: Outcome = shown(OUTCOME, "how it ended")
    reason: Reason | GroupReason | None = shown(
        one_of("reason or group reason", Reason, GroupReason).null_when("there is no code for it"),
        "why, as a code",
        default=None,
    )
    message: str | None = shown(
        TEXT.null_when("there is nothing to say"),
        "the same as a sentence, with the limit that brokers refused it for",
        default=None,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return document(GROUP_RESULTS, self)


GROUP_REASON = one_of("group reason", GroupReason)
GROUP_RESULTS: tuple[Column[GroupResult], ...] = columns_of(GroupResult)


EXIT_CODE = one_of("exit code", ExitCode)


@table_row(kw_only=False)
class ErrorInfo:
    """Why a command did not do all that was asked; `code` is the exit code."""

    code: ExitCode = shown(EXIT_CODE, "the exit code")
    message: str = shown(TEXT, "what is wrong, as a sentence")
    hint: str | None = shown(TEXT.null_when("there is none"), "what to do about it", default=None)
    reason: Reason | None = shown(REASON.null_when("there is no code for it"), "why, as a code", default=None)

    @classmethod
    def of(cls, error: KmirrorError) -> ErrorInfo:
        """Return the info of an error."""
        return cls(error.exit_code, error.message, error.hint, error.reason)

    def to_json(self) -> dict[str, Any]:
        """Return the error as `--json` prints it."""
        return document(ERROR, self)


ERROR: tuple[Column[ErrorInfo], ...] = columns_of(ErrorInfo)
ERROR_OR_NULL = object_of(ERROR).null_when("there is no error")


@dataclass(frozen=True, slots=True)
class VerbResult:
    """What a verb did, or with `dry_run` would do; make it with `of` or `failed`."""

    verb: str
    mirror: str
    dry_run: bool
    exit_code: ExitCode
    results: tuple[TopicResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    error: ErrorInfo | None = None
    #: Sentences for people that do not affect the outcome; with `--json` they go to stderr.
    warnings: tuple[str, ...] = ()
    #: The total loss, for verbs that stop topics; people are then shown only rows that need attention.
    totals: StopTotals | None = None
    #: What clients of the source lack at the destination, for verbs that stop topics.
    clients: ClientGaps | None = None
    #: What became of the keys of another tool's file.
    keys: tuple[KeyRow, ...] = ()
    #: What became of producers that were denied WRITE at the source.
    blocked: tuple[BlockedTopic, ...] = ()
    #: What was done, or would be, in words and in this order; None for verbs without steps.
    steps: tuple[str, ...] | None = None

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
        clients: ClientGaps | None = None,
        steps: tuple[str, ...] | None = None,
    ) -> VerbResult:
        """Return the document for these rows, with exit code and error derived from them."""
        rows, notes = tuple(results), [*warnings, *(gap_sentences(clients) if clients is not None else ())]
        code = exit_code_of(rows)
        error = _summary(rows, code)
        return cls(verb, mirror, dry_run, code, rows, tuple(groups), error, tuple(notes), totals, clients, steps=steps)

    @classmethod
    def failed(cls, verb: str, mirror: str, error: KmirrorError, *, dry_run: bool = False) -> VerbResult:
        """Return the document of a verb that failed before it came to any topic."""
        return cls(verb, mirror, dry_run, error.exit_code, error=ErrorInfo.of(error))

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        return document(RESULT, self)


#: The document of every verb that changes something, and of `wait` and `run`.
RESULT: tuple[Column[VerbResult], ...] = (
    Column("verb", TEXT, "the command", lambda done: done.verb),
    Column(
        "mirror",
        TEXT.null_when("the command failed before it knew it, or is about no mirror"),
        "the mirror",
        lambda done: done.mirror or None,
    ),
    Column("dryRun", FLAG, "whether nothing was changed, because of --dry-run", lambda done: done.dry_run),
    Column("exitCode", EXIT_CODE, "the exit code", lambda done: int(done.exit_code)),
    Column(
        "totals",
        object_of(TOTALS),
        "the total loss",
        lambda done: done.totals and done.totals.to_json(),
        only=Only("verbs that stop partitions at once: failover, remove", lambda done: done.totals),
    ),
    Column(
        "results",
        RESULTS.type,
        "how it ended, by topic or partition",
        lambda done: [row.to_json() for row in done.results],
    ),
    Column(
        "groups",
        list_of(object_of(GROUP_RESULTS)),
        "how it ended for committed offsets",
        lambda done: [row.to_json() for row in done.groups],
    ),
    Column(
        "clients",
        object_of(CLIENTS),
        "what clients of the source will lack here after they move",
        lambda done: done.clients and done.clients.to_json(),
        only=Only("verbs that stop topics: failover, remove, promote", lambda done: done.clients),
    ),
    Column(
        "keys",
        KEYS.type,
        "what became of each key of the file",
        lambda done: [KEYS.document(row) for row in done.keys],
        only=Only("`create --from-mm2` and `create --from-link`", lambda done: done.keys),
    ),
    Column(
        "blockedProducers",
        BLOCKED.type,
        "what became of producers that were denied WRITE at the source",
        lambda done: [BLOCKED.document(row) for row in done.blocked],
        only=Only("promote and switchover that have denied it", lambda done: done.blocked),
    ),
    Column(
        "steps",
        list_of(TEXT),
        "what was done, or with --dry-run would be, in this order",
        lambda done: list(done.steps or ()),
        only=Only("promote, failover, remove, failback and switchover", lambda done: done.steps is not None),
    ),
    Column("error", ERROR_OR_NULL, "why not everything was done", lambda done: done.error and done.error.to_json()),
)


def exit_code_of(rows: Iterable[TopicResult]) -> ExitCode:
    """Return the exit code for these rows, several of which may have failed: 7 over 4 over 5.

    3 and 6 mean that nothing was changed, so every row must be refused; for 6 a cluster must have refused each of them.
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
    failed = "are not done yet" if all(row.result is Outcome.TIMED_OUT for row in bad) else "failed"
    return ErrorInfo(
        code,
        f"{len(bad)} of {len(rows)} {failed}; the first: {first.message or first.result.value}",
        first.hint if len(hints) == 1 else "see the message of each row",
        first.reason if len(reasons) == 1 else None,
    )
