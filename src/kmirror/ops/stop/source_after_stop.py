"""Whether the source received anything after a promote's stop: it is read once more, and the result is recorded.

The stop leaves a mark in each partition's record, which goes with the result. So a promote that was killed in between,
or whose source did not answer, is finished by the next one; and what the copy lacks is reported each time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, as_kmirror_error, change, now_ms, source_client
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.copied_back import copied_back
from kmirror.ops.stop.promote_readiness import ANOTHER, count_of, silence_text
from kmirror.ops.stop.report import already_stopped_rows, source_only_record
from kmirror.ops.stop.work import StopResults
from kmirror.state.records import (
    AtStop,
    DesiredState,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.words import counted

_SOURCE_S = 10.0
_AGAIN = "run the same command again: it checks"
_DELETED = code_name(Code.UNKNOWN_TOPIC_OR_PARTITION)
#: Why what is stored on the source may stay unreadable, however often it is read.
_LASTING = frozenset({Reason.NOT_AUTHORIZED, Reason.AUTHENTICATION_FAILED})


@dataclass(slots=True)
class SourceAfterStop:
    """The rows of stopped topics with what their source has after the stop, and what is to be recorded of it."""

    rows: list[TopicResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    time_ms: int = field(default_factory=now_ms)
    #: Where the copies end, and where the source does, of the partitions of which that is known.
    copied: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: Partitions of topics that were deleted and recreated at the source.
    recreated: list[TopicPartition] = field(default_factory=list)
    #: Partitions that the source certainly lacks.
    absent: list[TopicPartition] = field(default_factory=list)
    #: Partitions whose source topics have become mirror topics of theirs.
    copied_back: list[TopicPartition] = field(default_factory=list)
    #: Partitions that only the source has.
    added: list[TopicPartition] = field(default_factory=list)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Record nothing of these partitions that the source has answered."""
        self.ends = {partition: end for partition, end in self.ends.items() if partition not in partitions}
        self.recreated = [partition for partition in self.recreated if partition not in partitions]
        self.added = [partition for partition in self.added if partition not in partitions]

    def record(self, destination: Destination, mirror: str) -> None:
        """Record it; if that fails, a warning says so, and the next promote reads the source again."""

        def decide(state: State) -> Changes:
            changed: list[PartitionRecord] = []
            for partition in (*self.ends, *self.recreated, *self.absent, *self.copied_back):
                record = state.partition(mirror, *partition)
                if record is not None and record.at_stop is not None and record.state is PartitionState.STOPPED:
                    changed.append(replace(record, at_stop=self.checked(record.at_stop, partition)))
            for partition in self.added:
                topic = state.topic(mirror, partition.topic)
                if topic is not None and state.partition(mirror, *partition) is None:
                    new = source_only_record(mirror, partition, None, self.time_ms, self.time_ms)
                    changed.append(replace(new, reason=topic.stop_reason))
            return Changes(tuple(changed))

        try:
            change(destination, mirror, decide)
        except KmirrorError as error:
            self.warnings.append(f"what the source has after the stop could not be recorded: {error.message}")

    def checked(self, known: AtStop, partition: TopicPartition) -> AtStop:
        """Return what is known of a partition with what the source has answered."""
        known = replace(known, unchecked=None)
        if partition in self.recreated:
            return replace(known, source_recreated=True)
        if partition in self.copied_back:
            return replace(known, copied_back=True)
        if partition in self.absent:
            return replace(known, source_offset=0, source_as_of_ms=self.time_ms, source_answered=True)
        end = self.ends[partition]
        return replace(
            known,
            source_went_back=end < self.copied[partition] or known.source_went_back,
            source_offset=end,
            source_high_watermark=end,
            source_as_of_ms=self.time_ms,
            source_lost_ms=None,
            source_answered=True,
        )


