"""The copy of one partition, as a state machine without I/O: events (with the time) in, permitted actions out.

    INSPECTING --verdict Copy--> COPYING --trouble--> DRAINING --nothing in flight--> WAITING --pause over--> INSPECTING
    any of them --verdict Fail, or a batch that cannot be carried--> FAILED --pause over--> INSPECTING

COPYING relies on one thing: the sequence number of each batch is the number of records the destination must hold before
it, so the broker appends it exactly there or not at all; `broker_memory` keeps that true when the broker may forget our
producer. A batch is never resent blindly: every trouble ends in DRAINING, and the next attempt starts from the log end.

Gaps are filled while nothing else of the partition is in flight (`gap_filling`). A log that must start above 0 (verdict
AdvanceStart) gets filler up to there, sent like batches, and is then trimmed (`log_start`) and inspected again. A
refusal (`refusals`) interrupts the copy or fails it (`retry`).
"""

from __future__ import annotations

from collections import deque

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchPosition
from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.filler import begins_with_filler
from kmirror.cluster.protocol.produce import Append
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches, ReadUpTo, Silence, silent_text
from kmirror.cluster.protocol.wire import NO_TOPIC_ID
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, TailMatch, Trouble, Verdict, Wait
from kmirror.engine.lane.broker_memory import BrokerMemory
from kmirror.engine.lane.counts import Counts
from kmirror.engine.lane.gap_filling import Filled, GapFilling
from kmirror.engine.lane.intake import Frame, Gap, GuardedBatch, Intake
from kmirror.engine.lane.log_start import LogStart
from kmirror.engine.lane.progress import Progress
from kmirror.engine.lane.refusals import REJECTED, append_refused, fetch_refused, may_be_appended, misplaced
from kmirror.engine.lane.retry import Retry
from kmirror.engine.lane.source_view import SourceView
from kmirror.engine.lane.states import ALONE, COPYING, DRAINING, FAILED, SHARED, Permission, Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.words import counted

