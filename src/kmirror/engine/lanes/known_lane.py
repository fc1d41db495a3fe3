"""What an engine knows of one of its lanes: its work, the run of it that may write, when it last reported."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.executors import Executor
from kmirror.engine.spec import LaneResult
from kmirror.state.assignment import Assignment
from kmirror.state.records import ProgressRecord, ProgressRow

#: A lane's row on a partition, and the assignment that the partition has.
PartitionReport = tuple[ProgressRow, Assignment]


@dataclass(slots=True)
class KnownLane:
    """One lane."""

    lane: int
    generation: int
    copies: dict[TopicPartition, Assignment]
    #: Since when its silence counts; a lane that starts among others that report gets time for its first report.
    silent_from: float
    predecessor_may_write: bool
    #: The executor it should run on; None for any.
    place: Executor | None = None
    #: False while it must end: the heartbeat no longer names it.
    wanted: bool = True
    #: True when what it was started with no longer holds: once it runs, it ends and is restarted.
    is_outdated: bool = False
    future: Future[LaneResult] | None = None
    submitted_at: float = 0.0
    #: When this run last reported; None before its first report.
    reported_at: float | None = None
    #: The latest attempt that reported: Spark restarts a lane whose worker died.
    attempt: int = 0
    deaths: int = 0
    start_at: float = 0.0
    #: How many changes this generation was given.
    revision: int = 0
    #: Partitions it must release, with the change that says so and their assignment; it may still write to them.
    leaving: dict[TopicPartition, tuple[int, Assignment]] = field(default_factory=dict)
    #: For partitions that it did not start with, the change that assigned them.
    assigned_in: dict[TopicPartition, int] = field(default_factory=dict)
    #: Since when it should end, and when Spark was last asked about it.
    unwanted_at: float | None = None
    checked_at: float = 0.0

    @property
    def accepts_changes(self) -> bool:
        """True once it reports: before that it may not read changes yet."""
        return self.future is not None and self.reported_at is not None

    def change(self, revoked: Sequence[TopicPartition], assigned: Sequence[Assignment]) -> None:
        """Apply a change of its work, under the next revision."""
        self.revision += 1
        for partition in revoked:
            self.leaving[partition] = self.revision, self.copies.pop(partition)
            self.assigned_in.pop(partition, None)
        for assignment in assigned:
            self.copies[assignment.destination] = assignment
            self.assigned_in[assignment.destination] = self.revision

    def next_generation(self, *, predecessor_may_write: bool) -> None:
        """Make it ready to start again, with all its work."""
        self.future = self.place = self.unwanted_at = None
        self.generation += 1
        self.predecessor_may_write = predecessor_may_write
        self.revision = 0
        self.leaving.clear()
        self.assigned_in.clear()

    def take_rows(self, record: ProgressRecord) -> tuple[list[PartitionReport], list[PartitionReport]]:
        """Return a report's rows on partitions that it copies, and its last rows on those that it has now released."""
        rows = [(TopicPartition(row.topic, row.partition), row) for row in record.rows]
        # a row on a partition whose assignment has not been applied yet is about an earlier assignment
        copied = [
            (row, self.copies[partition])
            for partition, row in rows
            if partition in self.copies and self.assigned_in.get(partition, 0) <= record.taken
        ]
        gone = {p: a for p, (revision, a) in self.leaving.items() if revision <= record.given_up}
        for partition in gone:
            del self.leaving[partition]
        return copied, [(row, gone[partition]) for partition, row in rows if partition in gone]
