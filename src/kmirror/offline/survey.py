"""What a cut would do to each partition of a plan: read from the log directories, without changing anything.

Any doubt is a refusal, for each partition: a wrongly cut log is lost, while one that is not cut can still be rebuilt.

A transaction whose records stay but whose end is cut off would never end: its coordinator considers it finished, and
read-committed consumers would wait there forever. So such a log is cut where the transaction begins. Both clusters have
what is removed in addition: it is before the offset where they fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import RefusedError
from kmirror.offline.checkpoints import cut_epochs, parse_offsets, parse_topic_id
from kmirror.offline.folder import Folder, refused
from kmirror.offline.log_dir import (
    CLEANED,
    EPOCHS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    METADATA,
    RECOVERY_POINTS,
    Folders,
    LogDir,
    SegmentFile,
    folders_of,
    segment_files,
)
from kmirror.offline.segments import RECOVER_FIRST, Amount, KeptPart, amount, kept_part, open_transactions
from kmirror.work import Add, Meter, Watch, unwatched

#: The files of a segment that the broker rebuilds from its `.log`.
_INDEXES = frozenset({"index", "timeindex", "txnindex"})


@dataclass(frozen=True, slots=True)
class PlannedCut:
    """One partition to cut: `cut_offset` is the first offset to remove.

    `topic_id` is as Kafka prints it. `expected_log_end` is where the log ended when the cut was planned, None if
    unknown; a log that continues after it is refused, and so is one with records of a later leader epoch than
    `leader_epoch` after the cut, which was carried out before.
    """

    topic: str
    topic_id: str
    partition: int
    cut_offset: int
    expected_log_end: int | None = None
    leader_epoch: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class CutSegment:
    """The segment that is cut in two: its file, how many of its bytes stay, and its size."""

    name: str
    kept_bytes: int
    size_in_bytes: int


@dataclass(frozen=True, slots=True)
class CutSummary:
    """What a cut does to one partition, in numbers. Transaction markers count as batches, not as records.

    `cut_offset` is before `planned_offset` if a transaction would lose its end: then the cut is at its beginning.
    """

    topic: str
    partition: int
    planned_offset: int
    cut_offset: int
    log_end_before: int
    log_end_after: int
    records: int
    batches: int
    size_in_bytes: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Return the partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class PartitionCut:
    """What a cut does to one partition, in files.

    `moved` names the files that are moved away whole, in order; `recovery_point` is the offset from which the broker
    must read the log again.
    """

    summary: CutSummary
    recovery_point: int
    moved: tuple[str, ...]
    segment: CutSegment | None
    epochs_before: str | None
    epochs_after: str | None


@dataclass(frozen=True, slots=True)
class NothingToCut:
    """A log that ends at the cut or before it."""

    log_end_offset: int


@dataclass(frozen=True, slots=True)
class NotHere:
    """None of the log directories has the partition."""


Finding = PartitionCut | NothingToCut | NotHere | RefusedError


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The finding on one planned cut; `log_dir` is None if the partition is not here, or in several directories."""

    planned: PlannedCut
    log_dir: LogDir | None
    finding: Finding


def survey(dirs: Sequence[LogDir], planned: Sequence[PlannedCut], watch: Watch = unwatched) -> list[Surveyed]:
    """Return what the cuts would do, in the order given; `watch` is shown the progress.

    Raises RefusedError: a log directory or its checkpoint files cannot be read.
    """
    try:
        known = {one.path: folders_of(one) for one in dirs}
        starts = {one.path: _offsets(one, LOG_STARTS) for one in dirs}
        for one in dirs:
            _offsets(one, HIGH_WATERMARKS)
            _offsets(one, RECOVERY_POINTS)
            _offsets(one, CLEANED)
    except OSError as error:
        raise refused(error) from None
    total = sum(
        _bytes_to_read(one, cut) for cut in planned for one in dirs if cut.topic_partition in known[one.path].in_use
    )
    with Meter(watch, "reading the logs to cut", "byte", total) as meter:
        return [_surveyed(dirs, known, starts, cut, meter.add) for cut in planned]


