"""Which lanes of a mirror there are to be, and which come to take the work of others. Pure.

A lane that comes gets work when it runs. Until then it is `arriving`: it takes no part in the plan. It is either one
more, or the successor of a lane that is to run elsewhere, which is closed when nothing is left for it.
"""

from __future__ import annotations

from collections.abc import Collection


class Seats:
    """Keep the numbers of lanes."""

    def __init__(self) -> None:
        #: The lanes that may have work.
        self.open: list[int] = []
        self.arriving: set[int] = set()
        #: By lane that gives up all it has: who gets it, and has come for it.
        self.successors: dict[int, int] = {}
        #: The same, before the successor has come.
        self._to_succeed: dict[int, int] = {}
        self._has_begun = False

    @property
    def steady(self) -> set[int]:
        """The lanes that neither come nor go."""
        return {n for n in self.open if n not in self.successors and n not in self.successors.values()}

    def resize(self, count: int, *, with_work: Collection[int], reporting: Collection[int]) -> None:
        """Have so many lanes; those go first that have no work, and then those that do not report."""
        lanes = [n for n in self.open if n not in self.successors]
        more = count - len(lanes) - sum(n not in self._to_succeed.values() for n in self.arriving)
        for _ in range(more):
            self.open.append(self._free_number(()))
        lanes.sort(key=lambda n: (n in with_work and n in reporting, n in with_work, -n))
        for lane in lanes[: max(0, -more)]:
            self.open.remove(lane)
            self._to_succeed.pop(lane, None)

    def begin(self, lane: int) -> None:
        """Note that an open lane without work is being started, to share that of others."""
        self.open.remove(lane)
        self.arriving.add(lane)

    def begin_successor(self, lane: int, taken: Collection[int]) -> int:
        """Return the number of a lane that is to take over all of another one's work."""
        number = self._free_number(taken)
        self.arriving.add(number)
        self._to_succeed[lane] = number
        return number

    def arrived(self, lane: int) -> None:
        """Note that a lane has come and can take work."""
        self.arriving.discard(lane)
        self.open.append(lane)
        for old, successor in list(self._to_succeed.items()):
            if successor == lane:
                del self._to_succeed[old]
                if old in self.open:
                    self.successors[old] = lane

    def close(self, lane: int) -> None:
        """Note that a lane has given up all that it had."""
        self.successors.pop(lane, None)
        if lane in self.open:
            self.open.remove(lane)

    def gone(self, lane: int) -> None:
        """Note that a lane has ended, or has not come at all."""
        self._to_succeed = {old: new for old, new in self._to_succeed.items() if lane not in (old, new)}
        if lane in self.arriving:
            self.arriving.remove(lane)

    def _free_number(self, taken: Collection[int]) -> int:
        used = {*taken, *self.open, *self.arriving}
        return next(n for n in range(len(used) + 1) if n not in used)