MAX_IN_FLIGHT = 5
#: A partition whose unsent batches exceed this is not fetched until they are sent.
QUEUE_BYTES = 1 << 20
_HISTORY_LENGTH = 50
#: After fetches below the last stable offset have returned nothing for this long, the end of the log is probed, and
#: again after such pauses.
_NOTHING_SECONDS = 3.0
_PROBE_PAUSE = 5.0


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
        counts: Counts | None = None,
        active: dict[PartitionCopy, None] | None = None,
    ) -> None:
        counts = counts or Counts()
        self.assignment = assignment
        self.status = Status.INSPECTING
        self.progress = Progress(assignment, counts)
        self.retry = Retry(retry_timeout)
        self.source = SourceView()
        #: The facts of the last inspection; None before the first.
        self.facts: Facts | None = None
        self.destination_node: int | None = None
        #: The number of the connection to it that the partition's batches are sent over.
        self.destination_number = 0
        #: Names the partition in a Produce request.
        self._place = assignment.topic, NO_TOPIC_ID, assignment.partition
        self.intake = Intake(
            assignment.source,
            assignment.producer_id,
            assignment.producer_epoch,
            counts,
            merges=assignment.merges_batches,
        )
        #: What is appended next; the intake's own queue.
        self.queue = self.intake.queue
        self.in_flight: deque[GuardedBatch] = deque()
        self.fill = GapFilling(assignment, self.intake)
        self._memory = BrokerMemory(settle, quiet_until)
        self.log_start = LogStart(self.intake)
        #: Why the partition fails unless an inspection finds a better reason: an append landed at another offset.
        self._mismatch: Fail | None = None
        if assignment.mismatch is not None:
            self._mismatch = Fail(Reason.OFFSET_MISMATCH, assignment.mismatch, assignment.mismatch_offset or 0)
        #: A batch ahead that cannot be copied: the partition fails when everything before it is appended.
        self.blocked_by: Fail | None = None
        #: Frames whose last batch is answered, for the caller to recycle.
        self.released = released if released is not None else []
        self.history: deque[str] = deque(maxlen=_HISTORY_LENGTH)
        #: The partitions that need periodic checks: all that are not `is_at_rest`.
        self._active = active if active is not None else {}
        self._activate()

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.assignment.destination} {self.status.value} at {self.progress.acknowledged}>"

    @property
    def _is_busy(self) -> bool:
        return bool(self.in_flight) or self.fill.is_under_way or self.log_start.trim_is_under_way

    def _activate(self) -> None:
        """Have this partition checked from now on: it may no longer be at rest."""
        self._active[self] = None

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
        self.source.node_id = facts.source_leader[0] if not facts.trouble else None
        self.source.follower_until = None
        self.source.brought_something()
        self._memory.expiration_ms = facts.producer_id_expiration_ms
        self._log(f"inspected: {verdict}")
        if isinstance(verdict, Wait):
            self._pause(verdict.trouble, now)
            return
        self.source.inspected(facts, now)
        # a misplaced batch of ours differs from the source too: that says nothing new about the source
        says_more = isinstance(verdict, Fail) and verdict.reason is not Reason.SOURCE_DIVERGED
        if self._mismatch and not says_more:
            self._fail(self._mismatch, now)
        elif isinstance(verdict, Fail):
            self._fail(verdict, now)
        elif unproven := self.retry.unproven(facts.tail):
            self._fail(unproven, now)
        else:
            self._restart(facts, verdict, now_ms)

    def _restart(self, facts: Facts, verdict: Copy | AdvanceStart, now_ms: int) -> None:
        """Copy from where the destination ends, once nothing in flight can change that."""
        progress, memory = self.progress, self._memory
        self.retry.trouble = None
        self.fill.inspected(facts.unused_coordinator_epoch)
        memory.inspected(facts.producer.last_timestamp if facts.producer else None)
        if isinstance(verdict, Copy) and verdict.copied_again:
            progress.again = verdict.offset, verdict.offset + verdict.copied_again
        progress.acknowledged = facts.destination_log_end
        known = facts.producer is not None
        if isinstance(verdict, AdvanceStart):
            self.log_start.fill_then_trim(verdict.to, now_ms)
            self.intake.restart(facts.destination_log_end, None, verdict.filled_offsets, producer_is_known=known)
        else:
            self.log_start.trim(None)
            progress.is_aligned = True
            progress.begun = progress.begun or facts.destination_log_end > facts.destination_log_start
            if facts.tail is TailMatch.SAME:
                progress.epoch = facts.tail_epoch
            epoch = None if facts.tail is TailMatch.NOTHING else progress.epoch
            self.intake.restart(verdict.offset, epoch, verdict.filled_offsets, producer_is_known=known)
        if memory.inspected_at < memory.quiet_until:
            self._hold(memory.quiet_until)
        elif memory.may_still_arrive and not memory.allows(verdict.filled_offsets, now_ms):
            self._hold(memory.settle_until)
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
            self.progress.lost = self.progress.lost or (verdict.offset, verdict.skip_to)
            self._log(f"skips a loss, up to {verdict.skip_to}")
            self.intake.take_in_loss(verdict.skip_to)

    def _hold(self, until: float) -> None:
        """Inspect the log again when nothing that could change its end can be in flight any more."""
        self._log(f"nothing is sent before {until:.3f}: a request may still be in flight")
        self._drop_queue()
        self._activate()
        self.status = Status.WAITING
        self.retry.wake_at = until

    def predecessor_ends(self, at: float) -> None:
        """Note until when a predecessor may write; it was unknown (infinite) or assumed later before."""
        if at < self._memory.quiet_until:
            self._memory.quiet_until = at
            if self.status is Status.WAITING:
                self.retry.wake_at = min(self.retry.wake_at, at)

    def begin_inspection(self, now: float) -> None:
        """Note that an inspection begins: its facts include everything appended before."""
        if self.status is Status.FAILED:
            self.retry.attempt += 1
        self._activate()
        self.status = Status.INSPECTING
        self._memory.inspected_at = now

    def due_for_inspection(self, now: float) -> bool:
        """Return True if the pause after a trouble or a failure is over."""
        is_waiting = self.status is Status.WAITING or (self.status is Status.FAILED and not self._is_busy)
        return is_waiting and now >= self.retry.wake_at

    # -- source ---------------------------------------------------------------------------------------------------

    @property
    def wants_records(self) -> bool:
        """True while fetching makes sense."""
        return (
            self.status is Status.COPYING
            and self.intake.queued_bytes < QUEUE_BYTES
            and self.blocked_by is None
            and not self.is_to_be_trimmed
        )

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
        if answer.error_code:
            self._interrupt(fetch_refused(self.assignment.source, answer.error_code), now)
            return
        if answer.diverging_epoch:
            # an inspection finds out where exactly, and whether the copy differs at all
            epoch, end = answer.diverging_epoch
            what = (
                f"the source's epoch {epoch} now ends at offset {end}, but {self.intake.next_offset} was reached in it"
            )
            self._interrupt(Trouble(Reason.SOURCE_DIVERGED, what), now)
            return
        if not self.progress.begun and begins_with_filler(answer.records):
            what = (
                f"{self.assignment.source} is itself a mirror whose log start is not ready yet: it begins with filler;"
                " copying begins when its own mirror has removed the filler"
            )
            self._interrupt(Trouble(Reason.SOURCE_UNREACHABLE, what), now)
            return
        self.ends_seen(answer)
        self.source.log_start = answer.log_start_offset
        if len(answer.records):
            self.source.batches_seen(answer.records)
            self._take_in(answer.records, answer, frame, may_overlap=may_overlap)
        elif self.caught_up:
            self._made_progress()

    def fetched_ahead(self, records: memoryview, answer: FetchedPartition, frame: Frame) -> None:
        """Take in batches that were fetched ahead, from before the next offset or there; the end may be an older one.

        They may begin with batches that were taken in before.
        """
        self._activate()
        self._take_in(records, answer, frame, may_overlap=True)

    def _take_in(self, records: memoryview, answer: FetchedPartition, frame: Frame, *, may_overlap: bool) -> None:
        begun_at = self.intake.next_offset
        self.blocked_by = self.intake.take_in(
            records,
            answer.aborted_transactions,
            frame,
            high_watermark=answer.high_watermark,
            may_overlap=may_overlap,
        )
        if self.blocked_by:
            self._log(f"cannot continue: {self.blocked_by.message}")
        if self.blocked_by or self.intake.next_offset > begun_at:
            self.source.brought_something()

    def defer(self, *, is_deferred: bool) -> None:
        """Set whether other topics are fetched first."""
        if self.source.is_deferred is not is_deferred:
            self._activate()
            self.source.is_deferred = is_deferred

    def ends_seen(self, answer: FetchedPartition) -> None:
        """Take the source's end offsets from a part of a Fetch response."""
        self._activate()
        self.source.ends_seen(answer)

    def seems_to_end(self, now: float) -> bool:
        """Return True when the source must be probed: it returns nothing although its last stable offset is higher.

        After a crash a log may end with an empty segment, offsets that hold nothing; or the broker does not return what
        it has. Call this periodically: an incremental fetch session does not mention a partition without new data.
        """
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        is_waiting = is_copying and not self.queue and not self.in_flight
        source = self.source
        if not is_waiting or self.blocked_by or self.caught_up or source.is_deferred:
            source.brought_something()
            return False
        if source.nothing_since is None:
            source.nothing_since, source.probe_at = now, now + _NOTHING_SECONDS
        return now > source.probe_at

    def log_end_probed(self, offset: int, found: ReadUpTo | None, now: float, now_ms: int) -> None:
        """Take what a read from `offset` on by itself has proved; None if it failed."""
        source = self.source
        if source.nothing_since is None or offset != self.intake.next_offset or self.status is not Status.COPYING:
            return
        source.probe_at = now + _PROBE_PAUSE
        if isinstance(found, Silence) and found.problem is not None:
            message = f"{self.assignment.source} cannot be mirrored past offset {offset}: {found.problem}"
            self._fail(Fail(Reason.CORRUPT_BATCH, message, offset), now)
        elif isinstance(found, Silence):
            self._log(f"the source is silent below {found.until}: {found.why}")
            since_ms = now_ms - int(1000 * (now - source.nothing_since))
            message = silent_text(self.assignment.source, offset, found.until, found.why, since_ms)
            source.silence = Trouble(Reason.SOURCE_SILENT, message)
        elif isinstance(found, NoBatches):
            self._log(f"the source's log has nothing more below {found.until}")
            self.intake.take_in_end_gap(found.until)
            source.brought_something()
        elif isinstance(found, Batches) and source.silence is None:
            source.brought_something()

    # -- destination ----------------------------------------------------------------------------------------------

    def may_send(self, now_ms: int) -> Permission | None:
        """Return how the first queued batch may be sent now, None if it may not."""
        queue, in_flight = self.queue, len(self.in_flight)
        if not queue or self.status is not COPYING or in_flight == MAX_IN_FLIGHT:
            return None
        batch = queue[0]
        if isinstance(batch, Gap):
            return None
        memory = self._memory
        remembered = memory.is_sure(now_ms, in_flight > 0)
        if memory.inspected_at < memory.settle_until and not (
            remembered and memory.outlives(batch.max_timestamp, now_ms)
        ):
            if not in_flight:
                self._hold(memory.settle_until)
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
        self._memory.sent(batch.max_timestamp, is_first=not self.in_flight)
        self.in_flight.append(batch)
        return batch

    def answered(self, code: int, base_offset: int, detail: str | None, now: float) -> None:
        """Take the answer to the oldest batch in flight."""
        batch = self.in_flight.popleft()
        frame = batch.frame
        frame.pending -= 1
        if frame.pending == 0:
            self.released.append(frame)
        if not code and base_offset == batch.base_offset:
            self._memory.kept_by(batch.max_timestamp)
            if self.log_start.fill_to is None:
                self.progress.appended(batch)
            else:
                self.progress.acknowledged = batch.next_offset
                if self.status is Status.COPYING:
                    self.log_start.take_in_filler()
            self._made_progress()
        elif not code and self._mismatch is None:
            self._mismatch = misplaced(self.assignment.destination, batch.base_offset, base_offset)
            # an inspection finds out who wrote, and how much; the copy does not continue in any case
            if self.status is not Status.FAILED:
                self._interrupt(Trouble(Reason.OFFSET_MISMATCH, self._mismatch.message), now)
        elif self.status is not Status.FAILED:
            self._refused(code, detail, batch, now)
        self.advance(now)

    def _made_progress(self) -> None:
        """Note progress, except for a late response to a request that was sent before a failure."""
        if self.status is not FAILED:
            self.retry.made_progress(is_copying=self.status is COPYING)

    def _refused(self, code: int, detail: str | None, batch: GuardedBatch, now: float) -> None:
        what = f"{code_name(code)} ({code})" + (f": {detail}" if detail else "")
        if code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE):
            what = f"{what}; it has {counted(len(batch.data), 'byte')}"
        self._log(f"append at {batch.base_offset} refused: {what}")
        if may_be_appended(code):
            self._memory.unanswered([batch], now)
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self.status is Status.DRAINING:
            return  # it follows a batch that was refused
        if code in REJECTED and self.intake.merges:
            # it may be too large only because it was merged, or only one of its records is refused
            self._log("batches are sent unmerged from here on")
            self.intake.merges = False
            self._reinspect(now)
            return
        self._follow_up(append_refused(self.assignment.destination, batch.base_offset, code, what), now)

    def outcome_unknown(self, message: str, now: float) -> None:
        """Note that the connection to the destination's leader is lost: what was in flight may have been appended."""
        if self.in_flight:
            self._log(f"{counted(len(self.in_flight), 'batch', 'batches')} without a response: {message}")
            self._memory.unanswered(self.in_flight, now)
        while self.in_flight:
            self._release(self.in_flight.popleft().frame)
        if self.fill.is_under_way:
            self._log(f"markers without a response: {message}")
            self.fill.is_under_way = False
            self._memory.markers_unanswered(now)
        self.interrupted(Trouble(Reason.DESTINATION_UNREACHABLE, message), now)
        self.advance(now)

    def revoke(self, now: float) -> None:
        """Stop sending and taking in for good; requests in flight are still answered."""
        self._log(f"revoked at {now:.3f}")
        self._drop_queue()
        self._active.pop(self, None)
        self._active = {}
        if self.status is not Status.FAILED:
            self.status = Status.DRAINING

    def nothing_can_arrive(self, now: float) -> bool:
        """Return True if no request of ours or of a predecessor can still reach the partition."""
        return not self._is_busy and self._memory.nothing_can_arrive(now)

    @property
    def is_idle(self) -> bool:
        """True while everything fetched is appended, and nothing is in flight."""
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed and not self.blocked_by
        return is_copying and not self.queue and not self._is_busy

    def end_moved(self, trouble: Trouble, now: float) -> None:
        """Note that the log end moved although nothing was in flight."""
        if self.is_idle:
            self._interrupt(trouble, now)

    # -- gaps -----------------------------------------------------------------------------------------------------

    def gap_to_fill(self) -> Gap | None:
        """Return the gap at the head of the queue if it can be filled now."""
        queue = self.queue
        if not queue or self.status is not Status.COPYING or self.in_flight or self.fill.is_under_way:
            return None
        gap = queue[0]
        if not isinstance(gap, Gap):
            return None
        if self._memory.may_still_arrive:
            # a batch of ours may have arrived since, or may yet: the log may end elsewhere by now, or soon
            self._hold(self._memory.settle_until)
            return None
        return gap

    def next_fill_step(self) -> WriteMarkers | ReadLeader | None:
        """Return the next request for the gap at the head of the queue, if any; call `fill.sent` when it is sent."""
        gap = self.gap_to_fill()
        return self.fill.next_step(gap) if gap is not None else None

    def fill_answered(self, code: int, now: float, now_ms: int) -> None:
        """Take the response to a request for markers."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING:
            if not code:
                self._memory.kept_by(now_ms)
            self._follow_up(self.fill.answered(code), now)
        self.advance(now)

    def log_end_seen(self, code: int, log_end: int | None, now: float) -> None:
        """Take the response to a ListOffsets request for the log end."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING:
            self._follow_up(self.fill.log_end_seen(code, log_end), now)
        self.advance(now)

    def filled_by_transactions(self, count: int, now: float) -> None:
        """Note that transactions filled the first `count` offsets of the gap."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING and self.queue:
            gap = self.queue[0]
            filled_to = gap.base_offset + count
            if filled_to == gap.next_offset:
                self.fill.reached = None
                self.progress.filled(self.intake.end_gap())
            else:
                self.fill.reached = filled_to, gap.next_offset
                self.intake.shorten_gap(count)
                self.progress.filled_up_to(filled_to, count)
            self._made_progress()
        self.advance(now)

    def fill_uncertain(self, trouble: Trouble, now: float) -> None:
        """Note that nothing is in flight, but it is unknown how many offsets were filled: inspect the log again."""
        self.interrupted(trouble, now)
        self.fill.is_under_way = False
        self.advance(now)

    @property
    def filling(self) -> tuple[int, int] | None:
        """Up to where a gap, or the log below its start, is filled, and where that ends; None if nothing is filled."""
        to = self.log_start.fill_to
        return self.fill.reached if to is None else (min(self.progress.acknowledged or 0, to), to)

    # -- log start ------------------------------------------------------------------------------------------------

    @property
    def trim_due(self) -> int | None:
        """The offset to trim the log to now; None if it need not be trimmed or has not got so far."""
        to = self.log_start.target
        is_there = to is not None and self.progress.acknowledged is not None and self.progress.acknowledged >= to
        is_idle = self.status is Status.COPYING and not self.queue and not self._is_busy
        return to if is_idle and is_there else None

    def trimmed(self, trouble: Trouble | None, now: float) -> None:
        """Take the result of the trim; inspect the log again in any case."""
        self.log_start.trim_is_under_way = False
        if self.status is not Status.COPYING:
            return
        if trouble:
            self._interrupt(trouble, now)
            return
        self.log_start.trimmed()
        self._log(f"the log now starts at {self.log_start.aligned_to}")
        # nothing is in flight; otherwise the next inspection would have to wait for it
        self._reinspect(now)

    # -- transitions ----------------------------------------------------------------------------------------------

    def interrupted(self, trouble: Trouble, now: float) -> None:
        """Note why copying cannot continue for now; requests may still be in flight."""
        if self.status is Status.COPYING:
            self._interrupt(trouble, now)

    def _interrupt(self, trouble: Trouble, now: float) -> None:
        self.retry.trouble = trouble
        self._log(f"interrupted: {trouble.message}")
        self._activate()
        self._drop_queue()
        self.blocked_by = None
        self.status = Status.DRAINING
        self.advance(now)

    def _reinspect(self, now: float) -> None:
        """Inspect the log again once nothing is in flight, without a pause."""
        self._activate()
        self._drop_queue()
        self.status = Status.DRAINING
        self.advance(now)

    def _follow_up(self, outcome: Filled, now: float) -> None:
        if isinstance(outcome, Gap):
            self.progress.filled(outcome)
            self._made_progress()
        elif isinstance(outcome, Fail):
            self._fail(outcome, now)
        elif outcome is not None:
            self._interrupt(outcome, now)

    def _pause(self, trouble: Trouble, now: float) -> None:
        failure = self.retry.pause(trouble, self.progress.acknowledged or 0, now)
        if failure:
            self._fail(failure, now)
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
            self._fail(self.blocked_by, now)

    def _fail(self, failure: Fail, now: float) -> None:
        """Stop, and inspect again after a pause."""
        self._log(f"failed: {failure}")
        self._activate()
        self._drop_queue()
        self.retry.fail(failure, now)
        self.blocked_by = None
        self.status = Status.FAILED

    def _drop_queue(self) -> None:
        for frame in self.intake.drop():
            self._release(frame)
        self.fill.drop()

    def _release(self, frame: Frame) -> None:
        if frame.release():
            self.released.append(frame)

    def _log(self, line: str) -> None:
        self.history.append(
            f"{line} [fetch {self.intake.next_offset}, acknowledged {self.progress.acknowledged}, "
            f"queued {len(self.queue)}, in flight {len(self.in_flight)}]"
        )

    @property
    def caught_up(self) -> bool:
        """True when the destination has reached the source's last known last stable offset."""
        end, source_end = self.progress.acknowledged, self.source.last_stable_offset
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        return is_copying and source_end is not None and end is not None and end >= source_end
