"""The copy of one partition, as a state machine without I/O: events in, what may be done next out.

Time arrives in events.

    INSPECTING --verdict Copy--> COPYING --trouble--> DRAINING --nothing in flight--> WAITING --pause over--> INSPECTING
    any of them --verdict Fail, or a batch that cannot be carried--> FAILED --pause over--> INSPECTING

A partition that FAILED is looked at again with growing pauses, and is reported as FAILED until records are copied
again or nothing is left to copy. Where the two histories were found to differ, it resumes only when the last records
of both sides are proved to be the same; anything else needs an operator. A partition that was fenced stays fenced.

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

Offsets at which the source shows nothing are filled with markers (`fill_plan`). Markers have no sequence numbers, so a
batch that is on its way could land before or behind them: a gap is filled while nothing else of its partition is, and
while a request for markers may be on its way, nothing is sent at all.

A log that is to begin above 0 (verdict Raise) gets filler up to there, which goes the way of batches, and is then
trimmed; after that comes another inspection.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from kmirror.cluster.protocol.codes import LEADER_MOVED, Code, code_name
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchPosition
from kmirror.cluster.protocol.fill_plan import Ask, Done, Failed, FillPlan, Look, Obstacle
from kmirror.cluster.protocol.markers import TRANSACTION_COORDINATOR_FENCED
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, Tail, Trouble, Verdict, Wait
from kmirror.engine.lane.broker_memory import BrokerMemory
from kmirror.engine.lane.intake import Batch, Frame, Gap, Intake
from kmirror.engine.lane.log_start import LogStart
from kmirror.engine.spec import Assignment
from kmirror.errors import HISTORY_REASONS, Reason
from kmirror.state.records import PartitionState, ProgressRow

MAX_IN_FLIGHT = 5
#: A partition whose unsent batches exceed this is not fetched until they are sent.
QUEUE_BYTES = 1 << 20
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_STORY_LENGTH = 50
#: A FAILED partition is looked at again so many seconds after it failed; then twice as many each time, up to the limit.
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
#: After these, a partition resumes by itself only with a proof. What was lost at the source may come back as it was.
_NEEDS_PROOF = HISTORY_REASONS - {Reason.SOURCE_TRUNCATED}
#: A log whose fetches bring nothing for so long, below its last stable offset, is looked at more closely.
_NOTHING_SECONDS = 3.0
#: Refusals that say for certain that nothing was appended, and that may pass.
_NOT_APPENDED = LEADER_MOVED | {
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Code.UNKNOWN_TOPIC_ID,
    Code.INCONSISTENT_TOPIC_ID,
    Code.NOT_ENOUGH_REPLICAS,
    Code.THROTTLING_QUOTA_EXCEEDED,
    Code.UNKNOWN_PRODUCER_ID,
}


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
        self._memory = BrokerMemory(settle)
        self._retry_timeout = retry_timeout
        #: What the last inspection saw; None before the first.
        self.facts: Facts | None = None
        self.destination_node: int | None = None
        #: The broker it is fetched from: the leader, or a follower that the leader prefers for us, and until when.
        self.source_node: int | None = None
        self.follows_until: float | None = None
        #: The end of what is known to be appended; None where that is not known before the first inspection.
        self.acknowledged: int | None = assignment.known_end
        #: Source leader epoch and maximum timestamp of the last batch known to be appended.
        self.acknowledged_epoch = -1
        self.acknowledged_timestamp: int | None = None
        self.intake = Intake(assignment.source, assignment.producer_id, assignment.producer_epoch)
        #: What is to be appended next; the intake's own.
        self.queue = self.intake.queue
        self.in_flight: deque[Batch] = deque()
        self._proven = False
        #: Why this fails, should an inspection not know better: an append landed at another offset.
        self._mismatch: Fail | None = None
        if assignment.mismatch is not None:
            self._mismatch = Fail(Reason.OFFSET_MISMATCH, assignment.mismatch, assignment.mismatch_offset or 0)
        #: How the gap at the head of the queue is filled; whether a request for that is on its way.
        self._plan: FillPlan | None = None
        self.fill_is_under_way = False
        #: Above all coordinator epochs that the leader may have met.
        self._coordinator_epoch = 0
        #: True when the leader said that we may not write markers.
        self.may_not_fill = False
        self._log_start = LogStart()
        #: What the source had lost before it was copied, and the copy goes past; the last offset exclusive.
        self.lost: tuple[int, int] | None = None
        #: What the destination had lost of what was copied, and is copied again; the last offset exclusive.
        self.again: tuple[int, int] | None = None
        #: Since when fetches bring nothing although the source says that there is more.
        self._nothing_since: float | None = None
        #: True once an inspection found that records can be copied; once some of the source's were in the destination.
        self._is_aligned = False
        self.begun = assignment.begun
        self.log_start: int | None = None
        self.last_stable_offset: int | None = None
        self.high_watermark: int | None = None
        #: When the source was asked for what these say, None before it was.
        self.source_seen_at: float | None = None
        self.retry_attempt = 0
        self.wake_at = 0.0
        self._troubled_since: float | None = None
        self._looked_at = 0.0
        self.trouble: Trouble | None = None
        #: What lies ahead and cannot be carried: the partition fails when everything before it is appended.
        self.blocked_by: Fail | None = None
        #: Why the partition is FAILED; kept while it is looked at again.
        self.failure: Fail | None = None
        self._needs_proof = False
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
        self.source_node = facts.source_leader[0] if not facts.trouble else None
        self.follows_until = None
        self._memory.expiration_ms = facts.producer_id_expiration_ms
        self._tell(f"inspected: {verdict}")
        if isinstance(verdict, Wait):
            self._troubled(verdict.trouble, now)
            return
        self.last_stable_offset = facts.last_stable_offset
        self.high_watermark = facts.high_watermark
        self.log_start = facts.source_log_start
        self.source_seen_at = now
        # a batch of ours that lies elsewhere than meant differs from the source too: that is no news about the source
        says_more = isinstance(verdict, Fail) and verdict.reason is not Reason.SOURCE_DIVERGED
        if self._mismatch and not says_more:
            self._fail(self._mismatch, now)
            return
        if isinstance(verdict, Fail):
            self._fail(verdict, now)
            return
        if self.failure and self._needs_proof and facts.tail is not Tail.SAME:
            self._fail(self.failure, now)
            return
        self.trouble = None
        self._coordinator_epoch = max(self._coordinator_epoch, facts.coordinator_epoch + 1)
        self._memory.inspected(facts.producer.last_timestamp if facts.producer else None, self._looked_at)
        self._proven = False
        if isinstance(verdict, Copy) and verdict.copied_again:
            self.again = verdict.offset, verdict.offset + verdict.copied_again
        self.acknowledged = facts.destination_log_end
        known = facts.producer is not None
        if isinstance(verdict, AdvanceStart):
            self._log_start.fill_then_trim(verdict.to, now_ms)
            self.intake.restart(self.acknowledged, -1, verdict.filled_offsets, producer_is_known=known)
        else:
            self._log_start.trim(None)
            self._is_aligned = True
            self.begun = self.begun or facts.destination_log_end > facts.destination_log_start
            if facts.tail is Tail.SAME:
                self.acknowledged_epoch = facts.tail_epoch
            epoch = -1 if facts.tail is Tail.NOTHING else self.acknowledged_epoch
            self.intake.restart(verdict.offset, epoch, verdict.filled_offsets, producer_is_known=known)
        if self._looked_at < self.quiet_until:
            self._hold(self.quiet_until)
        elif self._may_still_arrive and not self._memory.allows(verdict.filled_offsets, now_ms):
            self._hold(self._memory.settle_until)
        else:
            self.status = Status.COPYING
            if isinstance(verdict, Copy):
                self._go_past(verdict)
            else:
                self._take_in_filler()

    def _take_in_filler(self) -> None:
        if self._log_start.fill_to is not None:
            self.intake.take_in_filler(self._log_start.fill_to, self._log_start.filler_timestamp_ms)

    def _go_past(self, verdict: Copy) -> None:
        """Queue what the source has lost as a gap."""
        self._log_start.trim(verdict.trim_to)
        if verdict.skip_to is not None:
            self.lost = self.lost or (verdict.offset, verdict.skip_to)
            self._tell(f"goes past a loss, up to {verdict.skip_to}")
            self.intake.take_in_loss(verdict.skip_to)

    @property
    def _may_still_arrive(self) -> bool:
        """True while a request of ours may have changed the log since it was looked at, or may yet."""
        return self._looked_at < self._memory.settle_until

    def _hold(self, until: float) -> None:
        """Look again at the log end when nothing that could change it can be on its way any more."""
        self._tell(f"nothing is sent before {until:.3f}: something may still be on its way")
        self._drop_queue()
        self.status = Status.WAITING
        self.wake_at = until

    def predecessor_ends(self, at: float) -> None:
        """Learn until when a predecessor may write; before, that was unknown (infinite), or taken to be later."""
        if at < self.quiet_until:
            self.quiet_until = at
            if self.status is Status.WAITING:
                self.wake_at = min(self.wake_at, at)

    def begin_inspection(self, now: float) -> None:
        """Note that facts are gathered from now on: what was appended before is in them."""
        if self.status is Status.FAILED:
            self.retry_attempt += 1
        self.status = Status.INSPECTING
        self._looked_at = now

    def due_for_inspection(self, now: float) -> bool:
        """True when the pause after a trouble or a failure is over."""
        is_busy = self.in_flight or self.fill_is_under_way or self._log_start.trim_is_under_way
        is_waiting = self.status is Status.WAITING or (self.status is Status.FAILED and not is_busy)
        return is_waiting and now >= self.wake_at

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
        return self._log_start.target is not None

    @property
    def fetch_offset(self) -> int:
        """The next offset to ask of the source."""
        return self.intake.next_offset

    def fetch_position(self, partition_max_bytes: int) -> FetchPosition:
        """Say from where to fetch next."""
        epoch = self.facts.source_leader[1] if self.facts else -1
        return FetchPosition(self.intake.next_offset, self.intake.leader_epoch, epoch, partition_max_bytes)

    def fetched(self, answer: FetchedPartition, frame: Frame, now: float) -> None:
        """Take one partition's part of a Fetch answer; batches that can be carried are queued."""
        if self.status is not Status.COPYING or self.blocked_by or self.is_to_be_trimmed:
            return
        if answer.error_code:
            self._fetch_refused(answer.error_code, now)
            return
        if answer.diverging_epoch:
            # where exactly, and whether what was copied differs at all, an inspection finds out
            epoch, end = answer.diverging_epoch
            what = f"the source's epoch {epoch} ends at offset {end} now, and {self.fetch_offset} was reached in it"
            self._interrupt(Trouble(Reason.SOURCE_DIVERGED, what), now)
            return
        self.ends_seen(answer)
        self.log_start = answer.log_start_offset
        if len(answer.records):
            self.blocked_by = self.intake.take_in(answer.records, answer.aborted_transactions, frame)
            if self.blocked_by:
                self._tell(f"cannot go on: {self.blocked_by.message}")
            self._nothing_since = None
        elif self.caught_up:
            self._got_on()

    def ends_seen(self, answer: FetchedPartition) -> None:
        """Take where the source ends; what a follower knows of that is never newer than what its leader has said."""
        if self.follows_until is None or self.high_watermark is None or self.last_stable_offset is None:
            self.high_watermark, self.last_stable_offset = answer.high_watermark, answer.last_stable_offset
        else:
            self.high_watermark = max(self.high_watermark, answer.high_watermark or 0)
            self.last_stable_offset = max(self.last_stable_offset, answer.last_stable_offset or 0)

    def seems_to_end(self, now: float) -> bool:
        """True when the source has given nothing more for a while, although its last stable offset lies further on.

        After a crash a log may end with an empty segment: offsets that it has, and that hold nothing. To be asked now
        and then: an incremental fetch session says nothing of a partition that has nothing new.
        """
        is_copying = self.status is Status.COPYING and not self.is_to_be_trimmed
        is_waiting = is_copying and not self.queue and not self.in_flight
        if not is_waiting or self.blocked_by or self.caught_up:
            self._nothing_since = None
            return False
        if self._nothing_since is None:
            self._nothing_since = now
        return now - self._nothing_since > _NOTHING_SECONDS

    def nothing_found(self, offset: int, until: int | None) -> None:
        """Take the result of that closer look: nothing is between `offset` and `until`; None: there is."""
        if self._nothing_since is not None and until is not None and offset == self.fetch_offset:
            self._tell(f"the source's log ends with nothing below {until}")
            self.intake.take_in_nothing(until)
        self._nothing_since = None

    def _fetch_refused(self, code: int, now: float) -> None:
        source = self.assignment.source
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            trouble = Trouble(Reason.NOT_AUTHORIZED, f"no right to READ source topic {source.topic}", True)
        else:
            trouble = Trouble(Reason.SOURCE_UNREACHABLE, f"fetching {source}: {code_name(code)} ({code})")
        self._interrupt(trouble, now)

    def source_lost(self, message: str, now: float, reason: Reason | None = None) -> None:
        """Take the loss of the connection to the source's leader, or why there is none."""
        if self.status is Status.COPYING:
            self._interrupt(Trouble(reason or Reason.SOURCE_UNREACHABLE, message), now)

    # -- destination ----------------------------------------------------------------------------------------------

    def may_send(self, now_ms: int) -> Permission | None:
        """Decide whether the first queued batch may go out now, and whether it may share its connection."""
        queue = self.queue
        if not queue or self.status is not Status.COPYING:
            return None
        batch = queue[0]
        if isinstance(batch, Gap):
            return None
        memory = self._memory
        remembered = memory.is_sure(now_ms, in_flight=bool(self.in_flight))
        if self._may_still_arrive and not (remembered and memory.outlives(batch.max_timestamp, now_ms)):
            if not self.in_flight:
                self._hold(memory.settle_until)
            return None
        guarded = remembered and self._proven
        if self.in_flight and not (guarded and len(self.in_flight) < MAX_IN_FLIGHT):
            return None
        return Permission.SHARED if guarded else Permission.ALONE

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
        if code == Code.NONE and base_offset == batch.base_offset:
            self.acknowledged = batch.next_offset
            self._memory.kept_by(batch.max_timestamp)
            self._proven = True
            if self._log_start.fill_to is not None:
                if self.status is Status.COPYING:
                    self._take_in_filler()
            else:
                self.acknowledged_epoch = batch.leader_epoch
                self.acknowledged_timestamp = batch.max_timestamp
                self.bytes_copied += len(batch.data)
                self.begun = True
            self._got_on()
        elif code == Code.NONE and self._mismatch is None:
            self._mismatch = Fail(
                Reason.OFFSET_MISMATCH,
                f"a batch for offset {batch.base_offset} of {self.assignment.destination} was appended at "
                f"{base_offset}: another client writes to it; copying has stopped and nothing was repaired",
                batch.base_offset,
            )
            # who and how much, an inspection finds out; the copy goes on in no case
            if self.status is not Status.FAILED:
                self._interrupt(Trouble(Reason.OFFSET_MISMATCH, self._mismatch.message), now)
        elif self.status is not Status.FAILED:
            self._refused(code, detail, batch, now)
        self._advance(now)

    def _got_on(self) -> None:
        """Note that copying goes on; not by the late answer to what was sent before a failure."""
        if self.status is Status.FAILED:
            return
        if self.failure:
            self._tell(f"goes on after {self.failure.reason}")
            self.failure, self._needs_proof = None, False
        self.retry_attempt = 0
        if self.trouble is None or self.status is Status.COPYING:
            self._troubled_since = None

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
                now,
            )
        elif code == Code.INVALID_PRODUCER_EPOCH:
            what = f"{destination} is no longer written by this engine: it was fenced ({what})"
            self._fail_at(Reason.FENCED, what, batch.base_offset, now)
        elif code == Code.TOPIC_AUTHORIZATION_FAILED:
            self._interrupt(Trouble(Reason.NOT_AUTHORIZED, f"no right to WRITE topic {destination.topic}", True), now)
        elif code in _NOT_APPENDED:
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"appending to {destination}: {what}"), now)
        else:
            self._memory.unanswered([batch], now)
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"appending to {destination}: {what}"), now)

    def outcome_unknown(self, message: str, now: float) -> None:
        """Take the loss of the connection to the destination's leader: what was in flight may have been appended."""
        if self.in_flight:
            self._tell(f"{len(self.in_flight)} batches without an answer: {message}")
            self._memory.unanswered(self.in_flight, now)
        while self.in_flight:
            self._release(self.in_flight.popleft().frame)
        if self.fill_is_under_way:
            self._tell(f"markers without an answer: {message}")
            self.fill_is_under_way = False
            self._memory.markers_unanswered(now)
        if self.status is Status.COPYING:
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, message), now)
        self._advance(now)

    def leave(self, now: float) -> None:
        """Send nothing more and take nothing in, for good; what is on its way is still answered."""
        self._tell(f"given up at {now:.3f}")
        self._drop_queue()
        if self.status is not Status.FAILED:
            self.status = Status.DRAINING

    def nothing_can_arrive(self, now: float) -> bool:
        """Tell whether nothing is on its way to the partition, of ours or of a predecessor's."""
        is_busy = self.in_flight or self.fill_is_under_way or self._log_start.trim_is_under_way
        return not is_busy and now >= max(self._memory.settle_until, self.quiet_until)

    @property
    def is_idle(self) -> bool:
        """True while everything that came of the source is appended, and nothing is on its way."""
        is_busy = self.queue or self.in_flight or self.fill_is_under_way or self._log_start.trim_is_under_way
        return self.status is Status.COPYING and not self.is_to_be_trimmed and not self.blocked_by and not is_busy

    def end_moved(self, trouble: Trouble, now: float) -> None:
        """Learn that the log does not end where it was left, although nothing was on its way."""
        if self.is_idle:
            self._interrupt(trouble, now)

    # -- gaps ------------------------------------------------------------------------------------------------------

    def gap_to_fill(self) -> Gap | None:
        """Return the gap at the head of the queue when the time has come to fill it."""
        queue = self.queue
        if not queue or self.status is not Status.COPYING or self.in_flight or self.fill_is_under_way:
            return None
        gap = queue[0]
        if not isinstance(gap, Gap):
            return None
        if self._may_still_arrive:
            # a batch of ours may have been on its way since, or still be: the log may end elsewhere by now, or soon
            self._hold(self._memory.settle_until)
            return None
        return gap

    def next_fill_step(self) -> Ask | Look | None:
        """Return what the gap at the head of the queue needs now, if anything; sent, tell `fill_sent`."""
        gap = self.gap_to_fill()
        if gap is None:
            return None
        if self._plan is None:
            self.intake.head_is_taken = True
            self._plan = FillPlan(
                gap.base_offset,
                gap.next_offset,
                producer_epoch=self.assignment.producer_epoch,
                coordinator_epoch=self._coordinator_epoch,
            )
        step = self._plan.step
        assert isinstance(step, Ask | Look), f"a plan that has ended is kept: {self._plan!r}"
        return step

    def fill_sent(self) -> None:
        """Note that the request that `next_fill_step` wanted is on its way."""
        self.fill_is_under_way = True

    def fill_answered(self, code: int, now: float, now_ms: int) -> None:
        """Take the answer to a request for markers."""
        plan = self._end_of_request(now)
        if plan is None:
            return
        if code and code not in {
            Code.CLUSTER_AUTHORIZATION_FAILED,
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.INVALID_PRODUCER_EPOCH,
            TRANSACTION_COORDINATOR_FENCED,
        }:
            what = f"filling {self.assignment.destination}: {code_name(code)} ({code})"
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, what), now)
            return
        if not code:
            self._memory.kept_by(now_ms)
            self._proven = True
        plan.answered(code)
        self._follow(plan, now)

    def log_end_seen(self, code: int, log_end: int | None, now: float) -> None:
        """Take the answer to a look at the log end."""
        plan = self._end_of_request(now)
        if plan is None:
            return
        if log_end is None:
            what = f"looking up the end of {self.assignment.destination}: {code_name(code)} ({code})"
            self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, what), now)
            return
        # all was answered, so all of it is replicated, and nothing is on its way: memory and watermark tell no more
        plan.looked(None, log_end, log_end)
        self._follow(plan, now)

    def filled_otherwise(self, count: int, now: float) -> None:
        """Note that so many offsets at the begin of the gap were filled by transactions."""
        self.fill_is_under_way = False
        if self.status is Status.COPYING and self.queue:
            gap = self.queue[0]
            self.acknowledged = gap.base_offset + count
            self.begun = True
            if self.acknowledged == gap.next_offset:
                self.acknowledged_epoch = self.intake.end_gap().leader_epoch
            else:
                self.intake.shorten_gap(count)
            self._got_on()
        self._advance(now)

    def fill_troubled(self, trouble: Trouble, now: float) -> None:
        """Learn why filling by transactions makes no progress; something may still be on its way."""
        if self.status is Status.COPYING:
            self._interrupt(trouble, now)

    def fill_in_doubt(self, trouble: Trouble, now: float) -> None:
        """Learn that nothing is on its way any more, but not how many offsets were filled: look at the log afresh."""
        self.fill_troubled(trouble, now)
        self.fill_is_under_way = False
        self._advance(now)

    def _end_of_request(self, now: float) -> FillPlan | None:
        """Note that nothing is on its way any more; return the plan that still holds, if any."""
        self.fill_is_under_way = False
        if self.status is not Status.COPYING:
            self._advance(now)
            return None
        return self._plan

    def _follow(self, plan: FillPlan, now: float) -> None:
        step = plan.step
        if isinstance(step, Done):
            self._coordinator_epoch = step.coordinator_epoch
            self._plan = None
            gap = self.intake.end_gap()
            self.acknowledged, self.acknowledged_epoch = gap.next_offset, gap.leader_epoch
            self.begun = True
            self._got_on()
            self._advance(now)
        elif isinstance(step, Failed):
            self._give_up(step, now)

    def _give_up(self, failed: Failed, now: float) -> None:
        destination, message = self.assignment.destination, failed.message
        match failed.obstacle:
            case Obstacle.NOT_AUTHORIZED:
                self._tell(f"no markers: {message}")
                self.may_not_fill = True
                self._drop_plan()
            case Obstacle.FENCED:
                what = f"{destination} is no longer written by this engine: it was fenced ({message})"
                self._fail_at(Reason.FENCED, what, failed.log_end, now)
            case Obstacle.OVERSHOT:
                what = f"while offsets of {destination} were filled, {message}; copying has stopped"
                self._fail_at(Reason.DESTINATION_WRITTEN, what, failed.log_end, now)
            case Obstacle.TRUNCATED | Obstacle.UNDECIDED:
                self._interrupt(Trouble(Reason.DESTINATION_UNREACHABLE, f"filling {destination}: {message}"), now)

    # -- the log start --------------------------------------------------------------------------------------------

    @property
    def aligned_to(self) -> int | None:
        """Where this copy made the log begin; None where it did not."""
        return self._log_start.aligned_to

    @property
    def trim_due(self) -> int | None:
        """Return up to where the log is to be trimmed now, when it has got so far; None when it is not."""
        to = self._log_start.target
        is_there = to is not None and self.acknowledged is not None and self.acknowledged >= to
        is_busy = self.queue or self.in_flight or self.fill_is_under_way or self._log_start.trim_is_under_way
        return to if self.status is Status.COPYING and is_there and not is_busy else None

    def trim_begun(self) -> None:
        """Note that the log is being trimmed."""
        self._log_start.trim_is_under_way = True

    def trimmed(self, trouble: Trouble | None, now: float) -> None:
        """Take the end of the trim; whatever came of it, look at the log afresh."""
        self._log_start.trim_is_under_way = False
        if self.status is not Status.COPYING:
            return
        if trouble:
            self._interrupt(trouble, now)
            return
        self._log_start.trimmed()
        self._tell(f"the log begins at {self.aligned_to} now")
        # nothing is on its way; were it, the look that comes next would have to wait for it
        self._drop_queue()
        self.status = Status.DRAINING
        self._advance(now)

    # -- moves ----------------------------------------------------------------------------------------------------

    def _interrupt(self, trouble: Trouble, now: float) -> None:
        self.trouble = trouble
        self._tell(f"interrupted: {trouble.message}")
        self._drop_queue()
        self.blocked_by = None
        self.status = Status.DRAINING
        self._advance(now)

    def _troubled(self, trouble: Trouble, now: float) -> None:
        """Pause, longer each time; a trouble that is an answer rather than silence fails after the retry time.

        A partition that FAILED before stays so. Silence says nothing about why, and about a history only facts do.
        """
        if self.failure:
            is_news = trouble.permanent_after_retries and not self._needs_proof
            self._fail(Fail(trouble.reason, trouble.message, self.failure.offset) if is_news else self.failure, now)
            return
        self.trouble = trouble
        if not trouble.permanent_after_retries:
            self._troubled_since = None  # silence proves nothing, and an answer after it is news
        elif self._troubled_since is None:
            self._troubled_since = now
        self.retry_attempt += 1
        if self._troubled_since is not None and now - self._troubled_since >= self._retry_timeout:
            self._fail_at(trouble.reason, trouble.message, self.acknowledged or 0, now)
            return
        self.status = Status.WAITING
        self.wake_at = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.retry_attempt - 1, 10))

    def _advance(self, now: float) -> None:
        if self.status is Status.DRAINING and not self.in_flight and not self.fill_is_under_way:
            if self.trouble:
                self._troubled(self.trouble, now)
            else:
                self.status, self.wake_at = Status.WAITING, now
        elif self.status is Status.COPYING and self.blocked_by and not self.queue and not self.in_flight:
            self._fail(self.blocked_by, now)

    def settle_failure(self, now: float) -> None:
        """Become FAILED when everything before the batch that cannot be carried is appended."""
        self._advance(now)

    def _fail_at(self, reason: Reason, message: str, offset: int, now: float) -> None:
        self._fail(Fail(reason, message, offset), now)

    def _fail(self, failure: Fail, now: float) -> None:
        """Stop, and look again after a pause: the first time, or as the last attempt to go on ended."""
        self._tell(f"failed: {failure}")
        self._drop_queue()
        if self.failure is None:
            self.retry_attempt = 0
        self.failure = failure
        self._needs_proof = self._needs_proof or failure.reason in _NEEDS_PROOF
        self.blocked_by = self.trouble = None
        self.status = Status.FAILED
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(self.retry_attempt, 10))
        # what fences a producer is forgotten by brokers in time, and means to stay
        self.wake_at = float("inf") if failure.reason is Reason.FENCED else now + pause

    def _drop_queue(self) -> None:
        for frame in self.intake.drop():
            self._release(frame)
        self._drop_plan()

    def _drop_plan(self) -> None:
        if self._plan:
            self._coordinator_epoch = self._plan.unused_coordinator_epoch
            self._plan = None
            self.intake.head_is_taken = False

    def _release(self, frame: Frame) -> None:
        if frame.release():
            self.released.append(frame)

    def _tell(self, line: str) -> None:
        self.story.append(
            f"{line} [fetch {self.intake.next_offset}, acknowledged {self.acknowledged}, "
            f"queued {len(self.queue)}, in flight {len(self.in_flight)}]"
        )

    @property
    def caught_up(self) -> bool:
        """True when the destination ends where the source's last stable offset was last seen."""
        return (
            self.status is Status.COPYING
            and not self.is_to_be_trimmed
            and self.last_stable_offset is not None
            and self.acknowledged is not None
            and self.acknowledged >= self.last_stable_offset
        )

    def report(self, bytes_per_second: float = 0.0) -> ProgressRow:
        """Say how this partition stands."""
        failed, trouble = self.failure, self.trouble
        is_aligned = self._is_aligned and not self.is_to_be_trimmed
        lost_from, lost_until = self.lost or (None, None)
        again_from, again_until = self.again or (None, None)
        recovery = self.assignment.recovery
        return ProgressRow(
            topic=self.assignment.topic,
            partition=self.assignment.partition,
            source_offset=self.last_stable_offset,
            source_high_watermark=self.high_watermark,
            source_log_start=self.log_start,
            destination_offset=self.acknowledged if self._is_aligned else None,
            last_timestamp_ms=self.acknowledged_timestamp,
            state=PartitionState.FAILED
            if failed
            else PartitionState.MIRRORING
            if is_aligned
            else PartitionState.LOG_ALIGNMENT,
            reason=failed.reason if failed else trouble.reason if trouble else None,
            message=failed.message if failed else trouble.message if trouble else None,
            bytes_per_second=bytes_per_second,
            begun=self.begun,
            aligned_to=self.aligned_to,
            lost_from=lost_from,
            lost_until=lost_until,
            again_from=again_from,
            again_until=again_until,
            last_epoch=self.acknowledged_epoch if self.acknowledged_epoch >= 0 else None,
            retry_attempt=self.retry_attempt,
            recovery=recovery.number if recovery else None,
            failed_offset=failed.offset if failed else None,
        )
