"""What an engine knows of its mirror's partitions: what lanes report, and what is stored because it must outlive them.

A new row changes what is stored (`stored_partition`), and what it reports for the first time is announced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.engine.status.stored_partition import alignment_note, record_after, released_record
from kmirror.errors import Reason
from kmirror.state.assignment import SourceSeen
from kmirror.state.records import PartitionRecord, PartitionState, ProgressRecord, ProgressRow, TopicRecord
from kmirror.words import counted

#: The levels of events that need attention, by their result.
_LEVELS = {"FAILED": Level.ERROR, "LOSS_ACCEPTED": Level.WARNING, "DESTINATION_TRUNCATED": Level.WARNING}


class MirrorPartitions:
    """Keep what is known of one mirror's partitions; for one thread, except where a method says otherwise."""

    def __init__(
        self,
        mirror: str,
        records: Iterable[PartitionRecord],
        last_rows: Sequence[tuple[ProgressRecord, ProgressRow]],
        health: MirrorHealth,
        journal: MirrorJournal,
    ) -> None:
        self._mirror = mirror
        self._health = health
        self._journal = journal
        self.records = {TopicPartition(p.topic, p.partition): p for p in records}
        #: What no heartbeat has stored yet.
        self.changed: dict[TopicPartition, PartitionRecord] = {}
        self.rows: dict[TopicPartition, ProgressRow] = {}
        #: The lanes that reported them.
        self.lane_of: dict[TopicPartition, int] = {}
        #: The source's ends when the engine began, by destination partition; None until the source has answered.
        self.targets: dict[TopicPartition, int] | None = None
        #: The destination's log ends that lanes reported to the last engine, since the partitions' records changed.
        self._known_ends = {
            partition: row.destination_offset
            for report, row in last_rows
            if row.begun
            and (known := self.records.get(partition := TopicPartition(row.topic, row.partition)))
            and known.state_time_ms < report.time_ms
        }
        #: What the source last returned to lanes of earlier engines, and about partitions that were released since.
        self._source_seen = {p: kept.source_seen for p, kept in self.records.items() if kept.source_seen is not None}
        self._source_seen |= {
            TopicPartition(row.topic, row.partition): seen
            for report, row in last_rows
            if (seen := _source_seen(row, report.as_of_ms(row))) is not None
        }
        #: By partition, the offset at which a lane last made its log start.
        self._aligned_to: dict[TopicPartition, int] = {}
        #: By partition, the offsets last announced to be copied again.
        self._recopied: dict[TopicPartition, tuple[int, int]] = {}
        #: How many offsets the source had lost before they were copied, since the engine started.
        self.lost_records = 0
        #: The partitions that are behind or were being copied when their lanes last reported on them.
        self._busy: set[TopicPartition] = set()
        #: Those whose lanes last reported that a login is refused.
        self._refused: set[TopicPartition] = set()
        #: See `take_changed_topics`.
        self._changed_topics: set[str] = set()
        #: By topic, the partitions of which anything is known.
        self._of_topic: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        self._mark_changed(*self.records, *self._known_ends)

    def _mark_changed(self, *partitions: TopicPartition) -> None:
        """Note that what is known of these partitions has changed."""
        for partition in partitions:
            self._changed_topics.add(partition.topic)
            self._of_topic[partition.topic].add(partition)

    def take_changed_topics(self) -> set[str]:
        """Return the topics of which anything has changed since the last call."""
        changed, self._changed_topics = self._changed_topics, set()
        return changed

    def take_row(self, partition: TopicPartition, record: ProgressRecord, row: ProgressRow, at: float) -> bool:
        """Take a lane's row on a partition that it copies; return whether it is new."""
        self._health.take_row(partition, record, row, at)
        self.lane_of[partition] = record.lane
        is_new = self.rows.get(partition) != row
        if is_new:
            self._keep(partition, row)
            self._mark_changed(partition)
            if self.targets is not None and row.source_offset is not None:
                # of a partition that was added since, the end that its lane reports first
                self.targets.setdefault(partition, row.source_offset)
            self._update_record(partition, row)
        return is_new

    def take_last_row(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Take a lane's last row on a partition that it has released."""
        self._mark_changed(partition)
        if row.begun and row.destination_offset is not None:
            self._known_ends[partition] = row.destination_offset
        if partition in self.rows:
            self._keep(partition, row)

    def _keep(self, partition: TopicPartition, row: ProgressRow) -> None:
        self.rows[partition] = row
        (self._busy.add if _is_busy(row) else self._busy.discard)(partition)
        (self._refused.add if row.reason is Reason.AUTHENTICATION_FAILED else self._refused.discard)(partition)

    def take_source_ends(self, ends: Mapping[TopicPartition, int], seen_at: float) -> None:
        """Take the source's ends at a time; the first ones are the targets too."""
        if self.targets is None:
            self.targets = {}
        for partition, end in ends.items():
            self.targets.setdefault(partition, end)
            self._health.take_end(partition, end, seen_at)
            self._mark_changed(partition)
            # a partition without traffic has no new row, but its last one may have reached the target
            kept, row = self.records.get(partition), self.rows.get(partition)
            if kept is not None and row is not None and not kept.initial_copy_complete and self.reached(partition):
                self._update_record(partition, row)

    def stored(self, records: Iterable[PartitionRecord]) -> None:
        """Note that a heartbeat has stored these."""
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if self.changed.get(partition) is record:
                del self.changed[partition]

    def release(self, topic: TopicRecord, count: int) -> bool:
        """Record that nothing is in flight to a paused or stopped topic; return whether that changes a record."""
        has_changed = False
        for partition in range(count):
            topic_partition = TopicPartition(topic.topic, partition)
            if (seen := self.source_seen(topic_partition)) is not None:
                self._source_seen[topic_partition] = seen
            before, row = self.records.get(topic_partition), self.rows.pop(topic_partition, None)
            self._busy.discard(topic_partition)
            self._refused.discard(topic_partition)
            self._mark_changed(topic_partition)
            record = released_record(before, topic, partition, row, self._journal.time_ms(), seen)
            if record != before:
                self.records[topic_partition] = self.changed[topic_partition] = record
                has_changed = True
        return has_changed

    def replace(self, topic: str, records: Collection[PartitionRecord]) -> None:
        """Forget what is known of a topic that became a mirror topic (again), and take its partitions' stored records.

        They are what its `add` or rebuild has written, even if it is paused.
        """
        known = self._of_topic.pop(topic, set())
        self._busy -= known
        self._refused -= known
        self._health.forget(known)
        for kept in (
            self.records,
            self.changed,
            self.rows,
            self.lane_of,
            self._aligned_to,
            self._known_ends,
            self._source_seen,
            self._recopied,
        ):
            for partition in known & kept.keys():
                del kept[partition]
        self.records.update({TopicPartition(p.topic, p.partition): p for p in records})
        self._mark_changed(*(TopicPartition(p.topic, p.partition) for p in records))
        self._changed_topics.add(topic)

    def forget_targets(self, topic: str) -> None:
        """Forget a topic's targets."""
        targets = self.targets or {}
        for partition in self._of_topic[topic] & targets.keys():
            del targets[partition]

    def forget_failures(self, topic: str) -> None:
        """Count the next rows on the topic's FAILED partitions as new, even if they are the same again."""
        self._changed_topics.add(topic)
        for partition in self._of_topic[topic]:
            if self.failed(partition):
                del self.rows[partition]
                self._refused.discard(partition)

    def reached(self, partition: TopicPartition) -> bool:
        """Return whether it has reached its target; not while it is being aligned, when filler may reach that far."""
        row = self.rows.get(partition)
        target = (self.targets or {}).get(partition)
        return (
            row is not None
            and row.state is not PartitionState.LOG_ALIGNMENT
            and target is not None
            and row.destination_offset is not None
            and row.destination_offset >= target
        )

    def failed(self, partition: TopicPartition) -> bool:
        """Return whether it is FAILED now."""
        row = self.rows.get(partition)
        return row is not None and row.state is PartitionState.FAILED

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how far a partition is behind the source's end; None if either end is unknown or old."""
        row = self.rows.get(partition)
        return self._health.lag(partition, row.destination_offset if row else None, now())

    def of_topic(self, topic: str, count: int) -> set[TopicPartition]:
        """Return a topic's partitions, and others of it of which anything is known."""
        return self._of_topic[topic] | {TopicPartition(topic, partition) for partition in range(count)}

    @property
    def are_quiet(self) -> bool:
        """True while lanes have nothing to copy, and were not just copying."""
        return not self._busy

    @property
    def are_refused(self) -> bool:
        """True while a lane reports that its login is refused; from any thread."""
        return bool(self._refused)

    def left_to_copy(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left to copy, of partitions with a target."""
        return {
            p: max(0, end - (self.rows[p].destination_offset or 0) if p in self.rows else end)
            for p, end in (self.targets or {}).items()
        }

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the destination's log end that a lane last reported; None if it is unknown."""
        row = self.rows.get(partition)
        return row.destination_offset if row else self._known_ends.get(partition)

    def source_seen(self, partition: TopicPartition) -> SourceSeen | None:
        """Return what the source last returned of a partition, to a lane; None if that is unknown."""
        row, known = self.rows.get(partition), self._health.end_of(partition)
        if row is None or known is None:
            return self._source_seen.get(partition)
        return _source_seen(row, self._journal.time_ms() - int(1000 * (now() - known[0])))

    def mirrored_ends(self) -> dict[TopicPartition, int]:
        """Return the destination's ends of partitions that hold records of the source; from any thread."""
        rows = self.rows.copy().items()
        return {p: row.destination_offset for p, row in rows if row.begun and row.destination_offset}

    def copied_up_to(self) -> dict[TopicPartition, int]:
        """Return the destination's ends of partitions that are being copied and hold records; from any thread."""
        return {
            partition: row.destination_offset
            for partition, row in self.rows.copy().items()
            if row.begun and row.state is PartitionState.MIRRORING and row.destination_offset is not None
        }

    def kept_until(self, partition: TopicPartition) -> int:
        """Return up to where the source's log may start without the mirror deleting records; from any thread.

        They are what it has from before a loss at the source, or from before the source's own log began.
        """
        record = self.records.get(partition)
        return max(record.lost_until or 0, record.first_offset or 0) if record else 0

    def _update_record(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Update what must outlive the engine, and announce what is new."""
        before = self.records.get(partition)
        self._announce_alignment(partition, row, before)
        self._announce_loss(partition, row, before)
        self._announce_recopy(partition, row)
        reached, now_ms = self.reached(partition), self._journal.time_ms()
        record = record_after(before, self._mirror, row, reached=reached, now_ms=now_ms)
        if record == before:
            return
        failed = before if before is not None and before.state is PartitionState.FAILED else None
        if row.state is PartitionState.FAILED and (failed is None or failed.reason is not row.reason):
            self._announce(
                f"{partition} FAILED {row.reason}: {row.message}",
                partition,
                "FAILED",
                reason=row.reason,
                message=row.message,
            )
        elif failed is not None and record.state is not PartitionState.FAILED:
            self._announce(
                f"{partition} resumed copying; it was FAILED {failed.reason}",
                partition,
                "RESUMED",
                reason=failed.reason,
                failedAtMs=failed.state_time_ms,
            )
        self.records[partition] = self.changed[partition] = record

    def _announce_alignment(self, partition: TopicPartition, row: ProgressRow, record: PartitionRecord | None) -> None:
        note = alignment_note(row, record.first_offset if record else None)
        if note is not None and row.aligned_to is not None and self._aligned_to.get(partition) != row.aligned_to:
            self._aligned_to[partition] = row.aligned_to
            self._announce(note, partition, "ALIGNED", offset=row.aligned_to)

    def _announce_loss(self, partition: TopicPartition, row: ProgressRow, record: PartitionRecord | None) -> None:
        first, until = row.lost_from, row.lost_until
        announced_to = (record.lost_until if record else None) or 0
        if first is None or until is None or until <= announced_to:
            return
        first = max(first, announced_to)
        self.lost_records += until - first
        lost = counted(until - first, "offset")
        note = f"{partition} continues without {lost} that its source had lost: {first} to {until - 1}"
        details = {"from": first, "until": until, "records": until - first}
        self._announce(note, partition, "LOSS_ACCEPTED", **details)

    def _announce_recopy(self, partition: TopicPartition, row: ProgressRow) -> None:
        first, until = row.again_from, row.again_until
        if first is None or until is None or self._recopied.get(partition) == (first, until):
            return
        self._recopied[partition] = first, until
        note = (
            f"{partition} lost the offsets {first} to {until - 1} at the destination; the rest is identical to the "
            "source, and they are copied again"
        )
        self._announce(note, partition, "DESTINATION_TRUNCATED", **{"from": first, "until": until})

    def _announce(self, note: str, partition: TopicPartition, result: str, **details: object) -> None:
        self._journal.note(note, _LEVELS.get(result, Level.INFO))
        topic_partition = {"topic": partition.topic, "partition": partition.partition}
        self._journal.record("partition", result, topic_partition | details)


def _is_busy(row: ProgressRow) -> bool:
    """Return whether a lane copies records of a partition, or has some left to copy."""
    return row.bytes_per_second > 0 or row.source_offset is None or (row.destination_offset or 0) < row.source_offset


def _source_seen(row: ProgressRow, time_ms: int) -> SourceSeen | None:
    """Return what a row says that the source returned; None if it says nothing."""
    if row.source_offset is None:
        return None
    return SourceSeen(
        row.source_offset,
        time_ms,
        row.source_high_watermark,
        row.source_log_start,
        row.source_lost_ms,
        row.records_per_second,
    )
