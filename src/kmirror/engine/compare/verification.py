"""Compare many partitions: cut into pieces, compared side by side in threads or in Spark, put together again.

A piece is a range of one partition's offsets, a share is what one task compares: one large piece or many small
ones. Partitions of compacted topics stay in one piece: what is missing there may be explained far after it.

This module runs in workers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.bulk.ranges import bytes_per_offset, cut_offsets, put_together, task_bytes
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.compare.difference import Difference, PartitionComparison
from kmirror.engine.compare.logs import compare_partition, filler_at_start
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.work import Add, Meter, unwatched

_MOST_SAMPLES_PER_SHARE = 100
_SAMPLE_BYTES = 1 << 20
_SAMPLE_OFFSETS = 1000
_LOOK_SECONDS = 5.0
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
    #: Where the destination's log starts, if that is lower: no filler may have been left from there to `start`.
    destination_start: int | None = None

    @property
    def bytes_per_offset(self) -> float:
        """What an offset takes on average, at least one byte."""
        return bytes_per_offset(self.size_in_bytes, self.end - self.start)

    @property
    def estimated_bytes(self) -> float:
        """How large it is, or is thought to be."""
        return self.bytes_per_offset * (self.end - self.start)

    @property
    def has_work(self) -> bool:
        """True when there is something to look at."""
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
class WorkUnit:
    """What one task compares, and how it reaches both clusters; the properties hold references, no secrets."""

    source_properties: Mapping[str, str]
    destination_properties: Mapping[str, str]
    pieces: tuple[Piece, ...]

    @property
    def offsets(self) -> int:
        """How many offsets it compares."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one piece: a comparison, or why there is none."""

    piece: Piece
    comparison: PartitionComparison | None
    trouble: KmirrorError | None = None


def shares(
    extents: Iterable[Extent],
    slots: int,
    source_properties: Mapping[str, str],
    destination_properties: Mapping[str, str],
) -> list[WorkUnit]:
    """Cut everything into shares of about the same size, enough of them for all slots."""
    known = [extent for extent in extents if extent.has_work]
    size = task_bytes(sum(extent.estimated_bytes for extent in known), slots)
    sized = [
        (piece, extent.bytes_per_offset * (piece.end - piece.start)) for extent in known for piece in cut(extent, size)
    ]
    return [WorkUnit(source_properties, destination_properties, pieces) for pieces in put_together(sized, size)]


def sampled_shares(
    extents: Iterable[Extent],
    count: int,
    chosen: random.Random,
    source_properties: Mapping[str, str],
    destination_properties: Mapping[str, str],
) -> list[WorkUnit]:
    """Take head, tail and `count` random ranges of each partition, and share them out."""
    sized = [(piece, 1.0) for extent in extents if extent.has_work for piece in sample(extent, count, chosen)]
    together = put_together(sized, _MOST_SAMPLES_PER_SHARE)
    return [WorkUnit(source_properties, destination_properties, pieces) for pieces in together]


def cut(extent: Extent, size_in_bytes: float) -> list[Piece]:
    """Cut a partition into pieces of about the size given, one where it cannot be divided."""
    wanted = round(extent.estimated_bytes / size_in_bytes) if extent.divisible else 1
    pieces = [_piece(extent, *rims) for rims in cut_offsets(extent.start, extent.end, wanted)]
    return _from_destination_start(extent, pieces)


def sampled_bytes(extent: Extent, count: int) -> float:
    """Return about how many bytes head, tail and `count` ranges are."""
    return min(extent.estimated_bytes, (count + 2) * _sample_length(extent) * extent.bytes_per_offset)


def _sample_length(extent: Extent) -> int:
    few = max(1, min(_SAMPLE_OFFSETS, int(_SAMPLE_BYTES / extent.bytes_per_offset)))
    return min(extent.end - extent.start, few)


def sample(extent: Extent, count: int, chosen: random.Random) -> list[Piece]:
    """Return head, tail and `count` random ranges in order; ranges that meet are one."""
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


