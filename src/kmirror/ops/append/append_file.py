"""`append`: write records from a file at the offsets given there, for manual repair.

Everything is checked before anything is written. A partition's log must end right before its first record; a mirror
topic must be paused or stopped, so that no engine appends at the same time.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from kmirror.bounded_files import MOST_BYTES, too_large
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.pipeline_queue import AppendStoppedError, PendingAppend
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_topics
from kmirror.engine.spec import own_producer_id
from kmirror.errors import HistoriesDifferError, KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.ops.append.lines import Line, OffsetSpan, read_lines, spans_of
from kmirror.ops.base.context import Destination, as_kmirror_error, naming_cluster, record_event
from kmirror.ops.base.handover import Handover, await_handover
from kmirror.ops.base.results import VerbResult, exit_code_of
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.state.internal_topics import OWN_TOPICS
from kmirror.state.records import DesiredState, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted

_VERB = "append"
#: Time an engine may take to pause a topic.
_HANDOVER_S = 15.0
#: Once it has reported one of these for a partition of a paused topic, an engine writes nothing to it.
_RELEASED = (PartitionState.PAUSED, PartitionState.FAILED, PartitionState.STOPPED)
_MOST_PARTITIONS_IN_EVENT = 100
_TIMESTAMP_TYPE = "message.timestamp.type"

Spans = Mapping[TopicPartition, OffsetSpan]
Refusals = dict[TopicPartition, KmirrorError]


def append(destination: Destination, file: str, topic: str | None = None, *, dry_run: bool = False) -> VerbResult:
    """Append the records of a file at their offsets; one result per partition. If one is refused, nothing is written.

    All must be for `topic`, if that is given.

    Raises:
        UsageError: the file is unreadable or invalid.
        UnreachableError: the destination does not answer.
    """
    spans = spans_of(file, _lines(file, topic))
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        refusals, warnings = _check(destination, spans)
        good = {partition: span for partition, span in spans.items() if partition not in refusals}
        with _pipeline(destination) as out:
            for partition, span in good.items():
                refusal = _misplaced(out, partition, span)
                if refusal is not None:
                    refusals[partition] = refusal
    if refusals:
        return VerbResult.of(_VERB, "", _refused(spans, refusals), dry_run=dry_run, warnings=warnings)
    if dry_run:
        rows = [_row(partition, span, "would be") for partition, span in sorted(spans.items())]
        return VerbResult.of(_VERB, "", rows, dry_run=True, warnings=warnings)
    rows = _append(destination, file, topic, spans)
    return VerbResult.of(_VERB, "", rows, warnings=[*warnings, *_note(destination, rows)])


def _lines(file: str, topic: str | None = None) -> Iterator[Line]:
    path = Path(file)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(
                f"cannot read {file}: it is not a regular file", "write the records to a file: it is read twice"
            )
        with path.open(encoding="utf-8-sig") as lines:
            yield from read_lines(file, _bounded(lines), topic)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {file}: {why}", "name a file with one JSON object a line") from None


def _bounded(lines: TextIO) -> Iterator[str]:
    while text := lines.readline(MOST_BYTES):
        if len(text) == MOST_BYTES:
            raise too_large(MOST_BYTES)
        yield text


def _pipeline(destination: Destination) -> AppendPipeline:
    return AppendPipeline(destination.config, producer_id=own_producer_id("", _VERB, 0))


def _check(destination: Destination, spans: Spans) -> tuple[Refusals, list[str]]:
    """Return the partitions that may not be written to, and warnings."""
    names = sorted({topic_partition.topic for topic_partition in spans})
    found = destination.client.metadata(names).topics
    refusals: Refusals = {}
    for topic_partition in spans:
        topic = found.get(topic_partition.topic)
        code = topic.error_code if topic else 0
        if topic_partition.topic.startswith(OWN_TOPICS) or (topic is not None and topic.is_internal):
            refusals[topic_partition] = RefusedError(
                f"{topic_partition.topic} is an internal topic", "append does not write to these"
            )
        elif topic is None or code:
            why = code_name(code) if code else "not in the broker's metadata"
            refusals[topic_partition] = RefusedError(
                f"{topic_partition}: {why}", "check the name; append creates no topics"
            )
        elif topic_partition.partition not in topic.partitions:
            refusals[topic_partition] = RefusedError(
                f"{topic_partition.topic} has no partition {topic_partition.partition}, only {len(topic.partitions)}",
                "correct the file, or add partitions with kafka-topics",
            )
    state = destination.state()
    mirrored = {
        topic.topic: topic
        for mirror in state.mirrors
        for topic in state.topics(mirror.name)
        if topic.topic in names and topic.desired is not DesiredState.STOPPED
    }
    for topic_record in mirrored.values():
        error = _not_writable(destination, state, topic_record)
        for topic_partition in spans:
            if error is not None and topic_partition.topic == topic_record.topic:
                refusals.setdefault(topic_partition, error)
    settings = topic_settings(destination.client, names, [_TIMESTAMP_TYPE])
    stamping = {
        name
        for name, own in settings.items()
        if not isinstance(own, int) and (kind := own.get(_TIMESTAMP_TYPE)) and kind.value == "LogAppendTime"
    }
    for topic_partition in spans:
        if topic_partition.topic in stamping:
            what = (
                f"{topic_partition.topic} has {_TIMESTAMP_TYPE}=LogAppendTime: the broker would replace the timestamps"
            )
            hint = f"set {_TIMESTAMP_TYPE}=CreateTime on the topic with kafka-configs, and set it back afterwards"
            refusals.setdefault(topic_partition, RefusedError(what, hint))
    warnings = [
        f"{name} is a topic of mirror {topic.mirror}: the appended records must be those of its source at these"
        f" offsets, or copying it will fail with {Reason.DESTINATION_WRITTEN}"
        for name, topic in mirrored.items()
    ]
    return refusals, warnings


def _not_writable(destination: Destination, state: State, topic: TopicRecord) -> KmirrorError | None:
    """Return why a mirror topic may not be written to now, None if it may."""
    mirror, name = topic.mirror, topic.topic
    pause = f"`{on_topics('pause', mirror, [name])}`"
    state.require_readable(mirror)
    if topic.desired is not DesiredState.PAUSED:
        hint = f"{pause} first, and `kmirror resume` afterwards"
        return RefusedError(f"{name} is mirrored by {mirror}: engines append to it", hint)
    if await_handover(destination, mirror, [name], _RELEASED, _HANDOVER_S) is Handover.CLEAN:
        return None
    hint = f"{pause} waits until none does; then run the same command again"
    return RefusedError(f"{name} is being paused: an engine may still append to it", hint)


def _misplaced(out: AppendPipeline, partition: TopicPartition, span: OffsetSpan) -> KmirrorError | None:
    """Return why records do not belong at the end of a partition, None if they do."""
    try:
        end = out.log_end_offset(partition)
    except OutcomeUnknown:
        raise
    except KmirrorError as error:
        return error
    if end == span.start:
        return None
    hint = (
        f"remove the records below offset {end}, which exist already, or correct the file"
        if span.start < end
        else f"the log lacks offsets {end} to {span.start - 1}: add their records to the file"
    )
    return RefusedError(f"{partition} ends at offset {end}, but the file begins at offset {span.start}", hint)


def _refused(spans: Spans, refusals: Refusals) -> Iterator[TopicResult]:
    for topic_partition in sorted(spans):
        error = refusals.get(topic_partition)
        if error is None:
            message, reason, hint = f"{topic_partition} was not written: other partitions are refused", None, None
        else:
            message, reason, hint = error.message, error.reason, error.hint
        yield TopicResult(topic_partition.topic, topic_partition.partition, Outcome.REFUSED, message, reason, hint=hint)


def _append(destination: Destination, file: str, topic: str | None, spans: Spans) -> list[TopicResult]:
    under_way: dict[TopicPartition, deque[PendingAppend]] = {partition: deque() for partition in spans}
    failed: dict[TopicPartition, Exception] = {}
    ends = {partition: span.start for partition, span in spans.items()}

    def collect(partition: TopicPartition) -> None:
        """Collect the results of finished appends, in order."""
        waiting = under_way[partition]
        while waiting and waiting[0].done():
            one = waiting.popleft()
            error = one.exception()
            if error is None:
                ends[partition] = one.next_offset
            else:
                failed.setdefault(partition, error)

    left = {partition: iter(range(span.start, span.end)) for partition, span in spans.items()}
    changed = UsageError(f"{file} was changed after it was checked", "leave the file unchanged")
    # the append that failed has the error that stopped its partition
    with suppress(AppendStoppedError), _pipeline(destination) as out:
        for partition, span in spans.items():
            if (refusal := _misplaced(out, partition, span)) is not None:
                failed[partition] = refusal
        with suppress(UsageError):  # it is invalid now
            for partition, record in _lines(file, topic):
                if partition in failed:
                    continue
                if partition not in left or record.offset != next(left[partition], None):
                    failed[partition] = changed
                    continue
                with suppress(AppendStoppedError):
                    under_way[partition].append(out.append(partition, [record]))
                collect(partition)
        for partition, offsets in left.items():
            if next(offsets, None) is not None:
                failed.setdefault(partition, changed)
    for partition in spans:
        collect(partition)
    return [
        _ended(partition, span, ends[partition], failed.get(partition)) for partition, span in sorted(spans.items())
    ]


def _note(destination: Destination, rows: list[TopicResult]) -> Iterator[str]:
    """Record what was appended in the events of its mirrors; yield a warning if that fails."""
    try:
        state = destination.state()
        for mirror in state.mirrors:
            owned = {topic.topic for topic in state.topics(mirror.name)}
            concerned = [row for row in rows if row.topic in owned]
            if concerned:
                named = concerned[:_MOST_PARTITIONS_IN_EVENT]
                messages = [f"{row.topic}-{row.partition}: {row.message}" for row in named]
                details = {"partitions": messages, "count": len(concerned)}
                record_event(destination, mirror.name, _VERB, exit_code_of(concerned).name, details)
    except KmirrorError as error:
        yield f"the append is not recorded in the events: {error.message}"


def _ended(topic_partition: TopicPartition, span: OffsetSpan, end: int, error: Exception | None) -> TopicResult:
    if error is None and end == span.end:
        return _row(topic_partition, span, "are")
    done = f"{counted(end - span.start, 'record')} of {span.end - span.start:,} appended"
    if error is None or isinstance(error, OutcomeUnknown):
        message = f"{topic_partition}: {done}; whether more were appended is unknown: {error or 'no answer'}"
        hint = "check where the log ends, remove the records that exist from the file, and run the command again"
        return TopicResult(topic_partition.topic, topic_partition.partition, Outcome.FAILED, message, hint=hint)
    why = as_kmirror_error(error)
    then = f"remove the records below offset {end} and run the command again"
    if isinstance(why, HistoriesDifferError):
        then = "check where the log ends and what it has there, before anything else is appended"
    hint = f"{why.hint or 'correct the cause'}; {then}"
    message = f"{topic_partition}: {done}: {why.message}"
    return TopicResult(topic_partition.topic, topic_partition.partition, Outcome.FAILED, message, why.reason, hint=hint)


def _row(topic_partition: TopicPartition, span: OffsetSpan, word: str) -> TopicResult:
    count = span.end - span.start
    if word == "are":
        word = "is" if count == 1 else "are"
    where = f"offset {span.start}" if count == 1 else f"offsets {span.start} to {span.end - 1}"
    message = f"{counted(count, 'record')} {word} appended at {where}"
    return TopicResult(topic_partition.topic, topic_partition.partition, Outcome.DONE, message)
