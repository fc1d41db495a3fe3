"""The proof that `add --adopt` asks for: the destination's log is the beginning of the source's, record for record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.compare.logs import compare_partition, offset_of
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.add.plan import TopicPlan
from kmirror.ops.context import told
from kmirror.ops.results import Outcome, TopicResult
from kmirror.words import counted
from kmirror.work import Add, unwatched


def offsets_to_compare(source: ClusterClient, destination: ClusterClient, plans: Sequence[TopicPlan]) -> int | None:
    """Return over how many offsets these topics are compared; None where a partition does not tell."""
    pairs = [
        (TopicPartition(plan.source_topic, partition), TopicPartition(plan.topic, partition))
        for plan in plans
        for partition in range(plan.partitions)
    ]
    theirs, ours = ({pair[side]: EARLIEST for pair in pairs} for side in (0, 1))
    try:
        starts, own_starts = source.list_offsets(theirs), destination.list_offsets(ours)
        ends = destination.list_offsets(dict.fromkeys(ours, LATEST), log_end=True)
    except (KmirrorError, OutcomeUnknown):
        return None
    total = 0
    for there, here in pairs:
        first, own_first, end = starts[there].offset, own_starts[here].offset, ends[here].offset
        if first is None or own_first is None or end is None:
            return None
        total += max(0, end - max(first, own_first))
    return total


def refusal(
    source: ClusterClient,
    destination: ClusterClient,
    plan: TopicPlan,
    mirror: str,
    warn: Callable[[str], None],
    progress: Add = unwatched,
) -> TopicResult | None:
    """Compare every partition; return why the topic cannot be adopted, None when it can.

    `warn` hears of what could not be compared because one of the logs starts later, `progress` is given how many more
    offsets were compared.
    """

    def refused(message: str, hint: str, reason: Reason | None = None) -> TopicResult:
        return TopicResult(plan.topic, None, Outcome.REFUSED, message, reason, hint=hint)

    add_again = "delete or rename the topic and add it again"
    for partition in range(plan.partitions):
        here, there = TopicPartition(plan.topic, partition), TopicPartition(plan.source_topic, partition)
        try:
            # what is asked of the destination first, the source has to be ahead of
            held = offset_of(destination, here, LATEST)
            found = compare_partition(source, destination, there, here, progress=progress)
            source_start, source_end = offset_of(source, there, EARLIEST), offset_of(source, there, LATEST)
        except (KmirrorError, OutcomeUnknown) as error:
            why = told(error)
            return refused(
                f"{here} could not be compared with its source: {error}", why.hint or "try again", why.reason
            )
        if found.obstacle is not None:
            return refused(f"{here} could not be compared with its source: {found.obstacle}", add_again)
        if source_start > held > 0:
            return refused(
                f"{here} cannot be compared: it ends at offset {held}, but its source starts at {source_start}",
                add_again,
                Reason.SOURCE_TRUNCATED,
            )
        fork = found.first_difference.offset if found.first_difference else source_end
        if found.first_difference is not None or source_end < found.end:
            what = found.first_difference.what if found.first_difference else "the source's log ends there"
            return refused(
                f"{here} is not a prefix of its source: they fork at offset {fork} ({what});"
                f" {counted(found.end - fork, 'record')} after it",
                f"`kmirror failback --mirror {mirror} --mirror-config FILE` archives them and resumes from the fork",
                Reason.DESTINATION_WRITTEN,
            )
        for note in found.notes:
            warn(f"{here}: {note}")
    return None
