"""The proof that `add --adopt` asks for: the destination's log is the beginning of the source's, record for record."""

from __future__ import annotations

from collections.abc import Callable

from kmirror.cluster.client import LATEST, ClusterClient, require
from kmirror.cluster.metadata import TopicPartition
from kmirror.engine.compare import compare_partition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.add_plan import TopicPlan
from kmirror.ops.context import told
from kmirror.ops.results import Outcome, TopicResult


def refusal(
    source: ClusterClient,
    destination: ClusterClient,
    plan: TopicPlan,
    mirror: str,
    warn: Callable[[str], None],
) -> TopicResult | None:
    """Compare every partition; return why the topic cannot be adopted, None when it can.

    `warn` hears of what could not be compared because one of the logs starts later.
    """
    for partition in range(plan.partitions):
        here, there = TopicPartition(plan.topic, partition), TopicPartition(plan.source_topic, partition)
        try:
            found = compare_partition(source, destination, there, here)
            source_end = _log_end(source, there)
        except (KmirrorError, OutcomeUnknown) as error:
            return TopicResult(
                plan.topic,
                None,
                Outcome.REFUSED,
                f"{here} could not be compared with its source: {error}",
                told(error).reason,
                hint=told(error).hint or "try again",
            )
        if found.obstacle is not None:
            return TopicResult(
                plan.topic,
                None,
                Outcome.REFUSED,
                f"{here} could not be compared with its source: {found.obstacle}",
                hint="delete or rename the topic, and add it again",
            )
        fork = found.first_difference.offset if found.first_difference else source_end
        if found.first_difference is not None or source_end < found.end:
            what = found.first_difference.what if found.first_difference else "the source's log ends there"
            return TopicResult(
                plan.topic,
                None,
                Outcome.REFUSED,
                f"{here} is not the beginning of its source: they part at offset {fork} ({what}); "
                f"{found.end - fork} records lie beyond",
                Reason.DESTINATION_WRITTEN,
                hint=f"`kmirror failback --mirror {mirror} --mirror-config FILE` saves them and goes back to there",
            )
        for note in found.notes:
            warn(f"{here}: {note}")
    return None


def _log_end(client: ClusterClient, partition: TopicPartition) -> int:
    found = client.list_offsets({partition: LATEST}, log_end=True)[partition]
    require(found.error_code, f"looking up the end of {partition}")
    return found.offset or 0
