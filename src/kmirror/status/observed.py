"""What is known of a mirror besides its records: what the clusters returned, and what lanes last reported. Pure.

A command reads both clusters; a running engine has the same from its lanes and its source monitor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.errors import HISTORY_REASONS, KmirrorError
from kmirror.state.records import ProgressRecord, ProgressRow, TopicRecord
from kmirror.state.snapshot import State, rows_of

#: How far a producer's clock may be ahead of ours; the timestamp of a later record says nothing of its arrival.
CLOCK_SKEW_MS = 60_000

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """What one cluster returned at `time_ms`, or the `trouble` with it; equal to what it returned at another time.

    A partition missing from a mapping has no leader now, or may not be described. `last_stable_offset` is read from
    sources. A destination ends at its `high_watermark`: records after it may still be lost with their leader.
    """

    time_ms: int = field(compare=False)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    log_start_offset: Offsets = field(default_factory=dict)
    last_stable_offset: Offsets = field(default_factory=dict)
    high_watermark: Offsets = field(default_factory=dict)
    #: How many partitions topics are known to have, where `topics` was not read.
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    #: When a partition's ends were read, if not at `time_ms`.
    seen_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    trouble: KmirrorError | None = None

    def of_topics(self, names: Collection[str]) -> ClusterSnapshot:
        """Return what it says of these topics."""

        def kept(found: Offsets) -> Offsets:
            return {at: found[at] for at in partitions if at in found}

        topics = {name: self.topics[name] for name in names if name in self.topics}
        partitions = [TopicPartition(name, index) for name, one in topics.items() for index in one.partitions]
        return replace(
            self,
            topics=topics,
            log_start_offset=kept(self.log_start_offset),
            last_stable_offset=kept(self.last_stable_offset),
            high_watermark=kept(self.high_watermark),
        )

    def partitions_of(self, topic: str, topic_id: str | None) -> frozenset[int] | None:
        """Return the partitions of a topic; None if they are unknown, as those of another topic of its name."""
        found = self.topics.get(topic)
        if found is None:
            count = self.partition_counts.get(topic)
            return None if count is None else frozenset(range(count))
        is_same = topic_id is None or found.printed_topic_id in (None, topic_id)
        return frozenset(found.partitions) if is_same and not found.error_code else None


def is_gone(topic: TopicRecord, found: TopicMetadata | None) -> bool:
    """Return whether the mirror topic was deleted, even if another one has its name; a forbidden topic is not gone."""
    if topic.destination_topic_id is None or found is None:
        return False
    if found.error_code:
        return found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    return found.printed_topic_id not in (None, topic.destination_topic_id)


@dataclass(frozen=True, slots=True)
class Report:
    """A lane's last report on a partition, and the record that contains it."""

    record: ProgressRecord
    row: ProgressRow

    @property
    def time_ms(self) -> int:
        return self.record.time_ms

    @property
    def as_of_ms(self) -> int:
        """The latest time at which the source's reported values held."""
        return self.record.as_of_ms(self.row)

    @property
    def caught_up_ms(self) -> int | None:
        """When the destination last had all that the source has; None: never seen."""
        source_offset, destination_offset = self.row.source_offset, self.row.destination_offset
        if self.row.reason in HISTORY_REASONS:
            return self.row.caught_up_ms  # a copy may be long enough by records that are not the source's
        if source_offset is not None and destination_offset is not None and destination_offset >= source_offset:
            return self.as_of_ms
        return self.row.caught_up_ms

    def time_lag(self, lag: int | None, now_ms: int) -> int | None:
        """Return an upper bound of the time in milliseconds for which the destination has been behind."""
        return time_lag(lag, self.row.last_timestamp_ms, self.caught_up_ms, self.time_ms, now_ms)


def time_lag(
    lag: int | None, last_timestamp_ms: int | None, caught_up_ms: int | None, reported_ms: int, now_ms: int
) -> int | None:
    """Return for how many milliseconds at most the destination has lacked a record; None if that is unknown.

    A record that is not copied yet arrived at the source after the last one that is (of `last_timestamp_ms`), and after
    the time at which the copy had last caught up. The later of the two bounds how far behind the copy is: that is right
    after an idle hour too, and for records with old timestamps. Both were reported at `reported_ms`.
    """
    if lag is None or lag == 0:
        return lag
    since_ms = caught_up_ms
    if last_timestamp_ms is not None and 0 <= last_timestamp_ms <= reported_ms + CLOCK_SKEW_MS:
        arrived_ms = min(last_timestamp_ms, reported_ms)
        since_ms = arrived_ms if since_ms is None else max(since_ms, arrived_ms)
    return None if since_ms is None else max(0, now_ms - since_ms)


def reports_of(state: State, mirror: str) -> dict[TopicPartition, Report]:
    """Return the last report on each partition of a mirror."""
    found: dict[TopicPartition, Report] = {}
    for progress, pages in state.lanes(mirror):
        for row in chain.from_iterable(rows_of(progress, pages)):
            partition = TopicPartition(row.topic, row.partition)
            before = found.get(partition)
            if before is None or before.record.time_ms < progress.time_ms:
                found[partition] = Report(progress, row)
    return found
