"""What a stop reports: where each copy ended, what the source has after that, and the totals. Pure: no I/O, no clock.

What is known of a partition is kept in its record (`AtStop`), so that a stop, its dry run and later reports agree. The
newest observation of the source's end counts, and is always given with its time: an old number is a lower bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.errors import Reason
from kmirror.ops.base.results import StopTotals, VerbResult
from kmirror.ops.base.topic_results import STALE_MS, Outcome, TopicResult, estimated_in_all, is_current
from kmirror.ops.stop.mirrored_end import MirroredEnd
from kmirror.ops.stop.source_ends import SourceEnd, SourceEnds
from kmirror.settings.durations import format_duration
from kmirror.state.assignment import SourceSeen
from kmirror.state.records import FRESH_SECONDS, AtStop, PartitionRecord, PartitionState, ProgressRow, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.observed import is_gone
from kmirror.status.partition_row import known_lost
from kmirror.words import at_time, counted, listed


@dataclass(frozen=True, slots=True)
class VerbReport:
    """What a verb that stops topics or fails back returns: its document, and the evidence for `--report`."""

    result: VerbResult
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report of the mirror's lanes on a partition, and its time."""

    row: ProgressRow
    #: The time as of which the row describes the source.
    as_of_ms: int
    time_ms: int = 0


def last_reports(state: State, mirror: str) -> dict[TopicPartition, LastReport]:
    """Return the last reports on the partitions of a mirror, ignoring those from before they became its partitions.

    Of a partition that no lane reports on since a pause, what was known then.
    """
    records = (one for topic in state.topics(mirror) for one in state.partitions(mirror, topic.topic))
    found = {
        TopicPartition(one.topic, one.partition): _before_pause(one, one.source_seen)
        for one in records
        if one.source_seen is not None
    }
    return found | {
        TopicPartition(row.topic, row.partition): LastReport(row, report.as_of_ms(row), report.time_ms)
        for report, row in state.last_rows(mirror)
    }


def _before_pause(record: PartitionRecord, seen: SourceSeen) -> LastReport:
    row = ProgressRow(
        record.topic,
        record.partition,
        seen.last_stable_offset,
        seen.high_watermark,
        seen.log_start,
        None,
        None,
        record.state,
        source_lost_ms=seen.lost_ms,
        records_per_second=seen.records_per_second,
    )
    return LastReport(row, seen.time_ms, seen.time_ms)


def with_all_partitions(state: State, topic: TopicRecord, here: TopicMetadata | None) -> TopicRecord:
    """Return the topic with a count of all the partitions that it has `here`, and of those on record.

    An older kmirror did not count what the source added later; what others added here becomes writable too.
    """
    counts = [record.partition + 1 for record in state.partitions(topic.mirror, topic.topic)]
    if here is not None and topic.destination_topic_id is not None and not here.error_code and not is_gone(topic, here):
        counts.append(len(here.partitions))
    return replace(topic, partitions=max([topic.partitions, *counts]))


