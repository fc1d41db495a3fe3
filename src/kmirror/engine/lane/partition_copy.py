"""The copy of one partition, as a state machine without I/O: events in (with the time), what may be done next out.

    INSPECTING --verdict Copy--> COPYING --trouble--> DRAINING --nothing in flight--> WAITING --pause over--> INSPECTING
    any of them --verdict Fail, or a batch that cannot be carried--> FAILED --pause over--> INSPECTING

COPYING rests on one thing: the sequence number of each batch is the number of records the destination must hold before
it, so the broker appends it exactly there or not at all; `broker_memory` keeps that true where its memory ends. An
answer never leads to a blind repeat: every trouble ends in DRAINING, and what comes after starts from the log end.

Gaps are filled while nothing else of the partition is on its way (`gap_filling`). A log that is to begin above 0
(verdict AdvanceStart) gets filler up to there, which goes the way of batches, and is then trimmed (`log_start`); after
that comes another inspection. What is refused (`refusals`) interrupts the copy or fails it (`retry`).
"""

from __future__ import annotations

from collections import deque

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchPosition
from kmirror.cluster.protocol.fill_plan import Ask, Look
from kmirror.cluster.protocol.filler import begins_with_filler
from kmirror.cluster.protocol.produce import Append
from kmirror.cluster.protocol.wire import NO_TOPIC_ID
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, Tail, Trouble, Verdict, Wait
from kmirror.engine.lane.broker_memory import BrokerMemory
from kmirror.engine.lane.counts import Counts
from kmirror.engine.lane.gap_filling import Filled, GapFilling
from kmirror.engine.lane.intake import Batch, Frame, Gap, Intake
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
_STORY_LENGTH = 50
#: A log whose fetches bring nothing for so long, below its last stable offset, is looked at more closely.
_NOTHING_SECONDS = 3.0


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
        restless: dict[PartitionCopy, None] | None = None,
    ) -> None:
        counts = counts or Counts()
        self.assignment = assignment
        self.status = Status.INSPECTING
        self.progress = Progress(assignment, counts)
        self.retry = Retry(retry_timeout)
        self.source = SourceView()
        #: What the last inspection saw; None before the first.
        self.facts: Facts | None = None
        self.destination_node: int | None = None
        #: What names it in a request for batches.
        self._place = assignment.topic, NO_TOPIC_ID, assignment.partition
        self.intake = Intake(
            assignment.source,
            assignment.producer_id,
            assignment.producer_epoch,
            counts,
            merges=assignment.merges_batches,
        )
        #: What is to be appended next; the intake's own.
        self.queue = self.intake.queue
        self.in_flight: deque[Batch] = deque()
        self.fill = GapFilling(assignment, self.intake)
        self._memory = BrokerMemory(settle, quiet_until)
        self.log_start = LogStart(self.intake)
        #: Why this fails, should an inspection not know better: an append landed at another offset.
        self._mismatch: Fail | None = None
        if assignment.mismatch is not None:
            self._mismatch = Fail(Reason.OFFSET_MISMATCH, assignment.mismatch, assignment.mismatch_offset or 0)
        #: What lies ahead and cannot be carried: the partition fails when everything before it is appended.
        self.blocked_by: Fail | None = None
        #: Frames whose last batch is done with, for the shell to take back.
        self.released = released if released is not None else []
        self.story: deque[str] = deque(maxlen=_STORY_LENGTH)
        #: The partitions that have to be looked at now and then: all but those that stand still, see `is_at_rest`.
        self._restless = restless if restless is not None else {}
        self._stir()

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.assignment.destination} {self.status.value} at {self.progress.acknowledged}>"

    @property
    def _is_busy(self) -> bool:
        return bool(self.in_flight) or self.fill.is_under_way or self.log_start.trim_is_under_way

    def _stir(self) -> None:
        """Be looked at from now on: this is, or may be, at rest no more."""
        self._restless[self] = None

    @property
    def is_at_rest(self) -> bool:
        """True while it has all that its source is known to have, and nothing happens before a fetch or a look brings
        news; `_stir` is called whenever that may end."""
        return self.caught_up and self.is_idle

    # -- inspection -----------------------------------------------------------------------------------------------

    def inspected(self, facts: Facts, verdict: Verdict, now: float, now_ms: int) -> None:
        """Take the verdict of an inspection that was begun while INSPECTING."""
        self.facts = facts
        self._place = self.assignment.topic, facts.destination_topic_id or NO_TOPIC_ID, self.assignment.partition
        self.destination_node = facts.destination_leader[0] if not facts.trouble else None
        self.source.node_id = facts.source_leader[0] if not facts.trouble else None
        self.source.follows_until = None
        self._memory.expiration_ms = facts.producer_id_expiration_ms
        self._tell(f"inspected: {verdict}")
        if isinstance(verdict, Wait):
            self._pause(verdict.trouble, now)
            return
        self.source.inspected(facts, now)
        # a batch of ours that lies elsewhere than meant differs from the source too: that is no news about the source
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
        """Copy from where the destination ends, once nothing can change that any more."""
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
            if facts.tail is Tail.SAME:
                progress.epoch = facts.tail_epoch
            epoch = None if facts.tail is Tail.NOTHING else progress.epoch
            self.intake.restart(verdict.offset, epoch, verdict.filled_offsets, producer_is_known=known)
        if memory.looked_at < memory.quiet_until:
            self._hold(memory.quiet_until)
        elif memory.may_still_arrive and not memory.allows(verdict.filled_offsets, now_ms):
            self._hold(memory.settle_until)
        else:
            self.status = Status.COPYING
            if isinstance(verdict, Copy):
                self._go_past(verdict)
            else:
                self.log_start.take_in_filler()

    def _go_past(self, verdict: Copy) -> None:
        """Queue what the source has lost as a gap."""
        self.log_start.trim(verdict.trim_to)
        if verdict.skip_to is not None:
            self.progress.lost = self.progress.lost or (verdict.offset, verdict.skip_to)
            self._tell(f"goes past a loss, up to {verdict.skip_to}")
            self.intake.take_in_loss(verdict.skip_to)

    def _hold(self, until: float) -> None:
        """Look again at the log end when nothing that could change it can be on its way any more."""
        self._tell(f"nothing is sent before {until:.3f}: something may still be on its way")
        self._drop_queue()
        self._stir()
        self.status = Status.WAITING
        self.retry.wake_at = until

    def predecessor_ends(self, at: float) -> None:
        """Note until when a predecessor may write; before, that was unknown (infinite), or taken to be later."""
        if at < self._memory.quiet_until:
            self._memory.quiet_until = at
            if self.status is Status.WAITING:
                self.retry.wake_at = min(self.retry.wake_at, at)

    def begin_inspection(self, now: float) -> None:
        """Note that facts are gathered from now on: what was appended before is in them."""
        if self.status is Status.FAILED:
            self.retry.attempt += 1
        self._stir()
        self.status = Status.INSPECTING
        self._memory.looked_at = now

    def due_for_inspection(self, now: float) -> bool:
        """Tell whether the pause after a trouble or a failure is over."""
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
        """True until the log begins where it is to: no record is taken before."""
        return self.log_start.target is not None

    def fetch_position(self, partition_max_bytes: int) -> FetchPosition:
        """Say from where to fetch next."""
        epoch = self.facts.source_leader[1] if self.facts else None
        return FetchPosition(self.intake.next_offset, self.intake.leader_epoch, epoch, partition_max_bytes)

    def fetched(self, answer: FetchedPartition, frame: Frame, now: float) -> None:
        """Take one partition's part of a Fetch answer; batches that can be carried are queued."""
        if self.status is not Status.COPYING or self.blocked_by or self.is_to_be_trimmed:
            return
        if answer.error_code:
            self._interrupt(fetch_refused(self.assignment.source, answer.error_code), now)
            return
        if answer.diverging_epoch:
            # where exactly, and whether what was copied differs at all, an inspection finds out
            epoch, end = answer.diverging_epoch
            what = (
                f"the source's epoch {epoch} ends at offset {end} now, and {self.intake.next_offset} was reached in it"
            )
            self._interrupt(Trouble(Reason.SOURCE_DIVERGED, what), now)
            return
        if not self.progress.begun and begins_with_filler(answer.records):
            what = (
                f"{self.assignment.source} is itself a mirror whose log start is not ready yet: it begins with filler;"
                " copying begins when its own mirror has removed that"
            )
            self._interrupt(Trouble(Reason.SOURCE_UNREACHABLE, what), now)
            return
        self.ends_seen(answer)
        self.source.log_start = answer.log_start_offset
        if len(answer.records):
            self.source.batches_seen(answer.records)
            begun_at = self.intake.next_offset
            self.blocked_by = self.intake.take_in(
                answer.records, answer.aborted_transactions, frame, high_watermark=answer.high_watermark
            )
            if self.blocked_by:
                self._tell(f"cannot go on: {self.blocked_by.message}")
            if self.blocked_by or self.intake.next_offset > begun_at:
                self.source.nothing_since = None
        elif self.caught_up:
            self._got_on()

    def put_off(self, *, is_put_off: bool) -> None:
        """Note whether other topics come first."""
        if self.source.is_put_off is not is_put_off:
            self._stir()
            self.source.is_put_off = is_put_off

    def ends_seen(self, answer: FetchedPartition) -> None:
        """Take where the source ends, from a part of a Fetch answer."""
        self._stir()
        self.source.ends_seen(answer)

    def seems_to_end(self, now: float) -> bool:
        """Tell whether the source gives nothing more for a while, although its last stable offset is higher.

        After a crash a log may end with an empty segment: offsets that it has, and that hold nothing. To be asked now
        and then: an incremental fetch session says nothing of a partition that has nothing new.
        """
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        is_waiting = is_copying and not self.queue and not self.in_flight
        if not is_waiting or self.blocked_by or self.caught_up or self.source.is_put_off:
            self.source.nothing_since = None
            return False
        self.source.nothing_since = now if self.source.nothing_since is None else self.source.nothing_since
        return now - self.source.nothing_since > _NOTHING_SECONDS

    def nothing_found(self, offset: int, until: int | None, problem: str | None, now: float) -> None:
        """Take the result of that closer look: nothing is between `offset` and `until`; None: there is.

        `problem` says why what there is cannot be taken.
        """
        is_as_it_was = self.source.nothing_since is not None and offset == self.intake.next_offset
        if is_as_it_was and problem is not None and self.status is Status.COPYING:
            message = f"{self.assignment.source} cannot be mirrored past offset {offset}: {problem}"
            self._fail(Fail(Reason.CORRUPT_BATCH, message, offset), now)
        elif is_as_it_was and until is not None:
            self._tell(f"the source's log ends with nothing below {until}")
            self.intake.take_in_nothing(until)
        self.source.nothing_since = None

    # -- destination ----------------------------------------------------------------------------------------------

    def may_send(self, now_ms: int) -> Permission | None:
        """Decide whether the first queued batch may go out now, and whether it may share its connection."""
        queue, in_flight = self.queue, len(self.in_flight)
        if not queue or self.status is not COPYING or in_flight == MAX_IN_FLIGHT:
            return None
        batch = queue[0]
        if isinstance(batch, Gap):
            return None
        memory = self._memory
        remembered = memory.is_sure(now_ms, in_flight > 0)
        if memory.looked_at < memory.settle_until and not (remembered and memory.outlives(batch.max_timestamp, now_ms)):
            if not in_flight:
                self._hold(memory.settle_until)
            return None
        if remembered and memory.is_proven:
            return SHARED
        return None if in_flight else ALONE

    def append_of(self, batch: Batch) -> Append:
        """Return a batch with where it belongs."""
        return tuple.__new__(Append, (*self._place, batch.data))

    def take(self) -> Batch:
        """Take the first queued batch for sending; ask `may_send` first."""
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
            self._got_on()
        elif not code and self._mismatch is None:
            self._mismatch = misplaced(self.assignment.destination, batch.base_offset, base_offset)
            # who and how much, an inspection finds out; the copy continues in no case
            if self.status is not Status.FAILED:
                self._interrupt(Trouble(Reason.OFFSET_MISMATCH, self._mismatch.message), now)
        elif self.status is not Status.FAILED:
            self._refused(code, detail, batch, now)
        self.advance(now)

    def _got_on(self) -> None:
        """Note that copying continues; not by the late answer to what was sent before a failure."""
        if self.status is not FAILED:
            self.retry.got_on(is_copying=self.status is COPYING)

    def _refused(self, code: int, detail: str | None, batch: Batch, now: float) -> None:
        what = f"{code_name(code)} ({code})" + (f": {detail}" if detail else "")
        self._tell(f"append at {batch.base_offset} refused: {what}")
        if may_be_appended(code):
            self._memory.unanswered([batch], now)
        if code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and self.status is Status.DRAINING:
            return  # it comes after one that was refused
        if code in REJECTED and self.intake.merges:
            # it may be too large only because it was put together, or only one of its records is refused
            self._tell("batches are sent as they are from here on")
            self.intake.merges = False
            self._look_again(now)
            return
        self._follow_up(append_refused(self.assignment.destination, batch.base_offset, code, what), now)

    def outcome_unknown(self, message: str, now: float) -> None:
        """Take the loss of the connection to the destination's leader: what was in flight may have been appended."""
        if self.in_flight:
            self._tell(f"{counted(len(self.in_flight), 'batch', 'batches')} without an answer: {message}")
            self._memory.unanswered(self.in_flight, now)
        while self.in_flight:
            self._release(self.in_flight.popleft().frame)
        if self.fill.is_under_way:
            self._tell(f"markers without an answer: {message}")
            self.fill.is_under_way = False
            self._memory.markers_unanswered(now)
        self.interrupted(Trouble(Reason.DESTINATION_UNREACHABLE, message), now)
        self.advance(now)

    def leave(self, now: float) -> None:
        """Send nothing more and take nothing in, for good; what is on its way is still answered."""
        self._tell(f"given up at {now:.3f}")
        self._drop_queue()
        self._restless.pop(self, None)
        self._restless = {}
        if self.status is not Status.FAILED:
            self.status = Status.DRAINING

    def nothing_can_arrive(self, now: float) -> bool:
        """Tell whether nothing is on its way to the partition, of ours or of a predecessor's."""
        return not self._is_busy and self._memory.nothing_can_arrive(now)

    @property
    def is_idle(self) -> bool:
        """True while everything that came of the source is appended, and nothing is on its way."""
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed and not self.blocked_by
        return is_copying and not self.queue and not self._is_busy

    def end_moved(self, trouble: Trouble, now: float) -> None:
        """Note that the log does not end where it was left, although nothing was on its way."""
        if self.is_idle:
            self._interrupt(trouble, now)

    # -- gaps ------------------------------------------------------------------------------------------------------

    def gap_to_fill(self) -> Gap | None:
        """Return the gap at the head of the queue when the time has come to fill it."""
        queue = self.queue
        if not queue or self.status is not Status.COPYING or self.in_flight or self.fill.is_under_way:
            return None
        gap = queue[0]
        if not isinstance(gap, Gap):
            return None
        if self._memory.may_still_arrive:
            # a batch of ours may have been on its way since, or still be: the log may end elsewhere by now, or soon
            self._hold(self._memory.settle_until)
            return None
        return gap

    def next_fill_step(self) -> Ask | Look | None:
        """Return what the gap at the head of the queue needs now, if anything; sent, tell `fill.sent`."""
        gap = self.gap_to_fill()
        return self.fill.next_step(gap) if gap is not None else None

    def fill_answered(self, code: int, now: float, now_ms: int) -> None:
        """Take the answer to a request for markers."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING:
            if not code:
                self._memory.kept_by(now_ms)
            self._follow_up(self.fill.answered(code), now)
        self.advance(now)

    def log_end_seen(self, code: int, log_end: int | None, now: float) -> None:
        """Take the answer to a look at the log end."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING:
            self._follow_up(self.fill.log_end_seen(code, log_end), now)
        self.advance(now)

    def filled_otherwise(self, count: int, now: float) -> None:
        """Note that so many offsets at the begin of the gap were filled by transactions."""
        self.fill.is_under_way = False
        if self.status is Status.COPYING and self.queue:
            gap = self.queue[0]
            if gap.base_offset + count == gap.next_offset:
                self.progress.filled(self.intake.end_gap())
            else:
                self.intake.shorten_gap(count)
                self.progress.filled_up_to(gap.base_offset + count, count)
            self._got_on()
        self.advance(now)

    def fill_in_doubt(self, trouble: Trouble, now: float) -> None:
        """Note that nothing is on its way any more, but not how many offsets were filled: look at the log afresh."""
        self.interrupted(trouble, now)
        self.fill.is_under_way = False
        self.advance(now)

    # -- the log start --------------------------------------------------------------------------------------------

    @property
    def trim_due(self) -> int | None:
        """Return up to where the log is to be trimmed now, when it has got so far; None when it is not."""
        to = self.log_start.target
        is_there = to is not None and self.progress.acknowledged is not None and self.progress.acknowledged >= to
        is_idle = self.status is Status.COPYING and not self.queue and not self._is_busy
        return to if is_idle and is_there else None

    def trimmed(self, trouble: Trouble | None, now: float) -> None:
        """Take the end of the trim; whatever came of it, look at the log afresh."""
        self.log_start.trim_is_under_way = False
        if self.status is not Status.COPYING:
            return
        if trouble:
            self._interrupt(trouble, now)
            return
        self.log_start.trimmed()
        self._tell(f"the log begins at {self.log_start.aligned_to} now")
        # nothing is on its way; were it, the look that comes next would have to wait for it
        self._look_again(now)

    # -- moves ----------------------------------------------------------------------------------------------------

    def interrupted(self, trouble: Trouble, now: float) -> None:
        """Take why this cannot continue for now, if it does; something may still be on its way."""
        if self.status is Status.COPYING:
            self._interrupt(trouble, now)

    def _interrupt(self, trouble: Trouble, now: float) -> None:
        self.retry.trouble = trouble
        self._tell(f"interrupted: {trouble.message}")
        self._stir()
        self._drop_queue()
        self.blocked_by = None
        self.status = Status.DRAINING
        self.advance(now)

    def _look_again(self, now: float) -> None:
        """Look at the log afresh once nothing is on its way, without a pause."""
        self._stir()
        self._drop_queue()
        self.status = Status.DRAINING
        self.advance(now)

    def _follow_up(self, outcome: Filled, now: float) -> None:
        if isinstance(outcome, Gap):
            self.progress.filled(outcome)
            self._got_on()
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
        """Continue where nothing is waited for any more: look again, or fail for what cannot be carried."""
        if self.status is DRAINING and not self.in_flight and not self.fill.is_under_way:
            if self.retry.trouble:
                self._pause(self.retry.trouble, now)
            else:
                self.status, self.retry.wake_at = Status.WAITING, now
        elif self.blocked_by and self.status is COPYING and not self.queue and not self.in_flight:
            self._fail(self.blocked_by, now)

    def _fail(self, failure: Fail, now: float) -> None:
        """Stop, and look again after a pause."""
        self._tell(f"failed: {failure}")
        self._stir()
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

    def _tell(self, line: str) -> None:
        self.story.append(
            f"{line} [fetch {self.intake.next_offset}, acknowledged {self.progress.acknowledged}, "
            f"queued {len(self.queue)}, in flight {len(self.in_flight)}]"
        )

    @property
    def caught_up(self) -> bool:
        """True when the destination ends where the source's last stable offset was last seen."""
        end, source_end = self.progress.acknowledged, self.source.last_stable_offset
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        return is_copying and source_end is not None and end is not None and end >= source_end
