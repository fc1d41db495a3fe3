"""Stop mirroring to topics and make them ordinary topics: shared by failover, remove and promote.

`CLAIM` and `STOP` list the steps in order. Killed at any point, the same command resumes: recorded steps are not
repeated, and every other step can be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.spec import own_producer_id
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError
from kmirror.ops.base.context import Destination, actor, change, naming_cluster, now_ms, require_mirror
from kmirror.ops.base.gone import gone_topics, not_described
from kmirror.ops.base.results import Outcome, TopicResult
from kmirror.ops.stop.facts import StopFacts
from kmirror.ops.stop.fencing import fence_writers, release_topics
from kmirror.ops.stop.make_writable import apply_settings, clamp_group_offsets, lift_protection, trim_fillers
from kmirror.ops.stop.report import (
    incomplete_warnings,
    partitions_of,
    spread_warnings,
    stopped_row,
    with_all_partitions,
)
from kmirror.ops.stop.steps import Checkpoint, Clock, Step, carry_out
from kmirror.ops.stop.work import RUN_AGAIN, StopRequest, StopResults, StopWork, is_stopped
from kmirror.settings.parsing import canonical, stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.event_records import Event
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    PENDING_STOP,
    AtStop,
    DesiredState,
    Guard,
    Key,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRow,
    Rebuild,
    RebuildStep,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.words import at_time

#: Time brokers may take to delete a topic that was being rebuilt.
_DELETION_S = 3.0
_MOST_TOPICS_IN_EVENT = 100


def stop(destination: Destination, request: StopRequest, checkpoint: Checkpoint = lambda _: None) -> StopResults:
    """Stop mirroring to these topics; `checkpoint` is called with the name of each completed step.

    Raises:
        RefusedError: no such mirror; another operation is rebuilding or adding a topic at this moment.
        UnreachableError: the destination does not answer; the same command resumes.
    """
    clock = Clock(checkpoint)
    work = StopWork(destination, request, clock, StopResults(steps=clock.seconds))
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        carry_out(CLAIM, work, clock)
        if not work.is_over:
            mirror = require_mirror(work.state, request.mirror)
            with closing(StopFacts(destination, work.state, mirror, work.topics)) as work.facts:
                carry_out(STOP, work, clock)
    return work.done


def _claim(work: StopWork) -> None:
    """Record that the topics are to be stopped, and find those for which that is still to be done."""
    request, claimed = work.request, State()
    here = work.destination.client.metadata(request.topics).topics
    rebuilds: dict[str, Rebuild] = {}

    def decide(state: State) -> Changes:
        nonlocal claimed
        rebuilds.clear()
        mirror = require_mirror(state, request.mirror)
        records: list[MirrorRecord | TopicRecord] = []
        if (changed := _with_filters(mirror, request)) != mirror:
            records.append(changed)
        for name in request.topics:
            topic = state.topic(request.mirror, name)
            if topic is None or is_stopped(state, topic):
                continue
            replacing = topic.rebuild is not None and topic.rebuild.step is RebuildStep.REPLACE
            records.append(
                replace(
                    with_all_partitions(state, topic, here.get(name)),
                    desired=DesiredState.STOPPED,
                    pending_operation=PENDING_STOP,
                    stop_reason=topic.stop_reason or request.reason,
                    rebuild=None,
                    archive=topic.rebuild.archive if topic.rebuild and replacing else topic.archive,
                )
            )
            if topic.rebuild is not None:
                rebuilds[name] = topic.rebuild
        after: dict[Key, Record] = {record.key: record for record in records}
        claimed = State.of([*{**state.records, **after}.values(), *state.unknown])
        unchanged = all(state.records.get(key) == record for key, record in after.items())
        return Changes() if unchanged else Changes(tuple(records))

    change(work.destination, request.mirror, decide)
    work.clock.reached("claimed")
    for name, rebuild in rebuilds.items():
        kept = {
            RebuildStep.ARCHIVE: "its old records are still in it",
            RebuildStep.REPLACE: f"all its old records are in {rebuild.archive}",
        }[rebuild.step]
        work.done.warnings.append(f"{name} was being rebuilt because it did not match its source: {kept}")
    if any(rebuild.step is RebuildStep.REPLACE for rebuild in rebuilds.values()):
        # its deletion may have been sent just before the claim
        time.sleep(_DELETION_S)
    known = {name: claimed.topic(request.mirror, name) for name in request.topics}
    work.state = claimed
    work.topics = [topic for topic in known.values() if topic and topic.pending_operation == PENDING_STOP]
    for name in sorted(known.keys() - {topic.topic for topic in work.topics}):
        topic = known[name]
        if topic is None:
            work.done.results.append(TopicResult(name, None, Outcome.NOOP, f"{name} is not a mirror topic"))
        else:
            work.done.results += already_stopped_rows(claimed, topic)


def _with_filters(mirror: MirrorRecord, request: StopRequest) -> MirrorRecord:
    """Return the mirror's record with its discovery ended, or with filters that exclude topics."""
    changed = replace(mirror, discovery_ended=True) if request.whole else mirror
    settings = stored_settings(mirror.settings)
    more = tuple(name for name in request.exclude if name not in settings.topics_exclude.patterns)
    if not more:
        return changed
    exclude = settings.topics_exclude.plus(TopicSelector(more))
    include = TopicSelector(tuple(p for p in settings.topics_include.patterns if p not in more))
    filters = canonical({"topics.include": str(include), "topics.exclude": str(exclude)})
    kept = {key: value for key, value in mirror.settings.items() if key not in filters}
    return replace(changed, settings=kept | {key: value for key, value in filters.items() if value})


