"""`recover`: retry FAILED partitions immediately, with the operator's consent to a loss if there is one.

The request is recorded with the topic. An engine in charge reads it and restarts those partitions; the next engine does
so anyway. Nothing is lost that was not accepted here: a loss is accepted from the copy's current end, and the consent
ends as soon as a record after it was copied.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.commands import on_mirror
from kmirror.errors import RESET_REASONS, Reason
from kmirror.ops.base.context import Destination, change, own_event, record_event, require_mirror
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.rights.own_rights import require_own_rights
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_status
from kmirror.settings.patterns import TopicSelector
from kmirror.state.assignment import Recovery
from kmirror.state.engine_identity import living_engine
from kmirror.state.records import PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.status.next_steps import next_step
from kmirror.status.observed import reports_of
from kmirror.status.partition_row import PartitionRow
from kmirror.words import counted
from kmirror.work import Add, Meter, Watch, unwatched

#: How long to wait for an engine in charge.
_WAIT_S = 60.0
_PAUSE_S = 0.2
_RETRIED = "remove the cause: an engine in charge retries it"


@dataclass(frozen=True, slots=True)
class Consent:
    """What the operator accepts."""

    loss: bool = False
    #: With a loss: start the mirror's log after it.
    trim: bool = False
    #: Archive and rebuild topics whose source was recreated, or that diverged.
    reset: bool = False
    divergence: bool = False


@dataclass(frozen=True, slots=True)
class _Retry:
    """The request for one FAILED partition; `note` is appended to its message."""

    topic_partition: TopicPartition
    note: str
    lost: tuple[int, int] | None = None
    rebuilds: Reason | None = None


#: The reasons that need each consent.
_DIVERGENCES = frozenset({Reason.SOURCE_DIVERGED, Reason.DESTINATION_WRITTEN, Reason.OFFSET_MISMATCH})
#: How records were lost.
_LOSS_CAUSES = {
    Reason.SOURCE_TRUNCATED: "which the source deleted before they were copied",
    Reason.DESTINATION_TRUNCATED: "which the destination lost and the source no longer has",
}


def recover(
    destination: Destination,
    mirror: str,
    topics: TopicSelector | None = None,
    consent: Consent | None = None,
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
    shown: Sequence[TopicResult] | None = None,
) -> VerbResult:
    """Retry the FAILED partitions of these topics; one result each.

    The consent covers only what a dry run has `shown`; without that, whatever is found now. With an engine in charge,
    DONE means that the partition is copied again; without, that the next engine will try.
    `watch` gets the progress of waiting for the engine.

    Raises:
        RefusedError: no such mirror, or a plain name in `topics` is not a topic of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    require_mirror(state, mirror)
    chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
    with Prober(destination) as prober:
        found, _ = read_status(prober, state, chosen)
    failed = [row for one in found for row in one.partitions if row.failed]
    if not failed:
        return _result(mirror, [TopicResult(None, None, Outcome.NOOP, "no partition is FAILED")], dry_run)
    rebuilt = {topic.topic for topic in chosen if topic.rebuild is not None}
    decided = [_rebuild_fails(row) if row.topic in rebuilt else _decide(row, consent or Consent()) for row in failed]
    if shown is not None:
        decided = _unless_changed(decided, shown)
    retries = [one for one in decided if isinstance(one, _Retry)]
    results = [one for one in decided if isinstance(one, TopicResult)]
    if dry_run and retries:
        require_own_rights(destination)
    if dry_run or not retries:
        return _result(mirror, [*results, *map(_previewed, retries)], dry_run)
    # the engine's clock may differ from ours, so times are compared with its own only
    rebuilt_before = {topic.topic: topic.rebuilt_at_ms for topic in state.topics(mirror)}
    numbers = _record(destination, mirror, retries, trims=consent is not None and consent.trim)
    if living_engine(destination.store, destination.state().engine(mirror), DEFAULT_TIMEOUT_S) is None:
        hint = f"no engine is in charge; `{on_mirror('run', mirror)}` starts one"
        results += [_done(retry, f"will be retried{retry.note}") for retry in retries]
        return _result(mirror, results, dry_run, warnings=[hint])
    with Meter(watch, "waiting for the engine to resume copying", "partition", len(retries)) as meter:
        deadline = time.monotonic() + _WAIT_S
        results += _wait(destination.state, mirror, retries, numbers, rebuilt_before, deadline, meter.add)
    done = _result(mirror, results, dry_run)
    _record_outcome(destination, mirror, done)
    return done


