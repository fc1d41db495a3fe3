"""The copy loop of one lane: drives the state machines of its partitions (`partition_copy`).

One thread moves bytes: it waits for connections (`loop`), hands whole frames to the state machines, and sends what they
allow (`fetching`, `appending`, `fills`). It never blocks on anything else: that is done by the threads of
`background_requests`, and following the engine's claims and writing progress by those of `control`. Their results come
back as events, so every decision is taken here, one after another.

Before anything is sent to the destination the lane's deadline is checked. A lane that is past it hangs up at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial

from kmirror.cluster.loop import Loop, Ready
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.engine import lifeline
from kmirror.engine.clock import now, now_ms
from kmirror.engine.histories.judge import Facts, judge
from kmirror.engine.lane.appending import Appending
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.changes import WorkChanges
from kmirror.engine.lane.fetching import FETCH_BYTES, Fetching
from kmirror.engine.lane.fills import Fills
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.leader_checks import LeaderChecks
from kmirror.engine.lane.log_end_checks import LogEndChecks
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.engine.lane.reports.control import LaneControl
from kmirror.engine.lane.reports.row_reports import Reports, RowChanges
from kmirror.engine.lane.reports.state_log import StateLog
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.engine.worker_logins import Logins, require_logins
from kmirror.errors import Reason
from kmirror.state.lane_change_record import LaneChangeRecord

#: How long to wait for connections and events; and when no partition needs checks, which what arrives changes at once.
_TICK, _IDLE_TICK = 0.1, 1.0
_TICK_SECONDS = 0.1
#: The time between ticks is at least this many times the duration of a tick, however many partitions are active.
_TICK_RATIO = 10
_STOP_SECONDS, _DRAIN_TICK = 2.0, 0.05


class Lane:
    """Copy a set of partitions until the engine ends the lane; lanes of one process may share a `state_log`."""

    def __init__(self, spec: LaneSpec, attempt: int, state_log: StateLog | None = None) -> None:
        self.spec = spec
        self.attempt = attempt
        source_config = client_config(spec.source_properties).expecting(
            spec.source_cluster_id, Reason.SOURCE_CLUSTER_CHANGED
        )
        destination_config = destination_config_of(spec)
        state_log = state_log or StateLog(destination_config)
        self._loop = Loop(now)
        buffer_bytes, post = FETCH_BYTES + FETCH_BYTES // 2, self._loop.post
        self._background_requests = BackgroundRequests(
            spec, source_config, destination_config, self._broken, post, stream_bytes=buffer_bytes
        )
        self.control = LaneControl(spec, attempt, state_log, self._row_changes, self._broken)
        self._state = LaneState(
            spec, source_config, destination_config, self.control, self._background_requests, self._loop
        )
        #: Holders of older claims may still write for `ttl` after our claim was written.
        self._awaiting_claim = spec.predecessor_may_write or attempt > 0
        self._state.quiet_until = float("inf") if self._awaiting_claim else 0.0
        self._state.partitions = self._state.copies_of(spec.assignments, now(), in_doubt=False)
        self._fetching = Fetching(self._state)
        self._fills = Fills(self._state, self._fetching)
        self._appending = Appending(self._state, self._fetching, self._fills)
        self._changes = WorkChanges(self._state, self._fetching.release, self._appending.hang_up_on, self._begin)
        self._log_end_checks = LogEndChecks(self._background_requests)
        self._leader_checks = LeaderChecks(self._background_requests)
        self._reports = Reports(self._fetching.seen_at, self._fetching.answered_at)
        self._next_tick_at = self._next_idle_tick_at = 0.0
        self._was_caught_up = False
        #: True if nothing that was sent can still arrive.
        self._is_clean = False
        self.control.usage = self._fetching.usage
        self.control.path_limit = self._fetching.ahead.path_limit
        self.control.on_change = self._loop.wake
        self.control.revisions = lambda: (self._state.revision, self._changes.released_revision)
        self.control.on_lane_change = self._on_lane_change
        self.control.on_report_stored = lambda given_up: self._loop.post(lambda _: self._changes.acknowledged(given_up))

    @property
    def partitions(self) -> list[PartitionCopy]:
        """The partitions that are copied now; for any thread."""
        return self._state.partitions

    @property
    def loop(self) -> Loop:
        """What has come for the next turn."""
        return self._loop

    def start(self) -> None:
        """Start the other threads; not for the thread that sends."""
        self._background_requests.start()
        self.control.start()

    def turns(self) -> Generator[float, list[tuple[Ready, int]]]:
        """Copy until `control` ends this lane, turn by turn; for the sending thread.

        Each yields for how many seconds at most to wait for `loop`, and is sent what `loop.wait` returned then. When it
        ends, or is closed, all connections are closed, and nothing more is sent.
        """
        try:
            self._begin(self.partitions, self.spec.unsettled_lanes)
            while self.control.ended is None:
                tick = _TICK if self._state.active or self._state.revoked else _IDLE_TICK
                self._turn((yield min(tick, self._fetching.ahead.seconds_left(now()))))
            # receive the responses to requests in flight
            until = now() + _STOP_SECONDS
            while (
                self._is_stopped and now() < until and any(p.in_flight or p.fill.is_under_way for p in self._state.all)
            ):
                self._turn((yield _DRAIN_TICK), sending=False)
            at = now()
            self._is_clean = all(partition.nothing_can_arrive(at) for partition in self._state.all)
        finally:
            self._background_requests.stop()
            self._fetching.ahead.hang_up()
            self._state.hang_up()

    def close(self) -> None:
        """End the other threads, once there are no more turns; for any thread, since this takes up to some seconds."""
        self._background_requests.join(timeout=5)
        self.control.stop(final_report=self._is_stopped)
        self._loop.close()

    @property
    def result(self) -> LaneResult:
        """How it ended, once `control` has ended it and there are no more turns."""
        how, message = self.control.ended or ("STOPPED", "")
        return LaneResult(self.spec.lane, self.spec.generation, self.attempt, how, message, self._is_clean)

    def run(self, before_sending: Callable[[], None] = lambda: None) -> LaneResult:
        """Copy until `control` ends this lane, which sends from this thread; return how it ended.

        `before_sending` is called once, after all other threads have been started.
        """
        self.start()
        before_sending()
        try:
            turns = self.turns()
            with suppress(StopIteration):
                seconds = next(turns)
                while True:
                    seconds = turns.send(self._loop.wait(seconds))
        finally:
            self.close()
        return self.result

    @property
    def _is_stopped(self) -> bool:
        """True once the engine has stopped this lane, which may then tell its last news."""
        return self.control.ended is not None and self.control.ended[0] == "STOPPED"

    def _turn(self, came: list[tuple[Ready, int]], *, sending: bool = True) -> None:
        """Handle what connections and other threads have for this lane, and send what may be sent."""
        for ready, mask in came:
            ready(mask)
        self._loop.take_events()
        if sending:
            self._on_tick(now())
            for source in self._state.sources.opened:
                self._fetching.pump(source)
            self._fetching.ahead.pump(now())
            for destination in self._state.destinations.opened:
                self._appending.pump(destination)
            self._fills.pump()

    def _broken(self, error: Exception) -> None:
        """End the lane with an exception of one of its other threads, instead of waiting for that thread for ever."""

        def end(_: float) -> None:
            raise error

        self._loop.post(end)

    def _begin(self, partitions: Sequence[PartitionCopy], unsettled_lanes: Sequence[int]) -> None:
        """Begin to copy, once the transactions that these lanes may have left open are ended."""

        def settled() -> None:
            current = set(self.partitions)
            if remaining := [partition for partition in partitions if partition in current]:
                self._inspect(remaining)

        if partitions:
            self._fills.settle(partitions, unsettled_lanes, settled)

    def _on_lane_change(self, change: LaneChangeRecord) -> None:
        self._loop.post(lambda at: self._changes.take(change, at))

    def _inspect(self, partitions: list[PartitionCopy]) -> None:
        for partition in partitions:
            partition.begin_inspection(now())

        marks = {p.assignment: mark for p in partitions if (mark := p.progress.mark)}
        self._background_requests.inspect(
            [p.assignment for p in partitions], marks, partial(self._inspected, partitions)
        )

    def _inspected(self, partitions: list[PartitionCopy], all_facts: list[Facts], at: float) -> None:
        # those that were revoked meanwhile are not inspected any more
        inspected = zip(partitions, all_facts, strict=True)
        for partition, facts in [(p, facts) for p, facts in inspected if p.status is Status.INSPECTING]:
            verdict = judge(
                partition.assignment,
                partition.progress.acknowledged,
                facts,
                first_offset=partition.assignment.first_offset,
                begun=partition.progress.begun,
            )
            partition.inspected(facts, verdict, at, now_ms())
            if partition.status is Status.COPYING:
                self._attach(partition, facts)
                self._state.make_ready(partition)

    def _attach(self, partition: PartitionCopy, facts: Facts) -> None:
        """Connect a partition to its source leader and its destination leader."""
        self._fetching.detach(partition)
        self._appending.attach(partition)
        if not partition.is_to_be_trimmed:
            self._fetching.attach(partition, facts)

    def _on_tick(self, at: float) -> None:
        """Do what is due: inspections, time-outs, the report that everything is copied."""
        state = self._state
        due_at = self._next_tick_at if state.active or state.revoked else self._next_idle_tick_at
        # a lane that has just been stopped waits for its answers (`turns`), although its deadline has passed
        if at < due_at or self.control.ended is not None:
            return
        due = [p for p in state.active if p.due_for_inspection(at)]
        if due:
            for partition in due:
                self._fetching.detach(partition)
            self._inspect(due)
        if self._awaiting_claim and self.control.claimed_at is not None:
            self._awaiting_claim = False
            state.be_quiet_until(state.predecessors_end(self.control.claimed_at))
        if state.quiet_until > at and not self._awaiting_claim and self.control.is_alone:
            state.be_quiet_until(at)
        self._fetching.on_tick(at)
        self._appending.on_tick(at)
        self._fills.on_tick(at)
        self._changes.on_tick(at)
        self._log_end_checks.on_tick(state.partitions, at)
        self._leader_checks.on_tick(state.partitions, at)
        caught_up = all(p.caught_up or p.retry.failure for p in state.active)
        if caught_up and not self._was_caught_up:
            self.control.report_soon()
        self._was_caught_up = caught_up
        state.set_aside_resting()
        took = now() - at
        self._next_tick_at = at + max(_TICK_SECONDS, _TICK_RATIO * took)
        self._next_idle_tick_at = max(self._next_tick_at, at + _IDLE_TICK)

    def _row_changes(self) -> RowChanges:
        return self._reports.changes(self._state.all, self._state.take_touched())


def destination_config_of(spec: LaneSpec) -> ClientConfig:
    """Return how a lane connects to its destination."""
    return client_config(spec.destination_properties).expecting(spec.destination_cluster_id)


def run_lane(spec: LaneSpec, attempt: int) -> LaneResult:
    """Run one lane in a Spark worker; if the worker is stopped and continued, it ends before it sends a byte."""
    require_logins(Logins(spec.mirror, spec.source_properties, spec.destination_properties), attempt)
    return Lane(spec, attempt).run(lifeline.die_on_continue)
