"""What a verb returns: one frozen document per command.

`to_json()` returns exactly what `--json` prints; nothing here prints. Unknown numbers are None, times are epoch
milliseconds, offsets are exclusive as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kmirror.columns import (
    COUNT,
    DURATION,
    FLAG,
    REASON,
    TEXT,
    TIME,
    Column,
    Only,
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
from kmirror.ops.base.change_rows import CHANGES, ChangeRow
from kmirror.ops.base.client_gaps import CLIENTS, ClientGaps, gap_sentences
from kmirror.ops.base.converted_keys import KEYS, KeyRow
from kmirror.ops.base.hook_runs import HOOK_RUNS, HookRun
from kmirror.ops.base.topic_results import GROUP_RESULTS, RESULTS, GroupResult, Outcome, TopicResult

#: Reasons that mean a cluster refuses us or does not answer: exit code 6 when nothing else happened.
UNREACHABLE_REASONS = frozenset(
    {
        Reason.SOURCE_UNREACHABLE,
        Reason.DESTINATION_UNREACHABLE,
        Reason.AUTHENTICATION_FAILED,
    }
)


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
        COUNT.null_when("no source end was ever read"), "offsets that the sources had and the copies lack"
    )
    partitions_unknown: int = shown(COUNT, "partitions whose loss is unknown")
    estimated_more_records: int = shown(
        COUNT, "estimate of the offsets by which sources have grown since their ends were read"
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


@table_row
class VerbResult:
    """What a verb did, or with `dry_run` would do; make it with `of` or `failed`."""

    verb: str = shown(TEXT, "the command")
    mirror: str = shown(
        TEXT.null_when("the command failed before it knew it, or is about no mirror"),
        "the mirror",
        value=lambda done: done.mirror or None,
    )
    dry_run: bool = shown(FLAG, "whether nothing was changed, because of --dry-run")
    exit_code: ExitCode = shown(EXIT_CODE, "the exit code")
    #: For verbs that stop topics; people are then shown only rows that need attention.
    totals: StopTotals | None = shown(
        object_of(TOTALS),
        "the total loss",
        default=None,
        only=Only("verbs that stop partitions at once: failover, remove", lambda done: done.totals),
    )
    changes: tuple[ChangeRow, ...] | None = shown(
        CHANGES.type,
        "what leads from the stored state to the file, in the order of the doing, and how it ended",
        default=None,
        only=Only("`apply`", lambda done: done.changes is not None),
    )
    results: tuple[TopicResult, ...] = shown(RESULTS.type, "how it ended, by topic or partition", default=())
    groups: tuple[GroupResult, ...] = shown(
        list_of(object_of(GROUP_RESULTS)), "how it ended for committed offsets", default=()
    )
    clients: ClientGaps | None = shown(
        object_of(CLIENTS),
        "what clients of the source will lack here after they move",
        default=None,
        only=Only("verbs that stop topics: failover, remove, promote", lambda done: done.clients),
    )
    keys: tuple[KeyRow, ...] = shown(
        KEYS.type,
        "what became of each key of the file",
        default=(),
        only=Only("`create --from-mm2` and `create --from-link`", lambda done: done.keys),
    )
    blocked: tuple[BlockedTopic, ...] = shown(
        BLOCKED.type,
        "what became of producers that were denied WRITE at the source",
        key="blockedProducers",
        default=(),
        only=Only("promote and switchover that have denied it", lambda done: done.blocked),
    )
    #: None for verbs without steps.
    steps: tuple[str, ...] | None = shown(
        list_of(TEXT),
        "what was done, or with --dry-run would be, in this order",
        default=None,
        only=Only("promote, failover, remove, failback and switchover", lambda done: done.steps is not None),
    )
    hooks: tuple[HookRun, ...] = shown(
        list_of(object_of(HOOK_RUNS)),
        "the commands of --before and --after",
        default=(),
        only=Only("promote, failover, failback and switchover with --before or --after", lambda done: done.hooks),
    )
    error: ErrorInfo | None = shown(ERROR_OR_NULL, "why not everything was done", default=None)
    #: Sentences for people that do not affect the outcome; with `--json` they go to stderr.
    warnings: tuple[str, ...] = ()

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
        blocked: tuple[BlockedTopic, ...] = (),
    ) -> VerbResult:
        """Return the document for these rows, with exit code and error derived from them."""
        rows, notes = tuple(results), [*warnings, *(gap_sentences(clients) if clients is not None else ())]
        code = exit_code_of(rows)
        return cls(
            verb=verb,
            mirror=mirror,
            dry_run=dry_run,
            exit_code=code,
            totals=totals,
            results=rows,
            groups=tuple(groups),
            clients=clients,
            blocked=blocked,
            steps=steps,
            error=_summary(rows, code),
            warnings=tuple(notes),
        )

    @classmethod
    def failed(cls, verb: str, mirror: str, error: KmirrorError, *, dry_run: bool = False) -> VerbResult:
        """Return the document of a verb that failed before it came to any topic."""
        return cls(verb=verb, mirror=mirror, dry_run=dry_run, exit_code=error.exit_code, error=ErrorInfo.of(error))

    def to_json(self) -> dict[str, Any]:
        """Return the document as `--json` prints it."""
        return document(RESULT, self)


#: The document of every verb that changes something, and of `wait` and `run`.
RESULT: tuple[Column[VerbResult], ...] = columns_of(VerbResult)


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
    if all(row.reason in UNREACHABLE_REASONS for row in bad):
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED if all(row.result is Outcome.REFUSED for row in bad) else ExitCode.PARTLY_DONE


def _summary(rows: tuple[TopicResult, ...], code: ExitCode) -> ErrorInfo | None:
    bad = [row for row in rows if row.result not in (Outcome.DONE, Outcome.NOOP)]
    if not bad:
        return None
    first, count = bad[0], _count(rows, bad)
    if len(bad) == 1:
        return ErrorInfo(code, first.message or first.result.value, first.hint, first.reason)
    hints = {row.hint for row in bad}
    reasons = {row.reason for row in bad}
    failed = "are not done yet" if all(row.result is Outcome.TIMED_OUT for row in bad) else "failed"
    return ErrorInfo(
        code,
        f"{count} {failed}; the first: {first.message or first.result.value}",
        first.hint if len(hints) == 1 else "see the message of each row",
        first.reason if len(reasons) == 1 else None,
    )


def _count(rows: Iterable[TopicResult], bad: Iterable[TopicResult]) -> str:
    """Return how many topics are bad, of how many; of one topic alone, how many partitions are."""
    topics = [{(row.mirror, row.topic) for row in some if row.topic is not None} for some in (bad, rows)]
    if not topics[0]:
        return f"{len(tuple(bad))} of {len(tuple(rows))}"
    if len(topics[1]) > 1:
        return f"{len(topics[0])} of {len(topics[1])} topics"
    partitions = [{row.partition for row in some if row.topic is not None} for some in (bad, rows)]
    return f"{len(partitions[0])} of {len(partitions[1])} partitions"
