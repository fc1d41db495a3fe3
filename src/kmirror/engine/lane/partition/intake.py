"""Turn one partition's fetched batches into what is appended: guarded batches, and gaps between them. No I/O.

A plain batch with all its records is changed in place and sent; small neighbouring ones are merged into one (`merge`),
without waiting for more. Any other is taken apart (`pieces`) into runs of records at consecutive offsets, and offsets
at which consumers see nothing: those are gaps, filled with markers.

Sequence numbers are set here, long before a batch is sent, while its bytes are in the CPU cache. They count appended
records, so they continue across a gap as if it were not there. One exception: if the leader does not know our producer
and a marker is the first thing it sees of it, the sequence begins at 0 after the marker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from crc32c import crc32c

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BASE_OFFSET,
    BATCH_OVERHEAD,
    COMPRESSION_MASK,
    CONTROL,
    CRC,
    CRC_POSITION,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    PREFIX,
    PRODUCER,
    PRODUCER_POSITION,
    SEQUENCE_MASK,
    TRANSACTIONAL,
    CorruptBatchError,
    set_producer,
)
from kmirror.cluster.protocol.fetch import AbortedTransaction, FetchedPartition
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.merge import FEW_PLAIN_RECORDS, is_small, merge
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.pieces import Hole, Run, pieces
from kmirror.cluster.protocol.read_ahead import goes_on
from kmirror.engine.histories.judge import Fail
from kmirror.engine.lane.partition.counts import Counts
from kmirror.errors import KmirrorError, Reason

#: A partition whose unsent batches exceed this is not fetched until they are sent.
QUEUE_BYTES = 1 << 20
#: How much of what follows a gap is kept, and fetched at once, while others need the room.
LITTLE_BYTES = 64 << 10
_SPECIAL = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_HIGHEST_CODEC = 4
#: The most bytes of a rebuilt batch, unless the stored one was larger.
_RUN_BYTES = 1 << 20
#: How many batches of filler are kept queued.
_FILLER_BATCHES = 6


class Frame:
    """Count the references to one received frame; `release` returns True for the last.

    `owner` is the owner of the buffer, which the state machine only passes on.
    """

    __slots__ = ("owner", "pending", "view")

    def __init__(self, view: memoryview, owner: object = None) -> None:
        self.view = view
        self.owner = owner
        self.pending = 1

    def release(self) -> bool:
        """Drop one reference to the frame."""
        self.pending -= 1
        return self.pending == 0


class GuardedBatch(NamedTuple):
    """One batch, guarded and ready to be sent."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    leader_epoch: int | None
    data: memoryview
    frame: Frame


def filled_offsets_of(batch: GuardedBatch) -> int:
    """Return the offset of a guarded batch minus its sequence number, modulo 2^31."""
    _, _, sequence = PRODUCER.unpack_from(batch.data, PRODUCER_POSITION)
    return int(batch.base_offset - sequence) & SEQUENCE_MASK


class Gap(NamedTuple):
    """Offsets at which consumers see nothing."""

    base_offset: int
    next_offset: int
    leader_epoch: int | None


