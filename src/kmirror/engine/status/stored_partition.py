"""The record of a partition after a lane has reported on it. Pure: no I/O, no clock.

A lane's row decides the state, and the reason if that is FAILED; a partition stays FAILED, for the same reason and
since the same time, until a row shows that it was copied past that point, or that nothing is left to copy. Three fields
only ever become true: that records of the source have been in the destination (`begun`), that the two logs have been
aligned (`aligned`), that the first copy is complete. All other fields belong to other writers, and are kept.
"""

from __future__ import annotations

from dataclasses import replace

from kmirror.state.assignment import SourceSeen
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState, ProgressRow, TopicRecord


def record_after(
    before: PartitionRecord | None, mirror: str, row: ProgressRow, *, reached: bool, now_ms: int
) -> PartitionRecord:
    """Return the record after a lane's row; equal to `before` if there is nothing new to store.

    `reached`: the partition has everything its source had when the engine started. `state_time_ms` is the time of the
    last change of state or reason.
    """
    known = before or PartitionRecord(mirror, row.topic, row.partition, row.state, now_ms)
    failed = row.state is PartitionState.FAILED
    status = row.state, *((row.reason, row.message, row.destination_offset) if failed else (None, None, None))
    if known.state is PartitionState.FAILED and not failed and not _is_copied_again(known, row):
        status = known.state, known.reason, known.message, known.failed_offset
    state, reason, message, failed_offset = status
    record = replace(
        known,
        state=state,
        reason=reason,
        message=message,
        failed_offset=failed_offset,
        initial_copy_complete=known.initial_copy_complete or reached,
        initial_copy_ms=now_ms if reached and not known.initial_copy_complete else known.initial_copy_ms,
        begun=known.begun or row.begun,
        aligned=known.aligned or row.state is PartitionState.MIRRORING,
        lost_until=known.lost_until if row.lost_until is None else row.lost_until,
        last_mirrored_epoch=known.last_mirrored_epoch if row.last_epoch is None else row.last_epoch,
        pause_id=None,
        source_seen=None if row.source_offset is not None else known.source_seen,
    )
    if (record.state, record.reason) != (known.state, known.reason):
        record = replace(record, state_time_ms=now_ms)
    return record


def _is_copied_again(failed: PartitionRecord, row: ProgressRow) -> bool:
    """Return whether a row shows that a FAILED partition is copied again."""
    end, source_end = row.destination_offset, row.source_offset
    if row.state is not PartitionState.MIRRORING or end is None:
        return False
    return failed.failed_offset is None or end > failed.failed_offset or (source_end is not None and end >= source_end)


def released_record(
    before: PartitionRecord | None,
    topic: TopicRecord,
    partition: int,
    row: ProgressRow | None,
    now_ms: int,
    seen: SourceSeen | None = None,
) -> PartitionRecord:
    """Return the record of a partition that no lane has any more because its topic is paused or stopped.

    `row` is its last lane's last row, and `seen` what the source last returned. A FAILED partition stays FAILED while
    it is paused; if it is stopped, the record keeps the reason. A STOPPED partition stays STOPPED. The record names the
    pause that it answers.
    """
    known = before or PartitionRecord(topic.mirror, topic.topic, partition, PartitionState.LOG_ALIGNMENT, now_ms)
    stops = topic.desired is DesiredState.STOPPED
    state = PartitionState.STOPPING if stops else PartitionState.PAUSED
    if known.last_mirrored_offset is not None or (known.state is PartitionState.STOPPED and stops):
        return known
    if known.state is PartitionState.FAILED and not stops:
        return replace(known, pause_id=topic.pause_id, source_seen=seen)
    epoch = row.last_epoch if row is not None else None
    failed = known.state is PartitionState.FAILED
    return replace(
        known,
        state=state,
        state_time_ms=now_ms,
        reason=known.reason if failed else None,
        message=known.message if failed else None,
        last_mirrored_epoch=known.last_mirrored_epoch if epoch is None else epoch,
        pause_id=None if stops else topic.pause_id,
        source_seen=seen,
    )


def alignment_note(row: ProgressRow, first_offset: int | None) -> str | None:
    """Return the note that a lane made a log start at an offset above 0; None if it did not."""
    if row.aligned_to is None:
        return None
    asked_for = first_offset is not None and row.aligned_to == first_offset
    why = "as decided when the topic was added" if asked_for else "where its source's log starts"
    return f"{row.topic}-{row.partition} starts at offset {row.aligned_to}, {why}"
