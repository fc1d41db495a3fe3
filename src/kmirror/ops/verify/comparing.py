"""Compare partitions of two clusters that should be the same: plan it, and run it in threads or on Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.engine.bulk.runner import Where
from kmirror.engine.compare.verification import (
    CompareWorkUnit,
    Extent,
    PartitionVerdict,
    compare_work_units,
    sampled_bytes,
    sampled_work_units,
    work_units,
)
from kmirror.engine.compare.visible_log import compacted_topics
from kmirror.errors import BrokerError, KmirrorError
from kmirror.ops.base.bulk import Bulk
from kmirror.words import counted
from kmirror.work import Meter, Watch


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What to compare where, in which tasks, and about how many bytes of one side that is."""

    where: Where
    shares: tuple[CompareWorkUnit, ...] = ()
    size_in_bytes: float = 0.0

    @property
    def offsets(self) -> int:
        """How many offsets are compared."""
        return sum(share.offsets for share in self.shares)


def plan_comparison(
    bulk: Bulk,
    extents: Sequence[Extent],
    source: ClusterAccess,
    destination: ClusterAccess,
    sample: int | None = None,
) -> ComparisonPlan:
    """Decide where to compare these, and in which tasks; with `sample`: head, tail and that many ranges of each."""
    clusters = source, destination
    if sample is not None:
        size = sum(sampled_bytes(extent, sample) for extent in extents)
        return ComparisonPlan(
            bulk.where(size), tuple(sampled_work_units(extents, sample, random.Random(), *clusters)), size
        )
    size = sum(extent.estimated_bytes for extent in extents)
    where = bulk.where(size)
    return ComparisonPlan(where, tuple(work_units(extents, bulk.slots(where), *clusters)), size)


class Bounds(NamedTuple):
    """Where two logs start, and where the destination's ends."""

    source_start: int
    destination_start: int
    destination_end: int

    @property
    def start(self) -> int:
        """The first offset that can be compared."""
        return max(self.source_start, self.destination_start)

    @property
    def end(self) -> int:
        """The end of what can be compared; the start if nothing can."""
        return max(self.start, self.destination_end)


@dataclass(frozen=True, slots=True)
class PartitionPairs:
    """Pairs of partitions and their bounds, by partition of the destination.

    A pair whose bounds cannot be read is not in `bounds`; `unknown` says why.
    """

    sources: Mapping[TopicPartition, TopicPartition]
    bounds: Mapping[TopicPartition, Bounds]
    sizes: Mapping[TopicPartition, int]
    indivisible: frozenset[str]
    unknown: Mapping[TopicPartition, KmirrorError]

    @classmethod
    def read(
        cls, source: ClusterClient, destination: ClusterClient, pairs: Iterable[tuple[TopicPartition, TopicPartition]]
    ) -> PartitionPairs:
        """Read the bounds of (source, destination) pairs.

        Raises UnreachableError, OutcomeUnknown: a cluster does not answer.
        """
        sources = {here: there for there, here in pairs}
        # the destination's ends first: then the source must be ahead of them
        ends = destination.list_offsets(dict.fromkeys(sources, LATEST), log_end=True)
        starts = destination.list_offsets(dict.fromkeys(sources, EARLIEST))
        source_starts = source.list_offsets(dict.fromkeys(sources.values(), EARLIEST))
        bounds: dict[TopicPartition, Bounds] = {}
        unknown: dict[TopicPartition, KmirrorError] = {}
        for here, there in sources.items():
            answers = ((there, source_starts[there]), (here, starts[here]), (here, ends[here]))
            offsets = [answer.offset for _, answer in answers if answer.offset is not None and not answer.error_code]
            if len(offsets) == len(answers):
                bounds[here] = Bounds(*offsets)
            else:
                partition, answer = next(one for one in answers if one[1].offset is None or one[1].error_code)
                what = f"looking up the offsets of {partition}"
                unknown[here] = BrokerError(answer.error_code, code_name(answer.error_code), what)
        topics = dict.fromkeys((there.topic, here.topic) for here, there in sources.items())
        indivisible = indivisible_topics(source, destination, topics)
        return cls(sources, bounds, partition_sizes(destination, sources), indivisible, unknown)

    def plan(self, bulk: Bulk, source: ClusterAccess, destination: ClusterAccess) -> ComparisonPlan:
        """Plan to compare everything in the destination's logs."""
        extents = [
            Extent(
                here.topic,
                here.partition,
                self.sources[here].topic,
                known.start,
                known.end,
                self.sizes.get(here),
                here.topic not in self.indivisible,
            )
            for here, known in self.bounds.items()
        ]
        return plan_comparison(bulk, extents, source, destination)


def carry_out(
    bulk: Bulk,
    plan: ComparisonPlan,
    what: str,
    watch: Watch,
    note: Callable[[Mapping[TopicPartition, PartitionVerdict]], str | None] = lambda _: None,
) -> dict[TopicPartition, PartitionVerdict]:
    """Compare as planned; return the verdicts by partition of the destination.

    `watch` is shown the progress, with the text that `note` returns for the verdicts so far.
    """
    verdicts: dict[TopicPartition, PartitionVerdict] = {}
    if not plan.shares:
        return verdicts
    runner = bulk.runner(plan.where)
    named = f"{what} {bulk.summary(plan.where, len(plan.shares))}"
    with Meter(watch, named, "offset", plan.offsets) as meter:
        for finding in compare_work_units(runner, plan.shares, meter):
            verdicts.setdefault(finding.piece.destination, PartitionVerdict()).take(finding)
            meter.add(0, note(verdicts))
    return verdicts


def differing(verdicts: Mapping[TopicPartition, PartitionVerdict]) -> str | None:
    """Return how many partitions were found to differ, as a note on the progress; None while there are none."""
    count = sum(verdict.first_difference is not None for verdict in verdicts.values())
    return f"{counted(count, 'partition')} DIFFERENT" if count else None


def indivisible_topics(
    source: ClusterClient, destination: ClusterClient, pairs: Iterable[tuple[str, str]]
) -> frozenset[str]:
    """Return the destination topics of (source, destination) pairs that must be compared in one piece.

    If one side is compacted, a record far after a missing one may explain it. Topics whose settings we may not read are
    treated as compacted.
    """
    all_pairs = list(pairs)
    try:
        theirs = compacted_topics(source, dict.fromkeys(there for there, _ in all_pairs))
        ours = compacted_topics(destination, dict.fromkeys(here for _, here in all_pairs))
    except BrokerError:
        return frozenset(here for _, here in all_pairs)
    return frozenset(here for there, here in all_pairs if here in ours or there in theirs)
