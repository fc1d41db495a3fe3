"""Fill one partition's log where the source shows nothing: gaps with markers, and its start with filler. No I/O.

Markers have no sequence numbers, so a batch in flight could land before or after them: a gap is filled while nothing
else of its partition is in flight, and while a request for markers may be, nothing is sent at all. Stale markers are
rejected because the coordinator epoch increases with every gap.

A log that must start above 0 is filled up to there and trimmed; one whose source lost records is trimmed past the loss
once everything before it is appended.
"""

from __future__ import annotations

from kmirror.cluster.protocol.codes import UNAUTHORIZED, Code, code_name
from kmirror.cluster.protocol.fill_plan import Done, Failed, FillPlan, Obstacle, ReadLeader, WriteMarkers
from kmirror.engine.histories.judge import Fail, Trouble
from kmirror.engine.lane.partition.intake import Gap, Intake
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment

#: The result of a request: the filled gap; why it is not filled; None if more requests are needed.
Filled = Gap | Fail | Trouble | None


class GapFilling:
    """Fill the gaps of one partition, one after another."""

    def __init__(self, assignment: Assignment, intake: Intake) -> None:
        self._assignment = assignment
        self._intake = intake
        self._plan: FillPlan | None = None
        self.is_under_way = False
        #: True while it is by transactions: no loss of a connection of ours ends that, their coordinator goes on.
        self.is_by_transactions = False
        #: Up to where the gap under way is filled, and where it ends; None without one.
        self.reached: tuple[int, int] | None = None
        #: True when the leader said that we may not write markers.
        self.is_forbidden = False
        #: Higher than every coordinator epoch that the leader may have seen.
        self._coordinator_epoch = 0

    def inspected(self, unused_coordinator_epoch: int) -> None:
        """Take a coordinator epoch higher than all that an inspection found."""
        self._coordinator_epoch = max(self._coordinator_epoch, unused_coordinator_epoch)

    def next_step(self, gap: Gap) -> WriteMarkers | ReadLeader:
        """Return the next request for the gap at the head of the queue; call `sent` when it is sent."""
        if self._plan is None:
            self._intake.head_is_taken = True
            self._plan = FillPlan(
                gap.base_offset,
                gap.next_offset,
                producer_epoch=self._assignment.producer_epoch,
                coordinator_epoch=self._coordinator_epoch,
            )
            self.reached = gap.base_offset, gap.next_offset
        step = self._plan.step
        if not isinstance(step, WriteMarkers | ReadLeader):
            raise RuntimeError(f"the plan has ended: {self._plan!r}")
        return step

    def sent(self, *, by_transactions: bool = False) -> None:
        """Note that the request of `next_step` is in flight, or transactions in its place."""
        self.is_under_way, self.is_by_transactions = True, by_transactions

    def ended(self) -> None:
        """Note that nothing is in flight any more."""
        self.is_under_way = self.is_by_transactions = False

    def answered(self, code: int) -> Filled:
        """Take the response to a request for markers."""
        if code and code not in {*UNAUTHORIZED, Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED}:
            what = f"filling {self._assignment.destination}: {code_name(code)} ({code})"
            return Trouble(Reason.DESTINATION_UNREACHABLE, what)
        if self._plan is not None:
            self._plan.answered(code)
        return self._outcome()

    def log_end_seen(self, code: int, log_end: int | None) -> Filled:
        """Take the response to a ListOffsets request for the log end."""
        if log_end is None:
            what = f"looking up the end of {self._assignment.destination}: {code_name(code)} ({code})"
            return Trouble(Reason.DESTINATION_UNREACHABLE, what)
        if self._plan is not None:
            # all was acknowledged, so it is replicated and nothing is in flight: the log end says everything
            self._plan.leader_read(None, log_end, log_end)
        return self._outcome()

    def filled_first(self, count: int) -> Gap | None:
        """Note that the first `count` offsets of the gap are filled; return the gap if these were all."""
        gap = self._intake.queue[0]
        if gap.base_offset + count == gap.next_offset:
            self.reached = None
            return self._intake.end_gap()
        self.reached = gap.base_offset + count, gap.next_offset
        self._intake.shorten_gap(count)
        return None

    def _outcome(self) -> Filled:
        step = self._plan.step if self._plan else None
        if self._plan is not None:
            self.reached = self._plan.filled_to, self._plan.end
        if isinstance(step, Done):
            self._coordinator_epoch = step.coordinator_epoch
            self._plan = self.reached = None
            return self._intake.end_gap()
        return self._obstacle(step) if isinstance(step, Failed) else None

    def _obstacle(self, failed: Failed) -> Fail | Trouble | None:
        destination, message = self._assignment.destination, failed.message
        match failed.obstacle:
            case Obstacle.NOT_AUTHORIZED:
                self.is_forbidden = True
                self.drop()
                return None
            case Obstacle.FENCED:
                what = f"{destination} is no longer written by this engine: it was fenced ({message})"
                return Fail(Reason.FENCED, what, failed.log_end)
            case Obstacle.OVERSHOT:
                what = f"while offsets of {destination} were filled, {message}; copying has stopped"
                return Fail(Reason.DESTINATION_WRITTEN, what, failed.log_end)
            case Obstacle.TRUNCATED | Obstacle.UNDECIDED:
                return Trouble(Reason.DESTINATION_UNREACHABLE, f"filling {destination}: {message}")

    def drop(self) -> None:
        """Abandon the gap; its coordinator epochs are not used again."""
        self.reached = None
        if self._plan:
            self._coordinator_epoch = self._plan.unused_coordinator_epoch
            self._plan = None
            self._intake.head_is_taken = False


class LogStart:
    """Track the log start of one partition."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        #: Fill up to this offset first, with records of the timestamp below; None: no filler is needed.
        self.fill_to: int | None = None
        self.filler_timestamp_ms = 0
        self._trim_to: int | None = None
        self.trim_is_under_way = False
        #: The log start that was set last.
        self.aligned_to: int | None = None

    @property
    def target(self) -> int | None:
        """Where the log must start, while it does not."""
        return self._trim_to if self.fill_to is None else self.fill_to

    def fill_then_trim(self, to: int, now_ms: int) -> None:
        """Fill the log up to an offset, then trim it; recent timestamps keep brokers from forgetting the producer."""
        self.fill_to, self.filler_timestamp_ms, self._trim_to = to, now_ms, None

    def take_in_filler(self) -> None:
        """Queue some of the missing filler."""
        if self.fill_to is not None:
            self._intake.take_in_filler(self.fill_to, self.filler_timestamp_ms)

    def trim(self, to: int | None) -> None:
        """Trim the log up to an offset without filling; None: it starts where it must."""
        self.fill_to, self._trim_to = None, to

    def begin_trim(self) -> None:
        """Note that the log is being trimmed."""
        self.trim_is_under_way = True

    def trim_ended(self) -> None:
        """Note that nothing is in flight any more."""
        self.trim_is_under_way = False

    def trimmed(self) -> None:
        """Note that the log now starts at `target`."""
        self.aligned_to = self.target
