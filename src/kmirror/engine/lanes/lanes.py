"""The lanes of one mirror as its engine knows them: what each copies, which run of it may write, its changes.

A running lane receives changes of its work and continues with the rest undisturbed. A partition that it must release
goes to no other lane before it has reported that nothing is in flight there. A lane that has not reported yet may not
read changes, and gets none.

A lane is restarted when it died, when it does not report, when it missed a change, and when it had nothing left to do.
One that has nothing left is no longer named in the heartbeat and ends clean; the others are fenced by a higher
generation, and their successors may not rely on their silence before the lease's time-to-live has passed.

Moving work to another lane does not wait for a worker: the other lane starts empty, and gets partitions when it has
reported (`lane_slots`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from math import inf

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.executors import Executor
from kmirror.engine.lanes.known_lane import KnownLane, PartitionReport
from kmirror.engine.lanes.lane_jobs import LaneJobs, LaneRunner
from kmirror.engine.lanes.lane_plan import Change, Held, changes, shares
from kmirror.engine.lanes.lane_slots import LaneSlots
from kmirror.engine.lanes.orders import LaneOrders
from kmirror.engine.spec import LaneResult
from kmirror.engine.status.health import LANE_SILENCE_SECONDS, LATE_SECONDS
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.state.assignment import Assignment
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.lease import Lease
from kmirror.state.records import Incarnation, ProgressRecord
from kmirror.words import counted

#: Time a worker may take from its start to the lane's first report.
LANE_START_SECONDS = 90.0
#: Time to wait for a lane that starts to take the work of others.
ARRIVAL_SECONDS = 60.0
#: A lane that has reported within this time is working: a report is due every two seconds.
_RECENT_SECONDS = 4.0
#: How often to check whether a lane that should end was ever started.
_CHECK_SECONDS = 2.0
#: The most seconds of a lane's silence that a slow destination explains.
_MOST_EXPLAINED_SECONDS = 60.0
_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
#: Partitions of one change: some 50 KB.
_CHANGE_PARTITIONS = 250


class Lanes:
    """Keep the lanes of one mirror; for one thread, which calls `tick` many times a second."""

    def __init__(
        self, orders: LaneOrders, journal: MirrorJournal, lease: Lease, runner: LaneRunner, filling_lanes: Iterable[int]
    ) -> None:
        self._mirror = orders.mirror
        self._orders = orders
        self._journal = journal
        self._lease = lease
        self._jobs = LaneJobs(orders.mirror, lease.lease_id, runner)
        self._lanes: dict[int, KnownLane] = {}
        self._slots = LaneSlots()
        #: Partitions that move, and the lane that gets each.
        self._moves: dict[TopicPartition, int] = {}
        #: The most lanes that workers have room for; None: unknown, or no limit.
        self.limit: int | None = None
        #: By lane, the executor that runs it, as far as that is known.
        self.places: dict[int, Executor] = {}
        #: The last generation of lanes that no longer exist.
        self._generations: dict[int, int] = {}
        #: By lane, when any run of it last reported; and when any lane did.
        self._reported_at: dict[int, float] = {}
        self._any_reported_at = -inf
        #: For how long the destination has kept the engine's own heartbeats waiting: it delays reports as much.
        self.waited_seconds = 0.0
        #: By lane, how long that was when it last reported or was started.
        self._waited_before: dict[int, float] = {}
        #: True once it was said that a source broker accepts no more connections.
        self._is_refused_more = False
        #: Lanes that have filled offsets by transactions, and may have left one open.
        self._filling = set(filling_lanes)
        #: What the last stored heartbeat claims: a lane starts only when the brokers have its claim to write.
        self._published: dict[int, Incarnation] = {}
        #: Changes that no heartbeat has stored yet.
        self.unsent: list[LaneChangeRecord] = []
        #: How many runs that may not have ended were fenced, and how many of these fences heartbeats have stored.
        self.fences = self._published_fences = 0
        self.plan_now = True
        self.heartbeat_now = True
        self.stopping = False
        #: How often a lane died, was replaced or was continued by another worker.
        self.restarts = 0

    @property
    def finished(self) -> bool:
        """True when no lane is left."""
        return not self._lanes and not self._jobs.are_ending

    def stop(self) -> None:
        """Ask every lane to end."""
        self.stopping = self.heartbeat_now = True
        for lane in self._lanes.values():
            lane.wanted = False

    def restart(self) -> None:
        """Have every lane end clean and start again with what holds then; one that has not started, once it has."""
        for lane in self._lanes.values():
            lane.is_outdated = lane.future is not None

    def is_free(self, topic: str) -> bool:
        """Return True if no lane has a topic, and nothing of ours can be in flight to it."""
        has_it = any(p.topic == topic for lane in self._lanes.values() for p in (*lane.copies, *lane.leaving))
        return not has_it and not self._jobs.are_ending and not self._predecessor_may_write

    @property
    def _predecessor_may_write(self) -> bool:
        """True while a run that was replaced may still write."""
        return self.fences > self._published_fences or self._lease.predecessor_may_write_until > now()

    # -- the plan -------------------------------------------------------------------------------------------------

    def plan(self, wanted: Sequence[Assignment], lanes: int, weights: Mapping[TopicPartition, float]) -> None:
        """Plan and send what must change so that `lanes` lanes copy `wanted`, and nothing else."""
        self.plan_now = False
        current = set(wanted)
        for lane in self._lanes.values():
            if lane.future is None:
                lane.copies = {p: a for p, a in lane.copies.items() if a in current}
        self._update_slots(min(lanes, self.limit or lanes), weights)
        wanted_partitions = {assignment.destination for assignment in wanted}
        self._moves = {
            p: n
            for p, n in self._moves.items()
            if p in wanted_partitions and n in self._slots.open and p not in self._copies_of(n)
        }
        open_lanes = [n for n in self._slots.open if n not in self._lanes or self._lanes[n].wanted]
        arriving = self._slots.arriving
        held = {
            n: Held(tuple(lane.copies.values()), lane.leaving.keys())
            for n, lane in self._lanes.items()
            if lane.wanted and n not in arriving
        }
        ending = {p for lane in self._lanes.values() if not lane.wanted for p in (*lane.copies, *lane.leaving)}
        free = [assignment for assignment in wanted if assignment.destination not in ending]
        closing = [old for old, successor in self._slots.successors.items() if successor in open_lanes]
        for n, change in changes(free, open_lanes, weights, held, self._moves, closing).items():
            self._change(n, change)

    def _update_slots(self, count: int, weights: Mapping[TopicPartition, float]) -> None:
        """Have `count` lanes for work, and plan moves to those that have arrived."""
        slots, at = self._slots, now()
        reporting = {
            n
            for n, lane in self._lanes.items()
            if lane.reported_at is not None and at - lane.reported_at < _RECENT_SECONDS
        }
        slots.resize(count, with_work={n for n, lane in self._lanes.items() if lane.copies}, reporting=reporting)
        for n in [n for n in slots.arriving if self._lanes[n].reported_at is not None]:
            slots.arrived(n)
            if n not in slots.successors.values():
                held = {o: tuple(self._lanes[o].copies) for o in slots.open if o in self._lanes and o != n}
                self._moves |= shares(n, held, weights)
        for n, successor in list(slots.successors.items()):
            old = self._lanes.get(n)
            if old is None or not (old.copies or old.leaving):
                slots.close(n)
            else:
                self._moves |= dict.fromkeys(old.copies, successor)

    def _copies_of(self, lane: int) -> Mapping[TopicPartition, Assignment]:
        return self._lanes[lane].copies if lane in self._lanes else {}

    def move_partitions(self, moves: Mapping[TopicPartition, int]) -> None:
        """Have the named lanes copy these partitions."""
        self._moves |= moves
        self.plan_now = True

    def move_lane(self, lane: int, place: Executor) -> None:
        """Have a new lane on this executor take over all that a lane copies."""
        self._start_empty(self._slots.begin_successor(lane, self._lanes), place)

    def fill_slots(self) -> None:
        """Start the lanes that there is room for, to share the partitions of others."""
        for lane in [n for n in self._slots.open if n not in self._lanes]:
            self._slots.begin(lane)
            self._start_empty(lane, None)

    def _start_empty(self, lane: int, place: Executor | None) -> None:
        self._add(lane, {}, now(), place)
        self.heartbeat_now = True

    def _add(
        self, lane: int, copies: dict[TopicPartition, Assignment], silent_from: float, place: Executor | None = None
    ) -> None:
        generation = self._generations.get(lane, 0) + 1
        self._lanes[lane] = KnownLane(lane, generation, copies, silent_from, self._predecessor_may_write, place)

    @property
    def is_settled(self) -> bool:
        """True when all lanes run, on known executors."""
        return all(h.future is not None and h.lane in self.places for h in self._lanes.values() if h.wanted)

    @property
    def has_room(self) -> bool:
        """True when another lane could run, and others have partitions to share with it."""
        spare = any(len(lane.copies) > 1 and lane.accepts_changes for lane in self._lanes.values())
        return spare and any(n not in self._lanes for n in self._slots.open)

    @property
    def is_moving(self) -> bool:
        """True while a lane starts to take the work of others, or takes it."""
        in_progress = any(partition not in self._copies_of(lane) for partition, lane in self._moves.items())
        return bool(self._slots.arriving or self._slots.successors) or in_progress

    @property
    def at_work(self) -> dict[int, Collection[TopicPartition]]:
        """The partitions that lanes copy, of the lanes that report and may get other work."""
        return {
            n: lane.copies.keys()
            for n, lane in self._lanes.items()
            if lane.wanted and lane.accepts_changes and not lane.leaving and n in self._slots.steady
        }

    def job_names(self) -> dict[int, str]:
        """Return the Spark job names of the lanes that were submitted."""
        return {n: self._jobs.name(lane) for n, lane in self._lanes.items() if lane.future is not None}

    def _change(self, number: int, change: Change) -> None:
        lane = self._lanes.get(number)
        if lane is None:
            at = now()
            others_report = at - self._any_reported_at <= LANE_SILENCE_SECONDS
            # of a mirror that was paused, the last report may be hours old
            none_should = self._any_reported_at > -inf and not self.silent(at)
            self._add(number, {a.destination: a for a in change.assigned}, at if others_report or none_should else -inf)
        elif lane.future is None:
            lane.copies |= {a.destination: a for a in change.assigned}
            lane.wanted = not change.ends
        elif change.ends:
            lane.wanted = False
        elif lane.accepts_changes:
            self._send_change(lane, change)
        self.heartbeat_now = True

    def _send_change(self, lane: KnownLane, change: Change) -> None:
        predecessor_may_write = self._predecessor_may_write
        for start in range(0, max(len(change.revoked), len(change.assigned)), _CHANGE_PARTITIONS):
            revoked = change.revoked[start : start + _CHANGE_PARTITIONS]
            assigned = change.assigned[start : start + _CHANGE_PARTITIONS]
            lane.change(revoked, assigned)
            self.unsent.append(
                LaneChangeRecord(
                    self._mirror,
                    lane.lane,
                    self._lease.record.lease_id,
                    lane.generation,
                    lane.revision,
                    tuple((partition.topic, partition.partition) for partition in revoked),
                    tuple(self._orders.with_state(assignment) for assignment in assigned),
                    predecessor_may_write,
                    self._unsettled_lanes() if assigned else (),
                )
            )

    def _unsettled_lanes(self) -> tuple[int, ...]:
        """Return the lanes whose transactions a starting lane must end: those that do not run, its own included."""
        running = {n for n, lane in self._lanes.items() if lane.future is not None}
        return tuple(sorted(self._filling - running))

    # -- runs -----------------------------------------------------------------------------------------------------

    def tick(self, at: float) -> None:
        """Replace lanes that have died or do not report."""
        for lane in list(self._lanes.values()):
            self._check(lane, at)
        self._jobs.forget_ended()

    def start_due(self, at: float) -> None:
        """Start the lanes whose claim to write is stored."""
        for lane in self._lanes.values():
            published = self._published.get(lane.lane) == (lane.generation, 0)
            if lane.future is None and lane.wanted and published and at >= lane.start_at:
                spec = self._orders.spec(
                    lane.lane,
                    lane.generation,
                    lane.copies.values(),
                    predecessor_may_write=lane.predecessor_may_write,
                    unsettled=self._unsettled_lanes(),
                )
                self._jobs.start(lane, spec, at)
                self._waited_before[lane.lane] = self.waited_seconds

    def _check(self, lane: KnownLane, at: float) -> None:
        future, reported_at = lane.future, lane.reported_at
        if future is None:
            if not lane.wanted:
                self._replace(lane, clean=True)
            return
        if future.done():
            self._take_end(lane, future, at)
            return
        if not lane.wanted and not self.stopping and self._does_not_end(lane, at):
            self._cancel(lane, future)
            return
        if lane.lane in self._slots.arriving and reported_at is None:
            if self._silence(lane.lane, lane.submitted_at, at) > ARRIVAL_SECONDS:
                lane.wanted = False
                self._cancel(lane, future, clean=True)
            return
        if lane.is_outdated and reported_at is not None:
            # one that still waits for a worker must stay in the heartbeat: it would no longer be seen to wait
            lane.wanted = lane.is_outdated = False
            self.heartbeat_now = True
        if reported_at is not None:
            silent = self._silence(lane.lane, reported_at, at) > LANE_SILENCE_SECONDS
        else:
            silent = self._silence(lane.lane, lane.submitted_at, at) > LANE_START_SECONDS
            if silent and self._jobs.is_waiting(lane):
                lane.submitted_at, silent = at, False  # submitting it again would only delay it
        if silent and not self.stopping:
            self.restarts += 1
            self._journal.note(
                f"lane {lane.lane} of {self._mirror} stopped responding and is replaced",
                Level.WARNING,
                about_spark=True,
            )
            self._journal.record("lane", "replaced", {"lane": lane.lane, "generation": lane.generation})
            self._cancel(lane, future)

    def _does_not_end(self, lane: KnownLane, at: float) -> bool:
        """Return True if a lane that was asked to end cannot: its worker is gone, or no worker had started it."""
        if lane.unwanted_at is None:
            lane.unwanted_at = lane.checked_at = at
        if self._silence(lane.lane, lane.unwanted_at, at) > LANE_SILENCE_SECONDS:
            return True
        if at - lane.checked_at < _CHECK_SECONDS:
            return False
        lane.checked_at = at
        return self._jobs.is_waiting(lane)

    def _cancel(self, lane: KnownLane, future: Future[LaneResult], *, clean: bool = False) -> None:
        self._jobs.cancel(lane, future)
        self._replace(lane, clean=clean)

    def _take_end(self, lane: KnownLane, future: Future[LaneResult], at: float) -> None:
        error = future.exception()
        if error is not None:
            lane.deaths += 1
            self.restarts += not self.stopping
            lane.start_at = at + min(_LONGEST_PAUSE, _PAUSE * 2 ** min(lane.deaths - 1, 10))
            if not self.stopping:
                self._journal.note(
                    f"lane {lane.lane} of {self._mirror} died and is restarted: {error}",
                    Level.ERROR,
                    about_spark=True,
                )
                self._journal.record("lane", "died", {"lane": lane.lane, "error": str(error)[:500]})
            # an arriving lane had no work yet
            self._replace(lane, clean=lane.lane in self._slots.arriving)
            return
        result = future.result()
        self._replace(lane, clean=result.clean and result.ended == "STOPPED")

    def _replace(self, lane: KnownLane, *, clean: bool) -> None:
        """Prepare the lane's next generation, or drop the lane."""
        number = lane.lane
        if not clean:
            self._expect_late_writes()
            self.fences += 1
        self.unsent = [change for change in self.unsent if change.lane != number]
        self._generations[number] = lane.generation
        self.places.pop(number, None)
        if self.stopping or not lane.wanted or number in self._slots.arriving:
            del self._lanes[number]
            self._slots.gone(number)
            self._reported_at.pop(number, None)
            self._waited_before.pop(number, None)
        else:
            lane.next_generation(predecessor_may_write=self._predecessor_may_write)
        self.plan_now = self.heartbeat_now = True

    def _expect_late_writes(self) -> None:
        """Note that a replaced run may write for another time-to-live: its successor must know."""
        until = now() + self._lease.record.ttl_ms / 1000
        self._lease.predecessor_may_write_until = max(self._lease.predecessor_may_write_until, until)

    # -- reports and heartbeats -----------------------------------------------------------------------------------

    def silent(self, at: float) -> dict[int, float | None]:
        """Return the lanes with work that are silent, and when each last reported; None for never."""
        silent = (n for n, since in self._unheard_since() if self._silence(n, since, at) > LANE_SILENCE_SECONDS)
        return {n: self._reported_at.get(n) for n in silent}

    def are_late(self, at: float) -> bool:
        """Return whether a lane with work has not reported lately, for whatever reason."""
        return any(at - since > LATE_SECONDS for _, since in self._unheard_since())

    def _unheard_since(self) -> Iterator[tuple[int, float]]:
        return ((n, self._reported_at.get(n, h.silent_from)) for n, h in self._lanes.items() if h.wanted and h.copies)

    def _silence(self, lane: int, since: float, at: float) -> float:
        """Return for how long a lane has been silent, without the time that a slow destination explains."""
        explained = self.waited_seconds - self._waited_before.get(lane, self.waited_seconds)
        return at - since - min(explained, _MOST_EXPLAINED_SECONDS)

    @property
    def reported_at(self) -> dict[int, float]:
        """By lane, when any run of it last reported."""
        return self._reported_at.copy()

    def before_heartbeat(self) -> None:
        """Prolong the wait for late writes while no heartbeat has fenced them."""
        if self.fences > self._published_fences:
            self._expect_late_writes()

    def working(self) -> set[int]:
        """Return the lanes that may have work."""
        return {lane for lane in self.claims() if lane not in self._slots.arriving}

    def claims(self) -> dict[int, Incarnation]:
        """Return which run of each lane may write."""
        return {n: Incarnation(h.generation, 0) for n, h in self._lanes.items() if h.wanted and not self.stopping}

    def revisions(self) -> dict[int, int]:
        """Return the last change that each lane must have applied to write."""
        return {n: h.revision for n, h in self._lanes.items() if h.wanted and h.revision and not self.stopping}

    def sent(self, claims: Mapping[int, Incarnation], stored: Collection[LaneChangeRecord], fences: int) -> None:
        """Note that a heartbeat with these claims and changes is stored, put together after so many fences."""
        self._published = dict(claims)
        self.unsent = [change for change in self.unsent if change not in stored]
        if fences > self._published_fences:
            # the time in which fenced runs may write starts to count only now
            self._expect_late_writes()
            self._published_fences = fences

    def is_current(self, record: ProgressRecord) -> bool:
        """Return True if a report is of the run of its lane that may write."""
        lane = self._lanes.get(record.lane)
        return lane is not None and record.run == (self._lease.lease_id, lane.generation, lane.attempt)

    def take_report(self, record: ProgressRecord) -> tuple[list[PartitionReport], list[PartitionReport]]:
        """Take a lane's report; return its rows on partitions that it copies, and its last rows on released ones.

        Both are empty if the report is of a run that was replaced.
        """
        lane = self._lanes.get(record.lane)
        if lane is None or (record.lease_id, record.generation) != (self._lease.lease_id, lane.generation):
            return [], []
        if record.attempt < lane.attempt:
            return [], []
        if lane.reported_at is None:
            self.plan_now = True
            partitions = counted(len(lane.copies), "partition")
            self._journal.note(f"lane {lane.lane} of {self._mirror} runs, with {partitions}")
        lane.reported_at = self._reported_at[lane.lane] = self._any_reported_at = now()
        self._waited_before[lane.lane] = self.waited_seconds
        if record.attempt > lane.attempt:
            lane.attempt = record.attempt
            self.restarts += 1
            self._journal.note(
                f"a worker of lane {lane.lane} of {self._mirror} died; another worker continues",
                Level.WARNING,
                about_spark=True,
            )
            self._expect_late_writes()
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
        if record.connections_refused and not self._is_refused_more:
            self._is_refused_more = True
            self._journal.note(f"{record.connections_refused}; it copies over those it has", Level.WARNING)
        leaving = len(lane.leaving)
        copied, released = lane.take_rows(record)
        self.plan_now = self.plan_now or len(lane.leaving) < leaving
        return copied, released
