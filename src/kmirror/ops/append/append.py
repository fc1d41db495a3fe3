"""`append`: put records from a file where they belong, for repair by hand.

All is looked at before anything is written. A partition takes records only where its log ends right before them; and a
mirror topic only while it is paused or stopped, so that no engine appends at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.pipeline_queue import Appending, AppendStoppedError
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topic_settings import topic_settings
from kmirror.engine.spec import own_producer_id
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.ops.append.lines import Line, Span, read_lines, spans_of
from kmirror.ops.context import Destination, actor, as_kmirror_error, change, naming_cluster, now_ms
from kmirror.ops.results import Outcome, TopicResult, VerbResult, exit_code_of
from kmirror.ops.show.describe import describe
from kmirror.ops.show.rows import engine_in_charge
from kmirror.settings.patterns import TopicSelector
from kmirror.state.events import Event
from kmirror.state.own_rights import OWN_TOPICS
from kmirror.state.records import DesiredState, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.words import counted

_VERB = "append"
#: An engine writes nothing to a partition of a paused topic that it has reported as one of these.
_LET_GO = (PartitionState.PAUSED, PartitionState.FAILED, PartitionState.STOPPED)
#: So many partitions are named in an event.
_MOST_TOLD = 100
_TIMESTAMP_TYPE = "message.timestamp.type"

Spans = Mapping[TopicPartition, Span]
Refusals = dict[TopicPartition, KmirrorError]


def append(destination: Destination, file: str, *, dry_run: bool = False) -> VerbResult:
    """Append the records of a file at their offsets; one result a partition, nothing is written where one is refused.

    Raises:
        UsageError: the file cannot be read or understood.
        UnreachableError: the destination does not answer.
    """
    spans = spans_of(file, _lines(file))
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        refusals, warnings = _look(destination, spans)
        good = {place: span for place, span in spans.items() if place not in refusals}
        with _pipeline(destination) as out:
            for place, span in good.items():
                refusal = _misplaced(out, place, span)
                if refusal is not None:
                    refusals[place] = refusal
    if refusals:
        return VerbResult.of(_VERB, "", _refused(spans, refusals), dry_run=dry_run, warnings=warnings)
    if dry_run:
        return VerbResult.of(_VERB, "", _done(spans, "would be"), dry_run=True, warnings=warnings)
    rows = _append(destination, file, spans)
    return VerbResult.of(_VERB, "", rows, warnings=[*warnings, *_note(destination, rows)])


def _lines(file: str) -> Iterator[Line]:
    try:
        with Path(file).open(encoding="utf-8") as lines:
            yield from read_lines(file, lines)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {file}: {why}", "name a file with one JSON object a line") from None


def _pipeline(destination: Destination) -> AppendPipeline:
    return AppendPipeline(destination.config, producer_id=own_producer_id("", _VERB, 0))


# -- before -----------------------------------------------------------------------------------------------------------


def _look(destination: Destination, spans: Spans) -> tuple[Refusals, list[str]]:
    """Return which partitions may not be written to, and what else should be known."""
    names = sorted({place.topic for place in spans})
    found = destination.client.metadata(names).topics
    refusals: Refusals = {}
    for place in spans:
        topic = found.get(place.topic)
        code = topic.error_code if topic else 0
        if place.topic.startswith(OWN_TOPICS) or (topic is not None and topic.is_internal):
            refusals[place] = RefusedError(f"{place.topic} is an internal topic", "append does not write to these")
        elif topic is None or code:
            why = code_name(code) if code else "the broker does not tell of it"
            refusals[place] = RefusedError(f"{place}: {why}", "check the name; append creates no topics")
        elif place.partition not in topic.partitions:
            refusals[place] = RefusedError(
                f"{place.topic} has no partition {place.partition}, only {len(topic.partitions)}",
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
        busy = _busy(destination, state, topic_record)
        for place in spans:
            if place.topic == topic_record.topic and (why_not := busy.get(place.partition, busy.get(None))) is not None:
                refusals.setdefault(place, why_not)
    warnings = [
        f"{name} is a topic of mirror {topic.mirror}: what is appended must be what its source has at these offsets, or"
        f" copying it will fail with {Reason.DESTINATION_WRITTEN}"
        for name, topic in mirrored.items()
    ]
    settings = topic_settings(destination.client, names, [_TIMESTAMP_TYPE])
    for name, values in settings.items():
        stamped = values.get(_TIMESTAMP_TYPE) if not isinstance(values, int) else None
        if stamped is not None and stamped.value == "LogAppendTime":
            warnings.append(f"{name} has {_TIMESTAMP_TYPE}=LogAppendTime: the broker replaces the records' timestamps")
    return refusals, warnings


def _busy(destination: Destination, state: State, topic: TopicRecord) -> dict[int | None, KmirrorError]:
    """Return why partitions of a mirror topic may not be written to now; None stands for all others."""
    mirror, name = topic.mirror, topic.topic
    pause = f"`kmirror pause --mirror {mirror} --topics {name}` keeps engines from it; `kmirror resume` lets them go on"
    state.require_readable(mirror)
    if topic.desired is not DesiredState.PAUSED:
        return {None: RefusedError(f"{name} is mirrored by {mirror}: engines append to it", pause)}
    if engine_in_charge(state, mirror, now_ms()) is None:
        return {}
    hint = "`kmirror describe` shows when it is PAUSED; then run the same command again"
    return {
        row.partition: RefusedError(f"{name}-{row.partition} is being paused: an engine may still append to it", hint)
        for row in describe(destination, mirror, TopicSelector((name,)))
        if row.state not in _LET_GO
    }


def _misplaced(out: AppendPipeline, place: TopicPartition, span: Span) -> KmirrorError | None:
    """Return why records do not belong at the end of a partition; None where they do."""
    try:
        end = out.log_end_offset(place)
    except OutcomeUnknown:
        raise
    except KmirrorError as error:
        return error
    if end == span.start:
        return None
    hint = (
        f"leave out the records below offset {end}, which are there, or correct the file"
        if span.start < end
        else f"the log lacks the offsets from {end} to {span.start - 1}: put their records into the file, too"
    )
    return RefusedError(f"{place} ends at offset {end}, and the file begins at offset {span.start}", hint)


def _refused(spans: Spans, refusals: Refusals) -> Iterator[TopicResult]:
    for place in sorted(spans):
        error = refusals.get(place)
        if error is None:
            message, reason, hint = f"{place} is not tried: others are refused", None, None
        else:
            message, reason, hint = error.message, error.reason, error.hint
        yield TopicResult(place.topic, place.partition, Outcome.REFUSED, message, reason, hint=hint)


# -- appending --------------------------------------------------------------------------------------------------------


def _append(destination: Destination, file: str, spans: Spans) -> list[TopicResult]:
    under_way: dict[TopicPartition, deque[Appending]] = {place: deque() for place in spans}
    failed: dict[TopicPartition, Exception] = {}
    ends = {place: span.start for place, span in spans.items()}

    def take_in(place: TopicPartition) -> None:
        """Take note of what is known of appends, in their order."""
        waiting = under_way[place]
        while waiting and waiting[0].done():
            one = waiting.popleft()
            error = one.exception()
            if error is None:
                ends[place] = one.next_offset
            else:
                failed.setdefault(place, error)

    expected = dict(ends)
    # what stops a partition is told by the append that failed
    with suppress(AppendStoppedError), _pipeline(destination) as out:
        for place, span in spans.items():
            if (refusal := _misplaced(out, place, span)) is not None:
                failed[place] = refusal
        for place, record in _lines(file):
            if place in failed:
                continue
            if record.offset != expected.get(place):
                failed[place] = UsageError(f"{file} has changed since it was checked", "leave it alone meanwhile")
                continue
            expected[place] = record.offset + 1
            with suppress(AppendStoppedError):
                under_way[place].append(out.append(place, [record]))
            take_in(place)
    for place in spans:
        take_in(place)
    return [_ended(place, span, ends[place], failed.get(place)) for place, span in sorted(spans.items())]


def _note(destination: Destination, rows: list[TopicResult]) -> Iterator[str]:
    """Record in the events of the mirrors concerned what was appended; yield why it could not be."""
    try:
        state = destination.state()
        for mirror in state.mirrors:
            owned = {topic.topic for topic in state.topics(mirror.name)}
            concerned = [row for row in rows if row.topic in owned]
            if concerned:
                told_of = [f"{row.topic}-{row.partition}: {row.message}" for row in concerned[:_MOST_TOLD]]
                details = {"partitions": told_of, "count": len(concerned)}
                result = exit_code_of(concerned).name
                noted = Changes((), (), (Event(now_ms(), mirror.name, _VERB, actor(), result, details),))
                change(destination, mirror.name, partial(_all_of, noted))
    except KmirrorError as error:
        yield f"what was appended is not recorded in the events: {error.message}"


def _all_of(changes: Changes, _: State) -> Changes:
    return changes


def _ended(place: TopicPartition, span: Span, end: int, error: Exception | None) -> TopicResult:
    if error is None and end == span.end:
        return _row(place, span, "are")
    done = f"{counted(end - span.start, 'record')} of {span.end - span.start:,} appended"
    if error is None or isinstance(error, OutcomeUnknown):
        message = f"{place}: {done}, and it is not known whether more are: {error or 'no answer came'}"
        hint = "look where the log ends, leave out what is there, and run it again"
        return TopicResult(place.topic, place.partition, Outcome.FAILED, message, hint=hint)
    why = as_kmirror_error(error)
    hint = f"{why.hint or 'correct what is wrong'}; leave out the records below offset {end} and run it again"
    message = f"{place}: {done}: {why.message}"
    return TopicResult(place.topic, place.partition, Outcome.FAILED, message, why.reason, hint=hint)


def _done(spans: Spans, word: str) -> list[TopicResult]:
    return [_row(place, span, word) for place, span in sorted(spans.items())]


def _row(place: TopicPartition, span: Span, word: str) -> TopicResult:
    count = span.end - span.start
    if word == "are":
        word = "is" if count == 1 else "are"
    where = f"offset {span.start}" if count == 1 else f"offsets {span.start} to {span.end - 1}"
    message = f"{counted(count, 'record')} {word} appended at {where}"
    return TopicResult(place.topic, place.partition, Outcome.DONE, message)