class Intake:
    """Hold what was fetched of one partition and is not sent yet, in offset order and without a break."""

    __slots__ = (
        "_begins_at_gap",
        "_counts",
        "_filled_offsets",
        "_little_until",
        "_producer_epoch",
        "_producer_id",
        "_source",
        "head_is_taken",
        "leader_epoch",
        "merges",
        "next_offset",
        "queue",
        "queued_bytes",
    )

    def __init__(
        self, source: TopicPartition, producer_id: int, producer_epoch: int, counts: Counts, *, merges: bool
    ) -> None:
        self._source = source
        #: True while small neighbouring batches are merged.
        self.merges = merges
        self._counts = counts
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        #: What to subtract from an offset for its sequence number.
        self._filled_offsets = 0
        #: True while the leader does not know our producer and nothing was queued: a marker may be the first it sees.
        self._begins_at_gap = False
        self.queue: deque[GuardedBatch | Gap] = deque()
        self.queued_bytes = 0
        #: The offset of the next batch to fetch, and the leader epoch of the one before.
        self.next_offset = 0
        self.leader_epoch: int | None = None
        #: Up to where the queue was fetched before most of it was dropped for others.
        self._little_until = 0
        #: True while the gap at the head is being filled and must not be extended.
        self.head_is_taken = False

    @property
    def holds_little(self) -> bool:
        """True until it has come again as far as it was when most of its queue was dropped for others."""
        return self.next_offset < self._little_until

    @property
    def has_room(self) -> bool:
        """True while more may be queued."""
        return not self.queue if self.holds_little else self.queued_bytes < QUEUE_BYTES

    def restart(self, offset: int, leader_epoch: int | None, filled_offsets: int, *, producer_is_known: bool) -> None:
        """Restart at an offset; the queue is empty."""
        self.next_offset, self.leader_epoch = offset, leader_epoch
        self._filled_offsets, self._little_until = filled_offsets, 0
        self._begins_at_gap = not producer_is_known

    def take(self) -> GuardedBatch:
        """Take the batch at the head."""
        batch = self.queue.popleft()
        if not isinstance(batch, GuardedBatch):
            raise TypeError(f"{self._source} has a gap at the head: {batch}")
        self.queued_bytes -= len(batch.data)
        return batch

    def end_gap(self) -> Gap:
        """Remove the gap at the head, which is filled."""
        gap = self.queue.popleft()
        if not isinstance(gap, Gap):
            raise TypeError(f"{self._source} has no gap at the head: {gap}")
        self.head_is_taken = False
        return gap

    def shorten_gap(self, count: int) -> None:
        """Note that the first offsets of the gap at the head are filled."""
        gap = self.queue[0]
        if not isinstance(gap, Gap):
            raise TypeError(f"{self._source} has no gap at the head: {gap}")
        self.queue[0] = gap._replace(base_offset=gap.base_offset + count)

    def drop(self) -> list[Frame]:
        """Drop the queue; return the frames it referred to, once per reference."""
        frames = [item.frame for item in self.queue if isinstance(item, GuardedBatch)]
        self.queue.clear()
        self.queued_bytes = 0
        self.head_is_taken = False
        return frames

    def keep_little(self) -> list[Frame]:
        """Drop most of what follows a gap at the head, to be fetched again, and copy the rest out of its frames.

        Return these frames, once per reference; none if there is no gap at the head, or this was done before.
        """
        items, size, kept = list(self.queue), 0, 0
        frames = [item.frame for item in items if isinstance(item, GuardedBatch) and item.frame.owner is not None]
        if not frames or not isinstance(items[0], Gap):
            return []
        while kept < len(items) and size + _size(items[kept]) <= LITTLE_BYTES:
            size += _size(items[kept])
            kept += 1
        if dropped := items[kept:]:
            offsets = sum(item.next_offset - item.base_offset for item in dropped if isinstance(item, Gap))
            self._filled_offsets = (self._filled_offsets - offsets) & SEQUENCE_MASK
            self._little_until = max(self.next_offset, self._little_until)
            self.next_offset, self.leader_epoch = items[kept - 1].next_offset, items[kept - 1].leader_epoch
        self.queue.clear()
        self.queue.extend(map(_apart, items[:kept]))
        self.queued_bytes = size
        return frames

    def take_in(
        self,
        records: memoryview,
        aborted: Sequence[AbortedTransaction],
        frame: Frame,
        *,
        high_watermark: int | None,
        may_overlap: bool = False,
    ) -> Fail | None:
        """Queue the batches of one response; return the failure of a batch that cannot be copied, if there is one.

        Offsets may be missing only below the response's high watermark: cleaned segments are replicated. A broker
        reads the high watermark before the batches, so a batch above it may be right, but is not taken yet.
        With `may_overlap` the response may begin with batches that another one brought already.
        Each batch is checked and guarded in one go, while its bytes are in the CPU cache.
        """
        position, end = 0, len(records)
        expected, epoch = self.next_offset, self.leader_epoch
        producer_id, producer_epoch, filled = self._producer_id, self._producer_epoch, self._filled_offsets
        queue, queued_bytes = self.queue, self.queued_bytes
        make = tuple.__new__
        unpack, set_base_offset = HEADER.unpack_from, BASE_OFFSET.pack_into
        pack_producer, pack_crc = PRODUCER.pack_into, CRC.pack_into
        isolation: Isolation | None = None
        few = FEW_PLAIN_RECORDS if self.merges else -1
        while end - position > MAGIC_POSITION:
            if end - position >= BATCH_OVERHEAD:
                (base, length, leader_epoch, magic, crc, attributes, delta, _, max_timestamp, _, _, _, count) = unpack(
                    records, position
                )
                following = position + LOG_OVERHEAD + length
                if following > end:
                    break
                if (
                    count <= few
                    and is_small(count, length, attributes)
                    and (merged := merge(records, position, expected))
                ):
                    set_producer(merged.data, producer_id, producer_epoch, (expected - filled) & SEQUENCE_MASK)
                    self._counts.batches_merged += merged.batches
                    frame.pending += 1
                    queue.append(GuardedBatch(expected, *merged[:4], frame))
                    queued_bytes += len(merged.data)
                    expected, epoch, position = merged.next_offset, leader_epoch, merged.end
                    continue
                if (
                    magic == 2
                    and base == expected
                    and not attributes & _SPECIAL
                    and count == delta + 1
                    and count > 0
                    and attributes & COMPRESSION_MASK <= _HIGHEST_CODEC
                    and length >= BATCH_OVERHEAD - LOG_OVERHEAD
                    and crc32c(checked := records[position + ATTRIBUTES_POSITION : following]) == crc
                ):
                    pack_producer(
                        records,
                        position + PRODUCER_POSITION,
                        producer_id,
                        producer_epoch,
                        (base - filled) & SEQUENCE_MASK,
                    )
                    pack_crc(records, position + CRC_POSITION, crc32c(checked))
                    set_base_offset(records, position, 0)
                    expected = base + count
                    epoch = leader_epoch
                    frame.pending += 1
                    taken = base, expected, max_timestamp, leader_epoch, records[position:following], frame
                    queue.append(make(GuardedBatch, taken))
                    queued_bytes += following - position
                    position = following
                    continue
            else:
                base, length = PREFIX.unpack_from(records, position)
                following = position + LOG_OVERHEAD + length
                if following > end:
                    break
            if queued_bytes > self.queued_bytes:
                self._begins_at_gap = False
            self.queued_bytes, self.next_offset, self.leader_epoch = queued_bytes, expected, epoch
            if following <= position + MAGIC_POSITION:
                return self._refuse(CorruptBatchError(base, f"its length field says {length}"))
            isolation = isolation or Isolation(aborted)
            stored = records[position:following]
            parts = self._take_apart(stored, isolation, may_overlap=may_overlap)
            if isinstance(parts, Fail):
                return parts
            if _has_hole_above(stored, parts, high_watermark or 0):
                return None  # the next response or a probe of the log end decides
            self._queue_parts(parts, stored, frame)
            expected, epoch, queued_bytes = self.next_offset, self.leader_epoch, self.queued_bytes
            filled = self._filled_offsets
            position = following
        if queued_bytes > self.queued_bytes:
            self._begins_at_gap = False
        self.queued_bytes, self.next_offset, self.leader_epoch = queued_bytes, expected, epoch
        return None

    def _take_apart(
        self, stored: memoryview, isolation: Isolation, *, may_overlap: bool
    ) -> Sequence[Run | Hole] | Fail:
        """Take apart one batch that cannot be sent unchanged."""
        try:
            visible = isolation.kind(stored) is BatchKind.DATA
            if may_overlap and stored[MAGIC_POSITION] == 2 and is_before(stored, self.next_offset):
                return ()
            return pieces(stored, start=self.next_offset, visible=visible, max_bytes=max(len(stored), _RUN_BYTES))
        except KmirrorError as error:
            return self._refuse(error)

    def _queue_parts(self, parts: Sequence[Run | Hole], stored: memoryview, frame: Frame) -> None:
        self._counts.batches_taken_apart += bool(parts)
        leader_epoch = HEADER.unpack_from(stored)[2] if stored[MAGIC_POSITION] >= 2 else self.leader_epoch
        for part in parts:
            if isinstance(part, Run):
                self._queue_run(part, leader_epoch, frame)
            else:
                self._queue_gap(part.base_offset, part.next_offset, leader_epoch)
            self.next_offset, self.leader_epoch = part.next_offset, leader_epoch

    def _queue_run(self, run: Run, leader_epoch: int | None, frame: Frame) -> None:
        sequence = (run.base_offset - self._filled_offsets) & SEQUENCE_MASK
        set_producer(run.data, self._producer_id, self._producer_epoch, sequence)
        frame.pending += 1
        self.queue.append(
            GuardedBatch(run.base_offset, run.next_offset, run.max_timestamp, leader_epoch, run.data, frame)
        )
        self.queued_bytes += len(run.data)
        self._begins_at_gap = False

    def _queue_gap(self, base_offset: int, next_offset: int, leader_epoch: int | None) -> None:
        if self._begins_at_gap:
            self._filled_offsets, self._begins_at_gap = next_offset & SEQUENCE_MASK, False
        else:
            self._filled_offsets = (self._filled_offsets + next_offset - base_offset) & SEQUENCE_MASK
        last = self.queue[-1] if self.queue else None
        if isinstance(last, Gap) and not (self.head_is_taken and len(self.queue) == 1):
            self.queue[-1] = Gap(last.base_offset, next_offset, leader_epoch)
        else:
            self.queue.append(Gap(base_offset, next_offset, leader_epoch))

    def take_in_end_gap(self, until: int) -> None:
        """Queue a gap at the end of the log: the source has nothing more below `until`."""
        if until > self.next_offset:
            self._queue_gap(self.next_offset, until, self.leader_epoch)
            self.next_offset = until

    def take_in_loss(self, until: int) -> None:
        """Queue a gap for what the source has lost below `until`, whose leader epochs are unknown."""
        self.leader_epoch = None
        self.take_in_end_gap(until)

    def take_in_filler(self, until: int, timestamp_ms: int) -> None:
        """Queue some batches of filler, up to an offset."""
        while self.next_offset < until and len(self.queue) < _FILLER_BATCHES:
            count = min(FILLER_RECORDS, until - self.next_offset)
            data = memoryview(filler_batch(count, timestamp_ms))
            frame = Frame(memoryview(b""))
            run = Run(self.next_offset, self.next_offset + count, timestamp_ms, data)
            self._queue_run(run, None, frame)
            frame.pending -= 1  # only the batch refers to it
            self.next_offset += count

    def _refuse(self, error: KmirrorError) -> Fail:
        message = f"{self._source} cannot be mirrored past offset {self.next_offset}: {error}"
        return Fail(error.reason or Reason.CORRUPT_BATCH, message, self.next_offset)


