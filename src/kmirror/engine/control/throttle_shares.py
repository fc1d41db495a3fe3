"""Share a mirror's limit of bytes a second among its lanes by what each needs: a lane that lacks nothing keeps a
little more than it uses, and the rest goes in equal parts to those that wait. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

#: A lane that lacks nothing may become so much faster before it has to wait for its next share.
_ROOM = 1.25
#: Of an equal part, what a lane that uses nothing keeps, to begin with when records come.
_LEAST_PART = 0.02


@dataclass(frozen=True, slots=True)
class LaneUse:
    """Tell what a lane had fetched at a time, and how long its share had kept it waiting, since its run began."""

    at: float
    fetched_bytes: int
    waited_seconds: float


class ThrottleShares:
    """Share a limit among the lanes of one mirror."""

    def __init__(self) -> None:
        #: By lane: the last report but one, and the last.
        self._uses: dict[int, tuple[LaneUse | None, LaneUse]] = {}

    def take(self, lane: int, use: LaneUse) -> None:
        """Take what a lane reports."""
        before = self._uses.get(lane)
        is_same_run = before is not None and use.fetched_bytes >= before[1].fetched_bytes
        self._uses[lane] = (before[1] if before is not None and is_same_run else None, use)

    def of(self, limit: int, lanes: Collection[int]) -> dict[int, int]:
        """Return each lane's bytes a second; together they are the limit, but for what rounding takes."""
        self._uses = {lane: uses for lane, uses in self._uses.items() if lane in lanes}
        left, waiting = float(limit), set(lanes)
        shares: dict[int, int] = {}
        # from the one that needs least on: what it leaves is there for the others
        for needed, lane in sorted((need, lane) for lane in lanes if (need := self._need(lane)) is not None):
            equal_part = left / len(waiting)
            wanted = max(needed * _ROOM, limit / len(lanes) * _LEAST_PART)
            if wanted >= equal_part:
                break
            shares[lane] = int(wanted)
            left -= wanted
            waiting.discard(lane)
        if not waiting and shares:  # nobody waits: nobody has to
            return {lane: int(limit / len(lanes)) for lane in lanes}
        return shares | {lane: int(left / len(waiting)) for lane in waiting}

    def _need(self, lane: int) -> float | None:
        """Return the bytes a second that a lane uses, None where it waits for more or has not told yet."""
        before, last = self._uses.get(lane, (None, None))
        if before is None or last is None or last.at <= before.at or last.waited_seconds > before.waited_seconds:
            return None
        return (last.fetched_bytes - before.fetched_bytes) / (last.at - before.at)
