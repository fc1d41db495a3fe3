"""`wait`: return when a mirror's topics are caught up, stopped, healthy, drained or within their objectives.

*caught-up*: every partition has reached the source end that the first check saw, and none is still being aligned before
its first record; the source is needed for that check only. One that is stopped meanwhile must have reached it, too.
*stopped*: every partition is STOPPED. *healthy*: records flow: an engine is in charge and reports, its workers report
on every partition, the source answers, and every partition has been aligned; paused and stopped topics are as operators
want them. *drained*: consumers have read all that the source holds (`ops.show.drained`). *objective*: each topic that
`objective.rpo` names is within its objective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from itertools import groupby

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.commands import on_mirror
from kmirror.errors import (
    HISTORY_REASONS,
    BrokerError,
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    UnreachableError,
    UsageError,
)
from kmirror.ops.base.context import (
    Destination,
    cluster_id_of,
    naming_cluster,
    require_mirror,
    require_same_cluster,
)
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_status
from kmirror.ops.show.drained import NO_READER, judge_drained, read_committed_offsets, read_ends, unread_topics
from kmirror.settings.durations import format_duration
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.engine_findings import NotAdded
from kmirror.state.records import DesiredState, MirrorRecord, PartitionState, TopicRecord
from kmirror.status.lasting_troubles import failing_job_notes
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PartitionRow, shown_duration
from kmirror.status.topic_state import TopicState
from kmirror.status.unmirrored import not_added_notes, not_added_topics
from kmirror.words import counted, listed, one_line

_PAUSE_S = 0.5
_MOST_NAMED = 10
#: What does not catch up by itself.
_FINAL = (PartitionState.FAILED, PartitionState.STOPPED)
#: The states of healthy topics, and the reasons that such partitions may have.
_WELL = (TopicState.ACTIVE, TopicState.PAUSED)
_NO_TROUBLE = (None, Reason.PAUSED_BY_OPERATOR, Reason.OPEN_TRANSACTION)


class Condition(StrEnum):
    """What `wait --for` can wait for."""

    CAUGHT_UP = "caught-up"
    STOPPED = "stopped"
    HEALTHY = "healthy"
    DRAINED = "drained"
    OBJECTIVE = "objective"

    @property
    def words(self) -> str:
        """What a topic is then."""
        return "within its objective" if self is Condition.OBJECTIVE else self.value


#: The source ends to reach; a partition without an entry has none yet.
Targets = Mapping[TopicPartition, int]


def wait(
    destination: Destination,
    mirror: str,
    condition: Condition,
    timeout_ms: int,
    *,
    topics: TopicSelector | None = None,
    groups: TopicSelector | None = None,
    on_check: Callable[[str], None] = lambda _: None,
) -> VerbResult:
    """Wait until the condition holds for every selected topic (default: all); `on_check` gets each check's progress.

    The result has a row per topic; TIMED_OUT rows say what was missing. Returns early if every remaining topic has
    FAILED partitions, except for *stopped*. `groups` are those that must have drained the topics (default: all that the
    mirror syncs).

    Raises:
        RefusedError: no such mirror, a plain name among `topics` is no topic of it, it has no topics, or no group reads
            a topic that must be drained.
        UnreachableError: the destination does not answer, at the beginning or when the time is up; or *caught-up* or
            *drained* need the source and it does not.
        UsageError: `groups` are given for another condition than *drained*.
    """
    until = time.monotonic() + timeout_ms / 1000
    if condition is Condition.DRAINED:
        return _wait_until_drained(destination, mirror, until, topics, groups, on_check)
    if groups is not None:
        raise UsageError(f"--groups is not for --for {condition}", "it belongs to --for drained")
    targets: dict[TopicPartition, int] = {}
    has_answered = False
    with Prober(destination) as prober:
        while True:
            try:
                state = destination.state()
                record = require_mirror(state, mirror)
                chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
                if not chosen:
                    why = "; ".join(not_added_notes(not_added_topics(state, record)))
                    raise RefusedError(
                        f"mirror {mirror} has no topics yet{f': {why}' if why else ''}", "add some with `kmirror add`"
                    )
                found, sources = read_status(prober, state, chosen)
            except (KmirrorError, OutcomeUnknown) as error:
                # brokers are restarted while migrations wait
                if not has_answered or not is_transient(error) or time.monotonic() >= until:
                    raise
                on_check(f"unknown now: {one_line(str(error))}")
                time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))
                continue
            has_answered = True
            rows = [row for one in found for row in one.partitions]
            if condition is Condition.OBJECTIVE:
                rows = _with_objective(rows)
            if condition is Condition.CAUGHT_UP:
                _take_targets(targets, rows, sources.get(record.name))
            on_check(progress(condition, rows, targets))
            results, warnings = judge(condition, rows, targets), list[str]()
            if topics is None:
                missing, warnings = not_added_topics(state, record), failing_job_notes(state, mirror, found[0].health)
                if condition is Condition.HEALTHY:
                    results += not_added_results(record, missing)
                else:
                    warnings = not_added_notes(missing) + warnings
            if is_over(results) or time.monotonic() >= until:
                return VerbResult.of("wait", mirror, results, warnings=warnings)
            time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))


def _wait_until_drained(
    destination: Destination,
    mirror: str,
    until: float,
    topics: TopicSelector | None,
    groups: TopicSelector | None,
    on_check: Callable[[str], None],
) -> VerbResult:
    """Wait until consumers have read all that the source holds of the topics: those selected, or all not stopped."""
    results: list[TopicResult] | None = None
    chosen: Sequence[TopicRecord] = ()
    with ExitStack() as stack:
        source: ClusterClient | None = None
        while True:
            try:
                state = destination.state()
                record = require_mirror(state, mirror)
                chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
                if topics is None:
                    chosen = [topic for topic in chosen if topic.desired is not DesiredState.STOPPED]
                if not chosen:
                    raise RefusedError(f"mirror {mirror} mirrors no topic", "name stopped topics with --topics")
                if source is None:
                    source = stack.enter_context(
                        ClusterClient(client_config(record.source).expecting(record.source_cluster_id))
                    )
                with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                    require_same_cluster(record.source_cluster_id, cluster_id_of(source))
                    offsets = read_committed_offsets(source, stored_settings(record.settings), groups)
                    ends = read_ends(source, chosen, offsets)
                if results is None and (unread := unread_topics(chosen, offsets)):
                    raise RefusedError(
                        f"no group has committed an offset of {listed(unread, _MOST_NAMED)}: waiting cannot succeed",
                        NO_READER,
                    )
                results = judge_drained(chosen, offsets, ends)
            except (UnreachableError, BrokerError, OutcomeUnknown) as error:
                if results is None:
                    raise
                why = f"what consumers have read is unknown now: {one_line(str(error))}"
                results = [TopicResult(topic.topic, None, Outcome.TIMED_OUT, why, error.reason) for topic in chosen]
            left = [row for row in results if row.result is not Outcome.DONE]
            lacking = len(left)
            first = f"; {left[0].message}" if left else ""
            on_check(f"{counted(lacking, 'group and partition', 'groups and partitions')} not drained{first}")
            if not lacking or time.monotonic() >= until:
                return VerbResult.of("wait", mirror, results)
            time.sleep(min(_PAUSE_S, max(0.0, until - time.monotonic())))


def judge(condition: Condition, rows: Sequence[PartitionRow], targets: Targets) -> list[TopicResult]:
    """Return one result per topic: DONE, FAILED, or TIMED_OUT with what is missing now.

    A FAILED partition does not catch up by itself, but it can still be stopped.
    """
    return [_judged(condition, topic, list(own), targets) for topic, own in groupby(rows, lambda row: row.topic)]


def not_added_results(mirror: MirrorRecord, not_added: NotAdded) -> list[TopicResult]:
    """Return a result for each source topic that discovery could not add: the mirror is not healthy."""
    prefix, hint = stored_settings(mirror.settings).topic_prefix, "let it be mirrored, or exclude it"
    return [
        TopicResult(prefix + name, None, Outcome.TIMED_OUT, message, hint=hint)
        for name, message in not_added.why.items()
    ]


def is_over(results: Sequence[TopicResult]) -> bool:
    """Return whether waiting longer is pointless."""
    return all(row.result in (Outcome.DONE, Outcome.FAILED) for row in results)


def _with_objective(rows: Sequence[PartitionRow]) -> list[PartitionRow]:
    """Return the partitions of topics that have objectives. Raises RefusedError if none has."""
    found = [row for row in rows if row.objective_ms is not None]
    if not found:
        raise RefusedError(
            "no topic has an objective: waiting cannot succeed",
            "set one with `kmirror config --set 'objective.rpo=.*=10m'`",
        )
    return found


def _take_targets(
    targets: dict[TopicPartition, int], rows: Sequence[PartitionRow], source: ClusterSnapshot | None
) -> None:
    if not targets and source is not None and source.trouble is not None:
        raise _needed(source.trouble)
    for row in rows:
        partition = TopicPartition(row.topic, row.partition)
        if row.state is PartitionState.STOPPED:
            continue  # what was stopped before the wait has no target
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
        is_stopped = all(row.state is PartitionState.STOPPED for row in rows)
        words = "stopped, and no longer copied" if is_stopped else condition.words
        return TopicResult(topic, None, Outcome.DONE, f"{topic} is {words}", lag=lag)
    row, why = missing[0]
    failed = None
    if condition is not Condition.STOPPED:
        failed = next((pair for pair in missing if pair[0].state in _FINAL), None)
    if failed is not None:
        row, why = failed
        if row.state is PartitionState.FAILED:
            why = row.error_message or "FAILED"
    others = len(missing) - 1
    more = f", and {others} other partition{'s' if others > 1 else ''}" if others else ""
    return TopicResult(
        topic,
        None,
        Outcome.TIMED_OUT if failed is None else Outcome.FAILED,
        f"{topic}-{row.partition} is not {condition.words}: {why}{more}",
        row.reason,
        lag=lag,
        hint=_hint(condition, row),
    )


def _hint(condition: Condition, row: PartitionRow) -> str:
    """Return what to do about a topic that is not ready."""
    if condition is Condition.STOPPED:
        if row.topic_state is TopicState.PENDING_STOPPED:
            return f"a promote waits for it: `{on_mirror('promote', row.mirror)} --dry-run` shows what is missing"
        return f"`{on_mirror('promote', row.mirror)}` stops it, `kmirror failover` does so without its source"
    if row.state is PartitionState.FAILED:
        return f"`{on_mirror('describe', row.mirror)} --failed` shows what failed"
    if row.state is PartitionState.STOPPED:
        return f"`{on_mirror('events', row.mirror)}` shows who stopped it; the rest is at the source only"
    who = f"`{on_mirror('check', row.mirror)}` shows which brokers do not answer, and why; or wait longer"
    return {
        Reason.SOURCE_UNREACHABLE: who,
        Reason.DESTINATION_UNREACHABLE: who,
        Reason.NO_ENGINE: f"`{on_mirror('run', row.mirror)}` starts an engine",
        Reason.ENGINE_SILENT: f"`{on_mirror('run', row.mirror)} --take-over` replaces an engine that is stuck",
        Reason.NO_WORKERS: "start Spark workers that the engine's master can use, or check the engine's log",
        Reason.PAUSED_BY_OPERATOR: f"`{on_mirror('resume', row.mirror)}` resumes it",
    }.get(row.reason or Reason.PROMOTED, "wait longer")


def progress(condition: Condition, rows: Sequence[PartitionRow], targets: Targets) -> str:
    """Return how many partitions are not ready, in a few words."""
    lacking = sum(_missing(condition, row, targets) is not None for row in rows)
    return f"{lacking:,} of {counted(len(rows), 'partition')} not {condition.words}"


def _missing(condition: Condition, row: PartitionRow, targets: Targets) -> str | None:
    """Return what is missing for a partition, None if nothing is."""
    target = targets.get(TopicPartition(row.topic, row.partition)) if targets else None
    if row.state is PartitionState.STOPPED and condition is Condition.CAUGHT_UP and target is not None:
        return _stopped_short(row, target)
    if row.state is PartitionState.STOPPED or row.is_extra:
        return None
    if condition is Condition.STOPPED:
        waits = row.topic_state is TopicState.PENDING_STOPPED and row.state is not PartitionState.STOPPING
        why = f", {row.error_message}" if row.error_message else ""
        return f"it is {row.topic_state if waits else row.state}{why}"
    if condition is Condition.HEALTHY:
        if row.topic_state not in _WELL or row.reason not in _NO_TROUBLE:
            return row.error_message or f"it is {row.topic_state}"
        reported = row.is_reported or row.reason is Reason.PAUSED_BY_OPERATOR
        return None if reported else "no worker has reported it yet"
    if condition is Condition.OBJECTIVE:
        return _beyond_objective(row)
    if target is None or row.destination_offset is None:
        return row.error_message or "its offsets are unknown"
    behind = target - row.destination_offset
    why = f"; {row.error_message}" if row.error_message else ""
    if behind > 0 or row.state is PartitionState.FAILED:
        return f"{counted(max(0, behind), 'offset')} behind{why}"
    if row.reason in HISTORY_REASONS:  # what makes it long enough need not be the source's
        return row.error_message or row.reason
    if row.state is PartitionState.LOG_ALIGNMENT and not row.initial_copy_complete:
        return f"its log is still being aligned with the source's{why}"
    return None


def _stopped_short(row: PartitionRow, target: int) -> str | None:
    """Return how much a partition that was stopped meanwhile lacks, None if nothing."""
    if row.last_mirrored_offset is None:
        return "it was stopped, and how far it was copied is unknown"
    behind = target - row.last_mirrored_offset
    return f"it was stopped {counted(behind, 'offset')} short" if behind > 0 else None


def _beyond_objective(row: PartitionRow) -> str | None:
    """Return why a partition is not within its topic's objective, None if it is."""
    if row.objective_state is ObjectiveState.WITHIN:
        return None
    objective, cause = format_duration(row.objective_ms or 0), row.error_message or row.limited_by
    behind = "its time lag is unknown" if row.time_lag_ms is None else f"it is {shown_duration(row.time_lag_ms)} behind"
    limit = row.throttle_bytes_per_second
    if cause is None and limit is not None:
        cause = f"copying is limited to {limit:,} bytes/s (throttle.bytes.per.second)"
    return f"{behind}, and the objective is {objective}" + (f"; {cause}" if cause else "")
