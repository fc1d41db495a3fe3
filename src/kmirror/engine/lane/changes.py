"""What changes for a lane while it runs: partitions it is to copy too, and partitions it is to release.

Changes come one after another, numbered, from `control`. A partition to be released gets nothing more from the
moment on in which the change is taken; what is on its way to it is waited for. It counts as released, and the engine is
informed, when nothing can arrive any more: no request is without its answer, and those that lost theirs with a
connection have had their time. So the next lane may write at once.

A partition that is taken begins like those that the lane started with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.engine.lane.work import Work
from kmirror.state.records import LaneChangeRecord

#: A broker that answers so late is hung up on, as by a lane that ends.
_PATIENCE_SECONDS = 2.0


@dataclass(slots=True)
class _Leaving:
    """A partition that is being released, by which change and since when."""

    copy: PartitionCopy
    revision: int
    since: float
    is_over: bool = False


class Changes:
    """Carry out changes for one lane; used by its sending thread."""

    def __init__(
        self,
        work: Work,
        release: Callable[[list[PartitionCopy]], None],
        hang_up_on: Callable[[PartitionCopy], None],
        begin: Callable[[Sequence[PartitionCopy], Sequence[int]], None],
    ) -> None:
        self._work = work
        self._release = release
        self._hang_up_on = hang_up_on
        self._begin = begin
        self._leaving: tuple[_Leaving, ...] = ()
        #: The last change up to which nothing is on its way to what was released; any thread may read it.
        self.given_up = 0

    def told(self, given_up: int) -> None:
        """Note that the engine knows of all that was released by these changes."""
        self._leave(one for one in self._leaving if not one.is_over or one.revision > given_up)

    def _leave(self, leaving: Iterable[_Leaving]) -> None:
        self._leaving = tuple(leaving)
        self._work.leaving = [one.copy for one in self._leaving]

    def take(self, change: LaneChangeRecord, at: float) -> None:
        """Apply a change from now on."""
        work = self._work
        places = {TopicPartition(*place) for place in change.given_up}
        going = [copy for copy in work.partitions if copy.assignment.destination in places]
        for copy in going:
            copy.leave(at)
        self._release(going)
        new = work.copies_of(change.taken, at, in_doubt=change.predecessor_may_write)
        self._leave([*self._leaving, *(_Leaving(copy, change.revision, at) for copy in going)])
        work.partitions = [copy for copy in work.partitions if copy.assignment.destination not in places] + new
        work.revision = change.revision
        self.look_around(at)
        self._begin(new, change.unsettled_lanes)

    def look_around(self, at: float) -> None:
        """Find out what is released for good; hang up on brokers that do not let that happen."""
        if self.given_up == self._work.revision:
            return
        for one in self._leaving:
            if not one.is_over and at - one.since > _PATIENCE_SECONDS:
                self._hang_up_on(one.copy)
            one.is_over = one.is_over or one.copy.nothing_can_arrive(at)
        given_up = min((one.revision - 1 for one in self._leaving if not one.is_over), default=self._work.revision)
        if given_up != self.given_up:
            self.given_up = given_up
            self._work.control.report_soon()
