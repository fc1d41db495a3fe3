"""Archive partitions in parallel, in threads or in Spark: all are copied, then all are compared with the archive.

    spec = ArchiveSpec(properties, "orders", name, "r5Gx…", (PartitionRanges(0, ((0, 1000),)),))
    result = archive_topic(spec, Threads())

Only one task copies a partition, since an archive keeps the order of records. A large partition is compared by several
tasks: its archive is cut into ranges, and the log at the original offsets of the records there. Wherever the cuts are,
the whole archive is compared with everything that it must hold, in order.

The archive must exist, created with `archive_settings` and as many partitions as the topic. If started again with the
same ranges, archiving resumes where it was, however it ended. Errors are outcomes too.

This module runs in workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, require
from kmirror.cluster.connection import SETTLE_S
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.engine.archive.archive_check import ArchiveComparison, verify_archive_partition
from kmirror.engine.archive.archive_topic import Range
from kmirror.engine.archive.copy import Archived, archive_partition, next_original_offset
from kmirror.engine.bulk.ranges import bytes_per_offset, cut_offsets, group_by_size, task_bytes
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.compare.logs import offset_of
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.state.archive_proofs import Proof
from kmirror.work import Add, Meter, Watch, unwatched

_TRIES = 3


@dataclass(frozen=True, slots=True)
class PartitionRanges:
    """What to archive of one partition: offset ranges, ordered and disjoint."""

    partition: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """What to archive, and how to connect to the cluster; the properties hold references, no secrets.

    `topic_id`, as Kafka prints it, identifies the topic; None if ids are unknown.
    """

    properties: Mapping[str, str]
    topic: str
    archive: str
    topic_id: str | None
    partitions: tuple[PartitionRanges, ...]


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The outcome for one partition: what was copied, the comparison, or the trouble."""

    partition: int
    archived: Archived | None
    comparison: ArchiveComparison | None
    trouble: KmirrorError | None = None

    @property
    def saved(self) -> bool:
        """True if everything is proved to be in the archive."""
        return self.trouble is None and self.comparison is not None and self.comparison.equal


#: Called with the proofs so far, by partition.
OnProved = Callable[[Mapping[int, Proof]], None]


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """The outcomes of all partitions of one spec, and the proofs of those that are saved."""

    outcomes: tuple[PartitionOutcome, ...]
    proofs: Mapping[int, Proof] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArchivePiece:
    """One comparison: offset ranges of a partition, and the range of its archive's offsets with the same records."""

    partition: int
    ranges: tuple[Range, ...]
    archived: Range

    @property
    def offsets(self) -> int:
        """The number of offsets of the partition."""
        return _offsets(self.ranges)


@dataclass(frozen=True, slots=True)
class CheckWorkUnit:
    """What one task compares."""

    spec: ArchiveSpec
    pieces: tuple[ArchivePiece, ...]


def offsets_of(spec: ArchiveSpec) -> int:
    """Return the number of offsets that a spec archives."""
    return sum(_offsets(one.ranges) for one in spec.partitions)


def _offsets(ranges: Iterable[Range]) -> int:
    return sum(high - low for low, high in ranges)


def bytes_of(client: ClusterClient, spec: ArchiveSpec) -> dict[int, float]:
    """Return the estimated bytes to archive of each partition of a spec.

    Raises:
        UnreachableError: no broker responds.
    """
    partitions = [TopicPartition(spec.topic, one.partition) for one in spec.partitions]
    sizes = partition_sizes(client, partitions)
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
    found = {}
    for partition, one in zip(partitions, spec.partitions, strict=True):
        start, end = starts[partition].offset, ends[partition].offset
        rate = (
            bytes_per_offset(None, 0)
            if start is None or end is None
            else bytes_per_offset(sizes.get(partition), end - start)
        )
        found[one.partition] = rate * _offsets(one.ranges)
    return found