def partitions_of(topic: TopicRecord) -> list[TopicPartition]:
    """Return the partitions of a mirror topic."""
    return [TopicPartition(topic.topic, partition) for partition in range(topic.partitions)]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a partition had FAILED when it was stopped, and the first offset that could not be copied."""

    reason: Reason
    message: str | None
    offset: int | None


def failure_of(record: PartitionRecord | None, report: LastReport | None) -> Failure | None:
    """Return why a partition has FAILED, by its record or by a newer report of its lane; None if it has not."""
    failed = report if report is not None and report.row.state is PartitionState.FAILED else None
    offset = failed.row.failed_offset if failed is not None else None
    # the record of a partition that is STOPPING keeps the reason
    states = (PartitionState.FAILED, PartitionState.STOPPING)
    if record is not None and record.reason is not None and record.state in states:
        return Failure(record.reason, record.message, record.failed_offset if offset is None else offset)
    if failed is None or failed.row.reason is None:
        return None
    is_newer = record is None or failed.time_ms > record.state_time_ms
    return Failure(failed.row.reason, failed.row.message, offset) if is_newer else None


def at_stop_from_reports(
    end: MirroredEnd, log_end: int, failure: Failure | None, report: LastReport | None, time_ms: int
) -> AtStop:
    """Return what is known of a partition at the moment of its stop, before the source has answered."""
    known = AtStop(
        time_ms,
        log_end,
        foreign_records=end.foreign_records,
        foreign_producer_id=end.producer_id,
        foreign_is_complete=end.is_complete,
    )
    if failure is not None:
        diverged = failure.reason is Reason.SOURCE_DIVERGED
        fork = failure.offset if diverged else None
        known = replace(known, failure=failure.reason, failure_message=failure.message, fork_offset=fork)
    if report is None:
        return known
    row = report.row
    known = replace(known, last_timestamp_ms=row.last_timestamp_ms, records_per_second=row.records_per_second)
    if row.source_offset is None:
        return known
    return replace(
        known,
        source_offset=row.source_offset,
        source_high_watermark=row.source_high_watermark,
        source_as_of_ms=report.as_of_ms,
        source_lost_ms=row.source_lost_ms,
        source_answered=False,
    )


def with_source_answer(
    partition: TopicPartition, known: AtStop, answer: SourceEnds, last_mirrored_offset: int
) -> AtStop:
    """Return what is known of a partition, updated with the source's answer if it has one on the partition."""
    if partition.topic in answer.notes:
        return replace(known, source_note=answer.notes[partition.topic])
    if partition in answer.absent:
        none = "the source has no such partition"
        return replace(known, source_note=none, source_offset=0, source_as_of_ms=answer.time_ms, source_answered=True)
    end = answer.ends.get(partition)
    if end is None:
        return known
    # newer than any report, whatever their times: the reports were read before the source was asked, by other clocks
    known = replace(
        known,
        source_offset=end.offset,
        source_high_watermark=end.high_watermark,
        source_as_of_ms=answer.time_ms,
        source_lost_ms=None,
        source_answered=True,
        source_went_back=end.went_back or None,
    )
    return replace(known, source_max_timestamp_ms=_newest_lost_ms(end, known_lost(last_mirrored_offset, known) or 0))


def _newest_lost_ms(end: SourceEnd, lost: int) -> int | None:
    """Return the latest timestamp of a source partition; None if it is not of one of the last `lost` records."""
    newest = end.newest
    return newest.timestamp if newest is not None and (newest.offset or 0) >= end.offset - lost else None


def stopped_row(
    partition: TopicPartition,
    record: PartitionRecord | None,
    outcome: Outcome,
    reason: Reason | None,
    is_stopped: str = "is stopped",
) -> TopicResult:
    """Return the row of a stopped partition: its end, what the source has after that, and its failure if any."""
    if record is None or record.last_mirrored_offset is None:
        return TopicResult(
            *partition, outcome, f"{partition} {is_stopped}; its last mirrored offset is unknown", reason
        )
    lmo, known = record.last_mirrored_offset, record.at_stop
    lag = known_lost(lmo, known) if known is not None else None
    row = TopicResult(*partition, outcome, None, reason, last_mirrored_offset=lmo, lag=lag, at_stop=known)
    if known is not None and known.source_only:
        holds = "the number of its offsets is unknown" if lag is None else f"with {counted(lag, 'offset')}"
        return replace(row, message=f"{partition} exists on the source only, {holds}: none of them was copied")
    clauses = [f"{partition} {is_stopped} at {lmo}", *(_clauses(row, known) if known else ["the loss is unknown"])]
    return replace(row, message="; ".join(clauses))


