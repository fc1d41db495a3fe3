"""The copy of one partition, as a state machine without I/O: events in, what may be done next out.

Time arrives in events.

    INSPECTING --verdict Copy--> COPYING --trouble--> DRAINING --nothing in flight--> WAITING --pause over--> INSPECTING
    any of them --verdict Fail, or a batch that cannot be carried--> FAILED (for good, in this lane)

COPYING rests on one thing: the sequence number of each batch is the number of records the destination must hold before
it, so the broker appends it exactly there or not at all. Three rules keep that true where the broker's memory ends:

* After each (re)start one batch is in flight until the first success; with an unknown producer id *any* first sequence
  is accepted, so a second batch behind a refused first one would land in its place.
* The broker forgets a producer id whose last record is older than `producer.id.expiration.ms`. A batch goes out behind
  another one only while the records before it are young enough to keep the broker's memory; else one step at a time.
* While a predecessor may still write, nothing is sent at all: how old the records are that it sends next, and whether
  they wipe out the memory, nobody knows. Of requests of our own that were never answered we do know: until they cannot
  be on their way any more, batches go out only if the memory outlives whatever becomes of them. After a pause the log
  end is read afresh.

An answer never leads to a blind repeat: every trouble ends in DRAINING, and what comes after starts from the log end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from kmirror.cluster.batch import (
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
    crc_of,
)
from kmirror.cluster.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.fetch import FetchedPartition, FetchPosition
from kmirror.engine.judge import Facts, Fail, Raise, Tail, Trouble, Verdict, Wait
from kmirror.engine.spec import Assignment, PartitionReport
from kmirror.errors import Reason

MAX_IN_FLIGHT = 5
#: A partition whose unsent batches exceed this is not fetched until they are sent.
QUEUE_BYTES = 1 << 20
#: Clocks of brokers and workers may differ by this much before the guard's age is misjudged.
CLOCK_SLACK_MS = 30_000
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_STORY_LENGTH = 50
#: Refusals that say for certain that nothing was appended, and that may pass.
_NOT_APPENDED = LEADER_MOVED | {
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Code.UNKNOWN_TOPIC_ID,
    Code.INCONSISTENT_TOPIC_ID,
    Code.NOT_ENOUGH_REPLICAS,
    Code.THROTTLING_QUOTA_EXCEEDED,
    Code.UNKNOWN_PRODUCER_ID,
}
_SPECIAL = LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_HIGHEST_CODEC = 4


class Status(Enum):
    """Name what a partition is doing."""

    INSPECTING = "inspecting"
    COPYING = "copying"
    DRAINING = "draining"
    WAITING = "waiting"
    FAILED = "failed"


class Permission(Enum):
    """Say how a batch may go out.

    Brokers delay what lies behind a throttled request; a batch that no memory guards must not lie there.
    """

    #: Behind others and before others, on one connection.
    SHARED = "shared"
    #: With nothing else on its connection that is unanswered.
    ALONE = "alone"


class Frame:
    """Count the batches that still lie in one received frame; `release` returns True with the last.

    `owner` is whoever's buffer it is; the machine only carries it.
    """

    __slots__ = ("owner", "pending", "view")

    def __init__(self, view: memoryview, owner: object = None) -> None:
        self.view = view
        self.owner = owner
        self.pending = 1

    def release(self) -> bool:
        """Give up one hold on the frame."""
        self.pending -= 1
        return self.pending == 0


class Batch(NamedTuple):
    """One batch ready to be guarded and sent."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    leader_epoch: int
    data: memoryview
    frame: Frame