def check_source_after_stop(
    source: ClusterClient, topics: Mapping[str, TopicRecord], done: StopResults, doubt: KmirrorError | None = None
) -> SourceAfterStop:
    """Read where the source ends after a stop of topics; the ends of the partitions to check are in `done`.

    With `doubt` it is unknown whether they are copied back from here: only ends that are the same are recorded then.
    The others are FAILED if the doubt may last; else they count as not read.
    """
    after, ends, deleted = SourceAfterStop(copied=done.ends), done.ends, set[str]()
    asked = {TopicPartition(topics[p.topic].source_topic, p.partition): p for p in ends}
    known = {*ends, *map(_partition_of, done.results)}
    try:
        found, silent = source.newest_metadata({there.topic for there in asked}, timeout=_SOURCE_S)
        counts = {partition.topic: count_of(topics[partition.topic], found) for partition in ends}
        deleted = {name for name, count in counts.items() if count == _DELETED and not silent}
        after.recreated = [partition for partition in ends if counts[partition.topic] == ANOTHER]
        asked = {there: p for there, p in asked.items() if counts[p.topic] != ANOTHER and p.topic not in deleted}
        for name, count in counts.items():
            there_are = {TopicPartition(name, p) for p in range(count)} if isinstance(count, int) else set()
            after.added += sorted(there_are - known)
            if there_are and not silent:
                after.absent += [p for p in asked.values() if p.topic == name and p not in there_are]
        asked = {there: p for there, p in asked.items() if p not in after.absent}
        settled = [there for there in asked if not found.has_replica_on(there, silent)]
        marks = source.list_offsets(dict.fromkeys(settled, LATEST), metadata=found, timeout=_SOURCE_S)
        if len(settled) < len(asked):
            missing = counted(len(asked) - len(settled), "partition")
            after.warnings.append(
                f"the ends of {missing} could not be read again after the stop: {silence_text(silent)}"
            )
    except (KmirrorError, OutcomeUnknown) as error:
        marks = {}
        after.warnings.append(f"the source's ends could not be read again after the stop: {error}")
    for there, answer in marks.items():
        if answer.offset is not None:
            after.ends[asked[there]] = answer.offset
        elif answer.error_code:
            after.warnings.append(f"{there} could not be read after the stop: {code_name(answer.error_code)}")
    doubted = set[TopicPartition]()
    if doubt is not None:
        doubted = {p for p, end in after.ends.items() if end != ends[p]} | {*after.recreated, *after.added}
        after.warnings.append(f"it is unknown whether topics are copied back to the source: {doubt.message}")
        if doubt.reason not in _LASTING:
            after.drop(doubted)
            doubted, deleted = set(), set()
    again = doubt.hint if doubt is not None else None
    again = f"{again}; {_AGAIN}" if again else _AGAIN
    for row in done.results:
        partition = _partition_of(row)
        if partition in after.recreated:
            after.rows.append(_recreated_after(row, partition))
        elif partition in after.ends:
            late = after.ends[partition] - ends[partition]
            if late < 0 or (row.at_stop is not None and row.at_stop.source_went_back):
                after.rows.append(_went_back(row, partition, after.ends[partition]))
            else:
                complete = _complete(row, partition, after)
                after.rows.append(_written_after(row, partition, late) if late > 0 else complete)
        elif partition in after.absent:
            after.rows.append(_complete(row, partition, after))
        else:
            before = _by_what_is_recorded(row)
            is_open = partition in ends and before.result in (Outcome.DONE, Outcome.NOOP)
            hint = None if partition.topic in deleted else again
            after.rows.append(_unchecked(row, partition, hint) if is_open else before)
    after.rows += [_added_after(partition, None) for partition in sorted(after.added)]
    after.drop(doubted)
    after.rows = [
        replace(row, message=f"{row.message}, unless the topic was copied back from here", hint=again)
        if _partition_of(row) in doubted
        else row
        for row in after.rows
    ]
    return after


def rows_of_stopped(
    destination: Destination, mirror: MirrorRecord, state: State, topics: Iterable[TopicRecord], *, dry_run: bool
) -> tuple[list[TopicResult], list[str]]:
    """Return the rows of topics that were stopped before, and warnings.

    Where a promote has not read the source after its stop, that is done now.
    """
    known = {topic.topic: topic for topic in topics}
    rows = [row for topic in known.values() for row in already_stopped_rows(state, topic)]
    stops = {_partition_of(row): row.at_stop for row in rows if row.at_stop is not None and row.partition is not None}
    failed = {_partition_of(row) for row in rows if _by_what_is_recorded(row).result is Outcome.FAILED}
    unsettled = {p: stop for p, stop in stops.items() if stop.unchecked or p in failed}
    back, doubt = set[str](), None
    try:
        # what is copied back from here is no loss
        back = _copied_back(destination, mirror, known, unsettled)
    except (KmirrorError, OutcomeUnknown) as error:
        doubt = as_kmirror_error(error)
    after = SourceAfterStop(copied_back=[partition for partition in unsettled if partition.topic in back])
    marked = {p: after.checked(stops[p], p) for p in after.copied_back}
    rows = [replace(row, at_stop=marked.get(_partition_of(row), row.at_stop)) for row in rows]
    # the others are settled: what the source has received since is no concern of the promote
    ends = {
        _partition_of(row): row.last_mirrored_offset
        for row in rows
        if row.last_mirrored_offset is not None and row.at_stop is not None and row.at_stop.unchecked
    }
    if ends:
        with source_client(mirror.source, mirror.source_cluster_id) as source:
            found = check_source_after_stop(source, known, StopResults(rows, ends=ends), doubt)
        after = replace(found, copied_back=after.copied_back)
    else:
        after.rows = [_by_what_is_recorded(row) for row in rows]
    if not dry_run and (ends or after.copied_back):
        after.record(destination, mirror.name)
    return after.rows, after.warnings