def already_stopped_rows(state: State, topic: TopicRecord) -> list[TopicResult]:
    """Return the stored results of a topic that was stopped before, by partition."""
    records = state.partitions(topic.mirror, topic.topic)
    why = topic.stop_reason or "STOPPED"
    if not records:
        return [TopicResult(topic.topic, None, Outcome.NOOP, f"{topic.topic} was already stopped ({why})")]
    return [
        stopped_row(
            TopicPartition(topic.topic, record.partition),
            record,
            Outcome.NOOP,
            record.reason,
            f"was already stopped ({why}, {at_time(record.state_time_ms)})",
        )
        for record in records
    ]


def source_only_record(
    mirror: str, partition: TopicPartition, end: SourceEnd | None, as_of_ms: int, time_ms: int
) -> PartitionRecord:
    """Return the record of a partition that only the source has when its topic is stopped; `end` None: unknown."""
    known = AtStop(time_ms, 0, source_only=True)
    if end is not None:
        known = replace(
            known,
            source_offset=end.offset,
            source_high_watermark=end.high_watermark,
            source_as_of_ms=as_of_ms,
            source_answered=True,
            source_log_start=end.log_start,
        )
    return PartitionRecord(mirror, *partition, PartitionState.STOPPED, time_ms, last_mirrored_offset=0, at_stop=known)


def _clauses(row: TopicResult, known: AtStop) -> Iterable[str]:
    if known.failure is not None:
        yield f"it had FAILED with {known.failure}: {known.failure_message}"
    if known.foreign_records:
        bound = "" if known.foreign_is_complete else "at least "
        producer = known.foreign_producer_id
        writer = f"producer id {producer}" if producer is not None and producer >= 0 else "a producer without an id"
        is_are = "is" if known.foreign_records == 1 else "are"
        yield (
            f"{bound}{counted(known.foreign_records, 'foreign record')} from {writer} {is_are} at offset "
            f"{row.last_mirrored_offset} and after, not from the source"
        )
    if known.source_note is not None:
        yield known.source_note
    if row.is_complete:
        yield f"nothing is lost: the source ended at {known.source_offset}"
        return
    if row.lag is None or known.source_as_of_ms is None:
        yield "the number of further records on the source is unknown: its end was never read"
        return
    old = known.time_ms - known.source_as_of_ms
    age = "" if is_current(known) or old < 1 else f", {format_duration(old)} before the stop"
    yield (
        f"{counted(row.lag, 'offset')} known lost: the source ended at {known.source_offset} at "
        f"{at_time(known.source_as_of_ms)}{age}"
    )
    if known.source_went_back and known.failure is None:
        yield "before, the copy was longer: the source has lost records, and those that it received since are lost, too"
    if known.fork_offset is not None:
        yield f"the source's history forked at offset {known.fork_offset}: its records from there count as lost"
    hidden = (known.source_high_watermark or 0) - (known.source_offset or 0)
    if hidden > 0:
        yield f"up to {hidden:,} more follow an open transaction"
    if row.estimated_more:
        rate = f"{known.records_per_second:g} offsets a second"
        lost_ms = known.source_lost_ms
        both = _more(row.estimated_more_at_loss, row.estimated_more, lost_ms)
        more = both or f"{row.estimated_more:,} more since then"
        yield f"about {more} at {rate}, an estimate"


def _more(at_loss: int | None, until_stop: int, lost_ms: int | None) -> str | None:
    """Return how many more are lost if the source died when it was lost, and if not; None if it is not known when."""
    if at_loss is None or lost_ms is None:
        return None
    when = f"{at_time(lost_ms)}, when a connection to it broke"
    return f"{at_loss:,} more if the source died at {when}, or {until_stop:,} if it took writes until the stop,"


def sorted_rows(rows: Iterable[TopicResult]) -> list[TopicResult]:
    """Return rows by topic and partition; one on the whole topic comes first."""
    return sorted(rows, key=lambda row: (row.topic or "", -1 if row.partition is None else row.partition))


#: Reports of different lanes are of moments this far apart.
_REPORTED_TOGETHER_MS = int(2 * 1000 * FRESH_SECONDS)