def _rebuild_fails(row: PartitionRow) -> TopicResult:
    return TopicResult(row.topic, row.partition, Outcome.FAILED, row.error_message, row.reason, hint=_RETRIED)


def _decide(row: PartitionRow, consent: Consent) -> _Retry | TopicResult:
    partition = TopicPartition(row.topic, row.partition)
    # a destination that lost records can keep the rest, or have it archived
    is_rest_archived = row.reason is Reason.DESTINATION_TRUNCATED and consent.divergence and not consent.loss
    hint = next_step(row.reason, row.mirror, row.topic, row.source_topic)
    if row.reason is Reason.DESTINATION_TOPIC_DELETED:
        return TopicResult(row.topic, row.partition, Outcome.REFUSED, row.error_message, row.reason, hint=hint)
    if row.reason in RESET_REASONS | _DIVERGENCES or is_rest_archived:
        if not (consent.reset if row.reason in RESET_REASONS else consent.divergence):
            wanted = "--accept-reset" if row.reason in RESET_REASONS else "--accept-divergence"
            message = f"{partition} needs {wanted}{_instead(consent)}: {row.error_message}"
            return TopicResult(row.topic, row.partition, Outcome.REFUSED, message, row.reason, hint=hint)
        what = "all of its records" if row.reason in RESET_REASONS else "the records that the source does not have"
        return _Retry(
            partition, f"; {what} are archived, and the topic is rebuilt from its source", rebuilds=row.reason
        )
    start, end = row.source_log_start, row.destination_offset
    if row.reason not in _LOSS_CAUSES or start is None or end is None or start <= end:
        return _Retry(partition, "")
    what = f"{counted(start - end, 'offset')}, {end} to {start - 1}, {_LOSS_CAUSES[row.reason]}"
    if not consent.loss:
        message = f"{partition} needs --accept-loss{_instead(consent)}: it can continue only without {what}"
        return TopicResult(row.topic, row.partition, Outcome.REFUSED, message, row.reason, hint=hint)
    trimmed = f"; its log will start at {start}" if consent.trim else ""
    return _Retry(partition, f" and continues without {what}{trimmed}", (end, start))


def _unless_changed(
    decided: Sequence[_Retry | TopicResult], shown: Collection[TopicResult]
) -> list[_Retry | TopicResult]:
    """Refuse the retries that would accept what was not shown to the operator."""
    return [
        TopicResult(
            *one.topic_partition,
            Outcome.REFUSED,
            f"not what was shown: {_previewed(one).message}",
            hint="run it again to see what it accepts now",
        )
        if isinstance(one, _Retry) and (one.lost or one.rebuilds) and _previewed(one) not in shown
        else one
        for one in decided
    ]


def _instead(consent: Consent) -> str:
    """Return the consents that were given instead of the one that is needed."""
    given = {"--accept-loss": consent.loss, "--accept-reset": consent.reset, "--accept-divergence": consent.divergence}
    named = [flag for flag, is_given in given.items() if is_given]
    return f", not {' and '.join(named)}" if named else ""


def _record(
    destination: Destination, mirror: str, retries: Sequence[_Retry], *, trims: bool
) -> dict[TopicPartition, int]:
    """Record the requests; return the number of each partition's request."""
    numbers: dict[TopicPartition, int] = {}
    by_topic: defaultdict[str, list[_Retry]] = defaultdict(list)
    for retry in retries:
        by_topic[retry.topic_partition.topic].append(retry)

    def decide(state: State) -> Changes:
        records = [
            _with_recoveries(record, by_topic[record.topic], trims=trims)
            for record in state.topics(mirror)
            if record.topic in by_topic
        ]
        for record in records:
            topic_partitions = [TopicPartition(record.topic, partition) for partition in record.recoveries or {}]
            numbers.update(
                (topic_partition, (record.recoveries or {})[topic_partition.partition].number)
                for topic_partition in topic_partitions
            )
        lost = [
            {
                "topic": retry.topic_partition.topic,
                "partition": retry.topic_partition.partition,
                "from": retry.lost[0],
                "until": retry.lost[1],
            }
            for retry in retries
            if retry.lost
        ]
        details = {
            "partitions": [str(retry.topic_partition) for retry in retries][:100],
            "count": len(retries),
            "accepted": lost,
            "rebuilds": sorted({retry.topic_partition.topic for retry in retries if retry.rebuilds})[:100],
        }
        event = own_event(mirror, "recover", "REQUESTED", details)
        return Changes(tuple(records), (), (event,))

    change(destination, mirror, decide)
    return numbers