def _copied_back(
    destination: Destination,
    mirror: MirrorRecord,
    topics: Mapping[str, TopicRecord],
    stops: Mapping[TopicPartition, AtStop],
) -> set[str]:
    """Return the topics of these partitions whose source topics became mirror topics of theirs after the stop."""
    stopped_ms = {partition.topic: stop.time_ms for partition, stop in stops.items()}
    return {
        there.source_topic
        for copies in copied_back(destination, mirror, stopped_ms, round(_SOURCE_S * 1000)).values()
        for there in copies
        if there.topic == topics[there.source_topic].source_topic
        # a record of a stopped copy may be of an earlier one
        and (there.desired is not DesiredState.STOPPED or (there.added_at_ms or 0) > stopped_ms[there.source_topic])
    }


def _partition_of(row: TopicResult) -> TopicPartition:
    return TopicPartition(row.topic or "", -1 if row.partition is None else row.partition)


def _by_what_is_recorded(row: TopicResult) -> TopicResult:
    """Return a row of which nothing new is known: FAILED if its promote is known to have left something behind."""
    known, is_stopped = row.at_stop, row.result in (Outcome.DONE, Outcome.NOOP)
    if row.partition is None or known is None or row.reason is not Reason.PROMOTED or not is_stopped:
        return row
    partition = _partition_of(row)
    if known.copied_back:
        stopped = f"{partition} is stopped at {row.last_mirrored_offset}"
        return replace(row, message=f"{stopped}; since then, its source topic is a mirror topic of this one")
    if known.source_recreated:
        return _recreated_after(row, partition)
    if known.source_went_back:
        return _went_back(row, partition, known.source_offset)
    if known.source_only:
        return _added_after(partition, row.lag)
    return _written_after(row, partition, row.lag) if row.lag else row


def _complete(row: TopicResult, partition: TopicPartition, after: SourceAfterStop) -> TopicResult:
    """Return a row that reports the source's end as just read, not as lanes last reported it."""
    message = (
        f"{partition} is stopped at {row.last_mirrored_offset}; checked after that, the source had no further records"
    )
    known = None if row.at_stop is None else after.checked(row.at_stop, partition)
    return replace(row, message=message, lag=0, at_stop=known)


def _unchecked(row: TopicResult, partition: TopicPartition, hint: str | None) -> TopicResult:
    """Return the row of a partition whose source was not read after the stop; without a hint it is gone."""
    stopped = f"{partition} is stopped at {row.last_mirrored_offset}"
    if hint is None:
        message = f"{stopped}; its source topic was deleted before it was checked whether it had received more"
        return replace(row, result=Outcome.FAILED, message=message, reason=Reason.SOURCE_TOPIC_DELETED)
    message = f"{stopped}, but not checked after the stop: the source may have received more"
    return replace(row, result=Outcome.TIMED_OUT, message=message, hint=hint)


def _recreated_after(row: TopicResult, partition: TopicPartition) -> TopicResult:
    return TopicResult(
        *partition,
        Outcome.FAILED,
        f"{partition} is stopped at {row.last_mirrored_offset}; its source topic was deleted and recreated meanwhile:"
        " the copy has the former topic's records",
        Reason.SOURCE_TOPIC_RECREATED,
        last_mirrored_offset=row.last_mirrored_offset,
        hint="compare the two topics; what was written to the new one is at the source only",
    )


def _went_back(row: TopicResult, partition: TopicPartition, end: int | None) -> TopicResult:
    return TopicResult(
        *partition,
        Outcome.FAILED,
        f"{partition} is stopped at {row.last_mirrored_offset}; after that, the source ended at {end}: it has lost "
        "records, and may have received others that the copy lacks",
        Reason.SOURCE_DIVERGED,
        last_mirrored_offset=row.last_mirrored_offset,
        hint="stop the producers, and compare the two topics; what differs on the source was not copied",
    )


def _added_after(partition: TopicPartition, offsets: int | None) -> TopicResult:
    holds = "" if offsets is None else f", with {counted(offsets, 'offset')}"
    return TopicResult(
        *partition,
        Outcome.FAILED,
        f"{partition} was added at the source while its topic was being stopped{holds}: the copy lacks it",
        Reason.SOURCE_WRITTEN_AFTER_STOP,
        lag=offsets,
        hint="stop the producers; create the partition here, then `kmirror add --adopt` resumes mirroring",
    )


def _written_after(row: TopicResult, partition: TopicPartition, count: int) -> TopicResult:
    return TopicResult(
        *partition,
        Outcome.FAILED,
        f"{partition} is stopped at {row.last_mirrored_offset}; after that, the source received "
        f"{counted(count, 'offset')} that the copy lacks",
        Reason.SOURCE_WRITTEN_AFTER_STOP,
        last_mirrored_offset=row.last_mirrored_offset,
        lag=count,
        hint="stop the producers; `kmirror add --adopt` resumes mirroring if nothing was written here since",
    )
