"""Which lane copies which partitions, and what changes for lanes at work. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Held:
    """What one lane has: what it copies, and what it is to release and may still write to."""

    copies: Sequence[Assignment] = ()
    leaving: Collection[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What one lane is to release, and what it is to copy too; `ends`: nothing is left that it could copy."""

    given_up: tuple[TopicPartition, ...] = ()
    taken: tuple[Assignment, ...] = ()
    ends: bool = False

    def __bool__(self) -> bool:
        return bool(self.given_up or self.taken or self.ends)


def changes(
    wanted: Sequence[Assignment],
    lanes: Collection[int],
    weights: Mapping[TopicPartition, int],
    held: Mapping[int, Held],
) -> dict[int, Change]:
    """Return what is to change for each lane, so that `lanes` and no others copy what is wanted.

    A partition whose assignment has changed is released like one that is not wanted any more. What is being
    released goes to no lane: it comes with the plan after its lane has reported that nothing is under way to it.
    Lanes for which nothing changes are left out.
    """
    now = {assignment.destination: assignment for assignment in wanted}
    kept: dict[int, list[Assignment]] = {}
    busy: set[TopicPartition] = set()
    for lane, has in held.items():
        kept[lane] = [a for a in has.copies if lane in lanes and now.get(a.destination) == a]
        stays = {a.destination for a in kept[lane]}
        busy.update(has.leaving, (a.destination for a in has.copies if a.destination not in stays))
    plan = assign([a for a in wanted if a.destination not in busy], lanes, weights, kept)
    found = {}
    for lane in sorted({*plan, *held}):
        has, mine = held.get(lane, Held()), plan.get(lane, ())
        stays = {a.destination for a in kept.get(lane, ())}
        given_up = tuple(sorted(a.destination for a in has.copies if a.destination not in stays))
        taken = tuple(a for a in mine if a.destination not in stays)
        # what comes back at once is no reason to end
        ends = not mine and (lane not in lanes or not any(p in now for p in (*has.leaving, *given_up)))
        if change := Change(given_up, taken, ends):
            found[lane] = change
    return found


def assign(
    assignments: Sequence[Assignment],
    lanes: Collection[int],
    weights: Mapping[TopicPartition, int],
    before: Mapping[int, Sequence[Assignment]] | None = None,
) -> dict[int, tuple[Assignment, ...]]:
    """Share partitions among these lanes, heaviest first, each to the lane with the least to do.

    `weights` is what is left to copy, by destination partition, in any unit. A partition that a lane has `before`
    stays there: moving it would stall it. Lanes without partitions are left out.
    """
    wanted = {a.destination: a for a in assignments}
    load = dict.fromkeys(sorted(lanes), 0)
    plan: dict[int, list[Assignment]] = {lane: [] for lane in load}
    for lane, kept in (before or {}).items():
        for assignment in kept:
            if lane in plan and (current := wanted.pop(assignment.destination, None)) is not None:
                plan[lane].append(current)
                load[lane] += 1 + weights.get(current.destination, 0)
    if not load:
        return {}
    for assignment in sorted(wanted.values(), key=lambda a: (-weights.get(a.destination, 0), a.destination)):
        lane = min(load, key=lambda one: (load[one], len(plan[one]), one))
        plan[lane].append(assignment)
        load[lane] += 1 + weights.get(assignment.destination, 0)
    return {lane: tuple(sorted(mine, key=lambda a: a.destination)) for lane, mine in plan.items() if mine}