def _finish_deleted(work: StopWork) -> None:
    """Finish topics that were deleted or recreated, and drop them from the work."""
    client = work.destination.client
    found = client.metadata([topic.topic for topic in work.topics]).topics
    gone = gone_topics(client, work.topics, found)
    left = []
    for topic in work.topics:
        here = found.get(topic.topic)
        never = topic.destination_topic_id is None
        if never or topic.topic in gone:
            what = "had not become a mirror topic yet" if never else "is gone"
            what += f"; its old records are in {topic.archive}" if topic.archive else ""
            _record_stopped(work, [topic], {})
            work.clock.reached("stopped")
            work.done.results.append(TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} {what}"))
        elif here is not None and here.error_code:
            work.fail(topic.topic, not_described(here))
        else:
            left.append(topic)
    work.topics = left


def _record_ends(work: StopWork) -> str:
    """Record where the source's records end; with `together` the stop ends here unless that is known for all topics."""
    request, facts = work.request, work.facts
    at_stop = facts.at_stop(work.log_ends)
    work.done.warnings += facts.warnings
    for topic_partition, end in sorted(work.log_ends.items()):
        if end.error_code:
            why = f"the leader of {topic_partition} cannot be asked: {code_name(end.error_code)}"
            work.fail(topic_partition.topic, KmirrorError(why), topic_partition.partition)

    def decide(state: State) -> Changes:
        records = []
        for topic_partition, known in at_stop.items():
            topic = state.topic(request.mirror, topic_partition.topic)
            if topic is None or topic.pending_operation != PENDING_STOP:
                continue
            record = state.partition(request.mirror, *topic_partition)
            if record is None:
                at = now_ms()
                record = PartitionRecord(request.mirror, *topic_partition, PartitionState.LOG_ALIGNMENT, at)
            if record.last_mirrored_offset is None:
                row = facts.reports[topic_partition].row if topic_partition in facts.reports else None
                records.append(with_end(record, topic, facts.last_mirrored_offsets[topic_partition], known, row))
        return Changes(tuple(records))

    if work.log_ends:
        change(work.destination, request.mirror, decide)
    if request.together and work.failed:
        work.is_over = True
        missed = next(iter(work.failed))
        for topic in work.left:
            message = f"{topic.topic} is no longer mirrored and not yet writable: {missed} cannot be stopped with it"
            work.done.results.append(TopicResult(topic.topic, None, Outcome.TIMED_OUT, message, hint=RUN_AGAIN))
    return "ends recorded"


def with_end(
    record: PartitionRecord, topic: TopicRecord, last_mirrored_offset: int, known: AtStop, row: ProgressRow | None
) -> PartitionRecord:
    """Return the record with where the copy ended, and another producer id for a later mirror of the topic."""
    epoch = row.last_epoch if row is not None and row.last_epoch is not None else record.last_mirrored_epoch
    salt = f"{topic.topic}\0{topic.destination_topic_id}\0{known.log_end}"
    return replace(
        record,
        state=PartitionState.STOPPING,
        state_time_ms=now_ms(),
        reason=None,
        message=None,
        last_mirrored_offset=last_mirrored_offset,
        last_mirrored_epoch=epoch,
        guard=Guard(own_producer_id(topic.mirror, salt, record.partition), 0, -1, 0),
        at_stop=known,
    )


def _take_source_answer(work: StopWork) -> str:
    """Take the source's answer as far as it has arrived."""
    known: dict[TopicPartition, AtStop] = {}
    for topic in work.left:
        for record in work.state.partitions(topic.mirror, topic.topic):
            if record.last_mirrored_offset is not None:
                partition = TopicPartition(topic.topic, record.partition)
                known[partition] = record.at_stop or AtStop(record.state_time_ms, record.last_mirrored_offset)
                work.done.ends[partition] = record.last_mirrored_offset
    work.at_stop = work.facts.with_source_answer(known, work.done.ends)
    work.source = work.facts.source()
    work.done.source_trouble = work.source.trouble
    return "source asked"


