"""How the lanes of all mirrors of one application are spread over its executors: how many each mirror may have, and
which of them move to another executor. Pure.

An executor's load is what its lanes copy, and a little for each lane, so that idle ones are spread too. A lane moves
only if that makes the busier of the two executors clearly less busy; because of what lanes copy only now and then,
since traffic changes. None moves to an executor whose lanes are behind: a slow machine looks idle. If all lanes of an
executor are behind and copy much less than others could, one of them moves to an executor with room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from kmirror.engine.executors import Executor, Placement
from kmirror.words import counted

#: The load of a lane besides what it copies, in bytes a second.
_LANE = 1e6
#: A move must relieve the busier executor of this part of its load.
_GAIN = 0.2
#: How often lanes may move because of what they copy; because of their number, at any time.
_WEIGH_SECONDS = 300.0
#: On a slow executor a lane copies less than this part of what the fastest one does; no lane moves there for so long.
_SLOW = 0.5
_AVOID_SECONDS = 900.0
#: How long to wait for an executor that is gone: a standalone worker starts another one.
_GONE_SECONDS = 5.0
#: How many lanes move at the same time.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class RunningLane:
    """A lane on an executor: its rate in bytes a second, its highest rate, and whether it is far behind."""

    mirror: str
    lane: int
    executor: Executor
    rate: float = 0.0
    best: float = 0.0
    is_behind: bool = False
    may_move: bool = True


class MirrorLanes(Protocol):
    """The lanes of one mirror: see `lane_balancer.LaneBalancer`."""

    @property
    def mirror(self) -> str: ...

    @property
    def lanes_wanted(self) -> int: ...

    @property
    def is_settled(self) -> bool: ...

    @property
    def is_rebuilding(self) -> bool: ...

    def take_placement(self, placement: Placement, limit: int | None) -> None: ...

    def running_lanes(self) -> Collection[RunningLane]: ...

    def move_lane(self, lane: int, place: Executor) -> None: ...


class Spread:
    """Spread the lanes of mirrors that share one application; for one thread, which calls `tick` often."""

    def __init__(self) -> None:
        self._weighed_at = -inf
        #: By name of an executor that was slow, until when no lane moves there.
        self._avoided: dict[str, float] = {}
        #: The slots that count, and since when there are fewer.
        self._slots: int | None = None
        self._fewer_since: float | None = None

    def tick(self, placement: Placement | None, mirrors: Sequence[MirrorLanes], at: float) -> None:
        """Limit and move lanes, given where they run."""
        if placement is None:
            return
        slots = self._counted_slots(placement, at)
        if slots is not None and any(mirror.is_rebuilding for mirror in mirrors):
            slots -= 1  # for what a rebuild archives; a mirror's only lane does not make room for it
        limits = slot_shares({m.mirror: m.lanes_wanted for m in mirrors}, slots)
        for mirror in mirrors:
            mirror.take_placement(placement, limits.get(mirror.mirror))
        if not all(mirror.is_settled for mirror in mirrors):
            return  # a lane that is starting is not counted anywhere
        lanes = [lane for mirror in mirrors for lane in mirror.running_lanes()]
        self._avoided = {name: until for name, until in self._avoided.items() if until > at}
        by_name = {mirror.mirror: mirror for mirror in mirrors}
        for lane, target in self._moves(placement, lanes, at)[:_AT_ONCE]:
            by_name[lane.mirror].move_lane(lane.lane, target)

    def _moves(
        self, placement: Placement, lanes: Sequence[RunningLane], at: float
    ) -> list[tuple[RunningLane, Executor]]:
        found = escapes(placement, lanes, self._avoided)
        if found:
            self._avoided |= {lane.executor.name: at + _AVOID_SECONDS for lane, _ in found}
            return found
        found = lane_moves(placement, [replace(lane, rate=0.0) for lane in lanes], self._avoided)
        if not found and at - self._weighed_at >= _WEIGH_SECONDS:
            found = lane_moves(placement, lanes, self._avoided)
            self._weighed_at = at if found else self._weighed_at
        return found

    def _counted_slots(self, placement: Placement, at: float) -> int | None:
        """Return for how many lanes there is room; None if Spark makes room for all, or has no executor."""
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
    """Return how many lanes each mirror may have: as many as it wants, or an equal part, at least one.

    Empty if there is room for all.
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


