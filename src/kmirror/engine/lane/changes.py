"""Changes to a running lane's work: partitions assigned to it, and partitions revoked from it.

Changes arrive in order, numbered, from `control`. Once a change is applied, nothing more is sent to a revoked
partition, and what is in flight is waited for. The partition counts as released, and the engine is informed, when
nothing can arrive any more: no request is unanswered, and requests lost with a connection have timed out. So the next
lane may write at once. An assigned partition begins like those that the lane started with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.state.lane_change_record import LaneChangeRecord

#: After this long, the connection to a broker that has not answered is closed, as when a lane ends.
_PATIENCE_SECONDS = 2.0


@dataclass(slots=True)
class _Revoked:
    """A revoked partition, the change that revoked it, and when."""

    copy: PartitionCopy
    revision: int
    since: float
    is_released: bool = False


class WorkChanges:
    """Apply changes to one lane; for its sending thread."""

    def __init__(
        self,
        lane: LaneState,
        release: Callable[[list[PartitionCopy]], None],
        hang_up_on: Callable[[PartitionCopy], None],
        begin: Callable[[Sequence[PartitionCopy], Sequence[int]], None],
    ) -> None:
        self._lane = lane
        self._release = release
        self._hang_up_on = hang_up_on
        self._begin = begin
        self._revoked: tuple[_Revoked, ...] = ()
        #: The last change up to which all revoked partitions are released; any thread may read it.
        self.released_revision = 0

    def acknowledged(self, revision: int) -> None:
        """Note that the engine knows that all partitions revoked by the changes up to `revision` are released."""
        self._set_revoked(one for one in self._revoked if not one.is_released or one.revision > revision)

    def _set_revoked(self, revoked: Iterable[_Revoked]) -> None:
        self._revoked = tuple(revoked)
        self._lane.revoked = [one.copy for one in self._revoked]

    def take(self, change: LaneChangeRecord, at: float) -> None:
        """Apply a change from now on."""
        lane = self._lane
        partitions = {TopicPartition(*partition) for partition in change.given_up}
        revoked = [copy for copy in lane.partitions if copy.assignment.destination in partitions]
        for copy in revoked:
            copy.revoke(at)
            lane.active.pop(copy, None)
        self._release(revoked)
        new = lane.copies_of(change.taken, at, in_doubt=change.predecessor_may_write)
        self._set_revoked([*self._revoked, *(_Revoked(copy, change.revision, at) for copy in revoked)])
        lane.partitions = [copy for copy in lane.partitions if copy.assignment.destination not in partitions] + new
        lane.revision = change.revision
        self.on_tick(at)
        self._begin(new, change.unsettled_lanes)

    def on_tick(self, at: float) -> None:
        """Check which revoked partitions are released; hang up on brokers that delay this for too long."""
        if self.released_revision == self._lane.revision:
            return
        for one in self._revoked:
            if not one.is_released and at - one.since > _PATIENCE_SECONDS:
                self._hang_up_on(one.copy)
            one.is_released = one.is_released or one.copy.nothing_can_arrive(at)
        released = min((one.revision - 1 for one in self._revoked if not one.is_released), default=self._lane.revision)
        if released != self.released_revision:
            self.released_revision = released
            self._lane.control.report_soon()
