"""The status of a mirror's topics from what its running engine knows, without reading the clusters.

The rules are those of the commands (`kmirror.status`). In place of snapshots of both clusters they are given the source
ends that the source returned lately, and the destination ends that the lanes last reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.quota import throttle_text
from kmirror.engine.driver.link_status import DestinationStatus, SourceStatus
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.status.health import KNOWN_SECONDS, MirrorHealth
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import StoredRecords
from kmirror.errors import KmirrorError, Reason
from kmirror.state.engine_findings import Lacking
from kmirror.state.lease import Lease
from kmirror.state.records import (
    PENDING_PROMOTE,
    DesiredState,
    EngineRecord,
    Incarnation,
    PartitionRecord,
    ProgressRecord,
    ProgressRow,
    TopicRecord,
)
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.engine_health import EngineHealth, engine_health
from kmirror.status.mirror_status import objectives_of, throttle_of
from kmirror.status.observed import ClusterSnapshot, Report
from kmirror.status.rules import MirrorFacts, topic_status
from kmirror.status.topic_status import TopicStatus
from kmirror.words import at_time

#: How much older the lag of an unchanged topic may be shown than it is.
_AS_OF_MS = 5_000


@dataclass(frozen=True, slots=True)
class Known:
    """What an engine knows of its mirror's partitions at a time: `at` by its clock, `time_ms` by the wall clock."""

    at: float
    time_ms: int
    health: EngineHealth
    source_trouble: KmirrorError | None
    #: The mirror topics that lack partitions of their sources; and where the logs of those begin at the source.
    lacking: Mapping[str, Lacking]
    lacking_starts: Mapping[TopicPartition, int]
    #: When the ends of paused partitions were last read, and the ends, at the source and at the destination.
    paused_ends: tuple[float, Mapping[TopicPartition, tuple[int, int]]]
    #: How often they are read.
    refresh_seconds: float
    #: Of a partition: its lane's last row, when that lane last reported, and when the source returned which end.
    row: Callable[[TopicPartition], ProgressRow | None]
    reported_at: Callable[[TopicPartition], float | None]
    source_end: Callable[[TopicPartition], tuple[float, int] | None]

    def ms(self, moment: float) -> int:
        """Return a time of the engine's clock in epoch milliseconds."""
        return self.time_ms - int(1000 * (self.at - moment))

    @property
    def are_paused_known(self) -> bool:
        """False if the last read of the ends of paused partitions was missed."""
        is_missed = self.at - self.paused_ends[0] > 2 * self.refresh_seconds + KNOWN_SECONDS
        return self.source_trouble is None and not is_missed

    def snapshots(self, topics: Iterable[TopicRecord]) -> tuple[ClusterSnapshot, ClusterSnapshot]:
        """Return what is known of the destination and of the source; a source's end is for `KNOWN_SECONDS`.

        While the destination accepts no heartbeat, nothing is known of it either.
        """
        seen = _Seen()
        for topic in topics:
            there, lacking = topic.source_topic, self.lacking.get(topic.topic)
            is_paused = topic.desired is DesiredState.PAUSED and self.are_paused_known
            for partition in range(max(topic.partitions, lacking.partitions if lacking is not None else 0)):
                here = TopicPartition(topic.topic, partition)
                at_source = here if there == topic.topic else TopicPartition(there, partition)
                self._take_lane(here, at_source, seen)
                if is_paused and (ends := self.paused_ends[1].get(here)) is not None:
                    # nothing changes the destination's end meanwhile
                    seen.source_ends[at_source], seen.destination_ends[here] = ends
                    seen.source_ms[at_source] = seen.destination_ms[here] = self.ms(self.paused_ends[0])
                if (start := self.lacking_starts.get(here)) is not None:
                    seen.starts[at_source] = start
            if lacking is not None:
                seen.counts[there] = lacking.partitions
        is_silent = self.health.reason is Reason.ENGINE_SILENT
        return (
            ClusterSnapshot(
                self.time_ms,
                high_watermark={} if is_silent else seen.destination_ends,
                seen_ms=seen.destination_ms,
            ),
            ClusterSnapshot(
                self.time_ms,
                log_start_offset=seen.starts,
                last_stable_offset=seen.source_ends,
                high_watermark=seen.high_watermarks,
                partition_counts=seen.counts,
                seen_ms=seen.source_ms,
                trouble=self.source_trouble,
            ),
        )

    def _take_lane(self, here: TopicPartition, there: TopicPartition, seen: _Seen) -> None:
        row, reported_at, end = self.row(here), self.reported_at(here), self.source_end(here)
        if row is not None and row.destination_offset is not None:
            seen.destination_ends[here] = row.destination_offset
            if reported_at is not None:
                seen.destination_ms[here] = self.ms(reported_at)
        if end is None or self.at - end[0] > KNOWN_SECONDS:
            return
        seen.source_ends[there], seen.source_ms[there] = end[1], self.ms(end[0])
        is_fresh = reported_at is not None and self.at - reported_at <= KNOWN_SECONDS
        if row is None or row.source_seen_ms is not None or not is_fresh:
            return
        if row.source_high_watermark is not None:
            seen.high_watermarks[there] = max(end[1], row.source_high_watermark)
        if row.source_log_start is not None:
            seen.starts[there] = row.source_log_start


