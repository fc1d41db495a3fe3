"""Divide a mirror's limit of bytes a second among its lanes: a lane that does not wait for its share gets a little more
than it uses, and those that wait get the rest in equal parts. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: How much faster a lane that does not wait may become before it must wait for its next share.
_ROOM = 1.25
#: The part of an equal share that an idle lane keeps, to start with when records arrive.
_LEAST_PART = 0.02


@dataclass(frozen=True, slots=True)
class LaneUse:
    """What a lane's run had fetched by a time, and how long it had waited for its share."""

    at: float
    fetched_bytes: int
    waited_seconds: float


class ThrottleShares:
    """Divide a limit among the lanes of one mirror."""

    def __init__(self) -> None:
        #: By lane: the second last report, and the last.
        self._uses: dict[int, tuple[LaneUse | None, LaneUse]] = {}

    def take(self, lane: int, use: LaneUse) -> None:
        """Take what a lane reports."""
        before = self._uses.get(lane)
        is_same_run = before is not None and use.fetched_bytes >= before[1].fetched_bytes
        self._uses[lane] = (before[1] if before is not None and is_same_run else None, use)

    def of(self, limit: int, lanes: Collection[int]) -> dict[int, int]:
        """Return each lane's bytes a second; except for rounding, their sum is the limit."""
        self._uses = {lane: uses for lane, uses in self._uses.items() if lane in lanes}
        left, waiting = float(limit), set(lanes)
        shares: dict[int, int] = {}
        # start with the lane that needs least: what it leaves is there for the others
        for needed, lane in sorted((need, lane) for lane in lanes if (need := self._need(lane)) is not None):
            equal_part = left / len(waiting)
            wanted = max(needed * _ROOM, limit / len(lanes) * _LEAST_PART)
            if wanted >= equal_part:
                break
            shares[lane] = int(wanted)
            left -= wanted
            waiting.discard(lane)
        if not waiting and shares:  # no lane waits, and none should
            return {lane: int(limit / len(lanes)) for lane in lanes}
        return shares | {lane: int(left / len(waiting)) for lane in waiting}

    def _need(self, lane: int) -> float | None:
        """Return the bytes a second that a lane uses; None if it waits for more or has not reported twice."""
        before, last = self._uses.get(lane, (None, None))
        if before is None or last is None or last.at <= before.at or last.waited_seconds > before.waited_seconds:
            return None
        return (last.fetched_bytes - before.fetched_bytes) / (last.at - before.at)