def escapes(
    placement: Placement, lanes: Sequence[RunningLane], avoided: Collection[str] = ()
) -> list[tuple[RunningLane, Executor]]:
    """Return a lane to move from a slow executor, and its new executor; most often none."""
    at, busy = _by_executor(placement, lanes), Counter(e.name for e in placement.places.values())
    fastest = max((lane.best for lane in lanes), default=0.0)
    targets = [
        e
        for e, there in at.items()
        if busy[e.name] < e.cores and e.name not in avoided and there and not any(s.is_behind for s in there)
    ]
    if not targets:
        return []
    target = min(targets, key=lambda e: (busy[e.name] / e.cores, e.name))
    for there in at.values():
        if there and all(lane.is_behind and lane.rate < _SLOW * fastest for lane in there):
            return [(lane, target) for lane in there if lane.may_move][:1]
    return []


def _by_executor(placement: Placement, lanes: Sequence[RunningLane]) -> dict[Executor, list[RunningLane]]:
    at: dict[Executor, list[RunningLane]] = {executor: [] for executor in placement.executors}
    for lane in lanes:
        if lane.executor in at:
            at[lane.executor].append(lane)
    return at


def lane_moves(
    placement: Placement, lanes: Sequence[RunningLane], avoided: Collection[str] = ()
) -> list[tuple[RunningLane, Executor]]:
    """Return the lanes to move and their new executors, the most useful move first."""
    busy = Counter(executor.name for executor in placement.places.values())
    at = _by_executor(placement, lanes)
    found: list[tuple[RunningLane, Executor]] = []
    left = {(lane.mirror, lane.lane) for lane in lanes if lane.may_move}
    while (best := _best_move(at, busy, left, avoided)) is not None:
        lane, target = best
        found.append(best)
        left.discard((lane.mirror, lane.lane))
        at[lane.executor].remove(lane)
        at[target].append(lane)
        busy[target.name] += 1  # until it has left its old executor it takes room on both
    return found


def _best_move(
    at: Mapping[Executor, Sequence[RunningLane]],
    busy: Mapping[str, int],
    movable: Collection[tuple[str, int]],
    avoided: Collection[str],
) -> tuple[RunningLane, Executor] | None:
    loads = {executor: sum(map(_load, lanes)) for executor, lanes in at.items()}
    targets = [
        e
        for e, lanes in at.items()
        if busy.get(e.name, 0) < e.cores and e.name not in avoided and not any(s.is_behind for s in lanes)
    ]
    if not targets:
        return None
    target = min(targets, key=lambda e: (loads[e], len(at[e]), e.name))
    best: tuple[float, RunningLane] | None = None
    for executor, lanes in at.items():
        for lane in lanes:
            load = _load(lane)
            gain = loads[executor] - max(loads[executor] - load, loads[target] + load)
            worth = (lane.mirror, lane.lane) in movable and gain > _GAIN * loads[executor] and gain > _LANE / 2
            if executor != target and worth and (best is None or gain > best[0]):
                best = gain, lane
    return (best[1], target) if best is not None else None


def _load(lane: RunningLane) -> float:
    return _LANE + lane.rate


def limit_text(mirror: str, limit: int | None, wanted: int) -> str:
    """Return the note on how many lanes a mirror may have now."""
    if limit is None or limit >= wanted:
        return f"Spark's workers have room for all lanes of {mirror} again"
    return f"Spark's workers have room for {counted(limit, 'lane')} of {mirror}, which wants {wanted}"
