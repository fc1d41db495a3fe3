"""What changes for a lane while it runs: partitions it is to copy too, and partitions it is to give up.

Changes come one after another, numbered, from `lane_control`. A partition that is given up gets nothing more from the
moment on in which the change is taken; what is on its way to it is waited for. It counts as given up, and the engine is
told so, when nothing can arrive any more: no request is without its answer, and those that lost theirs with a
connection have had their time. So whoever has it next may write at once.

A partition that is taken begins like those that the lane started with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmirror.cluster.metadata import TopicPartition
from kmirror.engine.lane_partition import PartitionCopy
from kmirror.engine.spec import Assignment
from kmirror.state.records import LaneChangeRecord

if TYPE_CHECKING:
    from kmirror.engine.lane import Lane

#: A broker that answers so late is hung up on, as by a lane that ends.
_PATIENCE_SECONDS = 2.0


@dataclass(slots=True)
class _Leaving:
    """A partition that is given up, by which change and since when."""

    copy: PartitionCopy
    revision: int
    since: float
    is_over: bool = False


class Changes:
    """Carry out changes for one lane; used by its sending thread, but for the attributes without an underscore."""

    def __init__(self, lane: Lane, report_soon: Callable[[], None]) -> None:
        self._lane = lane
        self._report_soon = report_soon
        self._leaving: tuple[_Leaving, ...] = ()
        #: The last change that this lane goes by; and the last up to which nothing is on its way to what it gave up.
        self.taken = 0
        self.given_up = 0

    @property
    def leaving(self) -> list[PartitionCopy]:
        """The partitions that are being given up, and those that were, until the engine has been told; any thread."""
        return [one.copy for one in self._leaving]

    def told(self, given_up: int) -> None:
        """Note that the engine has been told of all that was given up by these changes."""
        self._leaving = tuple(one for one in self._leaving if not one.is_over or one.revision > given_up)

    def take(self, change: LaneChangeRecord, at: float) -> None:
        """Go by a change from now on."""
        lane = self._lane
        places = {TopicPartition(*place) for place in change.given_up}
        going = [copy for copy in lane.partitions if copy.assignment.destination in places]
        for copy in going:
            lane.detach(copy)
            copy.leave(at)
        lane.collect()
        new = lane.copies_of([Assignment.of(told) for told in change.taken], at, in_doubt=change.predecessor_may_write)
        # what is read from other threads is replaced, never changed
        self._leaving += tuple(_Leaving(copy, change.revision, at) for copy in going)
        lane.partitions = [copy for copy in lane.partitions if copy.assignment.destination not in places] + new
        self.taken = change.revision
        self.look_around(at)
        lane.begin(new, change.unsettled_lanes)

    def look_around(self, at: float) -> None:
        """Find out what is given up for good; hang up on brokers that do not let that happen."""
        if self.given_up == self.taken:
            return
        for one in self._leaving:
            if not one.is_over and at - one.since > _PATIENCE_SECONDS:
                self._lane.hang_up_on(one.copy)
            one.is_over = one.is_over or one.copy.nothing_can_arrive(at)
        given_up = min((one.revision - 1 for one in self._leaving if not one.is_over), default=self.taken)
        if given_up != self.given_up:
            self.given_up = given_up
            self._report_soon()
