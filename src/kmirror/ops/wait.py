"""`wait`: come back when a mirror's topics are caught up, stopped or healthy.

*caught-up*: every partition has reached the source end that the first look saw, and none is still being made ready for
its first record; the source is needed for that look only. *stopped*: every partition is STOPPED. *healthy*: an engine
is in charge, the source answers it, every partition has been aligned; paused and stopped topics are as their operators
want them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from kmirror.cluster.metadata import TopicPartition
from kmirror.errors import KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.context import Destination, require_mirror
from kmirror.ops.describe import look_at
from kmirror.ops.look import ClusterLook, Looker
from kmirror.ops.results import Outcome, PartitionRow, TopicResult, TopicState, VerbResult
from kmirror.ops.selection import select_topics
from kmirror.patterns import TopicSelector
from kmirror.state.records import PartitionState

_PAUSE_S = 0.5


class Condition(StrEnum):
    """Name what `wait --for` can wait for."""

    CAUGHT_UP = "caught-up"
    STOPPED = "stopped"
    HEALTHY = "healthy"


#: The source ends that are to be reached; a partition without an entry has none yet.
Targets = Mapping[TopicPartition, int]


def wait(
    destination: Destination,
    mirror: str,
    condition: Condition,
    timeout_ms: int,
    *,
    topics: TopicSelector | None = None,
    on_look: Callable[[Sequence[PartitionRow]], None] | None = None,
) -> VerbResult:
    """Look until the condition holds for every topic selected (default: all); `on_look` hears of each look.

    The result has a row per topic; TIMED_OUT rows say what was missing. Ends early when every topic that is left has
    FAILED partitions, unless it is the stop that is waited for.

    Raises:
        RefusedError: no such mirror, a plain name among `topics` is no topic of it, or it has no topics.
        UnreachableError: the destination does not answer, or *caught-up* needs the source and it does not.
    """
    until = time.monotonic() + timeout_ms / 1000
    targets: dict[TopicPartition, int] = {}
    with Looker(destination) as looker:
        while True:
            state = destination.state()
            record = require_mirror(state, mirror)
            chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
            if not chosen:
                raise RefusedError(f"mirror {mirror} has no topics yet", "`kmirror add` gives it some")
            rows, sources = look_at(looker, state, chosen, ())
            if on_look is not None:
                on_look(rows)
            if condition is Condition.CAUGHT_UP:
                _take_targets(targets, rows, sources.get(record.name))
            results = judge(condition, rows, targets)
            if is_over(results) or time.monotonic() >= until:
                return VerbResult.of("wait", mirror, results)
            time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))


def judge(condition: Condition, rows: Sequence[PartitionRow], targets: Targets) -> list[TopicResult]:
    """Return one result a topic: DONE, FAILED for good, or TIMED_OUT with what is missing now.

    A FAILED partition does not catch up by itself; it can still be stopped.
    """
    return [_judged(condition, topic, list(own), targets) for topic, own in groupby(rows, lambda row: row.topic)]


def is_over(results: Sequence[TopicResult]) -> bool:
    """Tell whether waiting longer changes nothing."""
    return all(row.result in (Outcome.DONE, Outcome.FAILED) for row in results)


def _take_targets(targets: dict[TopicPartition, int], rows: Sequence[PartitionRow], source: ClusterLook | None) -> None:
    if not targets and source is not None and source.trouble is not None:
        raise _needed(source.trouble)
    for row in rows:
        partition = TopicPartition(row.topic, row.partition)
        if partition not in targets and row.lag is not None and row.source_offset is not None:
            targets[partition] = row.source_offset


def _needed(trouble: KmirrorError) -> KmirrorError:
    hint = trouble.hint or "wait for it with --for stopped or healthy, or try again"
    kind = RefusedError if trouble.reason is Reason.SOURCE_CLUSTER_CHANGED else UnreachableError
    return kind(trouble.message, hint, trouble.reason)


def _judged(condition: Condition, topic: str, rows: Sequence[PartitionRow], targets: Targets) -> TopicResult:
    missing = [(row, why) for row in rows if (why := _missing(condition, row, targets)) is not None]
    lag = max((row.lag for row in rows if row.lag is not None), default=None)
    if not missing:
        return TopicResult(topic, None, Outcome.DONE, f"{topic} is {condition}", lag=lag)
    failed = next((row for row, _ in missing if row.state is PartitionState.FAILED), None)
    row, why = (failed, failed.error_message or "FAILED") if failed is not None else missing[0]
    more = f", and {len(missing) - 1} other partitions" if len(missing) > 1 else ""
    final = failed is not None and condition is not Condition.STOPPED
    return TopicResult(
        topic,
        None,
        Outcome.FAILED if final else Outcome.TIMED_OUT,
        f"{topic}-{row.partition} is not {condition}: {why}{more}",
        row.reason,
        lag=lag,
        hint=f"`kmirror describe --mirror {row.mirror} --failed` shows what failed" if final else "wait longer",
    )


def _missing(condition: Condition, row: PartitionRow, targets: Targets) -> str | None:
    """Return what a partition lacks, None when it lacks nothing."""
    if row.state is PartitionState.STOPPED:
        return None
    if condition is Condition.STOPPED:
        return f"it is {row.state}"
    if condition is Condition.HEALTHY:
        fine = row.topic_state in (TopicState.ACTIVE, TopicState.PAUSED)
        trouble = row.reason not in (None, Reason.PAUSED_BY_OPERATOR, Reason.OPEN_TRANSACTION)
        return None if fine and not trouble else row.error_message or f"it is {row.topic_state}"
    target = targets.get(TopicPartition(row.topic, row.partition))
    if target is None or row.destination_offset is None:
        return row.error_message or "its offsets are not known"
    behind = target - row.destination_offset
    told = f"; {row.error_message}" if row.error_message else ""
    if behind > 0 or row.state is PartitionState.FAILED:
        return f"{max(0, behind)} offsets behind{told}"
    if row.state is PartitionState.LOG_ALIGNMENT and not row.initial_copy_complete:
        return f"its log is still being aligned with the source's{told}"
    return None
