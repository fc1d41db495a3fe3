"""What an engine knows of its mirror's partitions: what lanes report, and what is stored because it must outlive them.

A report that is news changes what is stored (`stored_partition`), and what it says for the first time is announced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now_ms
from kmirror.engine.control.health import Health
from kmirror.engine.control.journal import Journal, Level
from kmirror.engine.control.stored_partition import alignment_note, given_up, remember
from kmirror.errors import Reason
from kmirror.state.records import PartitionRecord, PartitionState, ProgressRecord, ProgressRow, TopicRecord
from kmirror.words import counted

#: What needs more attention than news do, by the result of its event.
_LEVELS = {"FAILED": Level.ERROR, "LOSS_ACCEPTED": Level.WARNING, "DESTINATION_TRUNCATED": Level.WARNING}


class MirrorPartitions:
    """Keep what is known of one mirror's partitions; for one thread, except where a method says otherwise."""

    def __init__(
        self,
        mirror: str,
        records: Iterable[PartitionRecord],
        progress: Iterable[ProgressRecord],
        health: Health,
        journal: Journal,
    ) -> None:
        self._mirror = mirror
        self._health = health
        self._journal = journal
        self.records = {TopicPartition(p.topic, p.partition): p for p in records}
        #: What no heartbeat has stored yet.
        self.changed: dict[TopicPartition, PartitionRecord] = {}
        self.rows: dict[TopicPartition, ProgressRow] = {}
        #: The source's ends when the engine began, by destination partition; None until the source has answered.
        self.targets: dict[TopicPartition, int] | None = None
        #: The destination's log ends as the last engine stored them, since its partitions are what they are.
        self._known_ends = {
            place: row.destination_offset
            for told in sorted(progress, key=lambda one: one.time_ms)
            for row in told.rows
            if row.begun
            and (known := self.records.get(place := TopicPartition(row.topic, row.partition)))
            and known.state_time_ms < told.time_ms
        }
        #: By partition, the offset at which a lane last made its log begin.
        self._aligned_to: dict[TopicPartition, int] = {}
        #: By partition, what was last announced to be copied again.
        self._again: dict[TopicPartition, tuple[int, int]] = {}
        #: How many records the source had lost before they were copied, since the engine began.
        self.lost_records = 0
        #: The partitions that are behind or were being copied when their lanes last reported on them.
        self._busy: set[TopicPartition] = set()
        #: Those whose lanes said last that a login is refused.
        self._refused: set[TopicPartition] = set()
        #: The topics whose rows have changed; see `take_moved`.
        self._moved: set[str] = set()
        #: By topic, the partitions that anything is known of.
        self._of_topic: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        self._note(*self.records, *self._known_ends)

    def _note(self, *partitions: TopicPartition) -> None:
        """Note that something is known of these partitions, and that it has changed."""
        for partition in partitions:
            self._moved.add(partition.topic)
            self._of_topic[partition.topic].add(partition)

    def take_moved(self) -> set[str]:
        """Return the topics on whose partitions something else is known since this was last asked."""
        moved, self._moved = self._moved, set()
        return moved

    # -- reports --------------------------------------------------------------------------------------------------

    def take_report(self, partition: TopicPartition, record: ProgressRecord, row: ProgressRow, at: float) -> bool:
        """Take what a lane says of a partition that it copies; return whether that is news."""
        self._health.take_report(partition, record, row, at)
        is_news = self.rows.get(partition) != row
        if is_news:
            self._keep(partition, row)
            self._note(partition)
            self._remember(partition, row)
        return is_news

    def take_last_report(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Keep how far a lane came with a partition that it released."""
        self._note(partition)
        if row.begun and row.destination_offset is not None:
            self._known_ends[partition] = row.destination_offset
        if partition in self.rows:
            self._keep(partition, row)

    def _keep(self, partition: TopicPartition, row: ProgressRow) -> None:
        self.rows[partition] = row
        (self._busy.add if _is_busy(row) else self._busy.discard)(partition)
        (self._refused.add if row.reason is Reason.AUTHENTICATION_FAILED else self._refused.discard)(partition)

    def take_source_ends(self, ends: Mapping[TopicPartition, int], seen_at: float) -> None:
        """Take where the source ended at a moment; the first time that is also what is to be reached."""
        if self.targets is None:
            self.targets = {}
        for partition, end in ends.items():
            self.targets.setdefault(partition, end)
            self._health.take_end(partition, end, seen_at)
            self._note(partition)
            # a partition that does not move reports nothing new, but may have been at its end when it last did
            kept, row = self.records.get(partition), self.rows.get(partition)
            if kept is not None and row is not None and not kept.initial_copy_complete and self.reached(partition):
                self._remember(partition, row)

    def stored(self, records: Iterable[PartitionRecord]) -> None:
        """Note that a heartbeat has stored these."""
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            if self.changed.get(place) is record:
                del self.changed[place]

    # -- topics that come and go ----------------------------------------------------------------------------------

    def release(self, topic: TopicRecord, count: int) -> bool:
        """Store that nothing is under way to a paused or stopped topic any more; return whether that is news."""
        is_news = False
        for partition in range(count):
            place = TopicPartition(topic.topic, partition)
            before, row = self.records.get(place), self.rows.pop(place, None)
            self._busy.discard(place)
            self._refused.discard(place)
            self._note(place)
            record = given_up(before, topic, partition, row, now_ms())
            if record != before:
                self.records[place] = self.changed[place] = record
                is_news = True
        return is_news

    def replace(self, topic: str, records: Collection[PartitionRecord]) -> None:
        """Forget all that is known of a topic: it became a mirror topic (again), and this is stored of its partitions.

        What its `add` or its rebuilding has written counts, also where it is paused.
        """
        known = self._of_topic.pop(topic, set())
        self._busy -= known
        self._refused -= known
        self._health.forget(known)
        for some in (self.records, self.changed, self.rows, self._aligned_to, self._known_ends, self._again):
            for partition in known & some.keys():
                del some[partition]
        self.records.update({TopicPartition(p.topic, p.partition): p for p in records})
        self._note(*(TopicPartition(p.topic, p.partition) for p in records))
        self._moved.add(topic)

    def forget_targets(self, topic: str) -> None:
        """Forget what was to be reached of a topic."""
        targets = self.targets or {}
        for partition in self._of_topic[topic] & targets.keys():
            del targets[partition]

    def forget_failures(self, topic: str) -> None:
        """Let what lanes say next of the topic's FAILED partitions be news, also when it is the same again."""
        self._moved.add(topic)
        for partition in self._of_topic[topic]:
            if self.failed(partition):
                del self.rows[partition]
                self._refused.discard(partition)

    # -- state of partitions --------------------------------------------------------------------------------------

    def reached(self, partition: TopicPartition) -> bool:
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

    def failed(self, partition: TopicPartition) -> bool:
        """Tell whether it is FAILED now."""
        row = self.rows.get(partition)
        return row is not None and row.state is PartitionState.FAILED

    @property
    def are_quiet(self) -> bool:
        """True while lanes have nothing to copy, and have copied nothing just now."""
        return not self._busy

    @property
    def are_refused(self) -> bool:
        """True while a lane says that its login is refused; from any thread."""
        return bool(self._refused)

    def is_at_rest(self, partition: TopicPartition) -> bool:
        """Tell whether a lane has said, as the last it knows, that nothing is left to copy of a partition."""
        row = self.rows.get(partition)
        return row is not None and row.destination_offset is not None and partition not in self._busy

    def left_to_copy(self) -> dict[TopicPartition, int]:
        """Return how many offsets are left to copy where that is known."""
        return {
            p: max(0, end - (self.rows[p].destination_offset or 0) if p in self.rows else end)
            for p, end in (self.targets or {}).items()
        }

    def known_end(self, partition: TopicPartition) -> int | None:
        """Return the destination's log end as a lane last reported it; None where that is not known."""
        row = self.rows.get(partition)
        return row.destination_offset if row else self._known_ends.get(partition)

    def mirrored_ends(self) -> dict[TopicPartition, int]:
        """Return the destination's ends of partitions that hold records of the source; from any thread."""
        rows = self.rows.copy().items()
        return {p: row.destination_offset for p, row in rows if row.begun and row.destination_offset}

    def copied_up_to(self) -> dict[TopicPartition, int]:
        """Return the destination's ends of partitions that are being copied and hold records; from any thread."""
        return {
            partition: row.destination_offset
            for partition, row in self.rows.copy().items()
            if row.begun
            and row.state is PartitionState.MIRRORING
            and row.destination_offset is not None
            and not _keeps_what_was_lost(self.records.get(partition), row)
        }

    # -- what is news ---------------------------------------------------------------------------------------------

    def _remember(self, partition: TopicPartition, row: ProgressRow) -> None:
        """Keep what must outlive the engine, and announce it."""
        before = self.records.get(partition)
        self._announce_alignment(partition, row, before)
        self._announce_loss(partition, row, before)
        self._announce_repetition(partition, row)
        record = remember(before, self._mirror, row, reached=self.reached(partition), now_ms=now_ms())
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
        if first is None or until is None or (record and record.lost_until == until):
            return
        self.lost_records += until - first
        lost = counted(until - first, "record")
        note = f"{partition} goes on without {lost} that its source had lost: {first} to {until - 1}"
        details = {"from": first, "until": until, "records": until - first}
        self._announce(note, partition, "LOSS_ACCEPTED", **details)

    def _announce_repetition(self, partition: TopicPartition, row: ProgressRow) -> None:
        first, until = row.again_from, row.again_until
        if first is None or until is None or self._again.get(partition) == (first, until):
            return
        self._again[partition] = first, until
        note = (
            f"{partition} had lost the offsets {first} to {until - 1} at the destination; what remains is the "
            "source's, and they are copied again"
        )
        self._announce(note, partition, "DESTINATION_TRUNCATED", **{"from": first, "until": until})

    def _announce(self, note: str, partition: TopicPartition, result: str, **details: object) -> None:
        self._journal.note(note, _LEVELS.get(result, Level.INFO))
        place = {"topic": partition.topic, "partition": partition.partition}
        self._journal.record("partition", result, place | details)


def _keeps_what_was_lost(record: PartitionRecord | None, row: ProgressRow) -> bool:
    """Tell whether the mirror holds what its source lost together with records that were never copied.

    That stays until the source deletes more.
    """
    return record is not None and record.lost_until is not None and (row.source_log_start or 0) <= record.lost_until


def _is_busy(row: ProgressRow) -> bool:
    """Tell whether a lane copies something, or is to."""
    return row.bytes_per_second > 0 or row.source_offset is None or (row.destination_offset or 0) < row.source_offset
