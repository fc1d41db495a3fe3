"""How the lanes of all mirrors of one application are spread over its executors: how many each mirror may have, and
which lane goes to another executor. Pure.

An executor's load is what its lanes copy, and a little for each lane, so that idle ones are spread too. A lane moves
only where that makes the busier of the two executors clearly less busy; for what they copy only now and then, since
traffic changes. None goes to an executor whose lanes are behind: a slow machine looks idle. Where all lanes of an
executor are behind and copy much less than others could, one with room elsewhere goes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from kmirror.engine.executors import Executor, Placement
from kmirror.words import counted

#: What a lane counts for beside what it copies, in bytes a second.
_LANE = 1e6
#: A move is worth it if the busier executor has so much less to do then.
_GAIN = 0.2
#: So often lanes move for what they copy; for their number alone, at any time.
_WEIGH_SECONDS = 300.0
#: A lane on a slow executor copies less than this part of what the fastest one does; such an executor is left alone
#: for so long.
_SLOW = 0.5
_AVOID_SECONDS = 900.0
#: An executor that is gone is waited for: a standalone worker starts another one.
_GONE_SECONDS = 5.0
#: Lanes that move at the same time.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Seat:
    """A lane that runs: of which mirror, where, how many bytes a second it copies, and whether it is far behind.

    `best` is the most that it has copied in a second.
    """

    mirror: str
    lane: int
    executor: Executor
    rate: float = 0.0
    best: float = 0.0
    is_behind: bool = False
    may_move: bool = True


class Seated(Protocol):
    """The engine of one mirror, as far as its lanes' places go."""

    @property
    def mirror(self) -> str: ...

    @property
    def lanes_wanted(self) -> int:
        """How many lanes it would have if there were room."""

    @property
    def is_settled(self) -> bool:
        """True when all its lanes run, and it is known where."""

    def take_placement(self, placement: Placement, limit: int | None) -> None:
        """Take where lanes run, and how many it may have; None for as many as it wants."""

    def seats(self) -> Collection[Seat]:
        """List its lanes of which is known where they run."""

    def move_lane(self, lane: int, place: Executor) -> None:
        """Have what a lane does done at another place."""


class Spread:
    """Spread the lanes of mirrors that share one application; for one thread, which calls `tick` often."""

    def __init__(self) -> None:
        self._weighed_at = -inf
        #: By name of an executor that was slow, until when no lane goes there.
        self._avoided: dict[str, float] = {}
        #: How many functions could run at once when that was last believed, and since when there are fewer.
        self._slots: int | None = None
        self._fewer_since: float | None = None

    def tick(self, placement: Placement | None, engines: Sequence[Seated], at: float) -> None:
        """Tell engines what follows from where their lanes run."""
        if placement is None:
            return
        limits = slot_shares({e.mirror: e.lanes_wanted for e in engines}, self._believed_slots(placement, at))
        for engine in engines:
            engine.take_placement(placement, limits.get(engine.mirror))
        if not all(engine.is_settled for engine in engines):
            return  # a lane that is being started is in nobody's count
        seats = [seat for engine in engines for seat in engine.seats()]
        self._avoided = {name: until for name, until in self._avoided.items() if until > at}
        by_mirror = {engine.mirror: engine for engine in engines}
        for seat, target in self._moves(placement, seats, at)[:_AT_ONCE]:
            by_mirror[seat.mirror].move_lane(seat.lane, target)

    def _moves(self, placement: Placement, seats: Sequence[Seat], at: float) -> list[tuple[Seat, Executor]]:
        found = escapes(placement, seats, self._avoided)
        if found:
            self._avoided |= {seat.executor.name: at + _AVOID_SECONDS for seat, _ in found}
            return found
        found = lane_moves(placement, [replace(seat, rate=0.0) for seat in seats], self._avoided)
        if not found and at - self._weighed_at >= _WEIGH_SECONDS:
            found = lane_moves(placement, seats, self._avoided)
            self._weighed_at = at if found else self._weighed_at
        return found

    def _believed_slots(self, placement: Placement, at: float) -> int | None:
        """Return for how many lanes there is room; None where Spark makes room for all, or has no executor at all."""
        if placement.is_elastic or not placement.slots:
            self._slots = self._fewer_since = None
        elif self._slots is None or placement.slots >= self._slots:
            self._slots, self._fewer_since = placement.slots, None
        elif self._fewer_since is None:
            self._fewer_since = at
        elif at - self._fewer_since >= _GONE_SECONDS:
            self._slots, self._fewer_since = placement.slots, None
        return self._slots


