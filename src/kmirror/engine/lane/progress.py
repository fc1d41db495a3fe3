"""How far the copy of one partition has come: what is known to be appended, and what it went past or repeated."""

from __future__ import annotations

from kmirror.engine.lane.counts import Counts
from kmirror.engine.lane.intake import Batch, Gap
from kmirror.state.assignment import Assignment


class Progress:
    """Count what is appended."""

    __slots__ = (
        "_counts",
        "acknowledged",
        "again",
        "begun",
        "bytes_copied",
        "epoch",
        "is_aligned",
        "lost",
        "records_copied",
        "timestamp",
    )

    def __init__(self, assignment: Assignment, counts: Counts) -> None:
        self._counts = counts
        #: The end of what is known to be appended; None where that is not known before the first inspection.
        self.acknowledged: int | None = assignment.known_end
        #: Source leader epoch and maximum timestamp of the last batch known to be appended.
        self.epoch: int | None = None
        self.timestamp: int | None = None
        self.bytes_copied = 0
        self.records_copied = 0
        #: True once some of the source's records were in the destination; once an inspection found that they may come.
        self.begun = assignment.begun
        self.is_aligned = False
        #: What the source had lost before it was copied, and the copy skips; the last offset exclusive.
        self.lost: tuple[int, int] | None = None
        #: What the destination had lost of what was copied, and is copied again; the last offset exclusive.
        self.again: tuple[int, int] | None = None

    def appended(self, batch: Batch) -> None:
        """Note that a batch of the source's records is appended."""
        self.acknowledged = batch.next_offset
        self.epoch = batch.leader_epoch
        self.timestamp = batch.max_timestamp
        self.bytes_copied += len(batch.data)
        # a batch that is sent holds a record for each of its offsets
        self.records_copied += batch.next_offset - batch.base_offset
        self._counts.batches_copied += 1
        self.begun = True

    def filled(self, gap: Gap) -> None:
        """Note that a gap is filled."""
        self.acknowledged, self.epoch = gap.next_offset, gap.leader_epoch
        self._counts.offsets_filled += gap.next_offset - gap.base_offset
        self.begun = True

    def filled_up_to(self, offset: int, count: int) -> None:
        """Note that the first offsets of a gap are filled, `count` of them."""
        self.acknowledged = offset
        self._counts.offsets_filled += count
        self.begun = True