def _record_outcome(destination: Destination, mirror: str, done: VerbResult) -> None:
    """Record how the engine answered a request."""
    counts = Counter(row.result.value for row in done.results)
    record_event(destination, mirror, "recover", done.exit_code.name, {"results": dict(counts)})


def _with_recoveries(record: TopicRecord, retries: Sequence[_Retry], *, trims: bool) -> TopicRecord:
    known = dict(record.recoveries or {})
    for retry in retries:
        before = known.get(retry.topic_partition.partition)
        lost_from, lost_until = retry.lost or (None, None)
        number = before.number + 1 if before else 1
        known[retry.topic_partition.partition] = Recovery(
            number, lost_from, lost_until, trims and retry.lost is not None, retry.rebuilds
        )
    return replace(record, recoveries=known)


def _wait(
    read: Callable[[], State],
    mirror: str,
    retries: Sequence[_Retry],
    numbers: Mapping[TopicPartition, int],
    rebuilt_before: Mapping[str, int | None],
    deadline: float,
    progress: Add,
) -> list[TopicResult]:
    """Wait until a lane that has read the request, or that started after the rebuild, reports on each partition."""
    left = {retry.topic_partition: retry for retry in retries}
    results: dict[TopicPartition, TopicResult] = {}
    progress_of: dict[TopicPartition, str] = {}
    while True:
        state = read()
        reports = reports_of(state, mirror)
        for partition, retry in list(left.items()):
            claimed = state.topic(mirror, partition.topic)
            if retry.rebuilds and claimed and claimed.rebuild and claimed.rebuild.trouble:
                message = f"its topic cannot be rebuilt: {claimed.rebuild.trouble}"
                results[partition] = TopicResult(*partition, Outcome.FAILED, message, retry.rebuilds, hint=_RETRIED)
                del left[partition]
                progress(1)
                continue
            report = reports.get(partition)
            if report is None or not (retry.rebuilds or (report.row.recovery or 0) >= numbers.get(partition, 0)):
                continue
            topic = state.topic(mirror, partition.topic)
            rebuilt_ms = topic.rebuilt_at_ms if topic else None
            is_rebuilt = rebuilt_ms is not None and rebuilt_ms != rebuilt_before.get(partition.topic)
            if retry.rebuilds and not (is_rebuilt and report.time_ms >= (rebuilt_ms or 0)):
                has_begun = topic is not None and topic.rebuild is not None
                progress_of[partition] = (
                    "its topic is still being rebuilt"
                    if has_begun
                    else "the rebuild of its topic has not begun: the engine's log says why"
                )
                continue
            row = report.row
            if row.state is PartitionState.FAILED:
                hint = next_step(row.reason, mirror, partition.topic, topic.source_topic if topic else partition.topic)
                results[partition] = TopicResult(*partition, Outcome.FAILED, row.message, row.reason, hint=hint)
            elif row.state is PartitionState.MIRRORING:
                results[partition] = _done(retry, f"resumed copying{retry.note}")
            else:
                progress_of[partition] = row.message or "its logs are being compared"
                continue
            del left[partition]
            progress(1)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_S)
    for partition in left:
        message = progress_of.get(partition, "the engine has not restarted it yet")
        hint = "`kmirror describe` shows its progress"
        results[partition] = TopicResult(*partition, Outcome.TIMED_OUT, message, hint=hint)
    return [results[retry.topic_partition] for retry in retries]


def _previewed(retry: _Retry) -> TopicResult:
    return _done(retry, f"would be retried{retry.note}")


def _done(retry: _Retry, what: str) -> TopicResult:
    return TopicResult(*retry.topic_partition, Outcome.DONE, f"{retry.topic_partition} {what}")


def _result(mirror: str, rows: Sequence[TopicResult], dry_run: bool, warnings: Sequence[str] = ()) -> VerbResult:
    ordered = sorted(rows, key=lambda row: (row.topic or "", row.partition or 0))
    return VerbResult.of("recover", mirror, ordered, dry_run=dry_run, warnings=warnings)
