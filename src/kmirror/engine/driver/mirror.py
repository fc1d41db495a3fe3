"""The engine of one mirror: it takes what is reported, and has its parts do what follows from that.

The driver calls `tick` many times a second. It never waits for a cluster: other threads read the source (the source
monitor) and what is written into `__kmirror_state` (`state_tail`), and put what they find into a queue; heartbeats are
sent by others still.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.seen_throttles import SEEN_THROTTLES
from kmirror.engine.clock import now, now_ms
from kmirror.engine.driver.heartbeats import Heartbeats
from kmirror.engine.driver.job_pool import Pools
from kmirror.engine.driver.link_status import DestinationStatus, SourceStatus
from kmirror.engine.driver.live_status import LiveStatus
from kmirror.engine.driver.rebuilds import Rebuilder, Rebuilds
from kmirror.engine.driver.side_jobs import Discovered, JobEvent, JobView, RepeatedSideJob, SideJob
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.engine.driver.source_login import LoginReport, SourceLogin, contact_changes
from kmirror.engine.driver.source_monitor import SourceMonitor, SourceReport
from kmirror.engine.driver.state_tail import StateTail
from kmirror.engine.executors import connections_of
from kmirror.engine.lanes.joined_reports import LaneReports
from kmirror.engine.lanes.lane_balancer import LaneBalancer
from kmirror.engine.lanes.lane_jobs import LaneRunner
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.lanes.orders import LaneOrders
from kmirror.engine.lanes.priorities import Priorities
from kmirror.engine.lanes.throttle_shares import LaneUse, ThrottleShares
from kmirror.engine.lanes.workers import Workers
from kmirror.engine.status.counters import Counters
from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.history import History, Sample
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.objective_watch import ObjectiveWatch
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import FeedTopic, StateFeed, StoredRecords
from kmirror.errors import RESET_REASONS, KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.state.lease import Lease
from kmirror.state.record_kinds import Record, Removed, Unknown
from kmirror.state.records import (
    EngineRecord,
    EngineState,
    LaneRowsRecord,
    MirrorRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicRecord,
)
from kmirror.state.snapshot import State, unreadable_error
from kmirror.status.topic_status import TopicStatus

#: How many side jobs of one mirror run at the same time.
_JOBS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class _DestinationReport:
    """Why the destination did not answer; None if it did."""

    error: KmirrorError | OutcomeUnknown | None


class MirrorEngine:
    """Run one mirror, whose lease is held already."""

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
        destination_cluster_id: str | None = None,
    ) -> None:
        record = state.mirror(mirror)
        if record is None:
            raise RefusedError(f"there is no mirror {mirror!r}", "`kmirror list` lists the mirrors")
        self.mirror = mirror
        self._destination_config: ClientConfig = client_config(destination_properties).expecting(destination_cluster_id)
        self._actor = actor
        self._lease = lease
        topics = state.topics(mirror)
        self.journal = MirrorJournal(mirror, actor, now_ms)
        self._health = MirrorHealth(now())
        self.partitions = MirrorPartitions(
            mirror,
            [p for topic in topics for p in state.partitions(mirror, topic.topic)],
            state.last_rows(mirror),
            self._health,
            self.journal,
        )
        self._topics = MirrorTopics(record, topics, self.partitions, self.journal)
        self.orders = LaneOrders(self._topics, self.partitions, lease, destination_properties, destination_cluster_id)
        filling = [report.lane for report in state.progress(mirror) if report.fills_by_transactions]
        self._lanes = Lanes(self.orders, self.journal, lease, runner, filling)
        unreadable = [record.key for record in state.unknown]
        self.history = History(mirror, now(), state.history(mirror), unreadable)
        self.heartbeats = Heartbeats(lease, self._lanes, self.partitions, self.journal, self.history)
        self._workers = Workers(mirror, lease.record.master, self._lanes, self._health, self.journal)
        self.source = SourceStatus(mirror, self.journal)
        self._destination = DestinationStatus(mirror, self.journal)
        self._login = SourceLogin(lambda: self._topics.record.source, record.source_cluster_id, self._is_refused)
        self._rebuilds = Rebuilds(rebuilder, lambda text: self.journal.note(text, Level.WARNING))
        self._throttle_shares = ThrottleShares()
        self._stored = StoredRecords(mirror, (*state.records.values(), *state.unknown))
        self._feed = StateFeed(mirror)
        self._priorities = Priorities()
        self.counters = Counters()
        self._objectives = ObjectiveWatch(self.journal, lease.record.since_ms)
        self._reports = LaneReports(lease.lease_id)
        self.live = LiveStatus(
            self._topics,
            self.partitions,
            self._health,
            self._lanes,
            lease,
            self.source,
            self._destination,
            self._stored,
        )
        self.balancer = LaneBalancer(self._topics, self.partitions, self._lanes, lease, self.journal)
        self._inbox: queue.SimpleQueue[
            ProgressRecord
            | LaneRowsRecord
            | FeedTopic
            | MirrorRecord
            | Unknown
            | SourceReport
            | LoginReport
            | JobEvent
            | Discovered
            | _DestinationReport
            | Exception
        ] = queue.SimpleQueue()
        self._side_jobs = [RepeatedSideJob(job, self._view, self._inbox.put) for job in side_jobs]
        #: What ends what is done beside this thread.
        self._ends: list[Callable[[], None]] = []
        #: A record that leads to the source in another way, until that is announced; and the heartbeat that does that.
        self._announced: MirrorRecord | None = None
        self._announced_by = 0
        self.stopping = self._releases = False
        #: Why the engine must stop this mirror; None in the normal case.
        self.lost: KmirrorError | None = None
        self.journal.record("run", "started", {"master": lease.record.master})

    def start(self, pools: Pools, tail: StateTail) -> None:
        """Start to follow lanes and clusters; what is done beside that is run by these pools."""
        monitor = SourceMonitor(
            self._actor,
            self._topics,
            self.partitions,
            self._health,
            self._login,
            self._destination_config,
            self._inbox.put,
        )
        self.heartbeats.renewals = pools.renewals
        self._ends = [
            tail.follow(self._destination_config, self.mirror, self),
            pools.heartbeats.add([self.heartbeats], self._inbox.put),
            pools.monitors.add([monitor], self._inbox.put),
            pools.side_jobs.add(self._side_jobs, self._inbox.put, _JOBS_AT_ONCE),
        ]

    def _view(self) -> JobView:
        """Return what side jobs are shown; from any thread."""
        topics = tuple(self._topics.by_name.copy().values())
        records, ends = self.partitions.records.copy(), self.partitions.mirrored_ends()
        return JobView(self._topics.record, self._topics.settings, topics, records, ends)

    def _is_refused(self) -> bool:
        """Return whether the source refuses the login of its monitor or of a lane; from any thread."""
        trouble = self.source.trouble
        return (trouble is not None and trouble.reason is Reason.AUTHENTICATION_FAILED) or self.partitions.are_refused

    def renew_login(self) -> None:
        """Resolve the secrets again, and log in to the source with them; from any thread."""
        self._login.ask()

    @property
    def finished(self) -> bool:
        """True when no lane is left."""
        return self._lanes.finished

    def stop(self) -> None:
        """Ask every lane to end; `finished` becomes true when they have."""
        if not self.stopping:
            self.history.take(self._sample(), now(), now_ms(), is_last=True)
            self.stopping = True
            self._lanes.stop()

    def leave(self) -> None:
        """End what runs beside this thread, and what is shown; `close` follows."""
        for end in self._ends:
            end()
        # partitions that FAILED before their source's end was known are reported too
        failed = {TopicPartition(r.topic, r.partition): r.destination_offset or 0 for r in self.failures}
        self.partitions.targets = failed | (self.partitions.targets or {})
        self.live.end(now(), now_ms())
        self._releases = self.finished and (self.lost is None or self.lost.reason is Reason.STATE_UNREADABLE)
        if self._releases:
            self.journal.record("run", "stopped", {})

    def close(self) -> None:
        """Release the lease if every lane has ended; in any thread, after `leave`. It may wait for the destination."""
        self.heartbeats.end(releases=self._releases)

    def has_news(self, at: float) -> bool:
        """Return whether something waits for the next `tick`, or a heartbeat is due."""
        beats = self.heartbeats
        if beats.is_answered:
            if not beats.is_renewed:
                return True
            beats.take_answer()
        return not self._inbox.empty() or beats.is_wanted(at)

    def tick(self) -> None:
        """Take reports, replace lanes that died, keep the lease."""
        if (error := self.heartbeats.take_answer()) is not None:
            self._lose(error)
        self._take_reports()
        at = now()
        self._destination.take_throttle(SEEN_THROTTLES.of(self._destination_config))
        self._lanes.waited_seconds = self.heartbeats.waited_seconds(at)
        self._lanes.tick(at)
        if self._lanes.plan_now and not self.stopping:
            self._lanes.plan(self.orders.assignments(), self.balancer.lanes_wanted, self.balancer.weights())
        if not self.stopping and self.balancer.is_due(at):
            self.balancer.tick(at, is_quiet=self.partitions.are_quiet and not self._health.wants_ends)
        if not self.stopping and self.lost is None:
            self._rebuilds.tick(self._topics.claimed(), self._lanes.is_free, at)
        if self._topics.release(self._lanes.is_free):
            self._lanes.heartbeat_now = True
        if not self.stopping:
            self._workers.check(
                at, are_readable=self._destination.passes_reports(at), throttled_by=self._destination.throttled_by
            )
            if self.history.is_due(at):
                self.history.take(self._sample(), at, now_ms())
            if self._objectives.is_due(at, has_rules=bool(self._topics.settings.objective_rpo.rules)):
                self._objectives.take(self.topics(), self.counters.throttled_ms, at, now_ms())
        if self.heartbeats.is_wanted(at):
            self._put_heartbeat_together()
        if not self.stopping and self.lost is None:
            self._lanes.start_due(at)

    def _put_heartbeat_together(self) -> None:
        settings, lanes, trouble = self._topics.settings, self._lanes.working(), self.source.trouble
        limit = settings.throttle_bytes_per_second
        self.heartbeats.put_together(
            replace(
                self._record(),
                state=EngineState.STOPPING if self.stopping else EngineState.RUNNING,
                silent_lanes=self._workers.silent_lanes_ms(now()) or None,
                source_reason=None if trouble is None else trouble.reason or Reason.SOURCE_UNREACHABLE,
                source_message=None if trouble is None else trouble.message,
                throttle=self._throttle_shares.of(limit, lanes) if limit else None,
                connections=connections_of(settings.copy_connections, len(lanes)),
                buffer_bytes=settings.copy_buffer_bytes,
                first_topics=self._first_topics() or None,
                lacking=self.source.lacking.copy() or None,
                not_added=self.source.not_added,
                failing_jobs={job.name: it for job in self._side_jobs if (it := job.lasting_failure)} or None,
            )
        )

    def _lose(self, error: KmirrorError) -> None:
        if self.lost is None:
            self.lost = error
            self.stop()

    def _first_topics(self) -> tuple[str, ...]:
        """Return the topics that all others wait for; announce when others start to wait, and when that ends."""
        self._priorities.choose(self._topics.settings.priority_topics)
        topics, before = self._priorities.topics(now()), self._lease.record.first_topics or ()
        if topics and not before:
            named = ", ".join(topics[:3]) + (" …" if len(topics) > 3 else "")
            self.journal.note(f"{named} of {self.mirror} catches up first; other topics wait (priority.topics)")
        elif before and not topics:
            self.journal.note(f"no topic of {self.mirror} waits for others any more")
        return topics

    def _record(self) -> EngineRecord:
        """Return what the engine last stored of itself, with the broker that throttles it now."""
        return replace(self._lease.record, throttled_by=self._destination.throttled_by)

    def topics(self) -> tuple[TopicStatus, ...]:
        """Return the status of each topic."""
        return self.live.current(now(), now_ms())

    def _sample(self) -> Sample:
        return Sample.of(self.topics(), self.counters, self.source.trouble)

    def snapshot(self) -> MirrorSnapshot:
        """Return a copy of what is known now, for other threads."""
        return MirrorSnapshot(
            self.mirror,
            now(),
            now_ms(),
            self._health.began,
            self._stored.copy(),
            self._record(),
            self.lost,
            self.source.trouble,
            self.source.seen_at,
            self.source.lacking.copy(),
            self.source.lacking_starts.copy(),
            self.source.paused_ends,
            self._health.source_ends(),
            self.partitions.rows.copy(),
            self._health.reported_at(),
            self._lanes.claims(),
            self._lanes.reported_at,
            frozenset(self._health.silent_lanes),
            self._lanes.restarts,
            tuple(job.name for job in self._side_jobs),
            {job.name: job.done_at for job in self._side_jobs if job.done_at is not None},
            self.counters.copy(),
            self.journal.counts.copy(),
            self.partitions.lost_records,
            self._rebuilds.done,
            tuple(self.history.recent(now_ms())),
            self._destination.trouble(now()),
            self._rebuilds.progress,
        )

    @property
    def caught_up(self) -> bool:
        """True when every partition has reached the source end seen at the start, or FAILED."""
        known, targets = self.partitions, self.partitions.targets
        return (
            targets is not None
            and all(known.reached(p) or known.failed(p) for p in targets)
            and all(
                p in targets or known.failed(p) for found in self._topics.wanted_partitions().values() for p in found
            )
            and not self.live.lacks_partitions
            and not self._topics.claimed()
            and not any(self._rebuilds.is_wanted(topic) for topic in self._topics.by_name)
        )

    @property
    def failures(self) -> list[ProgressRow]:
        """The partitions that are FAILED now."""
        return [row for row in self.partitions.rows.values() if row.state is PartitionState.FAILED]

    def _take_reports(self) -> None:
        while not self._is_announcing and (self._announced is not None or not self._inbox.empty()):
            report = self._announced or self._inbox.get_nowait()
            match report:
                case ProgressRecord():
                    self._take_progress(report)
                case LaneRowsRecord():
                    self._reports.take_page(report)
                case FeedTopic():
                    if self._topics.take(report):
                        self._lanes.plan_now = True
                        self._reports.pass_on_all()
                case MirrorRecord() if self._announced is None and self._announce_source(report):
                    pass
                case MirrorRecord():
                    self._announced, source = None, self._topics.record.source
                    if self._topics.take_mirror(report):
                        self._lanes.plan_now = True
                        self._reports.pass_on_all()
                    if report.source != source:
                        self._login.ask()
                case Unknown():
                    self.heartbeats.keeps_lease_only = True
                    self._lose(unreadable_error(report))
                case SourceReport():
                    self._take_source_report(report)
                case LoginReport():
                    self._take_login(report)
                case _DestinationReport():
                    self._destination.take(report.error, now())
                case JobEvent():
                    if report.note is not None:
                        self.journal.note(report.note, report.level)
                    if report.what is not None:
                        self.journal.record(report.what, report.result, report.details)
                case Discovered():
                    self.source.not_added = report.not_added
                case _:
                    raise report

    def _announce_source(self, record: MirrorRecord) -> bool:
        """Report, and store, that the record leads elsewhere now; nothing follows it before. False: it does not."""
        changes = contact_changes(self._topics.record.source, record.source)
        if changes:
            text = f"the source of {self.mirror} is reached in another way from now on: {'; '.join(changes)}"
            self.journal.note(text, Level.WARNING)
            self.journal.record("source", "CHANGED", {"changes": changes})
            self._announced, self._announced_by = record, self.heartbeats.next_attempt
            self._lanes.heartbeat_now = True
        return bool(changes)

    @property
    def _is_announcing(self) -> bool:
        """True until a heartbeat has tried to store that the source is reached in another way."""
        return self._announced is not None and self.heartbeats.attempts < self._announced_by

    def _take_progress(self, record: ProgressRecord) -> None:
        record, is_complete = self._reports.take(record, at := now())
        copied, released = self._lanes.take_report(record)
        if self._lanes.is_current(record):
            self._health.take_lane(record, at, is_complete=is_complete)
            self.live.take(record)
        if record.lease_id == self._lease.lease_id:
            use = LaneUse(record.time_ms / 1000, record.fetched_bytes, record.throttled_ms / 1000)
            self._throttle_shares.take(record.lane, use)
            self.counters.take(record)
        for row, assignment in copied:
            topic = self._topics.by_name.get(row.topic)
            # a late report on a topic that was released, or that is another one of this name now, does not count
            if topic is None or not topic.is_copied or assignment.destination_topic_id != topic.destination_topic_id:
                continue
            self._priorities.take(topic.source_topic, record, row, at)
            if self.partitions.take_row(assignment.destination, record, row, at):
                self._want_rebuild(topic, row, at)
        for row, assignment in released:
            topic = self._topics.by_name.get(row.topic)
            if topic is not None and assignment.destination_topic_id == topic.destination_topic_id:
                self.partitions.take_last_row(assignment.destination, row)

    def _want_rebuild(self, topic: TopicRecord, row: ProgressRow, at: float) -> None:
        """Rebuild a topic whose source was recreated or has another history, if that is allowed."""
        if row.state is not PartitionState.FAILED or row.reason is None:
            return
        recovery, settings = (topic.recoveries or {}).get(row.partition), self._topics.settings
        consented = recovery is not None and recovery.rebuilds is row.reason
        by_itself = (row.reason in RESET_REASONS and settings.source_reset_policy == "auto") or (
            row.reason is Reason.SOURCE_DIVERGED and settings.source_divergence_policy == "auto"
        )
        if consented or by_itself:
            self._rebuilds.want(topic.topic, row.reason, at, consented=consented)

    def _take_login(self, report: LoginReport) -> None:
        """Restart lanes with a login that the source accepts; any other is retried."""
        if report.trouble is not None:
            text = f"the current login to the source of {self.mirror} fails and is retried: {report.trouble}"
            self.journal.note(text, Level.WARNING)
            return
        self.journal.note(f"the source of {self.mirror} accepts the current login: lanes log in again")
        self.journal.record("source", "LOGIN_RENEWED", {})
        self._lanes.restart()

    def _take_source_report(self, report: SourceReport) -> None:
        self.source.take(report)
        if report.trouble is None:
            self._lanes.plan_now |= self.partitions.targets is None
            self.partitions.take_source_ends(report.source_offsets, report.seen_at)

    # -- what the state's tail passes on, in its thread --------------------------------------------------------------

    def take_stored(self, read: Record | Removed | Unknown) -> None:
        """Take the next record of this mirror."""
        self._stored.take(read)
        for news in self._feed.take(read):
            self._inbox.put(news)

    def catch_up(self) -> None:
        """Note that what was stored is known."""
        self._stored.catch_up()
        for news in self._feed.catch_up():
            self._inbox.put(news)

    def take_answer(self, error: KmirrorError | OutcomeUnknown | None) -> None:
        """Take why the destination does not answer; None if it does."""
        self._inbox.put(_DestinationReport(error))

    def broken(self, error: Exception) -> None:
        """Take why nothing is passed on any more."""
        self._inbox.put(error)