def _surveyed(
    dirs: Sequence[LogDir],
    known: Mapping[Path, Folders],
    starts: Mapping[Path, Mapping[TopicPartition, int]],
    cut: PlannedCut,
    progress: Add,
) -> Surveyed:
    having = [one for one in dirs if cut.topic_partition in known[one.path].in_use]
    moving = [one for one in dirs if cut.topic_partition in known[one.path].moving]
    log_dir = having[0] if len(having) == 1 else None
    finding: Finding
    try:
        if len(having) > 1:
            raise RefusedError(
                f"{cut.topic_partition} is in {having[0].path} and in {having[1].path}",
                "a broker refuses to start with that too; find the older one and move it away",
            )
        if moving:
            raise RefusedError(
                f"{cut.topic_partition} is being moved between log directories or deleted (in {moving[0].path})",
                "start the broker, wait until that has finished, and stop it cleanly",
            )
        finding = _survey_log(log_dir, cut, starts[log_dir.path], progress) if log_dir else NotHere()
    except RefusedError as error:
        finding = error
    except OSError as error:
        finding = refused(error)
    return Surveyed(cut, log_dir, finding)


def _bytes_to_read(log_dir: LogDir, cut: PlannedCut) -> int:
    """Return the size of the segments that a cut affects; 0 if that cannot be read."""
    folder = str(cut.topic_partition)
    try:
        logs = [file for file in segment_files(log_dir, folder) if file.kind == "log"]
        affected = [file for file in logs if file.offset >= _last_kept(logs, cut.cut_offset).offset]
        return sum(log_dir.folder.size(f"{folder}/{file.name}") or 0 for file in affected)
    except (OSError, RefusedError):
        return 0