def _finish(work: StopWork) -> str:
    """Record that the remaining topics are stopped, and add their rows."""
    request, finished, done = work.request, work.left, work.done
    names = {topic.topic for topic in finished}
    unmirrored = {p: record for p, record in work.facts.unmirrored().items() if p.topic in names}
    _record_stopped(work, finished, work.at_stop, tuple(unmirrored.values()))
    for topic in finished:
        for partition in partitions_of(topic):
            record = work.state.partition(request.mirror, *partition)
            if record is not None and partition in work.at_stop:
                record = replace(record, at_stop=work.at_stop[partition])
            done.results.append(stopped_row(partition, record, Outcome.DONE, request.reason))
    done.results += [
        stopped_row(partition, record, Outcome.DONE, request.reason) for partition, record in unmirrored.items()
    ]
    done.warnings += incomplete_warnings(work.state, request.mirror, finished, work.facts.reports, work.source.absent)
    done.warnings += spread_warnings(finished, work.facts.reports)
    return "stopped"


def _record_stopped(
    work: StopWork,
    topics: Sequence[TopicRecord],
    at_stop: Mapping[TopicPartition, AtStop],
    unmirrored: Sequence[PartitionRecord] = (),
) -> None:
    """Record that topics are stopped; `unmirrored` are the records of partitions that only the source has."""
    request = work.request

    def decide(state: State) -> Changes:
        records: list[TopicRecord | PartitionRecord] = []
        offsets: dict[str, object] = {}
        for known in topics:
            topic = state.topic(request.mirror, known.topic)
            if topic is None or topic.pending_operation != PENDING_STOP:
                continue
            new = (record for record in unmirrored if record.topic == topic.topic)
            for record in (*state.partitions(request.mirror, topic.topic), *new):
                stopped = replace(
                    record,
                    state=PartitionState.STOPPED,
                    state_time_ms=now_ms(),
                    reason=topic.stop_reason,
                    message=None,
                    retry_attempt=0,
                    failed_offset=None,
                    at_stop=at_stop.get(TopicPartition(topic.topic, record.partition), record.at_stop),
                )
                records.append(stopped)
                if len(offsets) < _MOST_TOPICS_IN_EVENT:
                    offsets[f"{topic.topic}-{record.partition}"] = record.last_mirrored_offset
            records.append(replace(topic, pending_operation=None, deferred=None))
        if not records:
            return Changes()
        names = [topic.topic for topic in topics]
        details = {"topics": names[:_MOST_TOPICS_IN_EVENT], "count": len(names), "lastMirroredOffsets": offsets}
        event = Event(now_ms(), request.mirror, request.verb, actor(), ExitCode.OK.name, details)
        return Changes(tuple(records), (), (event,))

    if topics:
        change(work.destination, request.mirror, decide)


CLAIM = (
    Step("record which topics are stopped, and why: engines release them", _claim, durable=True),
    Step("have the engine release the topics, or take its lease", release_topics),
    Step("finish topics that were deleted or recreated", _finish_deleted, durable=True),
)
STOP = (
    Step("fence the mirror's producers at every leader, while the source is asked for its ends", fence_writers),
    Step("record where the source's records end (LMO); from here on others may write", _record_ends, durable=True),
    Step("delete filler of a first copy that was never finished", trim_fillers),
    Step("move synced group offsets that are outside the logs into them", clamp_group_offsets),
    Step("apply the deferred settings", apply_settings),
    Step("lift the write protection, and probe that the topics are writable", lift_protection),
    Step("take the source's answer as far as it has arrived", _take_source_answer),
    Step("record that the topics are STOPPED, and what the source was known to have", _finish, durable=True),
)


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


def require_not_failed_over(state: State, mirror: MirrorRecord) -> None:
    """Refuse to run a mirror that was failed over as a whole and has had no topic added since. Raises RefusedError."""
    if mirror.discovery_ended and all(is_stopped(state, topic) for topic in state.topics(mirror.name)):
        raise RefusedError(
            f"mirror {mirror.name} was failed over as a whole: there is nothing to copy",
            "`kmirror failback` mirrors in the other direction; `kmirror add` mirrors topics again",
        )


def is_being_stopped(state: State, name: str) -> bool:
    """Return whether a mirror is being stopped as a whole, or was: no engine may start it."""
    mirror = state.mirror(name)
    stops = mirror is not None and mirror.discovery_ended
    return stops and all(topic.desired is DesiredState.STOPPED for topic in state.topics(name))
