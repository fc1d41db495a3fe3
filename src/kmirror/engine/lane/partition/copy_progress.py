"""Progress of one partition: what is known to be appended, what was skipped, and what was copied again."""

from __future__ import annotations

from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, SourceMark, TailMatch
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.intake import Gap, GuardedBatch
from kmirror.state.assignment import Assignment


class CopyProgress:
    """Track what is appended."""

    __slots__ = (
        "_counts",
        "_mark",
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
        #: The end of what is known to be appended; None if unknown before the first inspection.
        self.acknowledged: int | None = assignment.known_end
        #: Source leader epoch and maximum timestamp of the last batch known to be appended.
        self.epoch: int | None = None
        self.timestamp: int | None = None
        self.bytes_copied = 0
        self.records_copied = 0
        #: True once source records were in the destination; True once an inspection found that they may be copied.
        self.begun = assignment.begun
        self.is_aligned = False
        #: What the source's log was at the last inspection after which copying could continue; None before.
        self._mark: SourceMark | None = None
        #: The last offsets the source lost before they were copied, which are skipped; the end is exclusive.
        self.lost: tuple[int, int] | None = None
        #: Copied offsets the destination lost, which are copied again; the end is exclusive.
        self.again: tuple[int, int] | None = None

    def restarted(self, facts: Facts, verdict: Copy | AdvanceStart) -> None:
        """Take where the destination ends, and what an inspection found before it."""
        before = self.mark
        self.acknowledged = facts.destination_log_end
        self._mark = SourceMark(
            facts.source_leader[1],
            facts.high_watermark,
            facts.compared_from,
            facts.destination_log_end,
            facts.epoch_before,
        )
        same_copy = before and (before.leader_epoch, before.copied_to) == (facts.source_leader[1], self.acknowledged)
        if before and (facts.is_still or same_copy):
            # what was seen of the source's log before is still true
            self._mark = self._mark._replace(
                high_watermark=max(before.high_watermark, facts.high_watermark),
                compared_from=min(before.compared_from, facts.compared_from),
            )
        if isinstance(verdict, AdvanceStart):
            return
        if verdict.copied_again:
            self.again = verdict.offset, verdict.offset + verdict.copied_again
        self.is_aligned = True
        self.begun = self.begun or facts.destination_log_end > facts.destination_log_start
        if facts.tail is TailMatch.SAME:
            self.epoch = facts.tail_epoch

    def source_showed(self, high_watermark: int | None) -> None:
        """Note a high watermark of the source that came with what is copied."""
        if self._mark is not None and high_watermark is not None and high_watermark > self._mark.high_watermark:
            self._mark = self._mark._replace(high_watermark=high_watermark)

    @property
    def mark(self) -> SourceMark | None:
        """What the copy was made from, up to where it ends; None if that is unknown."""
        if self._mark is None or self.acknowledged is None:
            return None
        return self._mark._replace(copied_to=self.acknowledged)

    def skips(self, offset: int, until: int) -> None:
        """Note that the source lost the offsets from here; a skip that was interrupted, or that grows, is one loss."""
        before = self.lost
        self.lost = before[0] if before is not None and offset <= before[1] else offset, until

    def appended(self, batch: GuardedBatch) -> None:
        """Note that a batch of source records is appended."""
        self.acknowledged = batch.next_offset
        self.epoch = batch.leader_epoch
        self.timestamp = batch.max_timestamp
        self.bytes_copied += len(batch.data)
        # a sent batch has a record at each of its offsets
        self.records_copied += batch.next_offset - batch.base_offset
        self._counts.batches_copied += 1
        self.begun = True

    def filled(self, gap: Gap) -> None:
        """Note that a gap is filled."""
        self.acknowledged, self.epoch = gap.next_offset, gap.leader_epoch
        self._counts.offsets_filled += gap.next_offset - gap.base_offset
        self.begun = True

    def filled_up_to(self, offset: int, count: int) -> None:
        """Note that the first `count` offsets of a gap are filled, up to `offset`."""
        self.acknowledged = offset
        self._counts.offsets_filled += count
        self.begun = True
