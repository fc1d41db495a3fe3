"""How the copy of one mirror's partitions is doing, from what its engine knows of lanes, source and heartbeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import epoch_ms, now, now_ms
from kmirror.engine.driver.heartbeats import Heartbeats
from kmirror.engine.driver.link_status import DestinationStatus, SourceStatus
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.lanes.workers import Workers
from kmirror.engine.status.counters import Counters
from kmirror.engine.status.health import LANE_SILENCE_SECONDS, MirrorHealth, time_lag
from kmirror.engine.status.history import Sample
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.errors import KmirrorError, Reason
from kmirror.state.records import (
    FRESH_SECONDS,
    PENDING_REBUILD,
    DesiredState,
    Lacking,
    PartitionRecord,
    PartitionState,
    ProgressRow,
    TopicRecord,
)
from kmirror.words import at_time


class MirrorStatus:
    """Judge the partitions of one mirror; for one thread."""

    def __init__(
        self,
        topics: MirrorTopics,
        partitions: MirrorPartitions,
        health: MirrorHealth,
        lanes: Lanes,
        heartbeats: Heartbeats,
        workers: Workers,
        source: SourceStatus,
        destination: DestinationStatus,
    ) -> None:
        self.mirror = topics.record.name
        self._topics = topics
        self._partitions = partitions
        self._health = health
        self._lanes = lanes
        self._heartbeats = heartbeats
        self._workers = workers
        self._source = source
        self._destination = destination
        #: When the engine stopped this mirror: lag and trouble stay as they were then.
        self.ended_at: float | None = None

    def wanted_partitions(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions to copy, by topic."""
        return self._topics.wanted_partitions()

    def lacking(self, topic: str) -> Lacking | None:
        """Return the partitions that a copied topic lacks, and why; None if it lacks none."""
        record, found = self._topics.by_name.get(topic), self._source.lacking.get(topic)
        return (
            found
            if record is not None and found and record.is_copied and found.partitions > record.partitions
            else None
        )

    def lacking_partitions(self) -> list[TopicPartition]:
        """Return the partitions of copied topics that the source has and the mirror lacks."""
        return [
            TopicPartition(name, partition)
            for name in self._source.lacking
            if (found := self.lacking(name)) is not None
            for partition in range(self._topics.by_name[name].partitions, found.partitions)
        ]

    def row(self, partition: TopicPartition) -> ProgressRow | None:
        """Return a lane's last row on a partition."""
        return self._partitions.rows.get(partition)

    def topic(self, name: str) -> TopicRecord:
        """Return a topic's record; a promote that waits for it tells of itself."""
        return replace(self._topics.by_name[name], pending_operation=None)

    def records(self, partitions: Iterable[TopicPartition]) -> dict[int, PartitionRecord]:
        """Return the stored records of a topic's partitions, by their numbers."""
        known = self._partitions.records
        return {p.partition: record for p in partitions if (record := known.get(p)) is not None}

    def take_changed_topics(self) -> set[str]:
        """Return the topics of which anything was reported since the last call."""
        return self._partitions.take_changed_topics()

    def steady_since_ms(self, partitions: int) -> int | None:
        """Return the earliest time at which lanes reported on this many partitions; None unless all is well.

        Topics may have trouble of their own; views of them then depend on rows alone.
        """
        at, reported = now(), self._lanes.reported_at.values()
        accepted_at = self._heartbeats.last_at
        is_well = self.ended_at is None and at - accepted_at <= LANE_SILENCE_SECONDS and self._source.trouble is None
        if not is_well or not reported or self._health.wants_ends or self._health.silent_lanes:
            return None
        if self._health.reported != partitions:
            return None
        return epoch_ms(min(reported) - FRESH_SECONDS)

    @property
    def source_trouble(self) -> KmirrorError | None:
        """Why the source does not answer, or may not be mirrored; None in the normal case."""
        return self._source.trouble

    def trouble(self, partition: TopicPartition) -> tuple[Reason, str] | None:
        """Return why it is unknown whether a partition is copied; None if its lane reports."""
        at, accepted_at = self.ended_at or now(), self._heartbeats.last_at or self._health.began
        if at - accepted_at > LANE_SILENCE_SECONDS:
            since = at_time(epoch_ms(accepted_at))
            why = self._destination.trouble(at)
            what = f"the destination has not accepted a heartbeat since {since}"
            return Reason.DESTINATION_UNREACHABLE, what if why is None else f"{what}: {why}"
        silence = self._workers.trouble(partition, at)
        return None if silence is None else (Reason.NO_WORKERS, silence)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how far a partition is behind the source's end; None if either end is unknown or old.

        A partition that the mirror lacks, or whose mirror topic is gone, is behind by its whole log.
        """
        row = self._partitions.rows.get(partition)
        copied = row.destination_offset if row else self._source.lacking_starts.get(partition)
        if row is not None and row.reason is Reason.DESTINATION_TOPIC_DELETED:
            copied = row.source_log_start or 0
        return self._health.lag(partition, copied, self.ended_at or now())

    def lag_as_of_ms(self, partition: TopicPartition) -> int | None:
        """Return when both ends that `lag` compares were last known, in epoch milliseconds; None for never."""
        known_at = self._health.known_at(partition)
        return None if known_at is None else epoch_ms(known_at)

    def sample(self, counters: Counters) -> Sample:
        """Sum up the mirror as it is now, for its history."""
        wanted = [partition for partitions in self.wanted_partitions().values() for partition in partitions]
        lacking = self.lacking_partitions()
        idle = sum(topic.partitions for topic in self._topics.idle()) + len(lacking)
        rows, at_ms = self._partitions.rows, now_ms()
        is_steady = self.steady_since_ms(len(wanted)) is not None
        suspects = () if is_steady else wanted
        troubled = {p: found[0] for p in suspects if (found := self.trouble(p)) is not None}
        lags = {p: 0 if is_steady and self._partitions.is_at_rest(p) else self.lag(p) for p in wanted}
        lags |= {p: self.lag(p) for p in lacking}
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
        elif self._source.trouble is not None:
            phase = self._source.trouble.reason or Reason.SOURCE_UNREACHABLE
        return Sample(
            lag=sum(known) if (known := [lag for lag in lags.values() if lag is not None]) else None,
            lag_unknown=len(lags) - len(known),
            time_lag_ms=max((lag for lag in time_lags if lag is not None), default=None),
            bytes_copied=sum(one.bytes for one in counters.copied.values()) if is_reported else None,
            records_copied=sum(one.records for one in counters.copied.values()) if is_reported else None,
            failed=sum(partition in rows and rows[partition].state is PartitionState.FAILED for partition in wanted),
            not_copied=idle + len(troubled),
            phase=phase,
        )

    def _caught_up_ms(self, partition: TopicPartition, row: ProgressRow) -> int | None:
        """Return when the destination last had everything that the source has; None if it never had."""
        source_offset, destination_offset = row.source_offset, row.destination_offset
        if source_offset is not None and destination_offset is not None and destination_offset >= source_offset:
            return self.lag_as_of_ms(partition)
        return row.caught_up_ms

    def idle_topics(self) -> dict[str, str]:
        """Return the topics that are not copied now, each with its desired state."""
        return {topic.topic: _desired(topic) for topic in self._topics.by_name.values() if not topic.is_copied}


def _desired(topic: TopicRecord) -> str:
    """Return the desired state of a topic that is not copied."""
    if topic.desired is not DesiredState.ACTIVE:
        return topic.desired
    return "PENDING_MIRROR" if topic.pending_operation == PENDING_REBUILD else "STOPPING"