def slot_shares(wanted: Mapping[str, int], slots: int | None) -> dict[str, int]:
    """Return how many lanes each mirror may have: what it wants, or an equal part where there is less; one at least.

    Empty where there is room for all.
    """
    if slots is None or sum(wanted.values()) <= slots:
        return {}
    found = dict.fromkeys(wanted, 1)
    left = slots - len(found)
    while left > 0 and (hungry := [mirror for mirror in sorted(wanted) if found[mirror] < wanted[mirror]]):
        for mirror in sorted(hungry, key=lambda one: found[one])[:left]:
            found[mirror] += 1
            left -= 1
    return found


def escapes(placement: Placement, seats: Sequence[Seat], avoided: Collection[str] = ()) -> list[tuple[Seat, Executor]]:
    """Return a lane that is to leave a slow executor, and where to; most often none."""
    at, busy = _by_executor(placement, seats), Counter(e.name for e in placement.places.values())
    fastest = max((seat.best for seat in seats), default=0.0)
    targets = [
        e
        for e, there in at.items()
        if busy[e.name] < e.cores and e.name not in avoided and there and not any(s.is_behind for s in there)
    ]
    if not targets:
        return []
    target = min(targets, key=lambda e: (busy[e.name] / e.cores, e.name))
    for there in at.values():
        if there and all(seat.is_behind and seat.rate < _SLOW * fastest for seat in there):
            return [(seat, target) for seat in there if seat.may_move][:1]
    return []


def _by_executor(placement: Placement, seats: Sequence[Seat]) -> dict[Executor, list[Seat]]:
    at: dict[Executor, list[Seat]] = {executor: [] for executor in placement.executors}
    for seat in seats:
        if seat.executor in at:
            at[seat.executor].append(seat)
    return at


def lane_moves(
    placement: Placement, seats: Sequence[Seat], avoided: Collection[str] = ()
) -> list[tuple[Seat, Executor]]:
    """Return which lanes are to go to which executors, one after another, the most useful move first."""
    busy = Counter(executor.name for executor in placement.places.values())
    at = _by_executor(placement, seats)
    found: list[tuple[Seat, Executor]] = []
    left = {(seat.mirror, seat.lane) for seat in seats if seat.may_move}
    while (best := _best_move(at, busy, left, avoided)) is not None:
        seat, target = best
        found.append(best)
        left.discard((seat.mirror, seat.lane))
        at[seat.executor].remove(seat)
        at[target].append(seat)
        busy[target.name] += 1  # until it is gone from its old place it takes room at both
    return found


def _best_move(
    at: Mapping[Executor, Sequence[Seat]],
    busy: Mapping[str, int],
    movable: Collection[tuple[str, int]],
    avoided: Collection[str],
) -> tuple[Seat, Executor] | None:
    loads = {executor: sum(map(_load, seats)) for executor, seats in at.items()}
    targets = [
        e
        for e, seats in at.items()
        if busy.get(e.name, 0) < e.cores and e.name not in avoided and not any(s.is_behind for s in seats)
    ]
    if not targets:
        return None
    target = min(targets, key=lambda e: (loads[e], len(at[e]), e.name))
    best: tuple[float, Seat] | None = None
    for executor, seats in at.items():
        for seat in seats:
            load = _load(seat)
            gain = loads[executor] - max(loads[executor] - load, loads[target] + load)
            worth = (seat.mirror, seat.lane) in movable and gain > _GAIN * loads[executor] and gain > _LANE / 2
            if executor != target and worth and (best is None or gain > best[0]):
                best = gain, seat
    return (best[1], target) if best is not None else None


def _load(seat: Seat) -> float:
    return _LANE + seat.rate


def limit_text(mirror: str, limit: int | None, wanted: int) -> str:
    """Return the sentence for how many lanes a mirror may have now."""
    if limit is None or limit >= wanted:
        return f"Spark's workers have room for all lanes of {mirror} again"
    return f"Spark's workers have room for {counted(limit, 'lane')} of {mirror}, which wants {wanted}"
