"""Compare many partitions: cut into pieces, compared in parallel in threads or in Spark, then merged.

A piece is a range of one partition's offsets, a work unit is what one task compares: one large piece or many small
ones. Partitions of compacted topics stay in one piece: a missing record may be explained far after it.

This module runs in workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.engine.bulk.ranges import bytes_per_offset, cut_offsets, group_by_size, task_bytes
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.compare.difference import Difference, PartitionComparison
from kmirror.engine.compare.logs import compare_partition, filler_at_start
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, TimedOutError, UnreachableError
from kmirror.work import Add, Meter, unwatched

_MOST_SAMPLES_PER_TASK = 100
_SAMPLE_BYTES = 1 << 20
_SAMPLE_OFFSETS = 1000
_METADATA_SECONDS = 5.0
_WAIT = "wait until replicas are in sync and transactions time out, or abort these with `kafka-transactions.sh … abort`"
_GONE = (Reason.SOURCE_UNREACHABLE, Reason.DESTINATION_UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Extent:
    """One partition to verify, from offset `start` to `end`; `size_in_bytes` is an estimate, None without one."""

    topic: str
    partition: int
    source_topic: str
    start: int
    end: int
    size_in_bytes: int | None = None
    divisible: bool = True
    #: Where the destination's log starts, if lower than `start`: no filler may be left in between.
    destination_start: int | None = None

    @property
    def bytes_per_offset(self) -> float:
        """The average bytes per offset, at least 1."""
        return bytes_per_offset(self.size_in_bytes, self.end - self.start)

    @property
    def estimated_bytes(self) -> float:
        """The estimated size."""
        return self.bytes_per_offset * (self.end - self.start)

    @property
    def has_work(self) -> bool:
        """True if there is something to compare."""
        return self.end > self.start or self.destination_start is not None


class Piece(NamedTuple):
    """A range of one partition's offsets; `destination_start` as in `Extent`, in the partition's first piece only."""

    topic: str
    partition: int
    source_topic: str
    start: int
    end: int
    destination_start: int | None = None

    @property
    def destination(self) -> TopicPartition:
        """The partition on the destination."""
        return TopicPartition(self.topic, self.partition)

    @property
    def source(self) -> TopicPartition:
        """The partition on the source."""
        return TopicPartition(self.source_topic, self.partition)


@dataclass(frozen=True, slots=True)
class CompareWorkUnit:
    """What one task compares, and how it connects to both clusters."""

    source: ClusterAccess
    destination: ClusterAccess
    pieces: tuple[Piece, ...]

    @property
    def offsets(self) -> int:
        """How many offsets it compares."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PieceFinding:
    """The result for one piece: a comparison, or the trouble."""

    piece: Piece
    comparison: PartitionComparison | None
    trouble: KmirrorError | None = None


def work_units(
    extents: Iterable[Extent],
    slots: int,
    source: ClusterAccess,
    destination: ClusterAccess,
) -> list[CompareWorkUnit]:
    """Cut everything into work units of about the same size, enough for all slots."""
    known = [extent for extent in extents if extent.has_work]
    size = task_bytes(sum(extent.estimated_bytes for extent in known), slots)
    sized = [
        (piece, extent.bytes_per_offset * (piece.end - piece.start)) for extent in known for piece in cut(extent, size)
    ]
    return [CompareWorkUnit(source, destination, pieces) for pieces in group_by_size(sized, size)]


def sampled_work_units(
    extents: Iterable[Extent],
    count: int,
    chosen: random.Random,
    source: ClusterAccess,
    destination: ClusterAccess,
) -> list[CompareWorkUnit]:
    """Return work units for head, tail and `count` random ranges of each partition."""
    sized = [(piece, 1.0) for extent in extents if extent.has_work for piece in sample(extent, count, chosen)]
    together = group_by_size(sized, _MOST_SAMPLES_PER_TASK)
    return [CompareWorkUnit(source, destination, pieces) for pieces in together]


def cut(extent: Extent, size_in_bytes: float) -> list[Piece]:
    """Cut a partition into pieces of about this size; return one piece if it cannot be divided."""
    wanted = round(extent.estimated_bytes / size_in_bytes) if extent.divisible else 1
    pieces = [_piece(extent, *bounds) for bounds in cut_offsets(extent.start, extent.end, wanted)]
    return _from_destination_start(extent, pieces)


def sampled_bytes(extent: Extent, count: int) -> float:
    """Return the estimated size of head, tail and `count` ranges."""
    return min(extent.estimated_bytes, (count + 2) * _sample_length(extent) * extent.bytes_per_offset)


def _sample_length(extent: Extent) -> int:
    length = max(1, min(_SAMPLE_OFFSETS, int(_SAMPLE_BYTES / extent.bytes_per_offset)))
    return min(extent.end - extent.start, length)


def sample(extent: Extent, count: int, chosen: random.Random) -> list[Piece]:
    """Return head, tail and `count` random ranges in order; touching ranges are merged."""
    offsets, length = extent.end - extent.start, _sample_length(extent)
    starts = [extent.start, extent.end - length]
    starts += [extent.start + chosen.randrange(offsets - length + 1) for _ in range(count)]
    pieces: list[Piece] = []
    for start in sorted(starts):
        if pieces and start <= pieces[-1].end:
            pieces[-1] = pieces[-1]._replace(end=start + length)
        else:
            pieces.append(_piece(extent, start, start + length))
    return _from_destination_start(extent, pieces)