def needs_attention(row: TopicResult) -> bool:
    """Return whether an operator should see the row: something failed, is unknown, or was lost."""
    if row.result is Outcome.NOOP and row.partition is None:
        return False
    if row.result not in (Outcome.DONE, Outcome.NOOP) or row.lag or row.at_stop is None:
        return True
    known = row.at_stop
    is_told = row.lag is None or known.failure or known.foreign_records or known.source_note
    return bool(is_told or known.source_went_back)


def totals_of(rows: Iterable[TopicResult], source_trouble: str | None) -> StopTotals:
    """Sum up the rows of partitions; `source_trouble` is why the source did not answer now, None if it did."""
    every = tuple(rows)
    all_parts = [row for row in every if row.partition is not None]
    of_topics = {row.topic for row in all_parts}
    # a topic that was not stopped may have no row of its partitions: that is not to have lost nothing
    is_all = all(row.topic in of_topics for row in every if row.result not in (Outcome.DONE, Outcome.NOOP))
    parts = [row for row in all_parts if not row.is_complete]
    known = [row.at_stop for row in parts if row.at_stop is not None]
    lost = [row.lag for row in parts if row.lag is not None]
    rpos = [row.rpo_ms for row in parts]
    certain = [rpo for rpo in rpos if rpo is not None]
    at_loss = [row.rpo_at_loss_ms for row in parts]
    longest_at_loss = max((rpo for rpo in at_loss if rpo is not None), default=0)
    lost_ms = max((one.source_lost_ms for one in known if one.source_lost_ms is not None), default=None)
    seen = [(one.time_ms, one.source_as_of_ms) for one in known if one.source_offset is not None]
    ages = [(stopped_ms - as_of_ms, as_of_ms) for stopped_ms, as_of_ms in seen if as_of_ms is not None]
    age_ms, as_of_ms = max(ages, default=(None, None))
    return StopTotals(
        partitions=len(all_parts),
        complete_partitions=len(all_parts) - len(parts),
        failed_partitions=sum(one.failure is not None for one in known),
        known_lost_records=sum(lost) if lost or (is_all and not parts) else None,
        partitions_unknown=len(parts) - len(lost),
        estimated_more_records=estimated_in_all(parts),
        estimated_more_at_loss_records=estimated_in_all(parts, at_loss=True),
        foreign_records=sum(one.foreign_records for one in known),
        rpo_ms=max(certain, default=0) if is_all and len(certain) == len(rpos) else None,
        rpo_at_least_ms=max(certain, default=None),
        rpo_at_loss_ms=longest_at_loss if lost_ms and None not in at_loss else None,
        source_lost_ms=lost_ms,
        last_mirrored_timestamp_ms=_last_mirrored_ms(parts),
        as_of_ms=as_of_ms,
        age_ms=age_ms,
        source_trouble=source_trouble,
    )


def _last_mirrored_ms(parts: Iterable[TopicResult]) -> int | None:
    """Return the earliest timestamp of last records, of the partitions whose sources were growing; else the latest.

    Partitions that have everything (RPO 0) do not count, and what is idle says nothing of how far a copy is behind.
    """
    last = [row.at_stop for row in parts if row.at_stop is not None and row.rpo_ms != 0]
    growing = [one.last_timestamp_ms for one in last if one.last_timestamp_ms is not None and one.records_per_second]
    if growing:
        return min(growing)
    return max((one.last_timestamp_ms for one in last if one.last_timestamp_ms is not None), default=None)


