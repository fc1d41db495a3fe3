"""Which lanes a mirror should have, and which of them start empty to take the work of others. Pure.

A lane that starts empty gets work when it runs. Until then it is `arriving` and takes no part in the plan. It is either
an additional lane, or the successor of a lane that moves elsewhere, which is closed once it has nothing left.
"""

from __future__ import annotations

from collections.abc import Collection


class LaneSlots:
    """Keep the numbers of lanes."""

    def __init__(self) -> None:
        #: The lanes that may have work.
        self.open: list[int] = []
        self.arriving: set[int] = set()
        #: By lane that hands over all its work: its successor, which is running.
        self.successors: dict[int, int] = {}
        #: The same, while the successor is arriving.
        self._arriving_successors: dict[int, int] = {}

    @property
    def steady(self) -> set[int]:
        """The lanes that neither hand over their work nor take over that of another."""
        return {n for n in self.open if n not in self.successors and n not in self.successors.values()}

    def resize(self, count: int, *, with_work: Collection[int], reporting: Collection[int]) -> None:
        """Open or close lanes to have `count`; close first those without work, then those that do not report."""
        lanes = [n for n in self.open if n not in self.successors]
        more = count - len(lanes) - sum(n not in self._arriving_successors.values() for n in self.arriving)
        for _ in range(more):
            self.open.append(self._free_number(()))
        lanes.sort(key=lambda n: (n in with_work and n in reporting, n in with_work, -n))
        for lane in lanes[: max(0, -more)]:
            self.open.remove(lane)
            self._arriving_successors.pop(lane, None)

    def begin(self, lane: int) -> None:
        """Note that an open lane without work starts, to share that of others."""
        self.open.remove(lane)
        self.arriving.add(lane)

    def begin_successor(self, lane: int, used: Collection[int]) -> int:
        """Return the number of a new lane that takes over all the work of `lane`; numbers in `used` are not free."""
        number = self._free_number(used)
        self.arriving.add(number)
        self._arriving_successors[lane] = number
        return number

    def arrived(self, lane: int) -> None:
        """Note that an arriving lane runs and can take work."""
        self.arriving.discard(lane)
        self.open.append(lane)
        for old, successor in list(self._arriving_successors.items()):
            if successor == lane:
                del self._arriving_successors[old]
                if old in self.open:
                    self.successors[old] = lane

    def close(self, lane: int) -> None:
        """Note that a lane has handed over all its work."""
        self.successors.pop(lane, None)
        if lane in self.open:
            self.open.remove(lane)

    def gone(self, lane: int) -> None:
        """Note that a lane has ended, or never arrived."""
        self._arriving_successors = {o: new for o, new in self._arriving_successors.items() if lane not in (o, new)}
        self.arriving.discard(lane)

    def _free_number(self, used: Collection[int]) -> int:
        taken = {*used, *self.open, *self.arriving}
        return next(n for n in range(len(taken) + 1) if n not in taken)