class _Seen:
    """What snapshots are made of."""

    def __init__(self) -> None:
        self.destination_ends: dict[TopicPartition, int] = {}
        self.destination_ms: dict[TopicPartition, int] = {}
        self.source_ends: dict[TopicPartition, int] = {}
        self.source_ms: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.counts: dict[str, int] = {}


def own_health(record: EngineRecord, time_ms: int, destination_trouble: str | None) -> EngineHealth:
    """Return the health of an engine that runs; if others call it silent, it knows why."""
    if destination_trouble is None and record.last_seen_ms > time_ms:
        # this host's clock was set back since, which the next heartbeat, within a second, puts right
        time_ms = record.last_seen_ms
    health = engine_health(record, record.mirror, time_ms, has_ended=False)
    if health.reason is not Reason.ENGINE_SILENT:
        return health
    why = "; check the destination"
    if destination_trouble is not None:
        why = f": {destination_trouble}"
    elif record.throttled_by is not None:
        why = f"; {throttle_text(record.throttled_by)}"
    since = at_time(record.last_seen_ms)
    return replace(health, silence=f"the destination has not accepted a heartbeat of this engine since {since}{why}")


@dataclass(frozen=True, slots=True)
class _Cause:
    """What a topic's status depends on, besides what is reported of its partitions."""

    topic: TopicRecord
    is_promoted: bool
    lacking: Lacking | None
    objective_ms: int | None
    #: Of a topic that is not copied: what else changes while lanes report nothing.
    beside: tuple[object, ...]


