"""One mirror under a running engine: its lease, its lanes, what they tell, and what follows from it.

`tick` is called many times a second by the driver and never waits for a cluster longer than a heartbeat takes: clusters
are looked at by a scout thread, lanes are watched through `__kmirror_state`, and both leave what they find in a queue.

Which lane copies what, and which of them may write, is `Lanes`' work; what operators want of the topics, and what is to
be remembered of the partitions, is this module's.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.tail import Tail
from kmirror.engine.clock import now, now_ms
from kmirror.engine.control.health import LANE_SILENCE_SECONDS, LATE_SECONDS, Health, no_workers_text
from kmirror.engine.control.lanes import LaneRunner, Lanes
from kmirror.engine.control.rebuilds import RESETS, Rebuilder, Rebuilds
from kmirror.engine.control.side_jobs import JobEvent, JobView, SideJob, SideJobs
from kmirror.engine.control.source_monitor import SourceMonitor, SourceReport
from kmirror.engine.control.state_feed import FeedTopic, Replica
from kmirror.engine.control.stored_partition import alignment_note, given_up, remember
from kmirror.engine.histories.identity_check import LINK_REFUSED
from kmirror.engine.lane.control import STATE_PARTITION
from kmirror.engine.spec import Assignment, LaneSpec, own_producer_id
from kmirror.engine.threads import guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.settings.table import Settings, parse_settings
from kmirror.state.events import Event
from kmirror.state.lease import Lease
from kmirror.state.records import (
    PENDING_PROMOTE,
    PENDING_REBUILD,
    DesiredState,
    Incarnation,
    LaneChangeRecord,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicRecord,
    decode,
)
from kmirror.state.snapshot import State

HEARTBEAT_SECONDS = 1.0
_HEARTBEAT_TIMEOUT = 3.0
_POLL_MS = 500
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class _Beat:
    """What one heartbeat tells."""

    lanes: dict[int, Incarnation]
    changes: tuple[LaneChangeRecord, ...]
    records: tuple[PartitionRecord, ...]
    events: tuple[Event, ...]


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
        self._record = record
        self._settings: Settings = parse_settings(record.settings)
        self._source_config: ClientConfig = client_config(record.source)
        self._destination_config: ClientConfig = client_config(destination_properties)
        self._destination_properties = dict(destination_properties)
        self._lease = lease
        self._actor = actor
        self._topics: dict[str, TopicRecord] = {t.topic: t for t in state.topics(mirror)}
        self._records: dict[TopicPartition, PartitionRecord] = {
            TopicPartition(p.topic, p.partition): p for t in self._topics for p in state.partitions(mirror, t)
        }
        self._partition_counts: dict[str, int] = {}
        self._heard: queue.SimpleQueue[
            ProgressRecord | FeedTopic | MirrorRecord | SourceReport | JobEvent | Exception
        ] = queue.SimpleQueue()
        self._stop_threads = threading.Event()
        self._beat_at = 0.0
        self._changed_records: dict[TopicPartition, PartitionRecord] = {}
        self._events: list[Event] = []
        #: What a heartbeat told whose outcome is not known.
        self._unconfirmed: _Beat | None = None
        #: By partition, the offset at which a lane last made its log begin.
        self._aligned_to: dict[TopicPartition, int] = {}
        #: By partition, what was last told to be copied again.
        self._again: dict[TopicPartition, tuple[int, int]] = {}
        #: The destination's log ends as the engine before told them, since its partitions are what they are.
        self._known_ends = {
            place: row.destination_offset
            for progress in sorted(state.progress(mirror), key=lambda one: one.time_ms)
            for row in progress.rows
            if row.begun
            and (known := self._records.get(place := TopicPartition(row.topic, row.partition)))
            and known.state_time_ms < progress.time_ms
        }
        self._lanes = Lanes(
            self,
            lease,
            runner,
            [progress.lane for progress in state.progress(mirror) if progress.fills_by_transactions],
        )
        #: The source's ends when the engine began, by destination partition; None until the source has answered.
        self.targets: dict[TopicPartition, int] | None = None
        self.rows: dict[TopicPartition, ProgressRow] = {}
        #: Sentences for whoever watches, oldest first; the watcher empties it.
        self.notes: list[str] = []
        self.source_trouble: KmirrorError | None = None
        self._health = Health(now())
        #: True when it was told that workers do not report.
        self._told_of_silence = False
        #: When this mirror was given up: what was known of it then is what is known.
        self._ended_at: float | None = None
        self._log_start_trouble = False
        #: Of topics that are to be left alone, as what they were given up, and for which pause.
        self._given_up: dict[str, tuple[DesiredState, str | None]] = {}
        self._rebuilds = Rebuilds(rebuilder, self.notes.append)
        self._side_jobs = SideJobs(side_jobs, self._view, self._heard.put)
        self.stopping = False
        #: Why the engine has to give this mirror up; None in the normal case.
        self.lost: KmirrorError | None = None
        self.tell("run", "started", {"master": lease.record.master})

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch lanes and clusters."""
        source_monitor = SourceMonitor(
            lambda: self._settings,
            self._source_config,
            self._destination_config,
            self._copied,
            self._copied_up_to,
            self._record.source_cluster_id,
            lambda: self._health.wants_ends,
        )
        guarded_thread(self._follow, "kmirror-follow", self._heard.put).start()
        guarded_thread(
            lambda: source_monitor.run(self._stop_threads, self._heard.put), "kmirror-scout", self._heard.put
        ).start()
        self._side_jobs.start(self._stop_threads, self._heard.put)

    def _view(self) -> JobView:
        """Return what jobs beside the copy are shown; from any thread."""
        ends = {
            p: row.destination_offset for p, row in self.rows.copy().items() if row.begun and row.destination_offset
        }
        topics = tuple(self._topics.copy().values())
        return JobView(self._record, self._settings, topics, self._records.copy(), ends)

    def _copied(self) -> list[TopicRecord]:
        """Return the topics that are to be copied now; from any thread."""
        return [topic for topic in self._topics.copy().values() if topic.desired is DesiredState.ACTIVE]

    def _copied_up_to(self) -> dict[TopicPartition, int]:
        """Return the destination's ends of partitions that are being copied and hold records; from any thread."""
        return {
            partition: row.destination_offset
            for partition, row in self.rows.copy().items()
            if row.begun
            and row.state is PartitionState.MIRRORING
            and row.destination_offset is not None
            and not _keeps_what_was_lost(self._records.get(partition), row)
        }

    @property
    def finished(self) -> bool:
        """True when no lane is left."""
        return self._lanes.finished

    def stop(self) -> None:
        """Ask every lane to end; `finished` tells when they have."""
        if not self.stopping:
            self.stopping = True
            self._lanes.stop()

    def close(self) -> None:
        """Give the lease back when every lane has ended, and end the threads."""
        self._stop_threads.set()
        self._ended_at = now()
        # what FAILED before its source's end was known is told of too
        self.targets = {TopicPartition(r.topic, r.partition): r.destination_offset or 0 for r in self.failures} | (
            self.targets or {}
        )
        if self.lost is None and self.finished:
            self.tell("run", "stopped", {})
            with contextlib.suppress(KmirrorError, OutcomeUnknown):
                self._settle()
                self._lease.release(tuple(self._changed_records.values()), tuple(self._events))
        self._lease.close()

    def tick(self) -> None:
        """Take what was heard, replace what died, keep the lease."""
        self._listen()
        at = now()
        self._lanes.tick(at)
        if self._lanes.plan_now and not self.stopping:
            self._plan()
        if not self.stopping and self.lost is None:
            self._rebuilds.tick(self._claimed(), self._lanes.is_free, at)
        self._give_up()
        if not self.stopping:
            self._judge_lanes(at)
        if self._lanes.beat_now or at - self._beat_at >= HEARTBEAT_SECONDS:
            self._heartbeat(stopping=self.stopping)
        if not self.stopping and self.lost is None:
            self._lanes.start_due(at)

    def _claimed(self) -> list[str]:
        """Return the topics that are to be rebuilt."""
        return [topic.topic for topic in self._topics.values() if topic.pending_operation == PENDING_REBUILD]

    def _give_up(self) -> None:
        """Record of topics that are paused or stopped that nothing of ours is on its way to them any more."""
        for topic in self._topics.values():
            wish = topic.desired, topic.pause_id
            if topic.desired is DesiredState.ACTIVE:
                self._given_up.pop(topic.topic, None)
            elif topic.destination_topic_id is None:
                continue  # no mirror topic yet: what its `add` writes of the partitions must not be overwritten
            elif self._given_up.get(topic.topic) != wish and self._lanes.is_free(topic.topic):
                self._given_up[topic.topic] = wish
                for partition in range(max(topic.partitions, self._partition_counts.get(topic.topic, 0))):
                    place = TopicPartition(topic.topic, partition)
                    before, row = self._records.get(place), self.rows.pop(place, None)
                    record = given_up(before, topic, partition, row, now_ms())
                    if record != before:
                        self._records[place] = self._changed_records[place] = record
                        self._lanes.beat_now = True

    # -- lanes ----------------------------------------------------------------------------------------------------

    def assignments(self) -> list[Assignment]:
        """List the partitions that are to be copied now; that records have come is told to lanes as they start."""
        found = []
        for topic in self._topics.values():
            if not _is_copied(topic):
                continue
            for partition in range(max(topic.partitions, self._partition_counts.get(topic.topic, 0))):
                record = self._records.get(TopicPartition(topic.topic, partition))
                guard = record.guard if record else None
                found.append(
                    Assignment(
                        topic.topic,
                        partition,
                        topic.source_topic,
                        parse_topic_id(topic.source_topic_id) if topic.source_topic_id else None,
                        _topic_id(topic),
                        guard.producer_id if guard else own_producer_id(self.mirror, topic.topic, partition),
                        guard.producer_epoch if guard else 0,
                        first_offset=(record.first_offset or 0) if record else 0,
                        recovery=(topic.recoveries or {}).get(partition),
                        follows_truncation=self._settings.source_truncation_policy == "follow",
                    )
                )
        return found

    def _plan(self) -> None:
        weights = {
            p: max(0, end - (self.rows[p].destination_offset or 0) if p in self.rows else end)
            for p, end in (self.targets or {}).items()
        }
        self._lanes.plan(self.assignments(), self._settings.copy_lanes, weights)

    def spec(
        self, lane: int, generation: int, assignments: Iterable[Assignment], *, in_doubt: bool, unsettled: Sequence[int]
    ) -> LaneSpec:
        """Make what a lane is started with."""
        return LaneSpec(
            self.mirror,
            lane,
            generation,
            self._lease.record.lease_id,
            dict(self._record.source),
            self._destination_properties,
            tuple(self.as_it_stands(assignment) for assignment in assignments),
            self._lease.record.ttl_ms,
            in_doubt,
            self._settings.retry_timeout_ms,
            self._record.source_cluster_id,
            tuple(unsettled),
        )

    def as_it_stands(self, assignment: Assignment) -> Assignment:
        """Return an assignment with what is no reason for a new plan, but to be known to a lane that takes it."""
        record = self._records.get(assignment.destination)
        if record is None:
            return assignment
        row = self.rows.get(assignment.destination)
        told = row.destination_offset if row else self._known_ends.get(assignment.destination)
        misplaced = record.reason is Reason.OFFSET_MISMATCH
        return replace(
            assignment,
            begun=record.begun,
            known_end=told if record.begun else None,
            mismatch_offset=record.failed_offset if misplaced else None,
            mismatch=record.message if misplaced else None,
        )

    # -- health ---------------------------------------------------------------------------------------------------

    def _judge_lanes(self, at: float) -> None:
        """Find out which lanes no worker reports on, and tell whoever watches once that has lasted."""
        silent, late = self._lanes.silent(at), bool(self._lanes.silent(at, LATE_SECONDS))
        if self._health.judge(silent, self._lanes.work_of(silent), late=late):
            self._lanes.beat_now = True
        lasts = self._health.silence(at) > LANE_SILENCE_SECONDS
        if lasts and not self._told_of_silence:
            self._told_of_silence = True
            self.notes.append(f"{self.mirror}: {self._no_workers(at)}")
            self.tell("workers", Reason.NO_WORKERS, {"lanes": sorted(silent), "master": self._lease.record.master})
        elif not silent and self._told_of_silence:
            self._told_of_silence = False
            self.notes.append(f"{self.mirror}: all lanes report again")
            self.tell("workers", "REPORT_AGAIN", {})

    def _no_workers(self, at: float) -> str:
        silent_ms = int(1000 * self._health.silence(at))
        return no_workers_text(self._health.silent_lanes, silent_ms, self._lease.record.master)

    def trouble(self, partition: TopicPartition) -> tuple[Reason, str] | None:
        """Return why it is not known that a partition is copied, None where its lane reports."""
        at = self._ended_at or now()
        if self._beat_at and at - self._beat_at > LANE_SILENCE_SECONDS:
            seconds = int(at - self._beat_at)
            return Reason.DESTINATION_UNREACHABLE, f"the destination has not accepted a heartbeat for {seconds} s"
        if self._told_of_silence and partition in self._health.silent_partitions:
            return Reason.NO_WORKERS, self._no_workers(at)
        return None

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how far a partition is behind what its source said within the last moments; None: not known."""
        row = self.rows.get(partition)
        return self._health.lag(partition, row.destination_offset if row else None, self._ended_at or now())

    # -- the lease ------------------------------------------------------------------------------------------------

    def _heartbeat(self, *, stopping: bool) -> None:
        try:
            self._settle()
            self._lanes.before_beat()
            beat = self._unconfirmed = _Beat(
                self._lanes.claims(),
                tuple(self._lanes.unsaid),
                tuple(self._changed_records.values()),
                tuple(self._events),
            )
            self._lease.heartbeat(
                beat.lanes,
                (*beat.changes, *beat.records),
                beat.events,
                stopping=stopping,
                revisions=self._lanes.revisions(),
                silent_lanes=self._silent_lanes(),
                source_trouble=self.source_trouble,
                timeout=_HEARTBEAT_TIMEOUT,
            )
        except OutcomeUnknown:
            return
        except KmirrorError as error:
            if error.reason is Reason.FENCED:
                self._lose(error)
            return
        self._unconfirmed = None
        self._beat_at, self._lanes.beat_now = now(), False
        self._said(beat)

    def _silent_lanes(self) -> dict[int, int]:
        """Return the lanes that no worker reports on, with the time of their last report, or of our beginning."""
        at, at_ms = now(), now_ms()
        return {lane: at_ms - int(1000 * (at - since)) for lane, since in self._health.silent_lanes.items()}

    def _settle(self) -> None:
        """Find out what became of a heartbeat without an answer: a command may have gone on from what it told."""
        if self._unconfirmed is not None:
            if self._lease.settle(_HEARTBEAT_TIMEOUT):
                self._said(self._unconfirmed)
            self._unconfirmed = None

    def _said(self, beat: _Beat) -> None:
        """Have done with what was written."""
        self._lanes.said(beat.lanes, beat.changes)
        for record in beat.records:
            if self._changed_records.get(TopicPartition(record.topic, record.partition)) is record:
                del self._changed_records[TopicPartition(record.topic, record.partition)]
        del self._events[: len(beat.events)]

    def _lose(self, error: KmirrorError) -> None:
        if self.lost is None:
            self.lost = error
            self.stop()

    def note(self, sentence: str) -> None:
        """Tell whoever watches."""
        self.notes.append(sentence)

    def tell(self, what: str, result: str, details: Mapping[str, object]) -> None:
        """Keep an event."""
        self._events.append(Event(now_ms(), self.mirror, what, self._actor, result, dict(details)))

    # -- what is heard --------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                heard = self._heard.get_nowait()
            except queue.Empty:
                return
            if isinstance(heard, ProgressRecord):
                self._take_progress(heard)
            elif isinstance(heard, FeedTopic):
                self._take_topic(heard)
            elif isinstance(heard, MirrorRecord):
                self._take_mirror(heard)
            elif isinstance(heard, JobEvent):
                self._take_told(heard)
            elif isinstance(heard, Exception):
                raise heard
            else:
                self._take_source_report(heard)

    def _take_mirror(self, record: MirrorRecord) -> None:
        """Go on with changed settings. How to log in to the source is taken from the record when an engine starts."""
        if record == self._record:
            return
        self._record, self._settings = record, parse_settings(record.settings)
        self._lanes.plan_now = True

    def _take_told(self, told: JobEvent) -> None:
        if told.note is not None:
            self.notes.append(told.note)
        if told.what is not None:
            self.tell(told.what, told.result, told.details)

    def _take_topic(self, heard: FeedTopic) -> None:
        record, before = heard.topic, self._topics.get(heard.topic.topic)
        if record == before:
            return
        self._topics[record.topic] = record
        self._lanes.plan_now = True
        goes_on = (
            before is not None
            and before.desired is not DesiredState.STOPPED
            and before.destination_topic_id == record.destination_topic_id
        )
        if not _is_copied(record):
            self._forget_targets(record.topic)
        if record.desired is DesiredState.STOPPED or goes_on:
            if before is not None and before.recoveries != record.recoveries:
                self._forget_failures(record.topic)
            return
        self._partition_counts.pop(record.topic, None)
        self._forget_targets(record.topic)
        self._given_up.pop(record.topic, None)
        # it became a mirror topic (again), be it a paused one: what its `add` or its rebuilding has written of the
        # partitions counts, not what we remember
        self._health.forget([p for p in self.rows if p.topic == record.topic])
        for known in (self._records, self._changed_records, self.rows, self._aligned_to, self._known_ends, self._again):
            for partition in [p for p in known if p.topic == record.topic]:
                del known[partition]
        self._records.update({TopicPartition(p.topic, p.partition): p for p in heard.partitions})

    def _forget_targets(self, topic: str) -> None:
        for partition in [p for p in self.targets or {} if p.topic == topic]:
            del (self.targets or {})[partition]

    def _forget_failures(self, topic: str) -> None:
        """Let what lanes say next of the topic's FAILED partitions be news, also when it is the same again."""
        for partition in [p for p, row in self.rows.items() if p.topic == topic and self._failed(p)]:
            del self.rows[partition]

    def _take_progress(self, record: ProgressRecord) -> None:
        words, last_words = self._lanes.heard(record)
        for row, assignment in words:
            partition, topic = assignment.destination, self._topics.get(row.topic)
            # a lane's late word on a topic that was given up, or on its namesake, is nobody's any more
            if topic is None or not _is_copied(topic) or assignment.destination_topic_id != _topic_id(topic):
                continue
            self._health.take_report(partition, record, row, now())
            if self.rows.get(partition) != row:
                self.rows[partition] = row
                self._remember(partition, row)
                self._want_rebuild(topic, row)
        for row, assignment in last_words:
            topic = self._topics.get(row.topic)
            if topic is not None and assignment.destination_topic_id == _topic_id(topic):
                self._take_last_word(assignment.destination, row)

    def _take_last_word(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Keep of a partition that a lane has given up how far it came."""
        if row.begun and row.destination_offset is not None:
            self._known_ends[partition] = row.destination_offset
        if partition in self.rows:
            self.rows[partition] = row

    def _remember(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Keep what must outlive the engine, and tell what whoever watches should know."""
        before = self._records.get(partition)
        self._tell_of_alignment(partition, row, before)
        self._tell_of_loss(partition, row, before)
        self._tell_of_repetition(partition, row)
        record = remember(before, self.mirror, row, reached=self._reached(partition), now_ms=now_ms())
        if record == before:
            return
        failed = before if before is not None and before.state is PartitionState.FAILED else None
        details = {"topic": row.topic, "partition": row.partition}
        if row.state is PartitionState.FAILED and (failed is None or failed.reason is not row.reason):
            self.notes.append(f"{partition} FAILED {row.reason}: {row.message}")
            self.tell("partition", "FAILED", {**details, "reason": row.reason, "message": row.message})
        elif failed is not None and record.state is not PartitionState.FAILED:
            self.notes.append(f"{partition} resumed copying; it was FAILED {failed.reason}")
            self.tell("partition", "RESUMED", {**details, "reason": failed.reason, "failedAtMs": failed.state_time_ms})
        self._records[partition] = self._changed_records[partition] = record

    def _want_rebuild(self, topic: TopicRecord, row: ProgressRow) -> None:
        """Have a topic rebuilt whose source is another one now or has another history, where that is allowed."""
        if row.state is not PartitionState.FAILED or row.reason is None:
            return
        recovery = (topic.recoveries or {}).get(row.partition)
        consented = recovery is not None and recovery.rebuilds is row.reason
        by_itself = (row.reason in RESETS and self._settings.source_reset_policy == "auto") or (
            row.reason is Reason.SOURCE_DIVERGED and self._settings.source_divergence_policy == "auto"
        )
        if consented or by_itself:
            self._rebuilds.want(topic.topic, row.reason, consented=consented)

    def _tell_of_alignment(self, partition: TopicPartition, row: ProgressRow, record: PartitionRecord | None) -> None:
        note = alignment_note(row, record.first_offset if record else None)
        if note is None or row.aligned_to is None or self._aligned_to.get(partition) == row.aligned_to:
            return
        self._aligned_to[partition] = row.aligned_to
        self.notes.append(note)
        details = {"topic": row.topic, "partition": row.partition, "offset": row.aligned_to}
        self.tell("partition", "ALIGNED", details)

    def _tell_of_loss(self, partition: TopicPartition, row: ProgressRow, record: PartitionRecord | None) -> None:
        if row.lost_from is None or row.lost_until is None or (record and record.lost_until == row.lost_until):
            return
        lost = row.lost_until - row.lost_from
        self.notes.append(
            f"{partition} goes on without {lost} records that its source had lost: {row.lost_from} to "
            f"{row.lost_until - 1}"
        )
        details = {"topic": row.topic, "partition": row.partition, "from": row.lost_from, "until": row.lost_until}
        self.tell("partition", "LOSS_ACCEPTED", {**details, "records": lost})

    def _tell_of_repetition(self, partition: TopicPartition, row: ProgressRow) -> None:
        if row.again_from is None or row.again_until is None:
            return
        again = row.again_from, row.again_until
        if self._again.get(partition) == again:
            return
        self._again[partition] = again
        self.notes.append(
            f"{partition} had lost the offsets {again[0]} to {again[1] - 1} at the destination; what remains is the "
            "source's, and they are copied again"
        )
        details = {"topic": row.topic, "partition": row.partition, "from": again[0], "until": again[1]}
        self.tell("partition", "DESTINATION_TRUNCATED", details)

    def _take_source_report(self, seen: SourceReport) -> None:
        if seen.trouble:
            if self.source_trouble is None or self.source_trouble.reason is not seen.trouble.reason:
                is_refused = seen.trouble.reason in LINK_REFUSED
                what = "cannot be mirrored" if is_refused else "does not answer"
                self.notes.append(f"the source of {self.mirror} {what}: {seen.trouble}")
                reason = seen.trouble.reason or Reason.SOURCE_UNREACHABLE
                details = {"reason": reason, "message": str(seen.trouble)}
                self.tell("source", "LINK_FAILED" if is_refused else "SOURCE_UNAVAILABLE", details)
            self.source_trouble = seen.trouble
            return
        if seen.log_start_trouble and not self._log_start_trouble:
            self.notes.append(
                f"what the source of {self.mirror} has deleted is kept in the mirror: {seen.log_start_trouble}"
            )
        self._log_start_trouble = seen.log_start_trouble is not None
        if self.source_trouble is not None:
            self.notes.append(f"the source of {self.mirror} answers again")
            self.tell("source", "ANSWERS_AGAIN", {})
        self.source_trouble = None
        for topic, count in seen.partitions.items():
            record = self._topics.get(topic)
            known = max(self._partition_counts.get(topic, 0), record.partitions if record else 0)
            if record and count > known:
                self.notes.append(f"{topic} has {count - known} more partitions at the source: they are copied too")
                self.tell("partitions", "added", {"topic": topic, "partitions": count})
                self._partition_counts[topic] = count
                self._lanes.plan_now = True
        if self.targets is None:
            self.targets = dict(seen.source_offsets)
            self._lanes.plan_now = True
        for partition, end in seen.source_offsets.items():
            self.targets.setdefault(partition, end)
            self._health.take_end(partition, end, seen.seen_at)
        for partition, row in self.rows.items():
            # a partition that stands still says nothing new, but may have been at its end when it spoke
            kept = self._records.get(partition)
            if kept is not None and not kept.initial_copy_complete and self._reached(partition):
                self._remember(partition, row)

    def _reached(self, partition: TopicPartition) -> bool:
        """Tell whether it holds what its source did: a log that is being aligned may hold filler up to there."""
        row = self.rows.get(partition)
        target = (self.targets or {}).get(partition)
        return (
            row is not None
            and row.state is not PartitionState.LOG_ALIGNMENT
            and target is not None
            and row.destination_offset is not None
            and row.destination_offset >= target
        )

    @property
    def caught_up(self) -> bool:
        """True when every partition has reached the source end seen at the start, or FAILED."""
        return (
            self.targets is not None
            and all(self._reached(p) or self._failed(p) for p in self.targets)
            and all(a.destination in self.targets or self._failed(a.destination) for a in self.assignments())
            and not self._claimed()
            and not any(self._rebuilds.is_wanted(topic) for topic in self._topics)
        )

    def _failed(self, partition: TopicPartition) -> bool:
        row = self.rows.get(partition)
        return row is not None and row.state is PartitionState.FAILED

    @property
    def failures(self) -> list[ProgressRow]:
        """The partitions that are FAILED now."""
        return [row for row in self.rows.values() if row.state is PartitionState.FAILED]

    # -- threads --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Hear what lanes and operators write."""
        heard = Replica(self.mirror)
        with ClusterClient(self._destination_config) as client:
            tail = Tail(client, STATE_PARTITION, read_committed=True)
            while not self._stop_threads.is_set():
                try:
                    answer = tail.poll(_POLL_MS)
                except (KmirrorError, OutcomeUnknown):
                    self._stop_threads.wait(_PAUSE)
                    continue
                for record in answer.records:
                    if record.key is not None:
                        for met in heard.take(decode(record.key, record.value)):
                            self._heard.put(met)
                if answer.reached_end:
                    for topic in heard.catch_up():
                        self._heard.put(topic)
            tail.close()


def _is_copied(topic: TopicRecord) -> bool:
    return topic.desired is DesiredState.ACTIVE and topic.pending_operation in (None, PENDING_PROMOTE)


def _keeps_what_was_lost(record: PartitionRecord | None, row: ProgressRow) -> bool:
    """Tell whether the mirror holds what its source lost together with records that were never copied.

    That stays until the source deletes more.
    """
    return record is not None and record.lost_until is not None and (row.source_log_start or 0) <= record.lost_until


def _topic_id(topic: TopicRecord) -> bytes | None:
    return parse_topic_id(topic.destination_topic_id) if topic.destination_topic_id else None
