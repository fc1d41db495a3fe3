"""`truncate-logs`: cut the logs of a stopped broker as planned, or undo that. Contacts no cluster.

The locks of all log directories are held from the first read to the last change, including the confirmation in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now_ms
from kmirror.errors import PartlyDoneError, RefusedError, settled
from kmirror.offline.folder import refused
from kmirror.offline.log_dir import LogDir, locked, open_log_dirs
from kmirror.offline.survey import CutSummary, Finding, NotHere, NothingToCut, PartitionCut, survey
from kmirror.offline.truncate import (
    Checkpoint,
    active_journals,
    begin,
    carry_out,
    remove_undone,
    require_possible,
    undo_cut,
)
from kmirror.offline.truncation_journal import Journal, Phase
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.failback.truncation_plan import TruncationPlan
from kmirror.words import at_time, counted
from kmirror.work import Watch, unwatched

VERB = "truncate-logs"


@dataclass(frozen=True, slots=True)
class Preview:
    """What is about to be done, for the operator to confirm: the broker, its directories and the partitions."""

    cluster_id: str
    node_id: str
    log_dirs: tuple[Path, ...]
    result: VerbResult


#: Called once before the first change; False changes nothing.
Agree = Callable[[Preview], bool]


@dataclass(frozen=True, slots=True)
class _Work:
    """What to do in one log directory: finish an interrupted cut, then make a new one."""

    log_dir: LogDir
    unfinished: Journal | None
    cuts: tuple[PartitionCut, ...]


def truncate_logs(
    plan: TruncationPlan,
    log_dirs: Sequence[Path],
    agree: Agree,
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda step: None,
) -> VerbResult:
    """Cut the logs in these directories; partitions that are not here belong to other brokers.

    Finishes an interrupted cut first. Partitions that cannot be cut are REFUSED, and the others cut. `watch` is shown
    the progress; nothing is in progress while `agree` is called.

    Raises:
        UsageError: a path is not a directory.
        RefusedError: the broker runs or is another cluster's, no partition is here, the plan's archives no longer keep
            what is cut off, or `agree` returned False.
        PartlyDoneError: it was interrupted half-way.
    """
    with _locked(plan, log_dirs) as dirs:
        abandoned: list[tuple[LogDir, Journal]] = []
        unfinished: dict[Path, Journal] = {}
        for one in dirs:
            journal = next((found for found in active_journals(one) if found.is_unfinished), None)
            if journal is None:
                continue
            if _touched(one, journal):
                abandoned.append((one, journal))
                continue
            if journal.phase is Phase.UNDOING:
                raise RefusedError(
                    f"an undo was interrupted in {one.path}", "finish it first: run the same command with --undo"
                )
            if journal.plan != plan.digest:
                raise RefusedError(
                    f"a truncation by another plan was interrupted in {one.path}",
                    "finish it first with that plan, or revert it with that plan and --undo",
                )
            unfinished[one.path] = journal
        until_ms = plan.archives_kept_until_ms
        if until_ms is not None and not unfinished and now_ms() >= until_ms:
            raise RefusedError(
                f"the plan is too old: since {at_time(until_ms)} its archives no longer keep what is cut off",
                "start the brokers, and run `kmirror failback` with --offline again: it makes a new plan",
            )
        half_done = {
            summary.topic_partition: summary for journal in unfinished.values() for summary in journal.summaries
        }
        found = survey(dirs, [cut for cut in plan.partitions if cut.topic_partition not in half_done], watch)
        if not half_done and all(isinstance(one.finding, NotHere) for one in found):
            raise RefusedError(
                "these log directories hold no partition of the plan",
                "give all directories of the broker's log.dirs; a broker without any of these partitions needs no"
                " truncation",
            )
        works = [
            _Work(
                one,
                unfinished.get(one.path),
                tuple(item.finding for item in found if item.log_dir is one and isinstance(item.finding, PartitionCut)),
            )
            for one in dirs
        ]
        works = [work for work in works if work.unfinished or work.cuts]
        try:
            for work in works:
                require_possible(work.log_dir, work.cuts)
        except OSError as error:
            raise refused(error) from None
        findings = {item.planned.topic_partition: item.finding for item in found}
        partitions = [cut.topic_partition for cut in plan.partitions]
        rows = [_row(partition, findings.get(partition), half_done.get(partition)) for partition in partitions]
        warnings = [
            f"a truncation of {log_dir.path} was interrupted, and the broker ran before it was finished: the saved"
            f" files stay in {journal.saved_files}"
            for log_dir, journal in abandoned
        ]
        preview = VerbResult.of(VERB, plan.mirror, rows, dry_run=True, warnings=warnings)
        if dry_run:
            return preview
        if works and not agree(Preview(dirs[0].cluster_id, dirs[0].node_id, tuple(d.path for d in dirs), preview)):
            raise RefusedError("not confirmed: nothing was changed")
        try:
            for log_dir, journal in abandoned:
                journal.write(log_dir, Phase.ABANDONED)
        except OSError as error:
            raise refused(error) from None
        for one in dirs:
            remove_undone(one)
        saved = [_cut(work, plan.digest, checkpoint, watch) for work in works]
        return VerbResult.of(VERB, plan.mirror, [*rows, *saved], warnings=warnings)


def undo_truncation(
    plan: TruncationPlan,
    log_dirs: Sequence[Path],
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda step: None,
) -> VerbResult:
    """Restore what this plan's cut removed, in all of these directories or in none.

    Raises:
        UsageError: a path is not a directory.
        RefusedError: the broker runs or has run since, another plan's cut came later, or it is another cluster's.
        PartlyDoneError: it was interrupted half-way.
    """
    with _locked(plan, log_dirs) as dirs:
        works = [(one, journal) for one in dirs if (journal := _to_undo(one, plan))]
        restore_offsets = {summary.topic_partition: summary for _, journal in works for summary in journal.summaries}
        if not dry_run:
            for one in dirs:
                remove_undone(one)
            for one, last in works:
                undo_cut(one, last, checkpoint, watch)
                while (before := _last_of(one, plan)) and not _touched(one, before):
                    restore_offsets.update({summary.topic_partition: summary for summary in before.summaries})
                    undo_cut(one, before, checkpoint, watch)
        rows = [
            _undone(summary)
            if (summary := restore_offsets.get(partition))
            else TopicResult(*partition, Outcome.NOOP, "there is nothing to restore")
            for partition in (cut.topic_partition for cut in plan.partitions)
        ]
        return VerbResult.of(VERB, plan.mirror, rows, dry_run=dry_run)


@contextmanager
def _locked(plan: TruncationPlan, log_dirs: Sequence[Path]) -> Iterator[list[LogDir]]:
    """Open and lock the log directories. Raises UsageError and RefusedError."""
    with open_log_dirs(log_dirs) as dirs:
        if dirs[0].cluster_id != plan.cluster_id:
            raise RefusedError(
                f"{dirs[0].path} belongs to cluster {dirs[0].cluster_id}, the plan is for {plan.cluster_id}",
                "give the log directories of the cluster that failback was run against",
            )
        with locked(dirs):
            yield dirs


def _to_undo(log_dir: LogDir, plan: TruncationPlan) -> Journal | None:
    """Return the cut of a log directory to undo, None if there is none. Raises RefusedError."""
    journals = active_journals(log_dir)
    if not any(journal.plan == plan.digest for journal in journals):
        return None
    last = journals[-1]
    if last.plan != plan.digest:
        raise RefusedError(
            f"{log_dir.path} was truncated by another plan since", "revert that first, with its plan and --undo"
        )
    if touched := _touched(log_dir, last):
        raise RefusedError(
            f"{log_dir.path} was used since the truncation: {touched} has changed; most likely the broker was started",
            f"the saved files are still in {log_dir.path / last.saved_files}, but can no longer be restored",
        )
    return last


def _last_of(log_dir: LogDir, plan: TruncationPlan) -> Journal | None:
    """Return the latest cut if it is this plan's: there are several if one was interrupted and followed by another."""
    last = next(reversed(active_journals(log_dir)), None)
    return last if last and last.plan == plan.digest else None


