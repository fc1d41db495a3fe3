"""One mirror under a running engine: what is reported of it, and what follows from that.

`tick` is called many times a second by the driver and never waits for a cluster longer than a heartbeat takes: clusters
are looked at by the source monitor, lanes are watched through `__kmirror_state`, and both leave what they find in a
queue. Each part of what is known and done is an object of its own; this one hands on what is reported.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Mapping, Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.engine.clock import epoch_ms, now, now_ms
from kmirror.engine.control.balance import SAMPLE_SECONDS, Balance, Position
from kmirror.engine.control.counters import Counters
from kmirror.engine.control.health import LANE_SILENCE_SECONDS, Health
from kmirror.engine.control.heartbeats import Heartbeats
from kmirror.engine.control.history import History, Sample
from kmirror.engine.control.journal import Journal, Level
from kmirror.engine.control.lane_reports import LaneReports
from kmirror.engine.control.lanes import LaneRunner, Lanes
from kmirror.engine.control.orders import LaneOrders
from kmirror.engine.control.partitions import MirrorPartitions
from kmirror.engine.control.priorities import Priorities
from kmirror.engine.control.rebuilds import RESETS, Rebuilder, Rebuilds
from kmirror.engine.control.side_jobs import JobEvent, JobView, SideJob, SideJobs
from kmirror.engine.control.snapshots import MirrorSnapshot
from kmirror.engine.control.source_login import LoginReport, SourceLogin
from kmirror.engine.control.source_monitor import SourceMonitor, SourceReport
from kmirror.engine.control.source_status import SourceStatus
from kmirror.engine.control.spread import Seat, limit_text
from kmirror.engine.control.state_feed import FeedTopic, Replica, StoredRecords
from kmirror.engine.control.throttle_shares import LaneUse, ThrottleShares
from kmirror.engine.control.time_lag import time_lag
from kmirror.engine.control.topic_views import TopicView, TopicViews
from kmirror.engine.control.topics import MirrorTopics, is_copied
from kmirror.engine.control.workers import Workers
from kmirror.engine.executors import Executor, Placement
from kmirror.engine.lane.control import STATE_PARTITION
from kmirror.engine.lane_count import lanes_of
from kmirror.engine.threads import guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.state.lease import Lease
from kmirror.state.records import (
    FRESH_SECONDS,
    PENDING_REBUILD,
    DesiredState,
    LaneRowsRecord,
    MirrorRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicRecord,
    Unknown,
    decode,
    may_be_of,
)
from kmirror.state.snapshot import State, unreadable_error
from kmirror.words import at_time, counted

_POLL_MS = 500
_PAUSE = 0.5
_COMING_SECONDS = 30.0


class MirrorEngine:
    """Drive one mirror; the lease is held already."""

    def __init__(
        self,
        mirror: str,
        state: State,
        lease: Lease,
        destination_properties: Mapping[str, str],
        runner: LaneRunner,
        actor: str,
        rebuilder: Rebuilder,
        side_jobs: Sequence[SideJob] = (),
    ) -> None:
        record = state.mirror(mirror)
        if record is None:
            raise RefusedError(f"there is no mirror {mirror!r}", "`kmirror list` lists the mirrors")
        self.mirror = mirror
        self._destination_config: ClientConfig = client_config(destination_properties)
        self._lease = lease
        topics, progress = state.topics(mirror), state.progress(mirror)
        self.journal = Journal(mirror, actor)
        self._health = Health(now())
        self.partitions = MirrorPartitions(
            mirror,
            [p for topic in topics for p in state.partitions(mirror, topic.topic)],
            progress,
            self._health,
            self.journal,
        )
        self._topics = MirrorTopics(record, topics, self.partitions, self.journal)
        self.orders = LaneOrders(self._topics, self.partitions, lease, destination_properties)
        filling = [told.lane for told in progress if told.fills_by_transactions]
        self._lanes = Lanes(self.orders, self.journal, lease, runner, filling)
        unreadable = [record.key for record in state.unknown]
        self.history = History(mirror, now(), state.history(mirror), unreadable)
        self._heartbeats = Heartbeats(lease, self._lanes, self.partitions, self.journal, self.history)
        self._workers = Workers(mirror, lease.record.master, self._lanes, self._health, self.journal)
        self.source = SourceStatus(mirror, self.journal)
        self._login = SourceLogin(lambda: self._topics.record.source, record.source_cluster_id, self._is_refused)
        self._rebuilds = Rebuilds(rebuilder, lambda text: self.journal.note(text, Level.WARNING))
        self._throttle_shares = ThrottleShares()
        self._stored = StoredRecords(mirror, (*state.records.values(), *state.unknown))
        self._priorities = Priorities()
        self._balance = Balance()
        #: Since when there is a lane less than there is room for, while others have work to spare.
        self._short_since: float | None = None
        self.counters = Counters()
        self._reports = LaneReports(lease.lease_id)
        self._topic_views = TopicViews(self)
        self._heard: queue.SimpleQueue[
            ProgressRecord
            | LaneRowsRecord
            | FeedTopic
            | MirrorRecord
            | Unknown
            | SourceReport
            | LoginReport
            | JobEvent
            | Exception
        ] = queue.SimpleQueue()
        self._side_jobs = SideJobs(side_jobs, self._view, self._heard.put)
        self._stop_threads = threading.Event()
        #: When the engine stopped this mirror: what was known of it then is what is known.
        self._ended_at: float | None = None
        self.stopping = False
        #: Why the engine must stop this mirror; None in the normal case.
        self.lost: KmirrorError | None = None
        self.journal.record("run", "started", {"master": lease.record.master})

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch lanes and clusters."""
        source_monitor = SourceMonitor(
            lambda: self._topics.settings,
            self._login,
            self._destination_config,
            self._topics.active,
            self.partitions.copied_up_to,
            self._topics.record.source_cluster_id,
            lambda: self._health.wants_ends,
            self._followed,
        )
        guarded_thread(self._follow, "kmirror-follow", self._heard.put).start()
        guarded_thread(
            lambda: source_monitor.run(self._stop_threads, self._heard.put), "kmirror-scout", self._heard.put
        ).start()
        self._side_jobs.start(self._stop_threads, self._heard.put)

    def _followed(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those of which a lane reports where the source ends, once their targets are known; any thread."""
        targets, at = self.partitions.targets or {}, now()
        return {place for place in partitions if place in targets and self._health.is_seen(place, at)}

    def _view(self) -> JobView:
        """Return what jobs beside the copy are shown; from any thread."""
        topics = tuple(self._topics.by_name.copy().values())
        records, ends = self.partitions.records.copy(), self.partitions.mirrored_ends()
        return JobView(self._topics.record, self._topics.settings, topics, records, ends)

    def _is_refused(self) -> bool:
        """Tell whether the source refuses the login, its monitor's or a lane's; from any thread."""
        seen = self.source.trouble
        return (seen is not None and seen.reason is Reason.AUTHENTICATION_FAILED) or self.partitions.are_refused

    def renew_login(self) -> None:
        """Log in to the source anew, with what its secrets are now; from any thread."""
        self._login.ask()

    @property
    def finished(self) -> bool:
        """True when no lane is left."""
        return self._lanes.finished

    def stop(self) -> None:
        """Ask every lane to end; `finished` tells when they have."""
        if not self.stopping:
            self.history.take(self._sample(), now(), now_ms(), is_last=True)
            self.stopping = True
            self._lanes.stop()

    def close(self) -> None:
        """Give the lease back when every lane has ended, and end the threads."""
        self._stop_threads.set()
        self._ended_at = now()
        # what FAILED before its source's end was known is reported too
        failed = {TopicPartition(r.topic, r.partition): r.destination_offset or 0 for r in self.failures}
        self.partitions.targets = failed | (self.partitions.targets or {})
        if self.finished and (self.lost is None or self.lost.reason is Reason.STATE_UNREADABLE):
            self.journal.record("run", "stopped", {})
            self._heartbeats.release()
        self._lease.close()

    def tick(self) -> None:
        """Take what was reported, replace what died, keep the lease."""
        self._listen()
        at = now()
        self._lanes.tick(at)
        if self._lanes.plan_now and not self.stopping:
            self._lanes.plan(self.orders.assignments(), self.lanes_wanted, self._weights())
        if not self.stopping and self._balance.is_due(at, len(self.partitions.rows)):
            self._even_out(at)
        if not self.stopping and self.lost is None:
            self._rebuilds.tick(self._topics.claimed(), self._lanes.is_free, at)
        if self._topics.release(self._lanes.is_free):
            self._lanes.beat_now = True
        if not self.stopping:
            self._workers.look_around(at)
            if self.history.is_due(at):
                self.history.take(self._sample(), at, now_ms())
        if self._heartbeats.is_due(at):
            self._beat()
        if not self.stopping and self.lost is None:
            self._lanes.start_due(at)

    def _beat(self) -> None:
        silent_lanes = self._workers.silent_lanes_ms(now())
        limit = self._topics.settings.throttle_bytes_per_second
        throttle = self._throttle_shares.of(limit, self._lanes.working()) if limit else None
        first_topics = self._first_topics()
        error = self._heartbeats.beat(silent_lanes, self.source.trouble, throttle, first_topics, stopping=self.stopping)
        if error is not None:
            self._lose(error)

    def _lose(self, error: KmirrorError) -> None:
        if self.lost is None:
            self.lost = error
            self.stop()

    def _first_topics(self) -> tuple[str, ...]:
        """Return the topics that all others wait for, and tell when they begin to, and when that ends."""
        self._priorities.choose(self._topics.settings.priority_topics)
        topics, before = self._priorities.topics(now()), self._lease.record.first_topics or ()
        if topics and not before:
            named = ", ".join(topics[:3]) + (" …" if len(topics) > 3 else "")
            self.journal.note(f"{named} of {self.mirror} catches up first; other topics wait (priority.topics)")
        elif before and not topics:
            self.journal.note(f"no topic of {self.mirror} waits for others any more")
        return topics

    # -- who copies what -------------------------------------------------------------------------------------------

    @property
    def lanes_wanted(self) -> int:
        """How many lanes it would have if there were room."""
        return lanes_of(self._topics.settings.copy_lanes, self._lease.record.master)

    @property
    def is_settled(self) -> bool:
        """True when all its lanes run, and it is known where."""
        return self._lanes.is_settled

    def take_placement(self, placement: Placement, limit: int | None) -> None:
        """Take where lanes run, and how many it may have; None for as many as it wants."""
        lanes = self._lanes
        names = lanes.job_names()
        lanes.places = {lane: placement.places[name] for lane, name in names.items() if name in placement.places}
        if limit != lanes.limit:
            lanes.limit, lanes.plan_now = limit, True
            level = Level.INFO if limit is None else Level.WARNING
            self.journal.note(limit_text(self.mirror, limit, self.lanes_wanted), level, about_spark=True)

    def seats(self) -> list[Seat]:
        """List its lanes of which is known where they run."""
        paces, steady, may_move = self._balance.paces, self._lanes.at_work, not self._lanes.is_moving
        return [
            Seat(
                self.mirror,
                lane,
                executor,
                pace.rate if (pace := paces.get(lane)) is not None else 0.0,
                self._balance.best.get(lane, 0.0),
                pace is not None and pace.is_behind,
                may_move and not self.stopping and lane in steady,
            )
            for lane, executor in self._lanes.places.items()
        ]

    def move_lane(self, lane: int, place: Executor) -> None:
        """Have what a lane does done at another place."""
        before = self._lanes.places.get(lane)
        self.journal.note(f"lane {lane} of {self.mirror} moves from {before} to {place}")
        self.journal.record("lane", "MOVED", {"lane": lane, "from": str(before), "to": str(place)})
        self._lanes.move(lane, place)

    def _even_out(self, at: float) -> None:
        """Give lanes that are ahead partitions of those that are behind, and begin lanes that there is room for."""
        lanes = self._lanes
        # where nothing is left and nothing comes there is no position to compare
        is_quiet = self.partitions.are_quiet and not self._health.wants_ends
        self._balance.take(lanes.at_work, {} if is_quiet else self._positions(), at)
        if lanes.is_moving:
            return
        if lanes.has_room:
            self._short_since = self._short_since or at
            if at - self._short_since >= SAMPLE_SECONDS:
                self._short_since = None
                lanes.fill_seats()
            return
        self._short_since = None
        # lanes that wait for their share of a limit are not slow
        if self._topics.settings.throttle_bytes_per_second == 0 and (moves := self._balance.moves(at)):
            (to,) = set(moves.values())
            self.journal.note(f"{counted(len(moves), 'partition')} of {self.mirror} go to lane {to}, which is ahead")
            self.journal.record("lane", "GIVEN_MORE", {"lane": to, "partitions": len(moves)})
            lanes.shift(moves)

    def _positions(self) -> dict[TopicPartition, Position]:
        """Tell how far partitions are that lanes may copy now and of which both ends are known."""
        rows, first = self.partitions.rows, self._lease.record.first_topics
        records = sum(row.records_copied for row in rows.values())
        mean = sum(row.bytes_copied for row in rows.values()) / records if records else 1.0
        return {
            partition: Position(
                row.destination_offset, lag, row.bytes_copied / row.records_copied if row.records_copied else mean
            )
            for partition, row in rows.items()
            if row.state is PartitionState.MIRRORING
            and row.reason is None
            and row.destination_offset is not None
            and (not first or row.topic in first)
            and (lag := self.lag(partition)) is not None
        }

    def _weights(self) -> dict[TopicPartition, float]:
        """Return how much there is to do for a partition, in bytes: what is left, and what comes in half a minute."""
        known = self._positions()
        mean = sum(p.bytes_per_offset for p in known.values()) / len(known) if known else 1.0
        left = {partition: offsets * mean for partition, offsets in self.partitions.left_to_copy().items()}
        return left | {
            partition: position.lag * position.bytes_per_offset + _COMING_SECONDS * self._balance.rate(partition)
            for partition, position in known.items()
        }

    # -- state ----------------------------------------------------------------------------------------------------

    def topic_views(self) -> list[TopicView]:
        """Return how each topic that is copied stands."""
        return self._topic_views.current()

    def places(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions that are to be copied, by topic."""
        return self._topics.places()

    def row(self, partition: TopicPartition) -> ProgressRow | None:
        """Return a lane's last word on a partition."""
        return self.partitions.rows.get(partition)

    def take_moved(self) -> set[str]:
        """Return the topics on whose partitions something else was reported since this was last asked."""
        return self.partitions.take_moved()

    def steady_since_ms(self, partitions: int) -> int | None:
        """Return since when, at the earliest, lanes report on all these; None unless all is well but for topics.

        Then views depend on rows alone.
        """
        at, heard = now(), self._lanes.heard_at.values()
        accepted_at = self._heartbeats.last_at
        is_well = self._ended_at is None and at - accepted_at <= LANE_SILENCE_SECONDS and self.source.trouble is None
        if not is_well or not heard or self._health.wants_ends or self._health.silent_lanes:
            return None
        if self._health.reported != partitions:
            return None
        return epoch_ms(min(heard) - FRESH_SECONDS)

    @property
    def source_trouble(self) -> KmirrorError | None:
        """Why the source does not answer, or may not be mirrored; None in the normal case."""
        return self.source.trouble

    def trouble(self, partition: TopicPartition) -> tuple[Reason, str] | None:
        """Return why it is not known that a partition is copied, None where its lane reports."""
        at, accepted_at = self._ended_at or now(), self._heartbeats.last_at or self._health.began
        if at - accepted_at > LANE_SILENCE_SECONDS:
            since = at_time(epoch_ms(accepted_at))
            return Reason.DESTINATION_UNREACHABLE, f"the destination has not accepted a heartbeat since {since}"
        silence = self._workers.trouble(partition, at)
        return None if silence is None else (Reason.NO_WORKERS, silence)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how far a partition is behind what its source said within the last moments; None: not known."""
        row = self.partitions.rows.get(partition)
        return self._health.lag(partition, row.destination_offset if row else None, self._ended_at or now())

    def lag_as_of_ms(self, partition: TopicPartition) -> int | None:
        """Return when what `lag` is computed from was last known, in epoch milliseconds; None: never."""
        known_at = self._health.known_at(partition)
        return None if known_at is None else epoch_ms(known_at)

    def _sample(self) -> Sample:
        """Sum up how the mirror stands now."""
        wanted = [place for places in self.places().values() for place in places]
        idle = sum(self._topics.partition_count(topic) for topic in self._topics.idle())
        rows, at_ms = self.partitions.rows, now_ms()
        is_steady = self.steady_since_ms(len(wanted)) is not None
        suspects = () if is_steady else wanted
        troubled = {p: found[0] for p in suspects if (found := self.trouble(p)) is not None}
        lags = {p: 0 if is_steady and self.partitions.is_at_rest(p) else self.lag(p) for p in wanted}
        time_lags = [
            lag and time_lag(lag, row.last_timestamp_ms, self._caught_up_ms(partition, row), at_ms, at_ms)
            for partition, lag in lags.items()
            if (row := rows.get(partition)) is not None and partition not in troubled
        ]
        is_reported = any(partition in rows and partition not in troubled for partition in wanted)
        phase: str | None = None
        if not wanted:
            phase = "NOTHING_TO_COPY"
        elif len(troubled) == len(wanted):
            phase = troubled[wanted[0]]
        elif self.source.trouble is not None:
            phase = self.source.trouble.reason or Reason.SOURCE_UNREACHABLE
        return Sample(
            lag=sum(known) if (known := [lag for lag in lags.values() if lag is not None]) else None,
            lag_unknown=len(lags) - len(known),
            time_lag_ms=max((lag for lag in time_lags if lag is not None), default=None),
            bytes_copied=sum(one.bytes for one in self.counters.copied.values()) if is_reported else None,
            records_copied=sum(one.records for one in self.counters.copied.values()) if is_reported else None,
            failed=sum(partition in rows and rows[partition].state is PartitionState.FAILED for partition in wanted),
            not_copied=idle + len(troubled),
            phase=phase,
        )

    def _caught_up_ms(self, partition: TopicPartition, row: ProgressRow) -> int | None:
        """Return when the destination last had all that the source has; None where that was never seen."""
        source_offset, destination_offset = row.source_offset, row.destination_offset
        if source_offset is not None and destination_offset is not None and destination_offset >= source_offset:
            return self.lag_as_of_ms(partition)
        return row.caught_up_ms

    def idle_topics(self) -> dict[str, str]:
        """Return the topics that are not to be copied now, each with what is wanted of it instead."""
        return {topic.topic: _wanted(topic) for topic in self._topics.by_name.values() if not is_copied(topic)}

    def snapshot(self) -> MirrorSnapshot:
        """Copy what is known now, for other threads."""
        return MirrorSnapshot(
            self.mirror,
            now(),
            now_ms(),
            self._health.began,
            self._stored.copy(),
            self._lease.record,
            self._heartbeats.last_at or None,
            self.lost,
            self.source.trouble,
            self.source.seen_at,
            self._health.source_ends(),
            self.partitions.rows.copy(),
            self._health.reported_at(),
            self._lanes.claims(),
            self._lanes.heard_at,
            frozenset(self._health.silent_lanes),
            self._lanes.restarts,
            self._side_jobs.names,
            self._side_jobs.done_at.copy(),
            self.counters.copy(),
            self.journal.counts.copy(),
            self.partitions.lost_records,
            self._rebuilds.done,
            tuple(self.history.recent(now_ms())),
        )

    @property
    def caught_up(self) -> bool:
        """True when every partition has reached the source end seen at the start, or FAILED."""
        known, targets = self.partitions, self.partitions.targets
        return (
            targets is not None
            and all(known.reached(p) or known.failed(p) for p in targets)
            and all(p in targets or known.failed(p) for places in self.places().values() for p in places)
            and not self._topics.claimed()
            and not any(self._rebuilds.is_wanted(topic) for topic in self._topics.by_name)
        )

    @property
    def failures(self) -> list[ProgressRow]:
        """The partitions that are FAILED now."""
        return [row for row in self.partitions.rows.values() if row.state is PartitionState.FAILED]

    # -- reports --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                return
            match heard:
                case ProgressRecord():
                    self._take_progress(heard)
                case LaneRowsRecord():
                    self._reports.take_page(heard)
                case FeedTopic():
                    if self._topics.take(heard):
                        self._lanes.plan_now = True
                        self._reports.pass_on_all()
                case MirrorRecord():
                    source = self._topics.record.source
                    if self._topics.take_mirror(heard):
                        self._lanes.plan_now = True
                        self._reports.pass_on_all()
                    if heard.source != source:
                        self._login.ask()
                case Unknown():
                    self._heartbeats.keeps_lease_only = True
                    self._lose(unreadable_error(heard))
                case SourceReport():
                    self._take_source_report(heard)
                case LoginReport():
                    self._take_login(heard)
                case JobEvent():
                    if heard.note is not None:
                        self.journal.note(heard.note, heard.level)
                    if heard.what is not None:
                        self.journal.record(heard.what, heard.result, heard.details)
                case _:
                    raise heard

    def _take_progress(self, record: ProgressRecord) -> None:
        record, says_all = self._reports.take(record, at := now())
        words, last_words = self._lanes.heard(record)
        if self._lanes.counts(record):
            self._health.hear(record.lane, at, says_all=says_all)
        if record.lease_id == self._lease.lease_id:
            use = LaneUse(record.time_ms / 1000, record.fetched_bytes, record.throttled_ms / 1000)
            self._throttle_shares.take(record.lane, use)
            self.counters.take(record)
        for row, assignment in words:
            topic = self._topics.by_name.get(row.topic)
            # a lane's late report on a released topic, or on its namesake, no longer counts
            if topic is None or not is_copied(topic) or assignment.destination_topic_id != topic.destination_topic_id:
                continue
            self._priorities.take(topic.source_topic, record, row, at)
            if self.partitions.take_report(assignment.destination, record, row, at):
                self._want_rebuild(topic, row)
        for row, assignment in last_words:
            topic = self._topics.by_name.get(row.topic)
            if topic is not None and assignment.destination_topic_id == topic.destination_topic_id:
                self.partitions.take_last_report(assignment.destination, row)

    def _want_rebuild(self, topic: TopicRecord, row: ProgressRow) -> None:
        """Rebuild a topic whose source is another one now or has another history, where that is allowed."""
        if row.state is not PartitionState.FAILED or row.reason is None:
            return
        recovery, settings = (topic.recoveries or {}).get(row.partition), self._topics.settings
        consented = recovery is not None and recovery.rebuilds is row.reason
        by_itself = (row.reason in RESETS and settings.source_reset_policy == "auto") or (
            row.reason is Reason.SOURCE_DIVERGED and settings.source_divergence_policy == "auto"
        )
        if consented or by_itself:
            self._rebuilds.want(topic.topic, row.reason, consented=consented)

    def _take_login(self, report: LoginReport) -> None:
        """Let lanes start again with a login that the source has taken; one that it has not taken is tried again."""
        if report.trouble is not None:
            text = (
                f"the login to the source of {self.mirror} as it is now is not used, and tried again: {report.trouble}"
            )
            self.journal.note(text, Level.WARNING)
            return
        self.journal.note(f"the source of {self.mirror} accepts the login as it is now: lanes log in anew")
        self.journal.record("source", "LOGIN_RENEWED", {})
        self._lanes.renew()

    def _take_source_report(self, report: SourceReport) -> None:
        self.source.take(report)
        if report.trouble is None:
            has_grown = self._topics.take_partition_counts(report.partitions)
            self._lanes.plan_now |= has_grown or self.partitions.targets is None
            self.partitions.take_source_ends(report.source_offsets, report.seen_at)

    # -- threads --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Read what lanes and operators write."""
        feed = Replica(self.mirror)
        with ClusterClient(self._destination_config) as client:
            tail = PartitionFollower(client, STATE_PARTITION, read_committed=True)
            while not self._stop_threads.is_set():
                try:
                    answer = tail.poll(_POLL_MS)
                except (KmirrorError, OutcomeUnknown):
                    self._stop_threads.wait(_PAUSE)
                    continue
                for record in answer.records:
                    # in one engine of many mirrors, nearly all records are others'
                    if record.key is not None and may_be_of(record.key, self.mirror):
                        read = decode(record.key, record.value)
                        self._stored.take(read)
                        for met in feed.take(read):
                            self._heard.put(met)
                if answer.reached_end:
                    self._stored.catch_up()
                    for topic in feed.catch_up():
                        self._heard.put(topic)
            tail.close()


def _wanted(topic: TopicRecord) -> str:
    """Return what is wanted of a topic that is not copied."""
    if topic.desired is not DesiredState.ACTIVE:
        return topic.desired
    return "PENDING_MIRROR" if topic.pending_operation == PENDING_REBUILD else "STOPPING"