def _offsets(log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
    try:
        return parse_offsets(log_dir.text(name) or "")
    except ValueError as error:
        raise RefusedError(f"{log_dir.path / name} cannot be parsed: {error}", RECOVER_FIRST) from None


def _survey_log(
    log_dir: LogDir, cut: PlannedCut, starts: Mapping[TopicPartition, int], progress: Add
) -> PartitionCut | NothingToCut:
    """Return what the cut does to a log in this directory. Raises RefusedError and OSError."""
    folder = str(cut.topic_partition)
    _require_same_topic(log_dir, cut)
    files = segment_files(log_dir, folder)
    logs = [file for file in files if file.kind == "log"]
    if not logs:
        raise RefusedError(f"{cut.topic_partition} has no segment", RECOVER_FIRST)
    first_offset, log_start = logs[0].offset, starts.get(cut.topic_partition)
    if log_start is not None and log_start <= first_offset:
        # A broker keeps a start at or before the first segment only where the log continues in remote storage.
        raise RefusedError(
            f"{cut.topic_partition} has tiered storage, or its broker did not stop cleanly",
            "a tiered partition cannot be cut offline; otherwise " + RECOVER_FIRST,
        )
    log_start = first_offset if log_start is None else log_start
    if cut.cut_offset < log_start:
        raise RefusedError(
            f"{cut.topic_partition} begins at {log_start}, after the cut at {cut.cut_offset}",
            "none of the common history is left here; recreate the topic instead",
        )
    planned = _cut_at(log_dir.folder, folder, files, cut.cut_offset, progress)
    if planned.log_end_before <= cut.cut_offset and not planned.removed.size_in_bytes:
        return NothingToCut(planned.log_end_before)
    if cut.expected_log_end is not None and planned.log_end_before > cut.expected_log_end:
        raise RefusedError(
            f"{cut.topic_partition} ends at {planned.log_end_before}; it was {cut.expected_log_end} when the plan "
            "was made",
            "make a new plan, so that newer records are archived too",
        )
    if cut.leader_epoch is not None and planned.removed.last_epoch > cut.leader_epoch:
        raise RefusedError(
            f"{cut.topic_partition} has taken records since the plan was made: they have leader epoch"
            f" {planned.removed.last_epoch}, which was {cut.leader_epoch} then",
            "make a new plan, so that newer records are archived too; if this plan was carried out before, none is"
            " needed",
        )
    safe = planned
    while safe.kept.open_transactions:
        safe = _cut_at(log_dir.folder, folder, files, min(safe.kept.open_transactions.values()))
    if safe.cut_offset < log_start:
        raise RefusedError(
            f"{cut.topic_partition}: a transaction that is open at the cut began at {safe.cut_offset}, before the "
            "log's start",
            "recreate the topic instead",
        )
    return _partition_cut(log_dir, cut, files, safe)


@dataclass(frozen=True, slots=True)
class _CutAt:
    """A log, cut at an offset: the last segment that stays, the part of it that stays, and what is removed."""

    cut_offset: int
    log_end_before: int
    last_kept: SegmentFile
    size_in_bytes: int
    kept: KeptPart
    removed: Amount


def _cut_at(
    root: Folder, folder: str, files: Sequence[SegmentFile], cut_offset: int, progress: Add = unwatched
) -> _CutAt:
    """Return the result of cutting a log. Raises RefusedError and OSError."""
    logs = [file for file in files if file.kind == "log"]
    last_kept = _last_kept(logs, cut_offset)
    segment = f"{folder}/{last_kept.name}"
    still_open = open_transactions(root, f"{folder}/{last_kept.offset:020d}.snapshot")
    kept = kept_part(root, segment, last_kept.offset, cut_offset, still_open, progress)
    removed = amount(root, segment, kept.size_in_bytes, progress)
    gone = [file for file in logs if file.offset > last_kept.offset]
    for file in gone:
        removed += amount(root, f"{folder}/{file.name}", progress=progress)
    log_end_before = max(removed.log_end_offset or 0, gone[-1].offset if gone else 0, kept.log_end_offset)
    return _CutAt(cut_offset, log_end_before, last_kept, root.size(segment) or 0, kept, removed)


def _last_kept(logs: Sequence[SegmentFile], cut_offset: int) -> SegmentFile:
    """Return the last segment of which something stays, or the first segment."""
    return ([file for file in logs if file.offset < cut_offset][-1:] or logs[:1])[0]


def _partition_cut(log_dir: LogDir, cut: PlannedCut, files: Sequence[SegmentFile], at: _CutAt) -> PartitionCut:
    kept, last_kept, removed = at.kept, at.last_kept, at.removed
    is_whole = kept.size_in_bytes == at.size_in_bytes
    segment = None if is_whole else CutSegment(last_kept.name, kept.size_in_bytes, at.size_in_bytes)
    # The last one first, and snapshots before the rest: a broker that starts in between finds a log that just ends.
    moved = [file.name for file in reversed(files) if file.kind == "snapshot" and file.offset > last_kept.offset]
    moved += [file.name for file in reversed(files) if file.kind != "snapshot" and file.offset > last_kept.offset]
    if segment:
        moved += [file.name for file in files if file.kind in _INDEXES and file.offset == last_kept.offset]
    epochs = log_dir.text(f"{cut.topic_partition}/{EPOCHS}")
    summary = CutSummary(
        cut.topic,
        cut.partition,
        cut.cut_offset,
        at.cut_offset,
        at.log_end_before,
        kept.log_end_offset,
        removed.records,
        removed.batches,
        removed.size_in_bytes,
    )
    return PartitionCut(
        summary,
        last_kept.offset,
        tuple(moved),
        segment,
        epochs,
        None if epochs is None else _cut_epochs(epochs, kept.log_end_offset, cut),
    )


def _cut_epochs(text: str, log_end_offset: int, cut: PlannedCut) -> str:
    try:
        return cut_epochs(text, log_end_offset)
    except ValueError as error:
        raise RefusedError(f"{cut.topic_partition}/{EPOCHS} cannot be parsed: {error}", RECOVER_FIRST) from None


def _require_same_topic(log_dir: LogDir, cut: PlannedCut) -> None:
    name = f"{cut.topic_partition}/{METADATA}"
    try:
        text = log_dir.text(name)
        topic_id = None if text is None else parse_topic_id(text)
    except ValueError as error:
        raise RefusedError(f"{name} cannot be parsed: {error}", RECOVER_FIRST) from None
    if topic_id is None:
        hint = f"{RECOVER_FIRST}; brokers before Kafka 3.0 do not write it: use `kmirror failback --recreate` there"
        raise RefusedError(f"{name} is missing: the topic id of {cut.topic_partition} is unknown", hint)
    if topic_id != cut.topic_id:
        raise RefusedError(
            f"{cut.topic_partition} has topic id {topic_id}, the plan is for {cut.topic_id}",
            "the topic was deleted and created again; make a new plan",
        )
