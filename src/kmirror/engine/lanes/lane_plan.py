"""Which lane copies which partitions, and what changes for running lanes. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Held:
    """The partitions of one lane: those it copies, and those it must release and may still write to."""

    copies: Sequence[Assignment] = ()
    leaving: Collection[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What is revoked from one lane and assigned to it; `ends`: it must end, as it has nothing left to copy."""

    revoked: tuple[TopicPartition, ...] = ()
    assigned: tuple[Assignment, ...] = ()
    ends: bool = False

    def __bool__(self) -> bool:
        return bool(self.revoked or self.assigned or self.ends)


def changes(
    wanted: Sequence[Assignment],
    lanes: Collection[int],
    weights: Mapping[TopicPartition, float],
    held: Mapping[int, Held],
    moves: Mapping[TopicPartition, int] | None = None,
    closing: Collection[int] = (),
) -> dict[int, Change]:
    """Return the change of each lane, so that `lanes` and no others copy what is wanted.

    A partition is revoked if it is no longer wanted, if its assignment has changed, or if `moves` names another lane
    for it. It is assigned again by the plan after its lane has reported that nothing is in flight to it. `closing`
    lanes hand over everything, and are assigned nothing. Lanes without a change are left out.
    """
    now = {assignment.destination: assignment for assignment in wanted}
    targets = {partition: lane for partition, lane in (moves or {}).items() if lane in lanes}
    kept: dict[int, list[Assignment]] = {}
    busy: set[TopicPartition] = set()
    for lane, has in held.items():
        kept[lane] = [
            a
            for a in has.copies
            if lane in lanes and now.get(a.destination) == a and targets.get(a.destination, lane) == lane
        ]
        stays = {a.destination for a in kept[lane]}
        busy.update(has.leaving, (a.destination for a in has.copies if a.destination not in stays))
    takers = [lane for lane in lanes if lane not in closing]
    plan = assign([a for a in wanted if a.destination not in busy], takers, weights, kept, targets)
    found = {}
    for lane in sorted({*plan, *held}):
        has, mine = held.get(lane, Held()), plan.get(lane, ())
        stays = {a.destination for a in kept.get(lane, ())}
        revoked = tuple(sorted(a.destination for a in has.copies if a.destination not in stays))
        assigned = tuple(a for a in mine if a.destination not in stays)
        # a lane does not end if its partitions come back at once, or while others release what it will get
        expects = any(p in now for p in (*has.leaving, *revoked)) or lane in targets.values()
        ends = not mine and (lane not in lanes or not expects)
        if change := Change(revoked, assigned, ends):
            found[lane] = change
    return found


def assign(
    assignments: Sequence[Assignment],
    lanes: Collection[int],
    weights: Mapping[TopicPartition, float],
    before: Mapping[int, Sequence[Assignment]] | None = None,
    targets: Mapping[TopicPartition, int] | None = None,
) -> dict[int, tuple[Assignment, ...]]:
    """Distribute partitions over lanes, heaviest first, each to the lane with the least to do.

    `weights` is how much there is to copy, by destination partition; a partition without any counts 1. One that a lane
    had `before` stays there: moving it would stall it. `targets` names the lane of others. Lanes without partitions
    are left out.
    """
    wanted = {a.destination: a for a in assignments}
    load: dict[int, float] = dict.fromkeys(sorted(lanes), 0)
    plan: dict[int, list[Assignment]] = {lane: [] for lane in load}
    for lane, kept in (before or {}).items():
        for assignment in kept:
            if lane in plan and (current := wanted.pop(assignment.destination, None)) is not None:
                plan[lane].append(current)
                load[lane] += 1 + weights.get(current.destination, 0)
    if not load:
        return {}
    for assignment in sorted(wanted.values(), key=lambda a: (-weights.get(a.destination, 0), a.destination)):
        lane = (targets or {}).get(assignment.destination, -1)
        if lane not in load:
            lane = min(load, key=lambda one: (load[one], len(plan[one]), one))
        plan[lane].append(assignment)
        load[lane] += 1 + weights.get(assignment.destination, 0)
    return {lane: tuple(sorted(mine, key=lambda a: a.destination)) for lane, mine in plan.items() if mine}


def shares(
    newcomer: int, held: Mapping[int, Sequence[TopicPartition]], weights: Mapping[TopicPartition, float]
) -> dict[TopicPartition, int]:
    """Return the partitions of other lanes that an empty lane gets, so that all have about the same to do."""
    work = {p: 1 + weights.get(p, 0) for partitions in held.values() for p in partitions}
    left = {lane: sorted(partitions, key=lambda p: (work[p], p)) for lane, partitions in held.items()}
    loads = {lane: sum(work[p] for p in partitions) for lane, partitions in left.items()}
    mine, even = 0.0, sum(loads.values()) / (len(loads) + 1)
    found: dict[TopicPartition, int] = {}
    while donors := [lane for lane, partitions in left.items() if len(partitions) > 1]:
        donor = max(donors, key=lambda lane: (loads[lane], -lane))
        # it does not help if the donor then has less to do than the newcomer
        fitting = [p for p in left[donor] if 2 * work[p] <= loads[donor] - mine]
        fitting = [p for p in fitting if work[p] <= even - mine] or ([] if found else fitting[:1])
        if not fitting:
            break
        partition = fitting[-1]
        left[donor].remove(partition)
        loads[donor] -= work[partition]
        mine += work[partition]
        found[partition] = newcomer
    return found