class LiveStatus:
    """Keep the status of one mirror's topics; for one thread.

    While the destination accepts heartbeats, all lanes report and the source answers them, only new reports change the
    status of topics that are copied: of the others only the time at which their lag was known is new.
    """

    def __init__(
        self,
        topics: MirrorTopics,
        partitions: MirrorPartitions,
        health: MirrorHealth,
        lanes: Lanes,
        lease: Lease,
        source: SourceStatus,
        destination: DestinationStatus,
        stored: StoredRecords,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._health = health
        self._lanes = lanes
        self._lease = lease
        self._source = source
        self._destination = destination
        self._stored = stored
        #: The last report of each lane, without rows.
        self._reports: dict[int, ProgressRecord] = {}
        #: The lanes as they were claimed last: an engine that ends claims none, but they still report.
        self._claims: dict[int, Incarnation] = {}
        self._known: dict[str, tuple[_Cause, TopicStatus]] = {}
        self._was_steady = False
        self._last: tuple[TopicStatus, ...] | None = None

    def take(self, report: ProgressRecord) -> None:
        """Take the report of a lane's current run."""
        self._reports[report.lane] = replace(report, rows=())

    def end(self, at: float, time_ms: int) -> None:
        """Keep the status as it is at a time: the engine ends."""
        self._last = self.current(at, time_ms)

    @property
    def lacks_partitions(self) -> bool:
        """True if the source has partitions of copied topics that the mirror lacks."""
        known = self._topics.by_name
        return any(
            name in known and known[name].is_copied and found.partitions > known[name].partitions
            for name, found in self._source.lacking.items()
        )

    def current(self, at: float, time_ms: int) -> tuple[TopicStatus, ...]:
        """Return the status of each topic, sorted by name; the time is by the engine's and by the wall clock."""
        if self._last is not None:
            return self._last
        known, records = self._now(at, time_ms), self._topics.by_name
        changed = self._partitions.take_changed_topics()
        is_promoted = self._is_promoted(time_ms)
        steady_since_ms = self._steady_since_ms(known)
        is_kept = steady_since_ms is not None and self._was_steady
        self._was_steady = steady_since_ms is not None
        found: dict[str, tuple[_Cause, TopicStatus]] = {}
        renewed: list[TopicRecord] = []
        for name, record in records.items():
            cause = self._cause(record, known, is_promoted=is_promoted)
            before = self._known.get(name)
            # how long a lag has lasted grows without any report
            is_settled = before is not None and (not record.is_copied or (is_kept and before[1].lag == 0))
            if before is None or name in changed or before[0] != cause or not is_settled:
                renewed.append(record)
            else:
                found[name] = cause, _as_of(before[1], steady_since_ms) if record.is_copied else before[1]
        if renewed:
            here, there = known.snapshots(renewed)
            mirror = self._topics.record
            limit, objectives = throttle_of(mirror), objectives_of(mirror)
            facts = MirrorFacts(here, there, known.health, is_promoted, limit, time_ms, objectives)
            for record in renewed:
                cause = self._cause(record, known, is_promoted=is_promoted)
                found[record.topic] = cause, topic_status(record, *self._of_topic(record), facts)
        self._known = found
        return tuple(found[name][1] for name in sorted(found))

    def _now(self, at: float, time_ms: int) -> Known:
        if not self._lanes.stopping:
            self._claims = self._lanes.claims()
        record = replace(self._lease.record, lanes=self._claims, throttled_by=self._destination.throttled_by)
        return Known(
            at,
            time_ms,
            own_health(record, time_ms, self._destination.trouble(at)),
            self._source.trouble,
            self._source.lacking,
            self._source.lacking_starts,
            self._source.paused_ends,
            self._topics.settings.refresh_interval_seconds,
            self._partitions.rows.get,
            self._health.reported_at_of,
            self._health.end_of,
        )

    def _is_promoted(self, time_ms: int) -> bool:
        found = self._stored.get(("workflow", self._topics.record.name, PROMOTE))
        return isinstance(found, WorkflowRecord) and found.is_alive(time_ms)

    def _cause(self, record: TopicRecord, known: Known, *, is_promoted: bool) -> _Cause:
        beside: tuple[object, ...] = ()
        if not record.is_copied:
            trouble = known.source_trouble.reason if known.source_trouble is not None else None
            beside = known.health.reason, known.source_trouble is None, trouble
            if record.desired is DesiredState.PAUSED:
                beside = *beside, known.paused_ends[0], known.are_paused_known
        is_waiting = is_promoted and record.pending_operation == PENDING_PROMOTE
        objective_ms = self._topics.settings.objective_rpo.of(record.source_topic)
        return _Cause(record, is_waiting, known.lacking.get(record.topic), objective_ms, beside)

    def _of_topic(self, topic: TopicRecord) -> tuple[dict[int, PartitionRecord], dict[TopicPartition, Report]]:
        """Return the records of a topic's partitions, and the last reports on them."""
        records, reports = {}, {}
        for partition in self._partitions.of_topic(topic.topic, topic.partitions):
            if (record := self._partitions.records.get(partition)) is not None:
                records[partition.partition] = record
            row, lane = self._partitions.rows.get(partition), self._partitions.lane_of.get(partition)
            if row is not None and lane is not None and (report := self._reports.get(lane)) is not None:
                reports[partition] = Report(report, row)
        return records, reports

    def _steady_since_ms(self, known: Known) -> int | None:
        """Return the earliest time at which lanes reported on all partitions to copy; None unless all is well.

        Topics may have trouble of their own; their status then depends on rows alone.
        """
        seen = self._health.lanes_seen_at
        is_well = known.health.reason is None and self._source.trouble is None and not self._health.silent_lanes
        wanted = sum(topic.partitions for topic in self._topics.by_name.values() if topic.is_copied)
        if not is_well or not seen or self._health.wants_ends or self._health.reported != wanted:
            return None
        return known.ms(min(seen))


def _as_of(topic: TopicStatus, time_ms: int | None) -> TopicStatus:
    """Return an unchanged topic, with a new time of its lag if the one it has is old."""
    if topic.lag_as_of_ms is None or time_ms is None or time_ms - topic.lag_as_of_ms < _AS_OF_MS:
        return topic
    return replace(topic, lag_as_of_ms=time_ms)
