"""Stop mirroring to topics and make them ordinary topics: shared by failover, remove and promote.

`STOP` lists the steps in order. Killed at any point, the same command resumes: recorded steps are not repeated, and
every other step can be done twice. A dry run walks the same steps without acting: what would be recorded is kept in a
state in memory, for the steps after it to read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.spec import own_producer_id
from kmirror.errors import RESET_REASONS, ExitCode, KmirrorError, OutcomeUnknown, Reason, RefusedError
from kmirror.ops.base.context import Destination, change, naming_cluster, now_ms, own_event, require_mirror
from kmirror.ops.base.gone import gone_topics, not_described
from kmirror.ops.base.retrying import interrupted_row
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop import fencing, make_writable
from kmirror.ops.stop.report import (
    already_stopped_rows,
    incomplete_warnings,
    partitions_of,
    spread_warnings,
    stopped_row,
    with_all_partitions,
)
from kmirror.ops.stop.steps import Step, StepRunner
from kmirror.ops.stop.work import RUN_AGAIN, StopRequest, StopResults, StopWork, is_stopped, taken
from kmirror.settings.parsing import canonical, stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import (
    PENDING_STOP,
    AtStop,
    DesiredState,
    Guard,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRow,
    Rebuild,
    RebuildStep,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import boottime

#: Time brokers may take to delete a topic that was being rebuilt.
_DELETION_S = 3.0
_MOST_TOPICS_IN_EVENT = 100
_GONE_HINT = "its records are at the source; to mirror them again, remove what has its name now, and add the topic"
_BRING_BACK_REPLICAS = (
    f"bring back the brokers that hold the others, or lower min.insync.replicas of the topic, then {RUN_AGAIN}"
)
_BRING_BACK = f"bring back the brokers or log directories that hold it, then {RUN_AGAIN}"


def stop(
    destination: Destination, request: StopRequest, runner: StepRunner | None = None, state: State | None = None
) -> StopResults:
    """Stop mirroring to these topics, or have the `runner` rehearse it; `state` is the stored state, if just read.

    An error in the middle becomes the rows of the topics that are half-way; for a promote, which resumes, it is raised.

    Raises:
        RefusedError: no such mirror; another operation is rebuilding or adding a topic at this moment.
        UnreachableError: the destination does not answer; the same command resumes.
    """
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        work = StopWork(destination, request, runner or StepRunner(), state or destination.state())
    try:
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE), work.resources:
            work.runner.walk(STOP, work)
    except KmirrorError as error:
        half_way = _half_way(work)
        if request.reason is Reason.PROMOTED or not work.runner.acts or not half_way:
            raise
        _report_half_way(work, half_way, error)
    work.done.state = work.state if work.runner.acts and not work.is_over else None
    return work.done


def _half_way(work: StopWork) -> list[str]:
    """Return the topics whose stop has begun, or may have, and is not finished."""
    if not (work.seen_at or work.topics or work.gone or work.in_doubt):
        return []  # nothing was claimed
    names = [topic.topic for topic in (*work.topics, *work.gone)] or work.request.topics
    topics = [topic for name in names if (topic := work.state.topic(work.request.mirror, name)) is not None]
    return [
        one.topic for one in topics if one.pending_operation == PENDING_STOP or (work.in_doubt and not is_stopped(one))
    ]


def _report_half_way(work: StopWork, half_way: Collection[str], error: KmirrorError) -> None:
    """Report which topics an error has left half-way, and what was stopped before."""
    results = [row for row in work.done.results if row.topic not in half_way or row.topic in work.failed]
    for name in work.request.topics:
        topic = work.state.topic(work.request.mirror, name)
        if name in half_way and name not in work.failed:
            what = f"it is unknown whether {name} was stopped" if work.in_doubt else f"{name} is not stopped yet"
            hint = f"{error.hint}; {RUN_AGAIN}" if error.hint else RUN_AGAIN
            results.append(interrupted_row(name, f"{what}: {error.message}", error, hint))
        elif topic is not None and is_stopped(topic) and not any(row.topic == name for row in results):
            results += already_stopped_rows(work.state, topic)
    work.done.results = results


def _recording(
    does: str,
    reached: str,
    decide: Callable[[StopWork, State], Changes],
    read: Callable[[StopWork], str | None],
    then: Callable[[StopWork], None] = lambda _: None,
) -> Step[StopWork]:
    """Return the durable step that stores what `decide` makes of the state; a dry run changes its own copy only."""

    def record(work: StopWork) -> str:
        def decide_and_keep(state: State) -> Changes:
            work.seen_at = boottime()  # the commit that follows may take as long as the process is frozen
            changes = decide(work, state)
            work.state = state.after(changes)
            return changes

        before = work.state
        try:
            change(work.destination, work.request.mirror, decide_and_keep)
        except KmirrorError as error:
            work.state, work.in_doubt, work.seen_at = before, isinstance(error.__cause__, OutcomeUnknown), 0.0
            raise
        then(work)
        return reached

    def rehearse(work: StopWork) -> None:
        work.state = work.state.after(decide(work, work.state))

    return Step(does, record, read, rehearse, recorded=lambda work: not decide(work, work.state))


def _describe(work: StopWork) -> None:
    """Ask for the topics as they are now."""
    work.here = work.destination.client.metadata(work.request.topics).topics


def _claim(work: StopWork, state: State) -> Changes:
    """Return the records that say that the topics are to be stopped, of those for which that is still to be done."""
    request = work.request
    mirror = require_mirror(state, request.mirror)
    records: list[MirrorRecord | TopicRecord] = [_with_filters(mirror, request)]
    work.rebuilds.clear()
    for name in request.topics:
        topic = state.topic(request.mirror, name)
        if topic is None or is_stopped(topic):
            continue
        replacing = topic.rebuild is not None and topic.rebuild.step is RebuildStep.REPLACE
        records.append(
            replace(
                with_all_partitions(state, topic, work.here.get(name)),
                desired=DesiredState.STOPPED,
                pending_operation=PENDING_STOP,
                stop_reason=topic.stop_reason or request.reason,
                archive=(topic.rebuild.kept_in if topic.rebuild and replacing else None) or topic.archive,
            )
        )
        if topic.rebuild is not None:
            work.rebuilds[name] = topic.rebuild
    return Changes(tuple(record for record in records if state.records.get(record.key) != record))


def _await_deletion(work: StopWork) -> None:
    """Wait for the deletion of a rebuilt topic, which may have been sent just before the claim."""
    if any(rebuild.step is RebuildStep.REPLACE for rebuild in work.rebuilds.values()):
        time.sleep(_DELETION_S)


def _report_claim(work: StopWork) -> None:
    """Find the topics that are claimed; report what was being rebuilt, and what was stopped before."""
    request, state = work.request, work.state
    for name, rebuild in work.rebuilds.items():
        if rebuild.step is RebuildStep.ARCHIVE:
            kept = "its old records are still in it"
        elif rebuild.reason in RESET_REASONS:
            kept = f"all its old records are in {rebuild.kept_in}" if rebuild.kept_in else "it was empty"
        else:
            kept = f"if it is gone, {_what_is_where(rebuild)}"
        work.done.warnings.append(f"{name} was being rebuilt because it did not match its source: {kept}")
    known = {name: state.topic(request.mirror, name) for name in request.topics}
    work.topics = [topic for topic in known.values() if topic and topic.pending_operation == PENDING_STOP]
    work.is_over = not work.topics and not request.whole
    for name in sorted(known.keys() - {topic.topic for topic in work.topics}):
        topic = known[name]
        if topic is None:
            work.done.results.append(TopicResult(name, None, Outcome.NOOP, f"{name} is not a mirror topic"))
        else:
            work.done.results += already_stopped_rows(state, topic)


def _what_is_where(rebuild: Rebuild) -> str:
    """Return where the records of a rebuilt topic are whose source is still the same one."""
    if rebuild.kept_in is None:
        return "its records are only at the source"
    return f"what its source lacked is in {rebuild.kept_in}, and the rest is only at the source"


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


def _find_gone(work: StopWork) -> None:
    """Find the topics that were deleted or recreated, or never became mirror topics; drop them from the work."""
    client = work.destination.client
    work.metadata = client.metadata([topic.topic for topic in work.topics])
    found = work.metadata.topics
    gone = gone_topics(client, work.left, found)
    work.gone = [topic for topic in work.left if topic.destination_topic_id is None or topic.topic in gone]
    left = [topic for topic in work.left if topic not in work.gone]
    for topic in work.gone:
        what = "had not become a mirror topic yet" if topic.destination_topic_id is None else "is gone"
        rebuild, is_lost = work.rebuilds.get(topic.topic), work.request.reason is Reason.PROMOTED
        if rebuild is not None and rebuild.step is RebuildStep.REPLACE and rebuild.reason not in RESET_REASONS:
            what += f": {_what_is_where(rebuild)}"
            is_lost |= work.request.reason is Reason.FAILED_OVER
        elif topic.archive:
            what += f"; its old records are in {topic.archive}"
        row = TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} {what}")
        if is_lost:
            # a promote was to hand over the copy, and a failover what is in it; else it is given up anyway
            row = replace(row, result=Outcome.FAILED, reason=Reason.DESTINATION_TOPIC_DELETED, hint=_GONE_HINT)
        work.done.results.append(row)
    for topic in left:
        here = found.get(topic.topic)
        if here is not None and here.error_code:
            work.fail(topic.topic, not_described(here))
    work.topics = [topic for topic in left if topic.topic not in work.failed]


def _find_mirrored_ends(work: StopWork) -> None:
    """Find where the source's records end in each log."""
    work.at_stop = work.facts.at_stop(work.log_ends)
    work.done.warnings += work.facts.warnings
    for topic_partition, end in sorted(work.log_ends.items()):
        if end.error_code:
            why = work.destination.client.unanswered.get(topic_partition) or code_name(end.error_code)
            error = KmirrorError(f"where {topic_partition} ends is unknown: {why}", RUN_AGAIN)
            if end.error_code == Code.LEADER_NOT_AVAILABLE:
                error = KmirrorError(f"{topic_partition} has no leader, so its end is unknown", _BRING_BACK)
            if end.error_code == Code.NOT_ENOUGH_REPLICAS:
                why = f"{topic_partition} has fewer in-sync replicas than min.insync.replicas, so its end is unknown"
                error = KmirrorError(why, _BRING_BACK_REPLICAS)
            work.fail(topic_partition.topic, error, topic_partition.partition)