def _size(item: GuardedBatch | Gap) -> int:
    return len(item.data) if isinstance(item, GuardedBatch) else 0


def _apart(item: GuardedBatch | Gap) -> GuardedBatch | Gap:
    """Return a batch in memory of its own."""
    if isinstance(item, Gap) or item.frame.owner is None:
        return item
    return item._replace(data=memoryview(bytearray(item.data)), frame=Frame(memoryview(b"")))


def what_goes_on(part: FetchedPartition, intake: Intake) -> FetchedPartition:
    """Return a part of a response, without its records unless they go on where others, that came meanwhile, ended."""
    is_next = goes_on(part.records, intake.next_offset, intake.leader_epoch)
    return part if is_next else replace(part, records=part.records[:0])


def is_before(stored: memoryview, offset: int) -> bool:
    """Return True if all of a batch of format 2 is below an offset: another response had it already."""
    base, _, _, _, _, _, last_delta, *_ = HEADER.unpack_from(stored)
    return bool(base + last_delta < offset)


def _has_hole_above(stored: memoryview, parts: Sequence[Run | Hole], high_watermark: int) -> bool:
    """Return True if offsets above the high watermark are missing before or in a batch.

    The offset that a marker itself takes is not missing.
    """
    holes = [part for part in parts if isinstance(part, Hole)]
    if not holes:
        return False
    if stored[MAGIC_POSITION] < 2 or not HEADER.unpack_from(stored)[5] & CONTROL:
        return holes[-1].next_offset > high_watermark
    base = int(PREFIX.unpack_from(stored)[0])
    return holes[0].base_offset < base and base > high_watermark