def _touched(log_dir: LogDir, journal: Journal) -> str | None:
    try:
        return journal.touched_since(log_dir)
    except OSError as error:
        raise refused(error) from None


def _cut(work: _Work, digest: str, checkpoint: Checkpoint, watch: Watch) -> TopicResult:
    """Cut the logs in one log directory, and return a row that says where the removed parts are."""
    log_dir = work.log_dir
    journal = work.unfinished
    if journal:
        carry_out(log_dir, journal, checkpoint, watch)
    if work.cuts:
        try:
            journal = begin(log_dir, digest, work.cuts, checkpoint)
        except OSError as error:
            raise PartlyDoneError(f"{log_dir.path}: {error}", "nothing was changed there; run it again") from error
        carry_out(log_dir, journal, checkpoint, watch)
    saved = log_dir.path / settled(journal, "what was cut").saved_files
    kept = f"what was cut off is kept in {saved}: --undo restores it"
    after = "delete the files when they are no longer needed"
    return TopicResult(None, None, Outcome.DONE, f"{kept} until the broker starts; {after}")


def _row(partition: TopicPartition, finding: Finding | None, half_done: CutSummary | None) -> TopicResult:
    match finding:
        case RefusedError():
            return TopicResult(*partition, Outcome.REFUSED, finding.message, finding.reason, hint=finding.hint)
        case NotHere():
            return TopicResult(*partition, Outcome.NOOP, "not in these log directories")
        case NothingToCut(log_end_offset):
            return TopicResult(*partition, Outcome.NOOP, f"ends at {log_end_offset}: there is nothing to truncate")
        case PartitionCut(summary):
            return TopicResult(*partition, Outcome.DONE, _amount(summary))
    amount = _amount(settled(half_done, "what was cut before"))
    return TopicResult(*partition, Outcome.DONE, f"{amount}; was interrupted before")


def _amount(summary: CutSummary) -> str:
    text = (
        f"log end {summary.log_end_before} -> {summary.log_end_after}: {counted(summary.records, 'record')}"
        f" ({counted(summary.batches, 'batch', 'batches')}, {counted(summary.size_in_bytes, 'byte')}) cut off"
    )
    if summary.cut_offset == summary.planned_offset:
        return text
    return f"{text}; not at {summary.planned_offset}, but where a transaction begins that would have lost its end"


def _undone(summary: CutSummary) -> TopicResult:
    text = f"log end {summary.log_end_after} -> {summary.log_end_before}: {counted(summary.records, 'record')} restored"
    return TopicResult(summary.topic, summary.partition, Outcome.DONE, text)