def _ends(work: StopWork, state: State) -> Changes:
    """Return the records of partitions with their ends, of those that have none."""
    mirror, facts, records = work.request.mirror, work.facts, []
    topics = {one.topic: topic for one in work.topics if (topic := _pending(one, state))}
    for topic_partition, known in work.at_stop.items():
        if (topic := topics.get(topic_partition.topic)) is None:
            continue
        record = state.partition(mirror, *topic_partition)
        if record is None:
            record = PartitionRecord(mirror, *topic_partition, PartitionState.LOG_ALIGNMENT, now_ms())
        if record.last_mirrored_offset is None:
            row = facts.reports[topic_partition].row if topic_partition in facts.reports else None
            records.append(_with_end(record, topic, facts.last_mirrored_offsets[topic_partition], known, row))
    return Changes(tuple(records))


def _pending(one: TopicRecord, state: State) -> TopicRecord | None:
    """Return what is stored of a topic now if its stop is still this one, and is not finished."""
    topic = state.topic(one.mirror, one.topic)
    return None if topic is None or topic.pending_operation != PENDING_STOP or taken(one, state) else topic


def _require_all_ends(work: StopWork) -> None:
    """With `together`, end the stop here unless the ends of all topics are known."""
    work.is_over = work.request.together and bool(work.failed)
    for topic in work.left if work.is_over else ():
        missed = next(iter(work.failed))
        state = "is no longer mirrored and not yet writable" if work.runner.acts else "would not be writable"
        message = f"{topic.topic} {state}: {missed} cannot be stopped with it"
        work.done.results.append(TopicResult(topic.topic, None, Outcome.TIMED_OUT, message, hint=RUN_AGAIN))


