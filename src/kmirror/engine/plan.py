"""Which lane copies which partitions. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kmirror.cluster.metadata import TopicPartition
from kmirror.engine.spec import Assignment


def assign(
    assignments: Sequence[Assignment],
    lanes: int,
    weights: Mapping[TopicPartition, int],
    before: Mapping[int, Sequence[Assignment]] | None = None,
) -> dict[int, tuple[Assignment, ...]]:
    """Share partitions among lanes 0 … `lanes` − 1, heaviest first, each to the lane with the least to do.

    `weights` is what is left to copy, by destination partition, in any unit. A partition that a lane has `before`
    stays there: moving it would stall it. Lanes without partitions are left out.
    """
    wanted = {a.destination: a for a in assignments}
    load = dict.fromkeys(range(lanes), 0)
    plan: dict[int, list[Assignment]] = {lane: [] for lane in range(lanes)}
    for lane, kept in (before or {}).items():
        for assignment in kept:
            current = wanted.pop(assignment.destination, None)
            if current is not None and lane in plan:
                plan[lane].append(current)
                load[lane] += 1 + weights.get(current.destination, 0)
            elif current is not None:
                wanted[current.destination] = current
    for assignment in sorted(wanted.values(), key=lambda a: (-weights.get(a.destination, 0), a.destination)):
        lane = min(load, key=lambda one: (load[one], len(plan[one]), one))
        plan[lane].append(assignment)
        load[lane] += 1 + weights.get(assignment.destination, 0)
    return {lane: tuple(sorted(mine, key=lambda a: a.destination)) for lane, mine in plan.items() if mine}