def archive_topic(
    spec: ArchiveSpec,
    runner: Runner,
    watch: Watch = unwatched,
    name: str | None = None,
    proved: Mapping[int, Proof] | None = None,
    on_proved: OnProved = unwatched,
) -> ArchiveResult:
    """Copy the partitions of a spec, and compare what was copied; `watch` sees the progress, with the topic's `name`.

    Proofs in `proved` for the same ranges of the same topic are reused if still valid; `on_proved` is called as further
    partitions are proved.

    Raises:
        KmirrorError: the cluster does not respond, or the runner's tasks do not run.
    """
    whole, named = spec, name or spec.topic
    with ClusterClient(client_config(spec.properties)) as client:
        known = {one.partition: proved[one.partition] for one in spec.partitions if proved and one.partition in proved}
        proofs = still_valid(client, spec.archive, known)
        spec = replace(spec, partitions=tuple(one for one in spec.partitions if one.partition not in proofs))
        offsets, outcomes = offsets_of(spec), {p: _outcome_of(p, proof) for p, proof in proofs.items()}
        # what is copied and compared may be in a later archive of that name: then the proofs are not valid
        archive_id = _id_of(client, spec.archive)
        with Meter(watch, f"archiving {named}", "offset", offsets) as meter:
            tasks = [
                Task(unit, offsets_of(unit)) for unit in copy_work_units(spec, bytes_of(client, spec), runner.slots)
            ]
            for some in runner.run(f"archive of {spec.topic}", copy_work_unit, tasks, meter):
                outcomes.update({outcome.partition: outcome for outcome in some})
        copied = replace(spec, partitions=tuple(p for p in spec.partitions if outcomes[p.partition].trouble is None))
        with Meter(watch, f"checking the archive of {named}", "offset", offsets_of(copied)) as meter:
            checks = [
                Task(unit, sum(piece.offsets for piece in unit.pieces))
                for unit in check_work_units(client, copied, runner.slots)
            ]
            unchecked: dict[int, list[ArchivePiece]] = {one.partition: [] for one in copied.partitions}
            for piece in (piece for task in checks for piece in task.argument.pieces):
                unchecked[piece.partition].append(piece)
            found: dict[ArchivePiece, PartitionOutcome] = {}
            for compared in runner.run(f"check of {spec.archive}", check_work_unit, checks, meter):
                found.update(compared)
                for number in [p for p in {piece.partition for piece in compared} if found.keys() >= set(unchecked[p])]:
                    pieces = unchecked.pop(number)
                    outcomes[number] = merged_outcome(outcomes[number], [found[piece] for piece in pieces])
                    one = outcomes[number].comparison
                    if archive_id is not None and one is not None and outcomes[number].saved:
                        start, end = pieces[0].archived[0], pieces[-1].archived[1]
                        proofs[number] = Proof(archive_id, start, end, one.records, one.only_archived)
                        on_proved(proofs)
    return ArchiveResult(tuple(outcomes[one.partition] for one in whole.partitions), proofs)


def _outcome_of(partition: int, proof: Proof) -> PartitionOutcome:
    return PartitionOutcome(partition, None, ArchiveComparison(proof.records, proof.only_archived))


def still_valid(client: ClusterClient, archive: str, proved: Mapping[int, Proof]) -> dict[int, Proof]:
    """Return the proofs whose partition of the archive is unchanged.

    Raises:
        UnreachableError, BrokerError: that is unknown at the moment.
    """
    if not proved:
        return {}
    found = client.metadata([archive]).topics[archive]
    if found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    require(found.error_code, f"looking up archive {archive}")
    known = {p: proof for p, proof in proved.items() if proof.archive_id == found.printed_topic_id}
    partitions = {p: TopicPartition(archive, p) for p in known}
    starts = client.list_offsets(dict.fromkeys(partitions.values(), EARLIEST))
    ends = client.list_offsets(dict.fromkeys(partitions.values(), LATEST), log_end=True)
    for partition in partitions.values():
        require(starts[partition].error_code or ends[partition].error_code, f"looking up the offsets of {partition}")
    return {
        p: proof
        for p, proof in known.items()
        if (proof.start, proof.end) == (starts[partitions[p]].offset, ends[partitions[p]].offset)
    }


def _id_of(client: ClusterClient, topic: str) -> str | None:
    """Return the id of a topic; None if there is no such topic, or no ids. Raises UnreachableError, BrokerError."""
    found = client.metadata([topic]).topics[topic]
    if found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    require(found.error_code, f"looking up {topic}")
    return found.printed_topic_id


def merged_outcome(copied: PartitionOutcome, pieces: Sequence[PartitionOutcome]) -> PartitionOutcome:
    """Merge the outcomes of comparing the pieces of one partition, in order."""
    trouble = next((piece.trouble for piece in pieces if piece.trouble is not None), None)
    comparisons = [piece.comparison for piece in pieces if piece.comparison is not None]
    if trouble is not None or not comparisons:
        return replace(copied, trouble=trouble)
    return replace(
        copied,
        comparison=ArchiveComparison(
            sum(one.records for one in comparisons),
            sum(one.only_archived for one in comparisons),
            next((one.first_difference for one in comparisons if one.first_difference is not None), None),
        ),
    )


def copy_work_units(spec: ArchiveSpec, sizes: Mapping[int, float], slots: int) -> list[ArchiveSpec]:
    """Divide the partitions of a spec among tasks, the largest first; `sizes` are bytes."""
    largest_first = sorted(spec.partitions, key=lambda one: sizes[one.partition], reverse=True)
    together = group_by_size(
        ((one, sizes[one.partition]) for one in largest_first), task_bytes(sum(sizes.values()), slots)
    )
    return [replace(spec, partitions=some) for some in together]


def copy_work_unit(spec: ArchiveSpec, progress: Add = unwatched) -> tuple[PartitionOutcome, ...]:
    """Copy the partitions of a spec: the body of one task.

    `progress` is called with the number of newly copied offsets.
    """
    with ExitStack() as stack:
        try:
            reading, writing = (stack.enter_context(ClusterClient(client_config(spec.properties))) for _ in range(2))
        except KmirrorError as error:
            return tuple(PartitionOutcome(one.partition, None, None, error) for one in spec.partitions)
        return tuple(_copied(spec, wanted, reading, writing, progress) for wanted in spec.partitions)