class PartitionCopy:
    """Drive one partition. All times are seconds of one monotonic clock, except `*_ms`, which are wall-clock."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        quiet_until: float = 0.0,
        settle: float = 10.0,
        retry_timeout: float = 300.0,
        released: list[Frame] | None = None,
    ) -> None:
        self.assignment = assignment
        self.status = Status.INSPECTING
        #: Until then a predecessor may still write.
        self.quiet_until = quiet_until
        #: Until then a request of ours that was never answered may still arrive; the oldest record in any of them.
        self._settle_until = 0.0
        self._lost_ms: int | None = None
        self._settle = settle
        self._retry_timeout = retry_timeout
        #: What the last inspection saw; None before the first.
        self.facts: Facts | None = None
        self.destination_node: int | None = None
        self._expiration_ms: int | None = None
        #: Next offset to ask of the source; what the next batch fetched must begin with.
        self.fetch_offset = 0
        self.last_fetched_epoch = -1
        #: The end of what is known to be appended; None before the first inspection.
        self.acknowledged: int | None = None
        #: Source leader epoch and maximum timestamp of the last batch known to be appended.
        self.acknowledged_epoch = -1
        self.acknowledged_timestamp: int | None = None
        #: What to subtract from an offset for its sequence number.
        self._filled_offsets = 0
        self.queue: deque[Batch] = deque()
        self.queued_bytes = 0
        self.in_flight: deque[Batch] = deque()
        self._proven = False
        self._mismatched = False
        #: Timestamp of the records that keep the broker's memory of us; None while it has none.
        self._memory_ms: int | None = None
        #: No record sent since nothing was in flight is older than this.
        self._oldest_in_flight_ms = 0
        self.log_start: int | None = None
        self.last_stable_offset: int | None = None
        self.high_watermark: int | None = None
        self.retry_attempt = 0
        self.wake_at = 0.0
        self._troubled_since: float | None = None
        self._looked_at = 0.0
        self.trouble: Trouble | None = None
        self.failure: Fail | None = None
        #: Answers to fetches sent before this serial number belong to an earlier position.
        self.valid_from_serial = 0
        self.bytes_copied = 0
        #: Frames whose last batch is done with, for the shell to take back.
        self.released = released if released is not None else []
        self.story: deque[str] = deque(maxlen=_STORY_LENGTH)

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.assignment.destination} {self.status.value} at {self.acknowledged}>"

    # -- inspection -----------------------------------------------------------------------------------------------

    def inspected(self, facts: Facts, verdict: Verdict, now: float, now_ms: int) -> None:
        """Take the verdict of an inspection that was begun while INSPECTING."""
        self.facts = facts
        self.destination_node = facts.destination_leader[0] if not facts.trouble else None
        self._expiration_ms = facts.producer_id_expiration_ms
        self._tell(f"inspected: {verdict}")
        if isinstance(verdict, Fail):
            self._fail(verdict)
            return
        if isinstance(verdict, Raise):
            self._fail_at(
                Reason.SOURCE_TRUNCATED,
                f"{self.assignment.source} starts at offset {verdict.to}, "
                "and a mirror topic that begins above 0 cannot be made yet",
                facts.destination_log_end,
            )
            return
        if isinstance(verdict, Wait):
            self._troubled(verdict.trouble, now)
            return
        self.last_stable_offset = facts.last_stable_offset
        self.high_watermark = facts.high_watermark
        self.log_start = facts.source_log_start
        self.trouble = None
        self.fetch_offset = self.acknowledged = verdict.offset
        self._filled_offsets = verdict.filled_offsets
        if facts.tail is Tail.SAME:
            self.acknowledged_epoch = facts.tail_epoch
        self.last_fetched_epoch = -1 if facts.tail is Tail.NOTHING else self.acknowledged_epoch
        self._memory_ms = facts.producer.last_timestamp if facts.producer else None
        self._proven = False
        if self._looked_at >= self._settle_until:
            self._lost_ms = None
        if self._looked_at < self.quiet_until:
            self._hold(self.quiet_until)
        elif self._looked_at < self._settle_until and not self._remembered(now_ms):
            self._hold(self._settle_until)
        else:
            self.status = Status.COPYING

    def _hold(self, until: float) -> None:
        """Look again at the log end when nothing that could change it can be on its way any more."""
        self._tell(f"nothing is sent before {until:.3f}: something may still be on its way")
        self._drop_queue()
        self.status = Status.WAITING
        self.wake_at = until

    def predecessor_ends(self, at: float) -> None:
        """Learn until when a predecessor may write; before, that was unknown and `quiet_until` infinite."""
        if self.quiet_until == float("inf"):
            self.quiet_until = at
            if self.status is Status.WAITING:
                self.wake_at = min(self.wake_at, at)

    def begin_inspection(self, now: float) -> None:
        """Note that facts are gathered from now on: what was appended before is in them."""
        self.status = Status.INSPECTING
        self._looked_at = now

    def due_for_inspection(self, now: float) -> bool:
        """True when the pause after a trouble is over."""
        return self.status is Status.WAITING and now >= self.wake_at

    # -- source ---------------------------------------------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        """True while fetching makes sense."""
        return self.status is Status.COPYING and self.queued_bytes < QUEUE_BYTES and self.failure is None

    def fetch_position(self, partition_max_bytes: int) -> FetchPosition:
        """Say from where to fetch next."""
        epoch = self.facts.source_leader[1] if self.facts else -1
        return FetchPosition(self.fetch_offset, self.last_fetched_epoch, epoch, partition_max_bytes)

    def fetched(self, answer: FetchedPartition, frame: Frame, now: float) -> None:
        """Take one partition's part of a Fetch answer; batches that can be carried are queued."""
        if self.status is not Status.COPYING or self.failure:
            return
        if answer.error_code:
            self._fetch_refused(answer.error_code, now)
            return
        if answer.diverging_epoch:
            epoch, end = answer.diverging_epoch
            self._fail_at(
                Reason.SOURCE_DIVERGED,
                f"the history of {self.assignment.source} was rewritten: its epoch {epoch} ends at offset {end}, "
                f"but {self.fetch_offset} had been copied from it",
                end,
            )
            return
        self.high_watermark = answer.high_watermark
        self.last_stable_offset = answer.last_stable_offset
        self.log_start = answer.log_start_offset
        if len(answer.records):
            self._queue_batches(answer.records, frame)
        elif self.caught_up:
            self.retry_attempt = 0
            self._troubled_since = None

    def _queue_batches(self, records: memoryview, frame: Frame) -> None:
        """Check and guard batch after batch, in one go: twice over bytes that the processor's cache still holds."""
        position, end = 0, len(records)
        expected, epoch = self.fetch_offset, self.last_fetched_epoch
        assignment = self.assignment
        producer_id, producer_epoch, filled = (
            assignment.producer_id,
            assignment.producer_epoch,
            self._filled_offsets,
        )
        queue, queued_bytes = self.queue, self.queued_bytes
        unpack, set_base_offset = HEADER.unpack_from, BASE_OFFSET.pack_into
        set_producer, set_crc = PRODUCER.pack_into, CRC.pack_into
        while end - position >= BATCH_OVERHEAD:
            (base, length, leader_epoch, magic, crc, attributes, delta, _, max_timestamp, _, _, _, count) = unpack(
                records, position
            )
            following = position + LOG_OVERHEAD + length
            if following > end:
                break
            if (
                magic != 2
                or base != expected
                or attributes & _SPECIAL
                or count != delta + 1
                or count <= 0
                or attributes & COMPRESSION_MASK > _HIGHEST_CODEC
                or length < BATCH_OVERHEAD - LOG_OVERHEAD
                or crc32c(checked := records[position + ATTRIBUTES_POSITION : following]) != crc
            ):
                self._refuse_batch(records[position : max(following, position + BATCH_OVERHEAD)], expected)
                break
            set_producer(
                records, position + PRODUCER_POSITION, producer_id, producer_epoch, (base - filled) & SEQUENCE_MASK
            )
            set_crc(records, position + CRC_POSITION, crc32c(checked))
            set_base_offset(records, position, 0)
            expected = base + count
            epoch = leader_epoch
            frame.pending += 1
            queue.append(Batch(base, expected, max_timestamp, leader_epoch, records[position:following], frame))
            queued_bytes += following - position
            position = following
        else:
            if end - position > MAGIC_POSITION and records[position + MAGIC_POSITION] != 2:
                self._refuse_batch(records[position:], expected)
        self.queued_bytes = queued_bytes
        self.fetch_offset, self.last_fetched_epoch = expected, epoch

    def _refuse_batch(self, batch: memoryview, expected: int) -> None:
        """Stop at a batch that cannot be carried. What was queued before it is still sent; see `appended`."""
        base, length = PREFIX.unpack_from(batch, 0)
        magic, size = batch[MAGIC_POSITION], LOG_OVERHEAD + length
        reason, what = Reason.UNSUPPORTED_MESSAGE_FORMAT, ""
        if magic != 2:
            what = f"message format {magic} is not supported, only 2"
        elif size < BATCH_OVERHEAD or crc_of(batch) != HEADER.unpack_from(batch, 0)[4]:
            reason, what = Reason.CORRUPT_BATCH, "the batch does not have the checksum it says"
        else:
            attributes, delta, count = (HEADER.unpack_from(batch, 0)[i] for i in (5, 6, 12))
            if attributes & CONTROL:
                what = "transaction markers cannot be carried yet"
            elif attributes & TRANSACTIONAL:
                what = "transactional records cannot be carried yet"
            elif attributes & LOG_APPEND_TIME:
                what = "records with LogAppendTime cannot be carried yet"
            elif base < expected:
                what = f"the source's batch begins at offset {base}, so this offset lies inside it"
            elif base > expected or count != delta + 1:
                what = "offsets are missing here (compaction), and holes cannot be carried yet"
            else:
                what = f"its compression type {attributes & COMPRESSION_MASK} is unknown"
        message = f"{self.assignment.source} cannot be mirrored past offset {expected}: {what}"
        self.failure = Fail(reason, message, expected)
        self._tell(f"refused batch: {self.failure.message}")

    def _fetch_refused(self, code: int, now: float) -> None:
        source = self.assignment.source
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            trouble = Trouble(Reason.NOT_AUTHORIZED, f"no right to READ source topic {source.topic}", True)
        else:
            trouble = Trouble(Reason.SOURCE_UNREACHABLE, f"fetching {source}: {code_name(code)} ({code})")
        self._interrupt(trouble, now)

    def source_lost(self, message: str, now: float) -> None:
        """Take the loss of the connection to the source's leader."""
        if self.status is Status.COPYING:
            self._interrupt(Trouble(Reason.SOURCE_UNREACHABLE, message), now)

    # -- destination ----------------------------------------------------------------------------------------------

    def may_send(self, now: float, now_ms: int) -> Permission | None:
        """Decide whether the first queued batch may go out now, and whether it may share its connection."""
        queue = self.queue
        if not queue or self.status is not Status.COPYING:
            return None
        remembered = self._remembered(now_ms)
        if now < self._settle_until and not (remembered and self._keeps_memory(queue[0].max_timestamp, now_ms)):
            if not self.in_flight:
                self._hold(self._settle_until)
            return None
        guarded = remembered and self._proven
        if self.in_flight and not (guarded and len(self.in_flight) < MAX_IN_FLIGHT):
            return None
        return Permission.SHARED if guarded else Permission.ALONE

    def take(self) -> Batch:
        """Take the first queued batch for sending; ask `may_send` first."""
        batch = self.queue.popleft()
        self.queued_bytes -= len(batch.data)
        if not self.in_flight or batch.max_timestamp < self._oldest_in_flight_ms:
            self._oldest_in_flight_ms = batch.max_timestamp
        self.in_flight.append(batch)
        return batch

    def _keeps_memory(self, timestamp_ms: int, now_ms: int) -> bool:
        expiration = self._expiration_ms
        return expiration is not None and timestamp_ms + expiration - CLOCK_SLACK_MS > now_ms

    def _remembered(self, now_ms: int) -> bool:
        """True while the broker surely remembers our producer id, whatever comes of the batches in flight."""
        oldest = self._memory_ms
        if oldest is None:
            return False
        if self.in_flight and self._oldest_in_flight_ms < oldest:
            oldest = self._oldest_in_flight_ms
        if self._lost_ms is not None and self._lost_ms < oldest:
            oldest = self._lost_ms
        expiration = self._expiration_ms
        return expiration is not None and oldest + expiration - CLOCK_SLACK_MS > now_ms

    def answered(self, code: int, base_offset: int, detail: str | None, now: float) -> None:
        """Take the answer to the oldest batch in flight."""
        batch = self.in_flight.popleft()
        frame = batch.frame
        frame.pending -= 1
        if frame.pending == 0:
            self.released.append(frame)
        if code == Code.NONE and base_offset == batch.base_offset:
            self.acknowledged = batch.next_offset
            self.acknowledged_epoch = batch.leader_epoch
            self.acknowledged_timestamp = self._memory_ms = batch.max_timestamp
            self.bytes_copied += len(batch.data)
            self._proven = True
            self.retry_attempt = 0
            if self.trouble is None or self.status is Status.COPYING:
                self._troubled_since = None
        elif code == Code.NONE and not self._mismatched:
            self._mismatched = True
            self._fail_at(
                Reason.OFFSET_MISMATCH,
                f"a batch for offset {batch.base_offset} of {self.assignment.destination} was appended at "
                f"{base_offset}: somebody else writes to it. Copying has stopped; nothing was repaired",
                batch.base_offset,
            )
        elif self.status is not Status.FAILED:
            self._refused(code, detail, batch, now)
        self._advance(now)

    def _refused(self, code: int, detail: str | None, batch: Batch, now: float) -> None:
        destination = self.assignment.destination
        what = f"{code_name(code)} ({code})" + (f": {detail}" if detail else "")
        self._tell(f"append at {batch.base_offset} refused: {what}")
        if code in {Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE, Code.INVALID_RECORD, Code.INVALID_TIMESTAMP,
                    Code.CORRUPT_MESSAGE, Code.UNSUPPORTED_FOR_MESSAGE_FORMAT}:  # fmt: skip
            self._fail_at(
                Reason.RECORD_REJECTED,
                f"the destination does not take the batch at offset {batch.base_offset} of {destination}: {what}",
                batch.base_offset,
            )
        elif code == Code.INVALID_PRODUCER_EPOCH:
            self._fail_at(
                Reason.FENCED, f"{destination} was taken out of this engine's hands ({what})", batch.base_offset
            )
        elif code == Code.TOPIC_AUTHORIZATION_FAILED:
            self._interrupt(Trouble(Reason.NOT_AUTHORIZED, f"no right to WRITE topic {destination.topic}", True), now)
        elif code in _NOT_APPENDED:
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"appending to {destination}: {what}"), now)
        else:
            self._unanswered([batch], now)
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"appending to {destination}: {what}"), now)

    def outcome_unknown(self, message: str, now: float) -> None:
        """Take the loss of the connection to the destination's leader: what was in flight may have been appended."""
        if self.in_flight:
            self._tell(f"{len(self.in_flight)} batches without an answer: {message}")
            self._unanswered(self.in_flight, now)
        while self.in_flight:
            self._release(self.in_flight.popleft())
        if self.status is Status.COPYING:
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, message), now)
        self._advance(now)

    def _unanswered(self, batches: Iterable[Batch], now: float) -> None:
        """Remember that these may still be appended, and how old the oldest record in them is."""
        self._settle_until = max(self._settle_until, now + self._settle)
        oldest = min(batch.max_timestamp for batch in batches)
        self._lost_ms = oldest if self._lost_ms is None else min(oldest, self._lost_ms)

    # -- moves ----------------------------------------------------------------------------------------------------

    def _interrupt(self, trouble: Trouble, now: float) -> None:
        self.trouble = trouble
        self._tell(f"interrupted: {trouble.message}")
        self._drop_queue()
        self.failure = None
        self.status = Status.DRAINING
        self._advance(now)

    def _troubled(self, trouble: Trouble, now: float) -> None:
        """Pause, longer each time; a trouble that is an answer rather than silence fails after the retry time."""
        self.trouble = trouble
        if self._troubled_since is None:
            self._troubled_since = now
        self.retry_attempt += 1
        if trouble.permanent_after_retries and now - self._troubled_since >= self._retry_timeout:
            self._fail_at(trouble.reason, trouble.message, self.acknowledged or 0)
            return
        self.status = Status.WAITING
        self.wake_at = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.retry_attempt - 1, 10))

    def _advance(self, now: float) -> None:
        if self.status is Status.DRAINING and not self.in_flight:
            if self.trouble:
                self._troubled(self.trouble, now)
            else:
                self.status, self.wake_at = Status.WAITING, now
        elif self.status is Status.COPYING and self.failure and not self.queue and not self.in_flight:
            self._fail(self.failure)

    def settle_failure(self) -> None:
        """Become FAILED when everything before the batch that cannot be carried is appended."""
        self._advance(0.0)

    def _fail_at(self, reason: Reason, message: str, offset: int) -> None:
        self._fail(Fail(reason, message, offset))

    def _fail(self, failure: Fail) -> None:
        self._tell(f"failed: {failure}")
        self._drop_queue()
        self.failure = failure
        self.trouble = None
        self.status = Status.FAILED

    def _drop_queue(self) -> None:
        while self.queue:
            self._release(self.queue.popleft())
        self.queued_bytes = 0

    def _release(self, batch: Batch) -> None:
        if batch.frame.release():
            self.released.append(batch.frame)

    def _tell(self, line: str) -> None:
        self.story.append(
            f"{line} [fetch {self.fetch_offset}, acknowledged {self.acknowledged}, "
            f"queued {len(self.queue)}, in flight {len(self.in_flight)}]"
        )

    @property
    def caught_up(self) -> bool:
        """True when the destination ends where the source's last stable offset was last seen."""
        return (
            self.status is Status.COPYING
            and self.last_stable_offset is not None
            and self.acknowledged is not None
            and self.acknowledged >= self.last_stable_offset
        )

    def report(self, rate: int = 0) -> PartitionReport:
        """Say how this partition stands."""
        failed = self.failure if self.status is Status.FAILED else None
        state = "FAILED" if failed else "MIRRORING" if self.status is Status.COPYING else "LOG_ALIGNMENT"
        if state == "LOG_ALIGNMENT" and self.acknowledged is not None:
            state = "MIRRORING"
        trouble = self.trouble
        return PartitionReport(
            self.assignment.topic,
            self.assignment.partition,
            state,
            self.acknowledged,
            self.last_stable_offset,
            self.high_watermark,
            self.log_start,
            self.acknowledged_timestamp,
            self.acknowledged_epoch if self.acknowledged_epoch >= 0 else None,
            rate,
            failed.reason if failed else trouble.reason if trouble else None,
            failed.message if failed else trouble.message if trouble else None,
            self.retry_attempt,
            failed.offset if failed else None,
        )


# The checksum covers everything from the attributes on; a batch shorter than that is cut off.
assert ATTRIBUTES_POSITION < BATCH_OVERHEAD
