"""Filling the gap at the head of one partition's queue with markers: what to ask next, and what came of it. No I/O.

Markers have no sequence numbers, so a batch that is on its way could land before or after them: a gap is filled while
nothing else of its partition is, and while a request for markers may be on its way, nothing is sent at all. What keeps
stale markers out is a coordinator epoch that grows with every gap.
"""

from __future__ import annotations

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fill_plan import Ask, Done, Failed, FillPlan, Look, Obstacle
from kmirror.cluster.protocol.markers import TRANSACTION_COORDINATOR_FENCED
from kmirror.engine.histories.judge import Fail, Trouble
from kmirror.engine.lane.intake import Gap, Intake
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment

#: What came of a request: the gap is filled; why it is not; None where there is more to ask.
Filled = Gap | Fail | Trouble | None


class GapFilling:
    """Fill the gaps of one partition, one after another."""

    def __init__(self, assignment: Assignment, intake: Intake) -> None:
        self._assignment = assignment
        self._intake = intake
        self._plan: FillPlan | None = None
        self.is_under_way = False
        #: True when the leader said that we may not write markers.
        self.is_forbidden = False
        #: Above all coordinator epochs that the leader may have met.
        self._coordinator_epoch = 0

    def inspected(self, unused_coordinator_epoch: int) -> None:
        """Take a coordinator epoch above all that an inspection saw."""
        self._coordinator_epoch = max(self._coordinator_epoch, unused_coordinator_epoch)

    def next_step(self, gap: Gap) -> Ask | Look:
        """Return what the gap at the head of the queue needs now; sent, tell `sent`."""
        if self._plan is None:
            self._intake.head_is_taken = True
            self._plan = FillPlan(
                gap.base_offset,
                gap.next_offset,
                producer_epoch=self._assignment.producer_epoch,
                coordinator_epoch=self._coordinator_epoch,
            )
        step = self._plan.step
        assert isinstance(step, Ask | Look), f"a plan that has ended is kept: {self._plan!r}"
        return step

    def sent(self) -> None:
        """Note that the request that `next_step` wanted is on its way."""
        self.is_under_way = True

    def answered(self, code: int) -> Filled:
        """Take the answer to a request for markers."""
        if code and code not in {
            Code.CLUSTER_AUTHORIZATION_FAILED,
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.INVALID_PRODUCER_EPOCH,
            TRANSACTION_COORDINATOR_FENCED,
        }:
            what = f"filling {self._assignment.destination}: {code_name(code)} ({code})"
            return Trouble(Reason.DESTINATION_UNREACHABLE, what)
        if self._plan is not None:
            self._plan.answered(code)
        return self._outcome()

    def log_end_seen(self, code: int, log_end: int | None) -> Filled:
        """Take the answer to a look at the log end."""
        if log_end is None:
            what = f"looking up the end of {self._assignment.destination}: {code_name(code)} ({code})"
            return Trouble(Reason.DESTINATION_UNREACHABLE, what)
        if self._plan is not None:
            # all was answered, so all is replicated, and nothing is on its way: memory and watermark tell no more
            self._plan.looked(None, log_end, log_end)
        return self._outcome()

    def _outcome(self) -> Filled:
        step = self._plan.step if self._plan else None
        if isinstance(step, Done):
            self._coordinator_epoch = step.coordinator_epoch
            self._plan = None
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
        """Leave the gap as it is; its coordinator epochs are not used again."""
        if self._plan:
            self._coordinator_epoch = self._plan.unused_coordinator_epoch
            self._plan = None
            self._intake.head_is_taken = False
