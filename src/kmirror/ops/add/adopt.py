"""The check of `add --adopt`: the destination's log must be a prefix of the source's, record for record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.leaders import leader_doubt
from kmirror.commands import on_mirror
from kmirror.engine.compare.difference import retention_note
from kmirror.engine.compare.verification import PartitionVerdict
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, TimedOutError
from kmirror.ops.add.add_plan import TopicPlan
from kmirror.ops.base.bulk import Bulk
from kmirror.ops.base.context import as_kmirror_error
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.verify.comparing import Bounds, PartitionPairs, carry_out
from kmirror.words import counted
from kmirror.work import Watch

_ADD_AGAIN = "delete or rename the topic and add it again"


class _Compared(NamedTuple):
    """One partition: its offsets before and after comparing, and the result."""

    here: TopicPartition
    bounds: Bounds
    source_start: int
    source_end: int
    verdict: PartitionVerdict


class Clusters(NamedTuple):
    """Both clusters, and how workers reach them."""

    source: ClusterClient
    destination: ClusterClient
    source_access: ClusterAccess
    destination_access: ClusterAccess


class Adoption(NamedTuple):
    """By topic, why it cannot be adopted; of those that can, the ends of their partitions that were compared."""

    refused: dict[str, TopicResult]
    ends: dict[str, dict[int, int]]


def compare_adopted(
    clusters: Clusters,
    plans: Sequence[TopicPlan],
    mirror: str,
    bulk: Bulk,
    warn: Callable[[str], None],
    watch: Watch,
) -> Adoption:
    """Compare every partition of these topics.

    `warn` is called with what could not be compared because one of the logs starts later.
    """
    pairs = [
        (TopicPartition(plan.source_topic, partition), TopicPartition(plan.topic, partition))
        for plan in plans
        for partition in range(plan.partitions)
    ]
    what = plans[0].topic if len(plans) == 1 else counted(len(plans), "topic")
    try:
        known = PartitionPairs.read(clusters.source, clusters.destination, pairs)
        planned = known.plan(bulk, clusters.source_access, clusters.destination_access)
        verdicts = carry_out(bulk, planned, f"comparing {what} with the source", watch)
        sources = known.sources.values()
        leaders, silent = clusters.source.newest_metadata({there.topic for there in sources})
        starts = clusters.source.list_offsets(dict.fromkeys(sources, EARLIEST), metadata=leaders)
        ends = clusters.source.list_offsets(dict.fromkeys(sources, LATEST), log_end=True, metadata=leaders)
    except (KmirrorError, OutcomeUnknown) as error:
        trouble = as_kmirror_error(error)
        return Adoption({plan.topic: _uncompared(TopicPartition(plan.topic, 0), trouble) for plan in plans}, {})
    refused: dict[str, TopicResult] = {}
    compared: dict[str, dict[int, int]] = {plan.topic: {} for plan in plans}
    for there, here in pairs:
        start, end = starts[there].offset, ends[there].offset
        unknown = known.unknown.get(here)
        if start is None or end is None:
            why = clusters.source.unanswered.get(there, "it has no leader on the source")
            unknown = unknown or KmirrorError(f"the offsets of {there} are unknown: {why}")
        elif unknown is None and end < known.bounds[here].end:
            unknown = leader_doubt(leaders, silent, [there])
        if unknown is not None or start is None or end is None:
            found: TopicResult | None = _uncompared(here, unknown or KmirrorError("its offsets are not known"))
        else:
            found = _refusal(
                _Compared(here, known.bounds[here], start, end, verdicts.get(here, PartitionVerdict())), mirror
            )
        if found is not None:
            refused.setdefault(here.topic, found)
    for here, bounds in known.bounds.items():
        if here.topic not in refused:
            notes = dict.fromkeys(verdicts[here].notes if here in verdicts else ())
            if bounds.source_start != bounds.destination_start:
                notes = {retention_note(bounds.source_start, bounds.destination_start): None, **notes}
            for note in notes:
                warn(f"{here}: {note}")
            compared[here.topic][here.partition] = bounds.destination_end
    return Adoption(refused, {topic: found for topic, found in compared.items() if topic not in refused})


def _refused(here: TopicPartition, message: str, hint: str, reason: Reason | None = None) -> TopicResult:
    return TopicResult(here.topic, None, Outcome.REFUSED, message, reason, hint=hint)


def _uncompared(here: TopicPartition, error: KmirrorError) -> TopicResult:
    outcome = Outcome.TIMED_OUT if isinstance(error, TimedOutError) else Outcome.REFUSED
    message = f"cannot compare {here} with its source: {error}"
    return TopicResult(here.topic, None, outcome, message, error.reason, hint=error.hint or "try again")


def _refusal(compared: _Compared, mirror: str) -> TopicResult | None:
    here, verdict, difference = compared.here, compared.verdict, compared.verdict.first_difference
    if difference is None and verdict.trouble is not None:
        return _uncompared(here, verdict.trouble)
    bounds = compared.bounds
    if difference is None and verdict.offsets < bounds.end - bounds.start:
        return _uncompared(here, KmirrorError(f"only {counted(verdict.offsets, 'offset')} compared"))
    if compared.source_start > bounds.destination_end > 0:
        return _refused(
            here,
            f"cannot compare {here} with its source: it ends at offset {bounds.destination_end}, but the source starts"
            f" at {compared.source_start}",
            _ADD_AGAIN,
            Reason.SOURCE_TRUNCATED,
        )
    if difference is None and compared.source_end >= bounds.end:
        return None
    fork, what = (
        (difference.offset, difference.what) if difference else (compared.source_end, "the source's log ends there")
    )
    return _refused(
        here,
        f"{here} is not a prefix of its source: they fork at offset {fork} ({what});"
        f" up to {counted(bounds.end - fork, 'record')} after it",
        f"`{on_mirror('failback', mirror)} --mirror-config FILE` archives them and resumes from the fork",
        Reason.DESTINATION_WRITTEN,
    )