def _with_end(
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
    found = work.facts.with_source_answer(known, work.done.ends)
    # a promote compares each end with the source's after the stop
    promoted = {topic.topic for topic in work.left if topic.stop_reason is Reason.PROMOTED}
    work.at_stop = {
        partition: replace(one, unchecked=True) if partition.topic in promoted and not one.source_only else one
        for partition, one in found.items()
    }
    work.source = work.facts.request.answer()
    work.done.source_trouble = work.source.trouble
    return "source asked"


def _report_stopped(work: StopWork) -> None:
    """Add the rows of the topics that are stopped now."""
    request, finished, done = work.request, work.left, work.done
    outcome = f"{work.becomes} stopped"
    for topic in finished:
        for partition in partitions_of(topic):
            record = work.state.partition(request.mirror, *partition)
            if record is not None and partition in work.at_stop:
                record = replace(record, at_stop=work.at_stop[partition])
            done.results.append(stopped_row(partition, record, Outcome.DONE, request.reason, outcome))
    done.results += [
        stopped_row(partition, record, Outcome.DONE, request.reason)
        for partition, record in _unmirrored(work, finished).items()
    ]
    done.warnings += incomplete_warnings(work.state, request.mirror, finished, work.facts.reports, work.source.absent)
    done.warnings += spread_warnings(finished, work.facts.reports)


def _withdraw_taken(work: StopWork) -> None:
    """Replace the rows of topics that were mirrored again before it could be recorded that they are stopped."""
    for topic in work.left:
        if error := taken(topic, work.state):
            work.done.results = [row for row in work.done.results if row.topic != topic.topic]
            work.fail(topic.topic, error)


def _unmirrored(work: StopWork, topics: Iterable[TopicRecord]) -> dict[TopicPartition, PartitionRecord]:
    """Return the records of partitions of these topics that only the source has."""
    names = {topic.topic for topic in topics}
    return {partition: record for partition, record in work.facts.unmirrored().items() if partition.topic in names}


def _stopped(
    work: StopWork, state: State, topics: Sequence[TopicRecord], unmirrored: Collection[PartitionRecord] = ()
) -> Changes:
    """Return the records of topics that are stopped; `unmirrored` are those of partitions that only the source has."""
    request = work.request
    records: list[TopicRecord | PartitionRecord] = []
    offsets: dict[str, object] = {}
    for one in topics:
        if (topic := _pending(one, state)) is None:
            continue
        new = (record for record in unmirrored if record.topic == topic.topic)
        for record in (*state.partitions(request.mirror, topic.topic), *new):
            known = work.at_stop.get(TopicPartition(topic.topic, record.partition), record.at_stop)
            stopped = replace(
                record,
                state=PartitionState.STOPPED,
                state_time_ms=now_ms(),
                reason=topic.stop_reason,
                message=None,
                retry_attempt=0,
                failed_offset=None,
                at_stop=known,
            )
            records.append(stopped)
            if len(offsets) < _MOST_TOPICS_IN_EVENT:
                offsets[f"{topic.topic}-{record.partition}"] = record.last_mirrored_offset
        records.append(replace(topic, pending_operation=None, deferred=None, rebuild=None))
    if not records:
        return Changes()
    names = [record.topic for record in records if isinstance(record, TopicRecord)]
    details = {"topics": names[:_MOST_TOPICS_IN_EVENT], "count": len(names), "lastMirroredOffsets": offsets}
    event = own_event(request.mirror, request.verb, ExitCode.OK.name, details)
    return Changes(tuple(records), (), (event,))


STOP: tuple[Step[StopWork], ...] = (
    _recording(
        "record which topics are stopped, and why: engines release them", "claimed", _claim, _describe, _await_deletion
    ),
    Step("report what was being rebuilt, and what was stopped before", read=_report_claim),
    Step(
        "have the engine release the topics, or take its lease",
        fencing.release_topics,
        fencing.decide_to_fence,
        fencing.foresee_release,
    ),
    _recording(
        "record that topics that were deleted or recreated are STOPPED",
        "stopped",
        lambda work, state: _stopped(work, state, work.gone),
        _find_gone,
    ),
    Step(
        "fence the mirror's producers at every leader",
        fencing.fence_writers,
        fencing.find_writers,
        fencing.foresee_fence,
        needed=lambda work: work.must_fence and bool(work.writers),
    ),
    Step("read where the logs end", read=fencing.read_ends),
    _recording(
        "record where the source's records end (LMO); from here on others may write",
        "ends recorded",
        _ends,
        _find_mirrored_ends,
    ),
    Step("continue, if all topics stop together, only with the ends of all", read=_require_all_ends),
    Step(
        "delete filler of a first copy that was never finished, and restore what an interrupted trim has set",
        make_writable.trim_fillers,
        make_writable.find_fillers,
        make_writable.foresee_trim,
    ),
    Step(
        "move synced group offsets that are outside the logs into them",
        make_writable.clamp_group_offsets,
        make_writable.read_ranges,
        make_writable.clamp_group_offsets,
        needed=lambda work: bool(work.ranges),
    ),
    Step(
        "apply the deferred settings",
        make_writable.apply_settings,
        make_writable.find_settings,
        make_writable.apply_settings,
        needed=lambda work: bool(work.settings),
    ),
    Step(
        "lift the write protection, and probe that the topics are writable",
        make_writable.lift_protection,
        rehearse=make_writable.check_rights,
    ),
    Step("take the source's answer as far as it has arrived", read=_take_source_answer),
    _recording(
        "record that the topics are STOPPED, and what the source was known to have",
        "stopped",
        lambda work, state: _stopped(work, state, work.left, _unmirrored(work, work.left).values()),
        _report_stopped,
        _withdraw_taken,
    ),
)


def require_not_failed_over(state: State, mirror: MirrorRecord) -> None:
    """Refuse to run a mirror that was failed over as a whole and has had no topic added since. Raises RefusedError."""
    if mirror.discovery_ended and all(is_stopped(topic) for topic in state.topics(mirror.name)):
        raise RefusedError(
            f"mirror {mirror.name} was failed over as a whole: there is nothing to copy",
            "`kmirror failback` mirrors in the other direction; `kmirror add` mirrors topics again",
        )


def is_being_stopped(state: State, name: str) -> bool:
    """Return whether a mirror is being stopped as a whole, or was: no engine may start it."""
    mirror = state.mirror(name)
    stops = mirror is not None and mirror.discovery_ended
    return stops and all(topic.desired is DesiredState.STOPPED for topic in state.topics(name))
