"""The record of a change of what a lane copies. Pure and light: lanes import this module in Spark workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.state.assignment import Assignment
from kmirror.state.records import Key


@dataclass(frozen=True, slots=True)
class LaneChangeRecord:
    """A change of the partitions assigned to one run of a lane; `revision` counts such changes from 1, without a gap.

    Only the last one is kept for long: a lane that misses an earlier one has to be restarted, with all its partitions.
    """

    mirror: str
    lane: int
    lease_id: str
    generation: int
    revision: int
    #: Topics and partitions that are revoked: nothing more may be sent to them. `taken` are newly assigned.
    given_up: tuple[tuple[str, int], ...]
    taken: tuple[Assignment, ...]
    #: False if no older lane can still write to the assigned partitions.
    predecessor_may_write: bool
    #: Lanes that may have left transactions open in the assigned partitions.
    unsettled_lanes: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("change", self.mirror, self.lane)