def totals_sentences(totals: StopTotals) -> list[str]:
    """Return the totals as sentences."""
    sentences = [counted(totals.partitions, "partition")]
    if totals.complete_partitions == totals.partitions > 0:
        return [f"{sentences[0]}: nothing is lost, promoted with all that the source had"]
    if totals.complete_partitions:
        sentences.append(f"{totals.complete_partitions:,} of them promoted before, with all that the source had")
    if totals.known_lost_records is not None:
        sentences[0] += f": {counted(totals.known_lost_records, 'offset')} known lost"
    if totals.as_of_ms is not None and totals.age_ms is not None:
        is_old = totals.age_ms > STALE_MS or (totals.source_trouble is not None and totals.age_ms > 0)
        old = f", {format_duration(totals.age_ms)} before the stop; later records are lost too" if is_old else ""
        sentences[0] += f" as of {at_time(totals.as_of_ms)}{old}"
    if totals.partitions_unknown:
        sentences.append(f"{counted(totals.partitions_unknown, 'partition')}: the loss is unknown")
    if totals.estimated_more_records:
        lost_ms = totals.source_lost_ms
        both = _more(totals.estimated_more_at_loss_records, totals.estimated_more_records, lost_ms)
        more = both or f"{totals.estimated_more_records:,} more offsets lost,"
        sentences.append(f"about {more} an estimate from the last known rates")
    if totals.failed_partitions:
        sentences.append(f"{counted(totals.failed_partitions, 'partition')} had FAILED before the stop")
    if totals.rpo_ms is not None:
        sentences.append(f"RPO: {totals.rpo_ms / 1000:g} s between the last mirrored record and the source's last one")
    else:
        since = totals.last_mirrored_timestamp_ms
        least = f"at least {totals.rpo_at_least_ms / 1000:g} s" if totals.rpo_at_least_ms else "not known"
        if totals.rpo_at_loss_ms is not None and totals.source_lost_ms is not None:
            died = f"if the source died at {at_time(totals.source_lost_ms)}"
            least += f", at most {totals.rpo_at_loss_ms / 1000:g} s {died}"
        sentences.append(f"RPO: {least}" + (f"; the last mirrored record is from {at_time(since)}" if since else ""))
    if totals.source_trouble is not None:
        sentences.append(f"the source does not answer now: {totals.source_trouble}")
    return sentences


def incomplete_warnings(
    state: State,
    mirror: str,
    topics: Iterable[TopicRecord],
    reports: Mapping[TopicPartition, LastReport],
    absent: Collection[TopicPartition] = (),
) -> list[str]:
    """Return a warning that names the partitions whose first copy was never complete; the source lacks `absent`."""
    partial = [
        str(partition)
        for topic in topics
        for partition in partitions_of(topic)
        if partition not in absent
        and not ((record := state.partition(mirror, *partition)) and record.initial_copy_complete)
        and not (partition in reports and reports[partition].row.source_offset == 0)
    ]
    return [f"the first copy was not complete: {listed(partial)}"] if partial else []


def spread_warnings(topics: Iterable[TopicRecord], reports: Mapping[TopicPartition, LastReport]) -> list[str]:
    """Return a warning on how far apart in time the topics' copies end, unless they end together.

    The copy of a partition that had all that its source held ends at the time of that report, however old its last
    record is; any other ends at its last record, or where it last had everything.
    """
    ends: dict[str, int] = {}
    for topic in topics:
        known = [_copied_until_ms(reports[p]) for p in partitions_of(topic) if p in reports]
        if found := [at for at in known if at is not None]:
            ends[topic.topic] = min(found)
    spread = max(ends.values(), default=0) - min(ends.values(), default=0)
    if spread <= _REPORTED_TOGETHER_MS:
        return []
    behind, ahead = min(ends, key=lambda t: ends[t]), max(ends, key=lambda t: ends[t])
    return [
        f"the topics' copies end {spread / 1000:.3f} s apart: {behind} is the furthest behind, {ahead} the furthest"
        " ahead"
    ]


def _copied_until_ms(report: LastReport) -> int | None:
    """Return the time up to which a partition has what its source held; None if it is unknown."""
    row = report.row
    if row.source_offset is not None and (row.destination_offset or 0) >= row.source_offset:
        return report.as_of_ms
    known = [at for at in (row.last_timestamp_ms, row.caught_up_ms) if at is not None]
    return max(known, default=None)