def compare_shares(runner: Runner, all_shares: Iterable[WorkUnit], meter: Meter) -> Iterator[Finding]:
    """Compare shares side by side and yield findings as they come; `meter` counts offsets.

    What follows a known difference is left out. When a whole cluster has stopped answering, nothing more is asked
    of it, and the rest is found to be that trouble.
    """
    first: dict[TopicPartition, int] = {}
    gone: list[KmirrorError] = []
    left: list[Piece] = []

    def open_shares() -> Iterator[Task[WorkUnit]]:
        for share in all_shares:
            pieces = tuple(piece for piece in share.pieces if piece.start < first.get(piece.destination, piece.end + 1))
            if gone:
                left.extend(pieces)
            known = () if gone else pieces
            found = WorkUnit(share.source_properties, share.destination_properties, known)
            if found.offsets < share.offsets:
                meter.spare(share.offsets - found.offsets)
            if known:
                yield Task(found, found.offsets)

    with closing(runner.run("compare", compare_share, open_shares(), meter)) as answers:
        for findings in answers:
            for finding in findings:
                if finding.comparison and (difference := finding.comparison.first_difference):
                    partition = finding.piece.destination
                    first[partition] = min(difference.offset, first.get(partition, difference.offset))
                if finding.trouble is not None and finding.trouble.reason in _GONE:
                    gone.append(finding.trouble)
                yield finding
    yield from (Finding(piece, None, gone[0]) for piece in left)


def compare_share(share: WorkUnit, progress: Add = unwatched) -> tuple[Finding, ...]:
    """Compare all pieces of a share: the body of one task. What goes wrong is a finding too.

    `progress` is given how many more offsets were compared.
    """
    findings: list[Finding] = []
    with ExitStack() as stack:
        try:
            source = stack.enter_context(ClusterClient(client_config(share.source_properties)))
            destination = stack.enter_context(ClusterClient(client_config(share.destination_properties)))
        except KmirrorError as error:
            return tuple(Finding(piece, None, error) for piece in share.pieces)
        gone: KmirrorError | None = None
        for piece in share.pieces:
            if gone is not None:
                findings.append(Finding(piece, None, gone))
                continue
            try:
                findings.append(Finding(piece, _compare_piece(source, destination, piece, progress)))
            except (KmirrorError, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown | UnreachableError):
                    gone = _silent(source, "source", Reason.SOURCE_UNREACHABLE) or _silent(
                        destination, "destination", Reason.DESTINATION_UNREACHABLE
                    )
                trouble = gone or (error if isinstance(error, KmirrorError) else UnreachableError(str(error)))
                findings.append(Finding(piece, None, trouble))
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
    """Tell whether a whole cluster has stopped answering, rather than the leader of one partition."""
    try:
        client.metadata([], timeout=_LOOK_SECONDS)
    except KmirrorError as error:
        return UnreachableError(f"the {name} does not answer any more: {error}", error.hint, reason)
    return None


@dataclass(slots=True)
class Verdict:
    """What all findings about one partition amount to so far."""

    offsets: int = 0
    records: int = 0
    size_in_bytes: int = 0
    first_difference: Difference | None = None
    obstacle: str | None = None
    trouble: KmirrorError | None = None
    notes: dict[str, None] = field(default_factory=dict)

    def take(self, finding: Finding) -> None:
        """Add one finding."""
        comparison = finding.comparison
        if comparison is None:
            self.trouble = self.trouble or finding.trouble
            return
        self.offsets += finding.piece.end - finding.piece.start
        self.records += comparison.records
        self.size_in_bytes += comparison.size_in_bytes
        self.obstacle = self.obstacle or comparison.obstacle
        self.notes.update(dict.fromkeys(comparison.notes))
        difference = comparison.first_difference
        if difference and (self.first_difference is None or difference.offset < self.first_difference.offset):
            self.first_difference = difference
