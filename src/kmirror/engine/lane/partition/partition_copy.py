"""The copy of one partition, as a state machine without I/O: events (with the time) in, permitted actions out.

    INSPECTING --verdict Copy--> COPYING --trouble--> DRAINING --nothing in flight--> WAITING --pause over--> INSPECTING
    any of them --verdict Fail, or a batch that cannot be carried--> FAILED --pause over--> INSPECTING

COPYING relies on one thing: the sequence number of each batch is the number of records the destination must hold before
it, so the broker appends it exactly there or not at all; `broker_memory` keeps that true when the broker may forget our
producer. A batch is never resent blindly: every trouble ends in DRAINING, and the next attempt starts from the log end.

Gaps are filled while nothing else of the partition is in flight (`gap_filling`). A log that must start above 0 (verdict
AdvanceStart) gets filler up to there, sent like batches, and is then trimmed and inspected again; the
events of both are in `partition_fills`. A refusal (`refusals`) interrupts the copy or fails it (`retry`).

The state is changed by methods only; its owner reads it, and is told by calls what it must do next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchPosition
from kmirror.cluster.protocol.produce import Append
from kmirror.cluster.protocol.wire import NO_TOPIC_ID
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, TailMatch, Trouble, Verdict, Wait
from kmirror.engine.lane.partition import refusals
from kmirror.engine.lane.partition.broker_memory import BrokerMemory
from kmirror.engine.lane.partition.copy_progress import CopyProgress
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.gap_filling import Filled, GapFilling, LogStart
from kmirror.engine.lane.partition.intake import Frame, Gap, GuardedBatch, Intake
from kmirror.engine.lane.partition.retry import Retry
from kmirror.engine.lane.partition.source_view import SourceView
from kmirror.engine.lane.partition.states import ALONE, COPYING, DRAINING, FAILED, SHARED, Permission, Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.words import counted

MAX_IN_FLIGHT = 5
_HISTORY_LENGTH = 50


def _ignore(_: object) -> None:
    """Take what no one wants to know."""


class PartitionCopy:
    """Drive one partition. All times are seconds of one monotonic clock, except `*_ms`, which are wall-clock."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        quiet_until: float = 0.0,
        settle: float = 10.0,
        retry_timeout: float = 300.0,
        released: Callable[[Frame], object] = _ignore,
        counts: Counts | None = None,
        activated: Callable[[PartitionCopy], object] = _ignore,
    ) -> None:
        counts = counts or Counts()
        self.assignment = assignment
        self.status = Status.INSPECTING
        self.progress = CopyProgress(assignment, counts)
        self.retry = Retry(retry_timeout)
        self.source = SourceView()
        #: The facts of the last inspection; None before the first.
        self.facts: Facts | None = None
        self.destination_node: int | None = None
        #: The number of the connection to it that the partition's batches are sent over.
        self.destination_number = 0
        self._place = assignment.topic, NO_TOPIC_ID, assignment.partition  # its name in a Produce request
        self.intake = Intake(
            assignment.source,
            assignment.producer_id,
            assignment.producer_epoch,
            counts,
            merges=assignment.merges_batches,
        )
        #: What is appended next, and what was sent and is not answered; changed by methods only.
        self.queue: Sequence[GuardedBatch | Gap] = self.intake.queue
        self._in_flight: deque[GuardedBatch] = deque()
        self.in_flight: Sequence[GuardedBatch] = self._in_flight
        self.fill = GapFilling(assignment, self.intake)
        self.memory = BrokerMemory(settle, quiet_until)
        self.log_start = LogStart(self.intake)
        #: Why the partition fails unless an inspection finds a better reason: a batch was not appended as it was sent.
        self._mismatch: Fail | None = None
        if assignment.mismatch is not None:
            self._mismatch = Fail(Reason.OFFSET_MISMATCH, assignment.mismatch, assignment.mismatch_offset or 0)
        #: A batch ahead that cannot be copied: the partition fails when everything before it is appended.
        self.blocked_by: Fail | None = None
        #: Takes frames whose last batch is answered.
        self._released = released
        self._history: deque[str] = deque(maxlen=_HISTORY_LENGTH)
        self.history: Collection[str] = self._history
        #: Is called when periodic checks may be needed again, until `is_at_rest` is true.
        self._activated = activated
        self._activate()

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.assignment.destination} {self.status.value} at {self.progress.acknowledged}>"

    @property
    def is_busy(self) -> bool:
        """True while a request for the partition is in flight."""
        return bool(self.in_flight) or self.fill.is_under_way or self.log_start.trim_is_under_way

    def _activate(self) -> None:
        """Have this partition checked from now on: it may no longer be at rest."""
        self._activated(self)

    @property
    def is_at_rest(self) -> bool:
        """True while it is caught up and only a fetch or an inspection can change that.

        `_activate` is called whenever that may end.
        """
        return self.caught_up and self.is_idle

    # -- inspection -----------------------------------------------------------------------------------------------

    def inspected(self, facts: Facts, verdict: Verdict, now: float, now_ms: int) -> None:
        """Take the facts and the verdict of the inspection under way."""
        self.facts = facts
        self._place = self.assignment.topic, facts.destination_topic_id or NO_TOPIC_ID, self.assignment.partition
        self.destination_node = facts.destination_leader[0] if not facts.trouble else None
        self.source.led_by(facts.source_leader[0] if not facts.trouble else None)
        self.memory.expiration_ms = facts.destination_limits.expiration_ms
        self.log(f"inspected: {verdict}")
        if isinstance(verdict, Wait):
            self._pause(verdict.trouble, now)
            return
        self.source.inspected(facts, now)
        # a misplaced batch of ours differs from the source too: that says nothing new about the source
        says_more = isinstance(verdict, Fail) and verdict.reason is not Reason.SOURCE_DIVERGED
        if self._mismatch and not says_more:
            self.fail(self._mismatch, now)
        elif isinstance(verdict, Fail):
            self.fail(verdict, now)
        elif unproven := self.retry.unproven(facts.tail):
            self.fail(unproven, now)
        else:
            self._restart(facts, verdict, now_ms)

    def _restart(self, facts: Facts, verdict: Copy | AdvanceStart, now_ms: int) -> None:
        """Copy from where the destination ends, once nothing in flight can change that."""
        progress, memory = self.progress, self.memory
        self.retry.trouble = None
        self.fill.inspected(facts.unused_coordinator_epoch)
        memory.inspected(facts.producer.last_timestamp if facts.producer else None)
        progress.restarted(facts, verdict)
        known = facts.producer is not None
        if isinstance(verdict, AdvanceStart):
            self.log_start.fill_then_trim(verdict.to, now_ms)
            self.intake.restart(facts.destination_log_end, None, verdict.filled_offsets, producer_is_known=known)
        else:
            self.log_start.trim(None)
            epoch = None if facts.tail is TailMatch.NOTHING else progress.epoch
            self.intake.restart(verdict.offset, epoch, verdict.filled_offsets, producer_is_known=known)
        if memory.inspected_at < memory.quiet_until:
            self.hold(memory.quiet_until)
        elif memory.may_still_arrive and not memory.allows(verdict.filled_offsets, now_ms):
            self.hold(memory.settle_until)
        else:
            self.status = Status.COPYING
            if isinstance(verdict, Copy):
                self._skip_loss(verdict)
            else:
                self.log_start.take_in_filler()

    def _skip_loss(self, verdict: Copy) -> None:
        """Queue what the source has lost as a gap, and trim as the verdict says."""
        self.log_start.trim(verdict.trim_to)
        if verdict.skip_to is not None:
            self.progress.skips(verdict.offset, verdict.skip_to)
            self.log(f"skips a loss, up to {verdict.skip_to}")
            self.intake.take_in_loss(verdict.skip_to)

    def hold(self, until: float) -> None:
        """Inspect the log again when nothing that could change its end can be in flight any more."""
        self.log(f"nothing is sent before {until:.3f}: a request may still be in flight")
        self._drop_queue()
        self._activate()
        self.status = Status.WAITING
        self.retry.wake_at = until

    def predecessor_ends(self, at: float) -> None:
        """Note until when a predecessor may write; it was unknown (infinite) or assumed later before."""
        if at < self.memory.quiet_until:
            self.memory.quiet_until = at
            if self.status is Status.WAITING:
                self.retry.wake_at = min(self.retry.wake_at, at)

    def begin_inspection(self, now: float) -> None:
        """Note that an inspection begins: its facts include everything appended before."""
        if self.status is Status.FAILED:
            self.retry.attempt += 1
        self._activate()
        self.status = Status.INSPECTING
        self.memory.inspected_at = now

    def due_for_inspection(self, now: float) -> bool:
        """Return True if the pause after a trouble or a failure is over."""
        is_waiting = self.status is Status.WAITING or (self.status is Status.FAILED and not self.is_busy)
        return is_waiting and now >= self.retry.wake_at

    # -- source ---------------------------------------------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        """True while fetching makes sense."""
        is_copying = self.status is Status.COPYING and not self.blocked_by and not self.is_to_be_trimmed
        return is_copying and self.intake.has_room

    @property
    def is_to_be_trimmed(self) -> bool:
        """True until the log starts where it must; no records are fetched before."""
        return self.log_start.target is not None

    def fetch_position(self, partition_max_bytes: int) -> FetchPosition:
        """Return where to fetch next."""
        epoch = self.facts.source_leader[1] if self.facts else None
        return FetchPosition(self.intake.next_offset, self.intake.leader_epoch, epoch, partition_max_bytes)

    def fetched(self, answer: FetchedPartition, frame: Frame, now: float, *, may_overlap: bool = False) -> None:
        """Take this partition's part of a Fetch response; batches that can be copied are queued.

        With `may_overlap` it may begin with batches that were taken in before.
        """
        if self.status is not Status.COPYING or self.blocked_by or self.is_to_be_trimmed:
            return
        begun, source = self.progress.begun, self.assignment.source
        if trouble := refusals.unusable(answer, source, self.intake.next_offset, begun=begun):
            self.interrupt(trouble, now)
            return
        self.ends_seen(answer)
        if len(answer.records):
            self.source.batches_seen(answer.records)
            self._take_in(answer.records, answer, frame, may_overlap=may_overlap)
        elif self.caught_up:
            self.made_progress()

    def fetched_ahead(self, records: memoryview, answer: FetchedPartition, frame: Frame) -> None:
        """Take in batches that were fetched ahead; the first ones may have been taken in, and the end may be older."""
        self._activate()
        self._take_in(records, answer, frame, may_overlap=True)

    def _take_in(self, records: memoryview, answer: FetchedPartition, frame: Frame, *, may_overlap: bool) -> None:
        begun_at = self.intake.next_offset
        self.progress.source_showed(answer.high_watermark)
        self.blocked_by = self.intake.take_in(
            records,
            answer.aborted_transactions,
            frame,
            high_watermark=answer.high_watermark,
            may_overlap=may_overlap,
        )
        if self.blocked_by:
            self.log(f"cannot continue: {self.blocked_by.message}")
        if self.blocked_by or self.intake.next_offset > begun_at:
            self.source.brought_something()

    def defer(self, *, is_deferred: bool) -> None:
        """Set whether other topics are fetched first."""
        if self.source.is_deferred is not is_deferred:
            self._activate()
            self.source.is_deferred = is_deferred

    def ends_seen(self, answer: FetchedPartition, asked_at: float | None = None) -> None:
        """Take the source's offsets from a part of a Fetch response; one that was `asked_at` before the last is old."""
        if asked_at is None or asked_at >= (self.source.seen_at or 0.0):
            self._activate()
            self.source.ends_seen(answer)
            if asked_at is not None:
                self.source.answered(asked_at)

    # -- destination ----------------------------------------------------------------------------------------------

    def may_send(self, now_ms: int) -> Permission | None:
        """Return how the first queued batch may be sent now, None if it may not."""
        queue, in_flight = self.queue, len(self.in_flight)
        if not queue or self.status is not COPYING or in_flight == MAX_IN_FLIGHT:
            return None
        batch = queue[0]
        if isinstance(batch, Gap):
            return None
        memory = self.memory
        remembered = memory.is_sure(now_ms, in_flight > 0)
        if memory.inspected_at < memory.settle_until and not (
            remembered and memory.outlives(batch.max_timestamp, now_ms)
        ):
            if not in_flight:
                self.hold(memory.settle_until)
            return None
        if remembered and memory.is_proven:
            return SHARED
        return None if in_flight else ALONE

    def append_of(self, batch: GuardedBatch) -> Append:
        """Return a batch with the partition it goes to."""
        return tuple.__new__(Append, (*self._place, batch.data))

    def take(self) -> GuardedBatch:
        """Take the first queued batch for sending; call `may_send` first."""
        batch = self.intake.take()
        self.memory.sent(batch.max_timestamp, is_first=not self.in_flight)
        self._in_flight.append(batch)
        return batch

    def answered(
        self, code: int, base_offset: int, detail: str | None, now: float, log_append_time: int | None = None
    ) -> None:
        """Take the answer to the oldest batch in flight; `log_append_time` as in `AppendAnswer`."""
        batch = self._in_flight.popleft()
        frame = batch.frame
        frame.pending -= 1
        if frame.pending == 0:
            self._released(frame)
        if not code and base_offset == batch.base_offset and log_append_time in (None, batch.max_timestamp):
            self.memory.kept_by(batch.max_timestamp)
            if self.log_start.fill_to is None:
                self.progress.appended(batch)
            else:
                self.progress.acknowledged = batch.next_offset
                if self.status is Status.COPYING:
                    self.log_start.take_in_filler()
            self.made_progress()
        elif not code and self._mismatch is None:
            self._mismatch = refusals.altered(self.assignment.destination, batch.base_offset, base_offset)
            # an inspection finds out who wrote, and how much; the copy does not continue in any case
            if self.status is not Status.FAILED:
                self.interrupt(Trouble(Reason.OFFSET_MISMATCH, self._mismatch.message), now)
        elif self.status is not Status.FAILED:
            self.refused(code, detail, batch, now)
        self.advance(now)

    def made_progress(self) -> None:
        """Note progress, except for a late response to a request that was sent before a failure."""
        if self.status is not FAILED:
            self.retry.made_progress(is_copying=self.status is COPYING)

    def refused(self, code: int, detail: str | None, batch: GuardedBatch, now: float) -> None:
        """Take the error code for a batch that was sent, or that its leader would refuse."""
        what = refusals.refusal(code, detail, len(batch.data))
        self.log(f"append at {batch.base_offset} refused: {what}")
        if refusals.may_yet_be_appended(code):
            self.memory.unanswered([batch], now)
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self.status is Status.DRAINING:
            return  # it follows a batch that was refused
        if code in refusals.REJECTED and self.intake.merges:
            # it may be too large only because it was merged, or only one of its records is refused
            self.log("batches are sent unmerged from here on")
            self.intake.merges = False
            self.reinspect(now)
            return
        self.follow_up(refusals.append_refused(self.assignment.destination, batch.base_offset, code, what), now)

    def outcome_unknown(self, message: str, now: float) -> None:
        """Note that the connection to the destination's leader is lost: what was in flight may have been appended."""
        if self.in_flight:
            self.log(f"{counted(len(self.in_flight), 'batch', 'batches')} without a response: {message}")
            self.memory.unanswered(self.in_flight, now)
        while self.in_flight:
            self._release(self._in_flight.popleft().frame)
        if self.fill.is_under_way and not self.fill.is_by_transactions:
            self.log(f"markers without a response: {message}")
            self.fill.ended()
            self.memory.markers_unanswered(now)
        self.interrupted(Trouble(Reason.DESTINATION_UNREACHABLE, message), now)
        self.advance(now)

    def pin(self, number: int) -> None:
        """Have the partition's batches sent over another connection to its leader."""
        self.destination_number = number

    def waits_for(self, trouble: Trouble) -> None:
        """Note why copying has not begun yet."""
        self.retry.trouble = trouble

    def revoke(self, now: float) -> None:
        """Stop sending and taking in for good; requests in flight are still answered."""
        self.log(f"revoked at {now:.3f}")
        self._drop_queue()
        self._activated = _ignore
        if self.status is not Status.FAILED:
            self.status = Status.DRAINING

    def nothing_can_arrive(self, now: float) -> bool:
        """Return True if no request of ours or of a predecessor can still reach the partition."""
        return not self.is_busy and self.memory.nothing_can_arrive(now)

    @property
    def is_idle(self) -> bool:
        """True while everything fetched is appended, and nothing is in flight."""
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed and not self.blocked_by
        return is_copying and not self.queue and not self.is_busy

    def end_moved(self, trouble: Trouble, now: float) -> None:
        """Note that the log end moved although nothing was in flight."""
        if self.is_idle:
            self.interrupt(trouble, now)

    @property
    def filling(self) -> tuple[int, int] | None:
        """Up to where a gap, or the log below its start, is filled, and where that ends; None if nothing is filled."""
        to = self.log_start.fill_to
        return self.fill.reached if to is None else (min(self.progress.acknowledged or 0, to), to)

    # -- transitions ----------------------------------------------------------------------------------------------

    def interrupted(self, trouble: Trouble, now: float) -> None:
        """Note why copying cannot continue for now; requests may still be in flight."""
        if self.status is Status.COPYING:
            self.interrupt(trouble, now)

    def interrupt(self, trouble: Trouble, now: float) -> None:
        """Stop copying until a pause is over, and the log has been inspected again."""
        self.retry.trouble = trouble
        self.log(f"interrupted: {trouble.message}")
        self._activate()
        self._drop_queue()
        self.status = Status.DRAINING
        self.advance(now)

    def reinspect(self, now: float) -> None:
        """Inspect the log again once nothing is in flight, without a pause."""
        self._activate()
        self._drop_queue()
        self.status = Status.DRAINING
        self.advance(now)

    def follow_up(self, outcome: Filled, now: float) -> None:
        """Continue after a request for the gap at the head of the queue."""
        if isinstance(outcome, Gap):
            self.progress.filled(outcome)
            self.made_progress()
        elif isinstance(outcome, Fail):
            self.fail(outcome, now)
        elif outcome is not None:
            self.interrupt(outcome, now)

    def _pause(self, trouble: Trouble, now: float) -> None:
        if failure := self.retry.pause(trouble, self.progress.acknowledged or 0, now):
            self.fail(failure, now)
        else:
            self.status = Status.WAITING

    def advance(self, now: float) -> None:
        """Move on when nothing is in flight any more: pause, or fail because of a batch that cannot be copied."""
        if self.status is DRAINING and not self.in_flight and not self.fill.is_under_way:
            if self.retry.trouble:
                self._pause(self.retry.trouble, now)
            else:
                self.status, self.retry.wake_at = Status.WAITING, now
        elif self.blocked_by and self.status is COPYING and not self.queue and not self.in_flight:
            self.fail(self.blocked_by, now)

    def fail(self, failure: Fail, now: float) -> None:
        """Stop, and inspect again after a pause."""
        self.log(f"failed: {failure}")
        self._activate()
        self._drop_queue()
        self.retry.fail(failure, now)
        self.status = Status.FAILED

    def _drop_queue(self) -> None:
        for frame in self.intake.drop():
            self._release(frame)
        self.fill.drop()
        self.blocked_by = None

    def keep_little(self) -> bool:
        """Keep little of what follows a gap, because others need the room; return True if it was more."""
        for frame in (frames := self.intake.keep_little()):
            self.blocked_by = None  # what is fetched again shows it again
            self._release(frame)
        return bool(frames)

    def _release(self, frame: Frame) -> None:
        if frame.release():
            self._released(frame)

    def log(self, line: str) -> None:
        """Add a line to the history."""
        self._history.append(
            f"{line} [fetch {self.intake.next_offset}, acknowledged {self.progress.acknowledged}, "
            f"queued {len(self.queue)}, in flight {len(self.in_flight)}]"
        )

    @property
    def caught_up(self) -> bool:
        """True when the destination has reached the source's last known last stable offset."""
        end, source_end = self.progress.acknowledged, self.source.last_stable_offset
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        return is_copying and source_end is not None and end is not None and end >= source_end
