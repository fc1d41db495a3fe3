"""Archive partitions in Spark: each is copied, then compared, in a worker; what goes wrong is an outcome too.

    spec = ArchiveSpec(properties, "orders", name, "r5Gx…", (PartitionRanges(0, ((0, 1000),)),))
    for result in runtime.map("archive", archive_topic, divided(spec, runtime.slots)):
        …

The archive has been created before, with `archive_settings` and as many partitions as the topic. Started again with the
same ranges, whatever became of it the last time, it continues where it was. This module runs in workers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.archive.archive_topic import Range
from kmirror.engine.archive.check import ArchiveComparison, verify_archive_partition
from kmirror.engine.archive.copy import Archived, archive_partition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError
from kmirror.work import Meter, unwatched

_TRIES = 3
#: After so long a request without an answer cannot arrive any more.
_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class PartitionRanges:
    """What is to be saved of one partition: offsets, in order and apart."""

    partition: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSpec:
    """What is to be archived, and how the cluster is reached; the properties hold references, no secrets.

    `topic_id`, as Kafka prints it, is the topic whose records are meant; None where ids are not known.
    """

    properties: Mapping[str, str]
    topic: str
    archive: str
    topic_id: str | None
    partitions: tuple[PartitionRanges, ...]


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """What became of one partition: what was copied, what comparing it found, or what went wrong."""

    partition: int
    archived: Archived | None
    comparison: ArchiveComparison | None
    trouble: KmirrorError | None = None

    @property
    def saved(self) -> bool:
        """True when everything is in the archive, and was found there."""
        return self.trouble is None and self.comparison is not None and self.comparison.equal


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What became of the partitions of one spec, one outcome each."""

    outcomes: tuple[PartitionOutcome, ...]

    @property
    def saved(self) -> bool:
        """True when all of them are saved: only then may the topic's records be deleted."""
        return all(outcome.saved for outcome in self.outcomes)


def divided(spec: ArchiveSpec, tasks: int) -> list[ArchiveSpec]:
    """Share the partitions of a spec among at most so many tasks, the longest first."""
    count = min(max(1, tasks), len(spec.partitions))
    shares: list[list[PartitionRanges]] = [[] for _ in range(count)]
    loads = [0] * count
    for wanted in sorted(spec.partitions, key=_offsets, reverse=True):
        lightest = loads.index(min(loads))
        shares[lightest].append(wanted)
        loads[lightest] += _offsets(wanted) + 1
    return [replace(spec, partitions=tuple(share)) for share in shares]


def _offsets(wanted: PartitionRanges) -> int:
    return sum(high - low for low, high in wanted.ranges)


@dataclass(frozen=True, slots=True)
class Meters:
    """The offsets that are copied, and those that are compared with the archive."""

    copying: Meter
    comparing: Meter


def offsets_of(spec: ArchiveSpec) -> int:
    """Return how many offsets a spec archives."""
    return sum(_offsets(one) for one in spec.partitions)


def archive_topic(spec: ArchiveSpec, attempt: int, meters: Meters | None = None) -> ArchiveResult:
    """Copy and compare the partitions of a spec: the body of one Spark task, at each attempt."""
    meters = meters or Meters(Meter(unwatched, ""), Meter(unwatched, ""))
    with ExitStack() as stack:
        try:
            reading, writing = (stack.enter_context(ClusterClient(client_config(spec.properties))) for _ in range(2))
        except KmirrorError as error:
            return ArchiveResult(tuple(PartitionOutcome(one.partition, None, None, error) for one in spec.partitions))
        return ArchiveResult(tuple(_outcome(spec, wanted, reading, writing, meters) for wanted in spec.partitions))


def _outcome(
    spec: ArchiveSpec, wanted: PartitionRanges, reading: ClusterClient, writing: ClusterClient, meters: Meters
) -> PartitionOutcome:
    partition, archive = (TopicPartition(topic, wanted.partition) for topic in (spec.topic, spec.archive))
    archived: Archived | None = None
    try:
        _require_topic(spec, reading)
        archived = _archived(reading, writing, partition, archive, wanted, meters.copying)
        meters.comparing.add(0)
        comparison = verify_archive_partition(reading, writing, partition, archive, wanted.ranges, meters.comparing.add)
        # ids never come back: all that was read was this topic's
        _require_topic(spec, reading)
    except KmirrorError as error:
        return PartitionOutcome(wanted.partition, archived, None, error)
    except OutcomeUnknown as error:
        return PartitionOutcome(wanted.partition, archived, None, UnreachableError(str(error), "try again"))
    return PartitionOutcome(wanted.partition, archived, comparison)


def _archived(
    reading: ClusterClient,
    writing: ClusterClient,
    partition: TopicPartition,
    archive: TopicPartition,
    wanted: PartitionRanges,
    copying: Meter,
) -> Archived:
    left = _offsets(wanted)

    def add(offsets: int) -> None:
        nonlocal left
        left -= offsets
        copying.add(offsets)

    for attempt in range(_TRIES):
        try:
            archived = archive_partition(reading, writing, partition, archive, wanted.ranges, add)
        except OutcomeUnknown:
            if attempt == _TRIES - 1:
                raise
            time.sleep(_SETTLE_S)
        else:
            break
    # what was in the archive before, and offsets that show nothing
    copying.spare(left)
    return archived


def _require_topic(spec: ArchiveSpec, client: ClusterClient) -> None:
    if spec.topic_id is None:
        return
    found = client.metadata([spec.topic]).topics.get(spec.topic)
    topic_id = found.printed_topic_id if found and not found.error_code else None
    if topic_id != spec.topic_id:
        raise RefusedError(
            f"topic {spec.topic} with id {spec.topic_id} no longer exists"
            + (f"; one with id {topic_id} does" if topic_id else ""),
            "nothing of it can be archived; what the archive holds stays",
            Reason.DESTINATION_TOPIC_DELETED,
        )