def _piece(extent: Extent, start: int, end: int) -> Piece:
    return Piece(extent.topic, extent.partition, extent.source_topic, start, end)


def _from_destination_start(extent: Extent, pieces: list[Piece]) -> list[Piece]:
    return [pieces[0]._replace(destination_start=extent.destination_start), *pieces[1:]]


def compare_work_units(runner: Runner, units: Iterable[CompareWorkUnit], meter: Meter) -> Iterator[PieceFinding]:
    """Compare work units in parallel and yield findings as they complete; `meter` counts offsets.

    Pieces after a known difference are skipped. When a whole cluster has stopped responding, the remaining pieces are
    not compared and get that trouble.
    """
    first: dict[TopicPartition, int] = {}
    gone: list[KmirrorError] = []
    skipped: list[Piece] = []

    def open_units() -> Iterator[Task[CompareWorkUnit]]:
        for unit in units:
            pieces = tuple(piece for piece in unit.pieces if piece.start < first.get(piece.destination, piece.end + 1))
            if gone:
                skipped.extend(pieces)
                pieces = ()
            remaining = replace(unit, pieces=pieces)
            if remaining.offsets < unit.offsets:
                meter.shrink_total(unit.offsets - remaining.offsets)
            if pieces:
                yield Task(remaining, remaining.offsets)

    with closing(runner.run("compare", compare_work_unit, open_units(), meter)) as answers:
        for findings in answers:
            for finding in findings:
                if finding.comparison and (difference := finding.comparison.first_difference):
                    partition = finding.piece.destination
                    first[partition] = min(difference.offset, first.get(partition, difference.offset))
                if finding.trouble is not None and finding.trouble.reason in _GONE:
                    gone.append(finding.trouble)
                yield finding
    yield from (PieceFinding(piece, None, gone[0]) for piece in skipped)


def compare_work_unit(unit: CompareWorkUnit, progress: Add = unwatched) -> tuple[PieceFinding, ...]:
    """Compare all pieces of a work unit: the body of one task. Errors are findings too.

    `progress` is called with the number of newly compared offsets.
    """
    findings: list[PieceFinding] = []
    with ExitStack() as stack:
        try:
            source = stack.enter_context(ClusterClient(unit.source.config()))
            destination = stack.enter_context(ClusterClient(unit.destination.config()))
        except KmirrorError as error:
            return tuple(PieceFinding(piece, None, error) for piece in unit.pieces)
        gone: KmirrorError | None = None
        for piece in unit.pieces:
            if gone is not None:
                findings.append(PieceFinding(piece, None, gone))
                continue
            try:
                findings.append(PieceFinding(piece, _compare_piece(source, destination, piece, progress)))
            except (KmirrorError, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown | UnreachableError):
                    gone = _silent(source, "source", Reason.SOURCE_UNREACHABLE) or _silent(
                        destination, "destination", Reason.DESTINATION_UNREACHABLE
                    )
                trouble = gone or (error if isinstance(error, KmirrorError) else UnreachableError(str(error)))
                findings.append(PieceFinding(piece, None, trouble))
    return tuple(findings)


def _compare_piece(
    source: ClusterClient, destination: ClusterClient, piece: Piece, progress: Add
) -> PartitionComparison:
    if piece.destination_start is not None:
        filler = filler_at_start(destination, piece.destination, piece.destination_start, piece.start)
        if filler is not None:
            return PartitionComparison(piece.start, piece.end, 0, 0, filler)
    return compare_partition(source, destination, piece.source, piece.destination, piece.start, piece.end, progress)


def _silent(client: ClusterClient, name: str, reason: Reason) -> KmirrorError | None:
    """Return the error if a whole cluster has stopped responding, rather than the leader of one partition."""
    try:
        client.metadata([], timeout=_METADATA_SECONDS)
    except KmirrorError as error:
        return UnreachableError(f"the {name} no longer responds: {error}", error.hint, reason)
    return None


@dataclass(slots=True)
class PartitionVerdict:
    """The findings about one partition so far, summed up."""

    offsets: int = 0
    records: int = 0
    size_in_bytes: int = 0
    first_difference: Difference | None = None
    trouble: KmirrorError | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def take(self, finding: PieceFinding) -> None:
        """Add one finding."""
        comparison = finding.comparison
        if comparison is None:
            self.trouble = self.trouble or finding.trouble
            return
        self.offsets += finding.piece.end - finding.piece.start
        self.records += comparison.records
        self.size_in_bytes += comparison.size_in_bytes
        if comparison.obstacle is not None:
            self.trouble = self.trouble or TimedOutError(comparison.obstacle, _WAIT)
        self.notes.update(dict.fromkeys(comparison.notes))
        difference = comparison.first_difference
        if difference and (self.first_difference is None or difference.offset < self.first_difference.offset):
            self.first_difference = difference
