"""The lanes of one mirror as its engine knows them: what each copies, which run of it may write, its changes.

A running lane receives changes of its work and continues with the rest undisturbed. A partition that it is
to release goes to no other lane before it has reported that nothing is under way there. One without a report may
not be listening yet: it receives no change before.

A lane is restarted when it died, when it does not report, when it missed a change, and when nothing was left
for it. The one that has nothing left is left out of the heartbeat and ends clean; the others are overruled by a higher
generation, and their successors may not rely on their silence before the lease's time-to-live has passed.

Work goes to another lane without a wait for its worker: a lane that is to take it is started empty, and gets partitions
when it has reported (`seats`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.control.health import LANE_SILENCE_SECONDS
from kmirror.engine.control.journal import Journal, Level
from kmirror.engine.control.plan import Change, Held, changes, shares
from kmirror.engine.control.seats import Seats
from kmirror.engine.executors import Executor
from kmirror.engine.lane.lane import run_lane
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.state.assignment import Assignment
from kmirror.state.lease import Lease
from kmirror.state.records import Incarnation, LaneChangeRecord, ProgressRecord, ProgressRow
from kmirror.words import counted

#: So long may a worker take from its start to the lane's first report.
LANE_START_SECONDS = 90.0
#: So long a lane is waited for that is to take the work of others.
ARRIVAL_SECONDS = 60.0
#: A lane that has reported within this time is at work: a report is due every two seconds.
_LATELY = 4.0
#: So often it is looked whether a lane that is to end was ever begun.
_ASK_SECONDS = 2.0
_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
#: Partitions of one change: some 50 KB.
_CHANGE_PARTITIONS = 250

#: A lane's report on a partition, and the assignment it had.
Word = tuple[ProgressRow, Assignment]


class LaneRunner(Protocol):
    """What runs lanes: Spark."""

    def submit(
        self,
        name: str,
        function: Callable[[LaneSpec, int], LaneResult],
        argument: LaneSpec,
        place: Executor | None = None,
    ) -> Future[LaneResult]: ...

    def cancel(self, name: str) -> None: ...

    def is_waiting(self, name: str) -> bool:
        """Tell whether no worker has started the lane yet."""


class Orders(Protocol):
    """The orders that lanes receive."""

    @property
    def mirror(self) -> str: ...

    def spec(
        self, lane: int, generation: int, assignments: Iterable[Assignment], *, in_doubt: bool, unsettled: Sequence[int]
    ) -> LaneSpec:
        """Make what a lane is started with."""

    def as_it_stands(self, assignment: Assignment) -> Assignment:
        """Return an assignment with what is no reason for a new plan, but to be known to a lane that takes it."""


@dataclass(slots=True)
class _Handle:
    """One lane."""

    lane: int
    generation: int
    copies: dict[TopicPartition, Assignment]
    #: From when on its silence counts; a lane that begins among others that report gets the time for its first report.
    silent_from: float
    #: False while it must not be in the heartbeat: it is being asked to end.
    wanted: bool = True
    predecessor_may_write: bool = False
    #: True when what it was started with does not hold any more: it ends once it has begun, and is started again.
    is_outdated: bool = False
    future: Future[LaneResult] | None = None
    submitted_at: float = 0.0
    heard_at: float | None = None
    #: The latest attempt that reported: Spark starts a lane again whose worker died.
    attempt: int = 0
    deaths: int = 0
    start_at: float = 0.0
    #: How many changes this generation received.
    revision: int = 0
    #: What it is to release, and by which change; it may still write there.
    leaving: dict[TopicPartition, tuple[int, Assignment]] = field(default_factory=dict)
    #: By which change it got what it did not start with.
    since: dict[TopicPartition, int] = field(default_factory=dict)
    #: Where it is to run; None: wherever there is room.
    place: Executor | None = None
    #: From when on it was to end.
    unwanted_at: float | None = None
    asked_at: float = 0.0

    def name(self, mirror: str, lease_id: str) -> str:
        """Return what Spark calls it; an engine before this one in the same process may have left lanes behind."""
        return f"{mirror}-lane-{self.lane}-{self.generation}-{lease_id[:8]}"

    @property
    def is_told_of_changes(self) -> bool:
        return self.future is not None and self.heard_at is not None


class Lanes:
    """Keep the lanes of one mirror; for one thread, which calls `tick` many times a second."""

    def __init__(
        self, orders: Orders, journal: Journal, lease: Lease, runner: LaneRunner, filling_lanes: Iterable[int]
    ) -> None:
        self._mirror = orders.mirror
        self._orders = orders
        self._journal = journal
        self._lease = lease
        self._runner = runner
        self._handles: dict[int, _Handle] = {}
        self._seats = Seats()
        #: Partitions that are to go from one lane to another.
        self._moves: dict[TopicPartition, int] = {}
        #: The most lanes that workers have room for; None: not known, or as many as are wanted.
        self.limit: int | None = None
        #: By lane, where it runs, as far as that is known.
        self.places: dict[int, Executor] = {}
        #: The last generation of lanes that there are no more.
        self._generations: dict[int, int] = {}
        self._old_futures: list[Future[LaneResult]] = []
        #: By lane, when any run of it last reported; and when any lane did.
        self._heard_at: dict[int, float] = {}
        self._any_heard_at = -inf
        #: Lanes that have filled offsets by transactions, of which they may have left one open.
        self._filling = set(filling_lanes)
        #: What the last heartbeat said; a lane is started only when the brokers have it that it may write.
        self._published: dict[int, Incarnation] = {}
        #: Changes that no heartbeat has said yet.
        self.unsaid: list[LaneChangeRecord] = []
        #: True when a run that may not have ended is overruled, and no heartbeat has said so yet.
        self._overrules = False
        self.plan_now = True
        self.beat_now = True
        self.stopping = False
        #: How often a lane died, was replaced or was continued by another worker.
        self.restarts = 0

    @property
    def finished(self) -> bool:
        """True when no lane is left."""
        return not self._handles and not self._old_futures

    def stop(self) -> None:
        """Ask every lane to end."""
        self.stopping = self.beat_now = True
        for handle in self._handles.values():
            handle.wanted = False

    def renew(self) -> None:
        """Let every lane end clean and start again with what is true then; one that has not begun, when it has."""
        for handle in self._handles.values():
            handle.is_outdated = handle.future is not None

    def is_free(self, topic: str) -> bool:
        """Tell whether no lane has a topic, and nothing can be on its way to it."""
        has_it = any(p.topic == topic for h in self._handles.values() for p in (*h.copies, *h.leaving))
        return not has_it and not self._old_futures and not self._in_doubt

    @property
    def _in_doubt(self) -> bool:
        """True while a run that is none of ours any more may still write."""
        return self._overrules or self._lease.predecessor_may_write_until > now()

    # -- the plan -------------------------------------------------------------------------------------------------

    def plan(self, wanted: Sequence[Assignment], lanes: int, weights: Mapping[TopicPartition, float]) -> None:
        """Copy this, and nothing else."""
        self.plan_now = False
        current = set(wanted)
        for handle in self._handles.values():
            if handle.future is None:
                handle.copies = {place: a for place, a in handle.copies.items() if a in current}
        self._settle_seats(min(lanes, self.limit or lanes), weights)
        wanted_places = {assignment.destination for assignment in wanted}
        self._moves = {
            p: n
            for p, n in self._moves.items()
            if p in wanted_places and n in self._seats.open and p not in self._copies_of(n)
        }
        open_lanes = [n for n in self._seats.open if n not in self._handles or self._handles[n].wanted]
        arriving = self._seats.arriving
        held = {
            lane: Held(tuple(h.copies.values()), h.leaving.keys())
            for lane, h in self._handles.items()
            if h.wanted and lane not in arriving
        }
        ending = {p for h in self._handles.values() if not h.wanted for p in (*h.copies, *h.leaving)}
        free = [assignment for assignment in wanted if assignment.destination not in ending]
        closing = [old for old, successor in self._seats.successors.items() if successor in open_lanes]
        for lane, change in changes(free, open_lanes, weights, held, self._moves, closing).items():
            self._change(lane, change)

    def _settle_seats(self, count: int, weights: Mapping[TopicPartition, float]) -> None:
        """Have so many lanes for work, and give work to those that have come for it."""
        seats, at = self._seats, now()
        reporting = {n for n, h in self._handles.items() if h.heard_at is not None and at - h.heard_at < _LATELY}
        seats.resize(count, with_work={n for n, h in self._handles.items() if h.copies}, reporting=reporting)
        for lane in [n for n in seats.arriving if self._handles[n].heard_at is not None]:
            seats.arrived(lane)
            if lane in seats.successors.values():
                continue
            held = {n: tuple(self._handles[n].copies) for n in seats.open if n in self._handles and n != lane}
            self._moves |= shares(lane, held, weights)
        for lane, successor in list(seats.successors.items()):
            old = self._handles.get(lane)
            if old is None or not (old.copies or old.leaving):
                seats.close(lane)
            else:
                self._moves |= dict.fromkeys(old.copies, successor)

    def _copies_of(self, lane: int) -> Mapping[TopicPartition, Assignment]:
        handle = self._handles.get(lane)
        return handle.copies if handle is not None else {}

    def shift(self, moves: Mapping[TopicPartition, int]) -> None:
        """Have other lanes copy these partitions: those that are named."""
        self._moves |= moves
        self.plan_now = True

    def move(self, lane: int, place: Executor) -> None:
        """Have another lane at this place take over all that a lane has."""
        self._begin_empty(self._seats.begin_successor(lane, self._handles), place)

    def fill_seats(self) -> None:
        """Begin the lanes that there is room for, where others have partitions to spare."""
        for lane in [n for n in self._seats.open if n not in self._handles]:
            self._seats.begin(lane)
            self._begin_empty(lane, None)

    def _begin_empty(self, lane: int, place: Executor | None) -> None:
        generation = self._generations.get(lane, 0) + 1
        self._handles[lane] = _Handle(lane, generation, {}, now(), predecessor_may_write=self._in_doubt, place=place)
        self.beat_now = True

    @property
    def is_settled(self) -> bool:
        """True when all lanes run, and it is known where."""
        return all(h.future is not None and h.lane in self.places for h in self._handles.values() if h.wanted)

    @property
    def has_room(self) -> bool:
        """True when there is to be one more lane, and others have partitions to spare."""
        spare = any(len(h.copies) > 1 and h.is_told_of_changes for h in self._handles.values())
        return spare and any(n not in self._handles for n in self._seats.open)

    @property
    def is_moving(self) -> bool:
        """True while a lane is being started for the work of others, or takes it."""
        under_way = any(partition not in self._copies_of(lane) for partition, lane in self._moves.items())
        return bool(self._seats.arriving or self._seats.successors) or under_way

    @property
    def at_work(self) -> dict[int, Collection[TopicPartition]]:
        """By lane that reports and may get other work, the partitions that it copies."""
        return {
            n: h.copies.keys()
            for n, h in self._handles.items()
            if h.wanted and h.is_told_of_changes and not h.leaving and n in self._seats.steady
        }

    def job_names(self) -> dict[int, str]:
        """Return what Spark calls the lanes that were given to it."""
        lease_id = self._lease.lease_id
        return {h.lane: h.name(self._mirror, lease_id) for h in self._handles.values() if h.future is not None}

    def _change(self, lane: int, change: Change) -> None:
        handle = self._handles.get(lane)
        if handle is None:
            copies = {a.destination: a for a in change.taken}
            generation = self._generations.get(lane, 0) + 1
            others_report = now() - self._any_heard_at <= LANE_SILENCE_SECONDS
            self._handles[lane] = _Handle(
                lane, generation, copies, now() if others_report else -inf, predecessor_may_write=self._in_doubt
            )
        elif handle.future is None:
            handle.copies |= {a.destination: a for a in change.taken}
            handle.wanted = not change.ends
        elif change.ends:
            handle.wanted = False
        elif handle.is_told_of_changes:
            self._tell_change(handle, change)
        self.beat_now = True

    def _tell_change(self, handle: _Handle, change: Change) -> None:
        in_doubt = self._in_doubt
        for start in range(0, max(len(change.given_up), len(change.taken)), _CHANGE_PARTITIONS):
            given_up = change.given_up[start : start + _CHANGE_PARTITIONS]
            taken = change.taken[start : start + _CHANGE_PARTITIONS]
            handle.revision += 1
            for place in given_up:
                handle.leaving[place] = handle.revision, handle.copies.pop(place)
                handle.since.pop(place, None)
            for assignment in taken:
                handle.copies[assignment.destination] = assignment
                handle.since[assignment.destination] = handle.revision
            self.unsaid.append(
                LaneChangeRecord(
                    self._mirror,
                    handle.lane,
                    self._lease.record.lease_id,
                    handle.generation,
                    handle.revision,
                    tuple((place.topic, place.partition) for place in given_up),
                    tuple(self._orders.as_it_stands(assignment) for assignment in taken),
                    in_doubt,
                    self._unsettled_lanes(handle.lane) if taken else (),
                )
            )

    def _unsettled_lanes(self, lane: int) -> tuple[int, ...]:
        """Return whose transactions a lane has to end that begins: those of lanes that are not running, its own too."""
        running = {handle.lane for handle in self._handles.values() if handle.future is not None}
        return tuple(sorted(self._filling - running))

    # -- life -----------------------------------------------------------------------------------------------------

    def tick(self, at: float) -> None:
        """Replace what died."""
        for handle in list(self._handles.values()):
            self._look_after(handle, at)
        self._old_futures = [future for future in self._old_futures if not future.done()]

    def start_due(self, at: float) -> None:
        """Start the lanes of which the brokers have it that they may write."""
        for handle in self._handles.values():
            published = self._published.get(handle.lane) == (handle.generation, 0)
            if handle.future is None and handle.wanted and published and at >= handle.start_at:
                spec = self._orders.spec(
                    handle.lane,
                    handle.generation,
                    handle.copies.values(),
                    in_doubt=handle.predecessor_may_write,
                    unsettled=self._unsettled_lanes(handle.lane),
                )
                name = handle.name(self._mirror, self._lease.lease_id)
                handle.future = self._runner.submit(name, run_lane, spec, handle.place)
                handle.submitted_at, handle.heard_at, handle.attempt = at, None, 0
                handle.is_outdated = False

    def _look_after(self, handle: _Handle, at: float) -> None:
        future = handle.future
        if future is None:
            if not handle.wanted:
                self._replace(handle, clean=True)
            return
        if future.done():
            self._ended(handle, future, at)
            return
        if not handle.wanted and not self.stopping and self._does_not_end(handle, at):
            self._cancel(handle, future)
            return
        if handle.lane in self._seats.arriving and handle.heard_at is None:
            if at - handle.submitted_at > ARRIVAL_SECONDS:
                handle.wanted = False
                self._cancel(handle, future, clean=True)
            return
        heard = handle.heard_at
        if handle.is_outdated and heard is not None:
            # one that still waits for a worker would not be seen to wait any more
            handle.wanted = handle.is_outdated = False
            self.beat_now = True
        silent = at - heard > LANE_SILENCE_SECONDS if heard else at - handle.submitted_at > LANE_START_SECONDS
        if silent and heard is None and self._runner.is_waiting(handle.name(self._mirror, self._lease.lease_id)):
            handle.submitted_at, silent = at, False  # to submit it again would only delay it
        if silent and not self.stopping:
            self.restarts += 1
            self._journal.note(
                f"lane {handle.lane} of {self._mirror} stopped responding and is replaced",
                Level.WARNING,
                about_spark=True,
            )
            self._journal.record("lane", "replaced", {"lane": handle.lane, "generation": handle.generation})
            self._cancel(handle, future)

    def _does_not_end(self, handle: _Handle, at: float) -> bool:
        """Tell whether a lane that was asked to end cannot: no worker has it any more, or none had begun it."""
        if handle.unwanted_at is None:
            handle.unwanted_at = handle.asked_at = at
        if at - handle.unwanted_at > LANE_SILENCE_SECONDS:
            return True
        if at - handle.asked_at < _ASK_SECONDS:
            return False
        handle.asked_at = at
        return self._runner.is_waiting(handle.name(self._mirror, self._lease.lease_id))

    def _cancel(self, handle: _Handle, future: Future[LaneResult], *, clean: bool = False) -> None:
        self._old_futures.append(future)
        name = handle.name(self._mirror, self._lease.lease_id)
        threading.Thread(target=self._runner.cancel, args=(name,), daemon=True).start()
        self._replace(handle, clean=clean)

    def _ended(self, handle: _Handle, future: Future[LaneResult], at: float) -> None:
        error = future.exception()
        if error is not None:
            handle.deaths += 1
            self.restarts += not self.stopping
            handle.start_at = at + min(_LONGEST_PAUSE, _PAUSE * 2 ** min(handle.deaths - 1, 10))
            if not self.stopping:
                self._journal.note(
                    f"lane {handle.lane} of {self._mirror} died and is restarted: {error}",
                    Level.ERROR,
                    about_spark=True,
                )
                self._journal.record("lane", "died", {"lane": handle.lane, "error": str(error)[:500]})
            # one that came for work had none
            self._replace(handle, clean=handle.lane in self._seats.arriving)
            return
        result = future.result()
        self._replace(handle, clean=result.clean and result.ended == "STOPPED")

    def _replace(self, handle: _Handle, *, clean: bool) -> None:
        """Make room for the lane's next generation, or drop it."""
        if not clean:
            self._doubt()
            self._overrules = True
        self.unsaid = [change for change in self.unsaid if change.lane != handle.lane]
        self._generations[handle.lane] = handle.generation
        self.places.pop(handle.lane, None)
        if self.stopping or not handle.wanted or handle.lane in self._seats.arriving:
            del self._handles[handle.lane]
            self._seats.gone(handle.lane)
            self._heard_at.pop(handle.lane, None)
        else:
            handle.future = handle.place = handle.unwanted_at = None
            handle.generation += 1
            handle.predecessor_may_write = self._in_doubt
            handle.revision = 0
            handle.leaving.clear()
            handle.since.clear()
        self.plan_now = self.beat_now = True

    def _doubt(self) -> None:
        """Note that a run of ours may still write: a successor has to know."""
        until = now() + self._lease.record.ttl_ms / 1000
        self._lease.predecessor_may_write_until = max(self._lease.predecessor_may_write_until, until)

    # -- reports and changes --------------------------------------------------------------------------------------

    def silent(self, at: float, seconds: float = LANE_SILENCE_SECONDS) -> dict[int, float | None]:
        """Return the lanes with work that have not reported for so long, and when each last did; None for never."""
        found = {}
        for lane, handle in self._handles.items():
            if handle.wanted and handle.copies:
                heard = self._heard_at.get(lane)
                if at - (handle.silent_from if heard is None else heard) > seconds:
                    found[lane] = heard
        return found

    @property
    def heard_at(self) -> dict[int, float]:
        """By lane, when any run of it last reported."""
        return self._heard_at.copy()

    def work_of(self, lanes: Iterable[int]) -> list[TopicPartition]:
        """Return what these lanes are to copy."""
        return [partition for lane in lanes for partition in self._handles[lane].copies]

    def before_beat(self) -> None:
        """Keep the doubt while no heartbeat has overruled what may still write."""
        if self._overrules:
            self._doubt()

    def working(self) -> set[int]:
        """Return the lanes that may have work."""
        return {lane for lane in self.claims() if lane not in self._seats.arriving}

    def claims(self) -> dict[int, Incarnation]:
        """Return which run of each lane may write."""
        return {h.lane: Incarnation(h.generation, 0) for h in self._handles.values() if h.wanted and not self.stopping}

    def revisions(self) -> dict[int, int]:
        """Return the changes that lanes have to go by."""
        return {h.lane: h.revision for h in self._handles.values() if h.wanted and h.revision and not self.stopping}

    def said(self, claims: Mapping[int, Incarnation], said: Sequence[LaneChangeRecord]) -> None:
        """Note that a heartbeat has said this."""
        self._published = dict(claims)
        self.unsaid = [change for change in self.unsaid if change not in said]
        if self._overrules:
            # only from now on does the time of those that are overruled run out
            self._doubt()
            self._overrules = False

    def counts(self, record: ProgressRecord) -> bool:
        """Tell whether a report that was heard is of the run of its lane that counts."""
        handle = self._handles.get(record.lane)
        run = (self._lease.lease_id, handle.generation, handle.attempt) if handle is not None else None
        return run == record.run

    def heard(self, record: ProgressRecord) -> tuple[list[Word], list[Word]]:
        """Take a lane's report. Return what it says of partitions that it copies, and its last rows on released ones.

        Nothing where its run no longer counts.
        """
        handle = self._handles.get(record.lane)
        if handle is None or (record.lease_id, record.generation) != (self._lease.lease_id, handle.generation):
            return [], []
        if record.attempt < handle.attempt:
            return [], []
        if handle.heard_at is None:
            self.plan_now = True
            partitions = counted(len(handle.copies), "partition")
            self._journal.note(f"lane {handle.lane} of {self._mirror} runs, with {partitions}")
        handle.heard_at = self._heard_at[handle.lane] = self._any_heard_at = now()
        if record.attempt > handle.attempt:
            handle.attempt = record.attempt
            self.restarts += 1
            self._journal.note(
                f"a worker of lane {handle.lane} of {self._mirror} died; another worker continues",
                Level.WARNING,
                about_spark=True,
            )
            self._doubt()
        if record.fills_by_transactions and record.lane not in self._filling:
            self._filling.add(record.lane)
            self._journal.note(
                "markers may not be written (ALTER on the destination cluster is not granted): "
                "offsets are filled by empty transactions, which is slower",
                Level.WARNING,
            )
            self._journal.record(
                "offsets", "FILLED_BY_TRANSACTIONS", {"lane": record.lane, "missing": "ALTER on the cluster"}
            )
        places = [(TopicPartition(row.topic, row.partition), row) for row in record.rows]
        # a row on what it got by a change that it does not go by yet is about a former life
        mine = [
            (row, handle.copies[place])
            for place, row in places
            if place in handle.copies and handle.since.get(place, 0) <= record.taken
        ]
        gone = {place: a for place, (revision, a) in handle.leaving.items() if revision <= record.given_up}
        for place in gone:
            del handle.leaving[place]
        self.plan_now = self.plan_now or bool(gone)
        return mine, [(row, gone[place]) for place, row in places if place in gone]