def _copied(
    spec: ArchiveSpec, wanted: PartitionRanges, reading: ClusterClient, writing: ClusterClient, progress: Add
) -> PartitionOutcome:
    partition, archive = (TopicPartition(topic, wanted.partition) for topic in (spec.topic, spec.archive))
    for attempt in range(_TRIES):
        try:
            _require_topic(spec, reading)
            archived = archive_partition(reading, writing, partition, archive, wanted.ranges, progress)
        except KmirrorError as error:
            return PartitionOutcome(wanted.partition, None, None, error)
        except OutcomeUnknown as error:
            if attempt == _TRIES - 1:
                return PartitionOutcome(wanted.partition, None, None, UnreachableError(str(error), "try again"))
            time.sleep(SETTLE_S)
        else:
            return PartitionOutcome(wanted.partition, archived, None)
    raise AssertionError(_TRIES)


def check_work_units(client: ClusterClient, spec: ArchiveSpec, slots: int) -> list[CheckWorkUnit]:
    """Cut archived partitions into pieces, and divide these among tasks.

    Raises:
        KmirrorError: an archive cannot be read.
    """
    archives = {one.partition: TopicPartition(spec.archive, one.partition) for one in spec.partitions}
    sizes = partition_sizes(client, archives.values())
    bounds = {
        number: (offset_of(client, archive, EARLIEST), offset_of(client, archive, LATEST))
        for number, archive in archives.items()
    }
    rates = {
        number: bytes_per_offset(sizes.get(archive), bounds[number][1] - bounds[number][0])
        for number, archive in archives.items()
    }
    most = task_bytes(sum(rates[number] * (end - start) for number, (start, end) in bounds.items()), slots)
    sized: list[tuple[ArchivePiece, float]] = []
    for one in spec.partitions:
        (start, end), rate = bounds[one.partition], rates[one.partition]
        cuts = cut_offsets(start, end, round(rate * (end - start) / most))[1:]
        partitions = [(at, next_original_offset(client, archives[one.partition], at, end)) for at, _ in cuts]
        sized += [
            (piece, rate * (piece.archived[1] - piece.archived[0]))
            for piece in pieces_of(one, (start, end), partitions)
        ]
    return [CheckWorkUnit(spec, some) for some in group_by_size(sized, most)]


def pieces_of(
    wanted: PartitionRanges, archived: Range, cuts: Iterable[tuple[int, int | None]]
) -> Iterator[ArchivePiece]:
    """Cut a partition at offsets of its archive, each with the original offset of the next record (None without one).

    Cuts whose original offsets do not increase or are outside the ranges are left out.
    """
    low = wanted.ranges[0][0] if wanted.ranges else 0
    high = wanted.ranges[-1][1] if wanted.ranges else 0
    bounds = [(archived[0], low)]
    for at, original in cuts:
        if original is not None and bounds[-1][1] < original < high and bounds[-1][0] < at < archived[1]:
            bounds.append((at, original))
    for (first, from_offset), (last, to_offset) in pairwise([*bounds, (archived[1], high)]):
        clipped = ((max(one, from_offset), min(other, to_offset)) for one, other in wanted.ranges)
        ranges = tuple((one, other) for one, other in clipped if one < other)
        yield ArchivePiece(wanted.partition, ranges, (first, last))


def check_work_unit(unit: CheckWorkUnit, progress: Add = unwatched) -> dict[ArchivePiece, PartitionOutcome]:
    """Compare pieces with the archive: the body of one task.

    `progress` is called with the number of newly compared offsets.
    """
    spec = unit.spec
    with ExitStack() as stack:
        try:
            clients = [stack.enter_context(ClusterClient(client_config(spec.properties))) for _ in range(2)]
        except KmirrorError as error:
            return {piece: PartitionOutcome(piece.partition, None, None, error) for piece in unit.pieces}
        return {piece: _compared(spec, piece, clients[0], clients[1], progress) for piece in unit.pieces}


def _compared(
    spec: ArchiveSpec, piece: ArchivePiece, reading: ClusterClient, reading_archive: ClusterClient, progress: Add
) -> PartitionOutcome:
    partition, archive = (TopicPartition(topic, piece.partition) for topic in (spec.topic, spec.archive))
    try:
        comparison = verify_archive_partition(
            reading, reading_archive, partition, archive, piece.ranges, progress, piece.archived
        )
        # ids are never reused: everything read was of this topic
        _require_topic(spec, reading)
    except KmirrorError as error:
        return PartitionOutcome(piece.partition, None, None, error)
    except OutcomeUnknown as error:
        return PartitionOutcome(piece.partition, None, None, UnreachableError(str(error), "try again"))
    return PartitionOutcome(piece.partition, None, comparison)


def _require_topic(spec: ArchiveSpec, client: ClusterClient) -> None:
    if spec.topic_id is None:
        return
    topic_id = _id_of(client, spec.topic)
    if topic_id != spec.topic_id:
        raise RefusedError(
            f"topic {spec.topic} with id {spec.topic_id} no longer exists"
            + (f"; one with id {topic_id} does" if topic_id else ""),
            "it cannot be archived any further; the records already in the archive are kept",
            Reason.DESTINATION_TOPIC_DELETED,
        )
