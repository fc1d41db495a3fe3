"""Cut a stopped broker's logs, undo a cut, finish either after an interruption.

The changes are ordered so that a broker started in between (none should be) finds valid logs: first its clean shutdown
file is removed, so that it reads the logs' ends again; then its stored offsets are lowered; then each log loses its
snapshots, its later segments, last first, and the end of its last remaining segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import PartlyDoneError, RefusedError
from kmirror.offline.checkpoints import lowered
from kmirror.offline.folder import refused
from kmirror.offline.folder_changes import Change, Move, Rewrite, Shorten
from kmirror.offline.log_dir import (
    CLEAN_SHUTDOWN,
    CLEANED,
    EPOCHS,
    HIGH_WATERMARKS,
    OWN_PREFIX,
    RECOVERY_POINTS,
    LogDir,
    stamps_of,
)
from kmirror.offline.survey import PartitionCut
from kmirror.offline.truncation_journal import Journal, Phase, journals_of
from kmirror.work import Meter, Watch, unwatched

#: Called with a name after each step that is on disk; tests stop there.
Checkpoint = Callable[[str], None]

_SPARE_BYTES = 16 << 20
_RUN_AGAIN = "leave the broker stopped; run the same command again to finish, or with --undo to revert"


def require_possible(log_dir: LogDir, cuts: Sequence[PartitionCut]) -> None:
    """Refuse a cut for which there is not enough space, or no permission to write. Raises RefusedError and OSError."""
    folder = log_dir.folder
    names = [name for name in (RECOVERY_POINTS, HIGH_WATERMARKS, CLEANED) if folder.exists(name)]
    for name in [".", *names, *(f"{cut.summary.topic_partition}/." for cut in cuts)]:
        if not folder.is_ours(name):
            raise RefusedError(f"{folder.path / name} belongs to another user", "run as the broker's user, or as root")
    needed = sum(cut.segment.size_in_bytes - cut.segment.kept_bytes for cut in cuts if cut.segment) + _SPARE_BYTES
    if folder.free_bytes() < needed:
        raise RefusedError(
            f"{log_dir.path} has too little free space for the saved files: {needed:,} bytes are needed",
            "free some space; whole segments are moved, not copied",
        )


def active_journals(log_dir: LogDir) -> list[Journal]:
    """Return the journals that are neither undone nor abandoned, oldest first. Raises RefusedError."""
    return [one for one in journals_of(log_dir) if one.phase not in {Phase.UNDONE, Phase.ABANDONED}]


def begin(log_dir: LogDir, plan: str, cuts: Sequence[PartitionCut], checkpoint: Checkpoint) -> Journal:
    """Write the journal of a cut; nothing is changed yet.

    Raises:
        RefusedError: a checkpoint file cannot be parsed.
        OSError: the journal cannot be written.
    """
    run = max((one.run for one in journals_of(log_dir)), default=0) + 1
    planned = _changes_of(log_dir, run, cuts)
    journal = Journal(run, Phase.CUTTING, plan, tuple(cut.summary for cut in cuts), planned, stamps_of(log_dir))
    journal = journal.write(log_dir, Phase.CUTTING)
    checkpoint("journal")
    return journal


def carry_out(log_dir: LogDir, journal: Journal, checkpoint: Checkpoint, watch: Watch = unwatched) -> None:
    """Make the changes of a journal, resuming where it stopped; `watch` is shown the progress.

    Raises PartlyDoneError: a file could not be changed; the cut can be finished or undone.
    """
    with (
        _interruptions(log_dir),
        Meter(watch, f"cutting the logs in {log_dir.path}", "byte", _cut_off(journal)) as meter,
    ):
        for change in journal.changes:
            change.do(log_dir.folder, meter.add)
            checkpoint(f"cut {change.path}")
        _sync(log_dir, journal)
        journal.write(log_dir, Phase.CUT)
        checkpoint("done")


def undo_cut(log_dir: LogDir, journal: Journal, checkpoint: Checkpoint, watch: Watch = unwatched) -> None:
    """Undo the changes of a journal, resuming where it stopped, and remove the journal.

    Raises PartlyDoneError: a file could not be changed; it can be tried again.
    """
    what = f"restoring the logs in {log_dir.path}"
    with _interruptions(log_dir), Meter(watch, what, "byte", _cut_off(journal)) as meter:
        journal.write(log_dir, Phase.UNDOING)
        checkpoint("undo journal")
        for change in reversed(journal.changes):
            change.undo(log_dir.folder, journal.stamps[change.path], meter.add)
            checkpoint(f"undo {change.path}")
        _sync(log_dir, journal)
        journal.write(log_dir, Phase.UNDONE)
        checkpoint("undone")
        journal.remove(log_dir)
        checkpoint("removed")


def _cut_off(journal: Journal) -> int:
    """Return how many bytes are copied; whole files are moved."""
    return sum(one.size_in_bytes - one.kept_bytes for one in journal.changes if isinstance(one, Shorten))


def remove_undone(log_dir: LogDir) -> None:
    """Remove files left by an undo that was interrupted at its very end. Raises RefusedError."""
    for journal in journals_of(log_dir):
        if journal.phase is Phase.UNDONE:
            try:
                journal.remove(log_dir)
            except OSError as error:
                raise refused(error) from None


def _changes_of(log_dir: LogDir, run: int, cuts: Sequence[PartitionCut]) -> tuple[Change, ...]:
    ends = {cut.summary.topic_partition: cut.summary.log_end_after for cut in cuts}
    points = {cut.summary.topic_partition: cut.recovery_point for cut in cuts}
    found: list[Change] = []
    if log_dir.folder.exists(CLEAN_SHUTDOWN):
        found.append(Move(CLEAN_SHUTDOWN, f"{OWN_PREFIX}{run}.kafka_cleanshutdown"))
    found += _lowered(log_dir, RECOVERY_POINTS, points)
    found += _lowered(log_dir, HIGH_WATERMARKS, ends)
    found += _lowered(log_dir, CLEANED, ends)
    for index, cut in enumerate(cuts):
        folder, saved = cut.summary.topic_partition, f"{OWN_PREFIX}{run}.{index:04d}."
        found += [Move(f"{folder}/{name}", f"{saved}{name}") for name in cut.moved]
        if one := cut.segment:
            found.append(Shorten(f"{folder}/{one.name}", f"{saved}{one.name}.end", one.kept_bytes, one.size_in_bytes))
        found += _rewritten(f"{folder}/{EPOCHS}", cut.epochs_before, cut.epochs_after)
    return tuple(found)


def _lowered(log_dir: LogDir, name: str, highest: Mapping[TopicPartition, int]) -> list[Change]:
    text = log_dir.text(name)
    try:
        return _rewritten(name, text, None if text is None else lowered(text, highest))
    except ValueError as error:
        raise RefusedError(f"{log_dir.path / name} cannot be parsed: {error}") from None


def _rewritten(path: str, before: str | None, after: str | None) -> list[Change]:
    return [] if before is None or after is None or before == after else [Rewrite(path, before, after)]


def _sync(log_dir: LogDir, journal: Journal) -> None:
    by_folder = {change.path.rpartition("/")[0]: change.path for change in journal.changes}
    for path in (journal.name, *by_folder.values()):
        log_dir.folder.sync(path)


@contextmanager
def _interruptions(log_dir: LogDir) -> Iterator[None]:
    """Turn an interruption into an error that says how to continue."""
    try:
        yield
    except OSError as error:
        raise PartlyDoneError(f"stopped half-way in {log_dir.path}: {error}", _RUN_AGAIN) from error
    except KeyboardInterrupt as error:
        raise PartlyDoneError(f"interrupted half-way in {log_dir.path}", _RUN_AGAIN) from error
