"""Whether the source received anything after a promote's stop: it is read once more, and the result is recorded.

The stop leaves a mark in each partition's record, which goes with the result. So a promote that was killed in between,
or whose source did not answer, is finished by the next one; and what the copy lacks is reported each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, change, now_ms, source_client
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.promote_readiness import ANOTHER, count_of, silence_text
from kmirror.ops.stop.report import source_only_record
from kmirror.ops.stop.stop import already_stopped_rows, copied_back
from kmirror.ops.stop.work import StopResults
from kmirror.state.records import AtStop, MirrorRecord, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.words import counted

_SOURCE_S = 10.0


@dataclass(slots=True)
class SourceAfterStop:
    """The rows of stopped topics with what their source has after the stop, and what is to be recorded of it."""

    rows: list[TopicResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    time_ms: int = field(default_factory=now_ms)
    #: Where the source ends, of the partitions of which that is known.
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: Partitions of topics that were deleted and recreated at the source.
    recreated: list[TopicPartition] = field(default_factory=list)
    #: Partitions that only the source has.
    added: list[TopicPartition] = field(default_factory=list)

    def record(self, destination: Destination, mirror: str) -> None:
        """Record it; if that fails, a warning says so, and the next promote reads the source again."""

        def decide(state: State) -> Changes:
            changed: list[PartitionRecord] = []
            for partition in (*self.ends, *self.recreated):
                record = state.partition(mirror, *partition)
                if record is not None and record.at_stop is not None and record.state is PartitionState.STOPPED:
                    changed.append(replace(record, at_stop=self._checked(record.at_stop, partition)))
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

    def _checked(self, known: AtStop, partition: TopicPartition) -> AtStop:
        if partition in self.recreated:
            return replace(known, unchecked=None, source_recreated=True)
        end = self.ends[partition]
        return replace(
            known,
            unchecked=None,
            source_offset=end,
            source_high_watermark=end,
            source_as_of_ms=self.time_ms,
            source_lost_ms=None,
            source_answered=True,
        )


def check_source_after_stop(
    source: ClusterClient, topics: Mapping[str, TopicRecord], done: StopResults
) -> SourceAfterStop:
    """Read where the source ends after a stop of topics, all of whose ends are in `done`."""
    after, ends = SourceAfterStop(), done.ends
    asked = {TopicPartition(topics[p.topic].source_topic, p.partition): p for p in ends}
    try:
        found, silent = source.newest_metadata({there.topic for there in asked}, timeout=_SOURCE_S)
        counts = {partition.topic: count_of(topics[partition.topic], found) for partition in ends}
        after.recreated = [partition for partition in ends if counts[partition.topic] == ANOTHER]
        asked = {there: p for there, p in asked.items() if counts[p.topic] != ANOTHER}
        for name, count in counts.items():
            there_are = {TopicPartition(name, p) for p in range(count)} if isinstance(count, int) else set()
            after.added += sorted(there_are - ends.keys())
            if there_are and not silent:
                asked = {there: p for there, p in asked.items() if p.topic != name or p in there_are}
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
    added = set(after.added)
    for row in done.results:
        partition = TopicPartition(row.topic or "", -1 if row.partition is None else row.partition)
        if partition in after.recreated:
            after.rows.append(_recreated_after(row, partition))
        elif partition in after.ends:
            late = after.ends[partition] - ends[partition]
            after.rows.append(_written_after(row, partition, late) if late > 0 else _complete(row, partition))
        else:
            added.discard(partition)
            after.rows.append(_by_what_is_recorded(row))
    after.rows += [_added_after(partition, None) for partition in sorted(added)]
    return after


def rows_of_stopped(
    destination: Destination, mirror: MirrorRecord, state: State, topics: Iterable[TopicRecord], *, dry_run: bool
) -> tuple[list[TopicResult], list[str]]:
    """Return the rows of topics that were stopped before, and warnings.

    Where a promote has not read the source after its stop, that is done now.
    """
    known = {topic.topic: topic for topic in topics}
    done = StopResults([row for topic in known.values() for row in already_stopped_rows(state, topic)])
    records = {name: state.partitions(mirror.name, name) for name in known}
    unchecked = [name for name, found in records.items() if any(one.at_stop and one.at_stop.unchecked for one in found)]
    # what is copied back from here is no loss
    back = {name for names in copied_back(destination, mirror, unchecked).values() for name in names}
    done.ends = {
        TopicPartition(name, one.partition): one.last_mirrored_offset
        for name in unchecked
        if name not in back
        for one in records[name]
        if one.last_mirrored_offset is not None and not (one.at_stop and one.at_stop.source_only)
    }
    if not done.ends:
        return [_by_what_is_recorded(row) for row in done.results], []
    with source_client(mirror.source, mirror.source_cluster_id) as source:
        after = check_source_after_stop(source, known, done)
    if not dry_run:
        after.record(destination, mirror.name)
    return after.rows, after.warnings


def _by_what_is_recorded(row: TopicResult) -> TopicResult:
    """Return a row of which nothing new is known: FAILED if its promote is known to have left something behind."""
    known, is_stopped = row.at_stop, row.result in (Outcome.DONE, Outcome.NOOP)
    if row.partition is None or known is None or row.reason is not Reason.PROMOTED or not is_stopped:
        return row
    partition = TopicPartition(row.topic or "", row.partition)
    if known.source_recreated:
        return _recreated_after(row, partition)
    if known.source_only:
        return _added_after(partition, row.lag)
    return _written_after(row, partition, row.lag) if row.lag else row


def _complete(row: TopicResult, partition: TopicPartition) -> TopicResult:
    """Return a row that reports the source's end as just read, not as lanes last reported it."""
    message = (
        f"{partition} is stopped at {row.last_mirrored_offset}; checked after that, the source had no further records"
    )
    return replace(row, message=message, lag=0)


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
