"""Derive the status of a mirror from its stored state and what was observed of it. Pure: no I/O, no clock.

There are three sources for a partition: its record (what must outlive the engine), the last report of the lane that
copies it, and the snapshots. Offsets come from the snapshots, or from the report if the source does not answer. The
state is the newer one of record and report, unless a snapshot disproves it (the topic is gone).

`describe`, `list`, `top`, `wait`, `report`, the pages and metrics of `run --http` and `serve`, and the log of `run` all
show what is decided here. A running engine gives what it knows in place of the snapshots (`engine.driver.live_status`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import HISTORY_REASONS, LINK_REFUSED, NOT_COPYING, RESET_REASONS, Reason
from kmirror.settings.objectives import Objectives
from kmirror.state.records import (
    PENDING_ADD,
    PENDING_PROMOTE,
    PENDING_STOP,
    DesiredState,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    Rebuild,
    RebuildStep,
    TopicRecord,
)
from kmirror.state.snapshot import State, unreadable_error
from kmirror.state.workflow_records import PROMOTE
from kmirror.status.engine_health import EngineHealth, copy_trouble, engine_health, is_reported
from kmirror.status.lasting_troubles import failing_job_notes
from kmirror.status.mirror_status import MirrorStatus, objectives_of, throttle_of
from kmirror.status.next_steps import failure_text, refused_text
from kmirror.status.observed import ClusterSnapshot, Report, is_gone, reports_of, time_lag
from kmirror.status.partition_row import PartitionRow, kept_offsets, known_lost
from kmirror.status.topic_state import SourceTrouble, TopicState, kind_of, topic_state_of
from kmirror.status.topic_status import TopicStatus
from kmirror.status.unmirrored import UnmirroredPartition, not_added_topics, unmirrored_partitions
from kmirror.words import counted

#: With these reasons a mirror topic keeps what its source deletes. It has no retention of its own: a running engine
#: follows the source's log start; without one nothing is deleted, and the destination's disks fill.
_KEEPING = NOT_COPYING | {Reason.PAUSED_BY_OPERATOR}


class _Status(NamedTuple):
    """A partition's state, and the reason if it is not a normal one."""

    state: PartitionState
    since_ms: int | None
    reason: Reason | None
    message: str | None


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """What the topics of a mirror share; `is_promoted`: a promote of some of them is at work."""

    destination: ClusterSnapshot
    source: ClusterSnapshot | None
    health: EngineHealth
    is_promoted: bool
    limit: int | None
    now_ms: int
    objectives: Objectives


def mirror_status(
    state: State,
    mirror: MirrorRecord,
    topics: Iterable[TopicRecord],
    destination: ClusterSnapshot,
    source: ClusterSnapshot | None,
    now_ms: int,
    *,
    health: EngineHealth | None = None,
    reports: Mapping[TopicPartition, Report] | None = None,
) -> MirrorStatus:
    """Return the status of a mirror with these topics of it.

    Its engine's `health` and the last `reports` on its partitions are by default as they are stored.
    """
    health = _readable(state, mirror.name, health or engine_health(state.engine(mirror.name), mirror.name, now_ms))
    promote, reports = state.workflow(mirror.name, PROMOTE), reports or reports_of(state, mirror.name)
    is_promoted = promote is not None and promote.is_alive(now_ms)
    facts = MirrorFacts(destination, source, health, is_promoted, throttle_of(mirror), now_ms, objectives_of(mirror))
    found = [
        topic_status(topic, {one.partition: one for one in state.partitions(mirror.name, topic.topic)}, reports, facts)
        for topic in sorted(topics, key=lambda one: one.topic)
    ]
    topic_count, not_added = len(state.topics(mirror.name)), not_added_topics(state, mirror)
    failing_jobs = len(failing_job_notes(state, mirror.name, health))
    return MirrorStatus(mirror, tuple(found), topic_count, health, source_trouble(source), not_added, failing_jobs)


def topic_status(
    topic: TopicRecord,
    records: Mapping[int, PartitionRecord],
    reports: Mapping[TopicPartition, Report],
    facts: MirrorFacts,
) -> TopicStatus:
    """Return the status of a topic, by the records of its partitions and the last reports on them."""
    if topic.pending_operation == PENDING_PROMOTE and not facts.is_promoted:
        topic = replace(topic, pending_operation=None)  # the promote waiting for it is gone
    count = max([1, topic.partitions, *(partition + 1 for partition in records)])
    engine = facts.health.record
    lacking = (engine.lacking or {}).get(topic.topic) if engine is not None else None
    unmirrored = unmirrored_partitions(topic, count, lacking, facts.destination, facts.source)
    of_topic = {
        partition: report
        for partition in range(count)
        if (report := reports.get(TopicPartition(topic.topic, partition))) is not None
    }
    statuses: dict[int, _Status] = {}
    for partition in (*range(count), *unmirrored):
        record, report = records.get(partition), of_topic.get(partition)
        status = _status_of(topic, record, report, facts.destination)
        status = _with_cause(status, topic, record, report, facts)
        statuses[partition] = _as_unmirrored(status, unmirrored.get(partition))
    own = [(one.state, one.reason) for p, one in statuses.items() if p < count or not unmirrored[p].is_extra]
    state = topic_state_of(topic, own, records, source_trouble(facts.source))
    rows = [
        _row(
            topic,
            TopicPartition(topic.topic, partition),
            status,
            state,
            records.get(partition),
            of_topic.get(partition),
            unmirrored.get(partition),
            facts,
        )
        for partition, status in statuses.items()
    ]
    return TopicStatus.of(rows, is_wanted=topic.is_copied)


def source_trouble(source: ClusterSnapshot | None) -> SourceTrouble:
    """Return the kind of trouble in a source's snapshot."""
    return kind_of(source.trouble if source is not None else None)


def _readable(state: State, mirror: str, health: EngineHealth) -> EngineHealth:
    """Return the engine's health, with STATE_UNREADABLE if some of the mirror's records are unreadable."""
    for record in state.unreadable(mirror):
        error = unreadable_error(record)
        return replace(health, reason=error.reason, problem=f"{error.message}; {error.hint}")
    return health


def _as_unmirrored(status: _Status, beside: UnmirroredPartition | None) -> _Status:
    """Return the status of a partition that does not belong to the mirror; what stops all others comes first."""
    if beside is None or (status.reason is not None and not beside.is_extra):
        return status
    return status._replace(reason=beside.reason, message=beside.message)


def _status_of(
    topic: TopicRecord, record: PartitionRecord | None, report: Report | None, destination: ClusterSnapshot
) -> _Status:
    """Return a partition's status by record and report, unless the destination's snapshot disproves them."""
    if record is not None and (report is None or report.time_ms <= record.state_time_ms):
        status = _Status(record.state, record.state_time_ms, record.reason, record.message)
    elif report is not None:
        since_ms = record.state_time_ms if record is not None and record.state is report.row.state else None
        if since_ms is None and report.row.state is PartitionState.FAILED:
            since_ms = report.time_ms  # the engine has not recorded it yet
        status = _Status(report.row.state, since_ms, report.row.reason, report.row.message)
    else:
        status = _Status(PartitionState.LOG_ALIGNMENT, None, None, None)
    # STOPPED is final: a lane's late report does not change it
    if record is not None and record.state is PartitionState.STOPPED:
        return _Status(record.state, record.state_time_ms, record.reason, record.message)
    if topic.desired is not DesiredState.STOPPED and is_gone(topic, destination.topics.get(topic.topic)):
        found = destination.topics[topic.topic].printed_topic_id
        now_there = f"topic {found} now has its name" if found else "no topic has its name now"
        is_known = (status.state, status.reason) == (PartitionState.FAILED, Reason.DESTINATION_TOPIC_DELETED)
        return _Status(
            PartitionState.FAILED,
            status.since_ms if is_known else None,  # no engine has noticed it yet
            Reason.DESTINATION_TOPIC_DELETED,
            f"the mirror topic {topic.topic} ({topic.destination_topic_id}) was deleted; {now_there}",
        )
    return status


def _with_cause(
    status: _Status,
    topic: TopicRecord,
    record: PartitionRecord | None,
    report: Report | None,
    shared: MirrorFacts,
) -> _Status:
    """Return the status with the state that operators asked for, and a reason wherever nothing is copied."""
    health, source = shared.health, shared.source
    if status.state is PartitionState.STOPPED:
        return status
    if topic.pending_operation == PENDING_STOP:
        text = "it is being stopped; if that command was interrupted, run it again to finish"
        return _Status(PartitionState.STOPPING, status.since_ms, topic.stop_reason, text)
    if topic.rebuild is not None:
        return _being_rebuilt(topic.rebuild, shared.destination)
    if status.state is PartitionState.FAILED:
        text = failure_text(status.message, status.since_ms, status.reason, topic)
        return status._replace(message=text)
    if health.problem is not None:
        return status._replace(reason=health.reason, message=health.problem)
    if topic.desired is DesiredState.PAUSED:
        # an engine's answer to an earlier pause does not count
        answered = record is None or record.pause_id == topic.pause_id
        paused = health.reason is Reason.NO_ENGINE or (status.state is PartitionState.PAUSED and answered)
        state = PartitionState.PAUSED if paused else PartitionState.PAUSING
        return _Status(state, status.since_ms, Reason.PAUSED_BY_OPERATOR, "paused; `kmirror resume` continues")
    if topic.pending_operation == PENDING_ADD:
        return status._replace(message="`kmirror add` was interrupted; run the same command again to finish")
    trouble = copy_trouble(health, report.record if report else None, shared.now_ms)
    if trouble is not None:
        return status._replace(reason=trouble[0], message=trouble[1])
    link = _link_status(status, source, topic.mirror) or _engine_link_status(status, report, health, topic.mirror)
    if link is not None or status.reason is not None:
        return link or status
    reason, message = _source_topic_trouble(topic, source)
    if reason is None and report is not None:
        reason, message = report.row.reason, report.row.message
    return status if (reason, message) == (None, status.message) else status._replace(reason=reason, message=message)


def _link_status(status: _Status, source: ClusterSnapshot | None, mirror: str) -> _Status | None:
    """Return the status of a link that is refused or down: as the engine reports it, with its time, or by the snapshot.

    A refusal of either counts for more than a source that does not answer the other.
    """
    seen = source_trouble(source)
    trouble = source.trouble if source is not None else None
    if status.reason in LINK_REFUSED:
        return status._replace(message=refused_text(status.message, status.reason, mirror))
    if seen is SourceTrouble.REFUSED and trouble is not None:
        return status._replace(reason=trouble.reason, message=refused_text(trouble.message, trouble.reason, mirror))
    if seen is SourceTrouble.SILENT and trouble is not None and status.reason is not Reason.SOURCE_UNREACHABLE:
        return status._replace(reason=trouble.reason or Reason.SOURCE_UNREACHABLE, message=trouble.message)
    return None


def _engine_link_status(status: _Status, report: Report | None, health: EngineHealth, mirror: str) -> _Status | None:
    """Return the status of a source that does not answer the engine, unless the partition's lane reaches it."""
    engine = health.record
    lane_sees_it = report is not None and report.row.source_seen_ms is None
    if engine is None or engine.source_reason is None or status.reason is not None or lane_sees_it:
        return None
    if engine.source_reason in LINK_REFUSED:
        text = refused_text(engine.source_message, engine.source_reason, mirror)
    else:
        text = f"the source does not answer the engine: {engine.source_message}"
    return status._replace(reason=engine.source_reason, message=text)


def _being_rebuilt(rebuild: Rebuild, destination: ClusterSnapshot) -> _Status:
    what = "its records are" if rebuild.reason in RESET_REASONS else "what its source lacks is"
    kept = f"{what} in {rebuild.kept_in}" if rebuild.kept_in else "it had no records to archive"
    step = {
        RebuildStep.ARCHIVE: f"its records{_offsets_of(rebuild)} are being archived in {rebuild.archive}"
        f"{_written_to(rebuild, destination)}",
        RebuildStep.REPLACE: f"{kept}, and it is being recreated",
    }[rebuild.step]
    message = f"the topic is being rebuilt because it does not match its source: {step}"
    if rebuild.trouble is not None:
        message = f"{message}; the last attempt failed: {rebuild.trouble}"
        return _Status(PartitionState.FAILED, rebuild.since_ms, rebuild.reason, message)
    return _Status(PartitionState.LOG_ALIGNMENT, rebuild.since_ms, rebuild.reason, message)


def _written_to(rebuild: Rebuild, destination: ClusterSnapshot) -> str:
    """Return how many offsets an archive has, after a comma; empty if that is unknown."""
    ends = [_archive_log_end(rebuild, partition, destination) for partition in rebuild.ranges or {}]
    known = [end for end in ends if end is not None]
    return f", which has {counted(sum(known), 'offset')} so far" if known else ""


def _archive_log_end(rebuild: Rebuild, partition: int, destination: ClusterSnapshot) -> int | None:
    """Return the log end of a partition's archive, markers of its transactions included."""
    return destination.high_watermark.get(TopicPartition(rebuild.archive, partition))


def _offsets_of(rebuild: Rebuild) -> str:
    """Return how many offsets a rebuild archives, in brackets; nothing before that is known."""
    if rebuild.ranges is None:
        return ""
    return f" ({counted(sum(_offsets_to_archive(rebuild, p) or 0 for p in rebuild.ranges), 'offset')})"


def _source_topic_trouble(topic: TopicRecord, source: ClusterSnapshot | None) -> tuple[Reason | None, str | None]:
    found = source.topics.get(topic.source_topic) if source else None
    if found is None:
        return None, None
    if found.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Reason.NOT_AUTHORIZED, f"no right to see source topic {topic.source_topic}"
    if found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return Reason.SOURCE_TOPIC_DELETED, f"the source has no topic {topic.source_topic} any more"
    if topic.source_topic_id and found.printed_topic_id not in (None, topic.source_topic_id):
        return (
            Reason.SOURCE_TOPIC_RECREATED,
            f"the source's topic {topic.source_topic} is now {found.printed_topic_id}; it was {topic.source_topic_id}",
        )
    return None, None


def _with_kept(status: _Status, kept: int | None, *, source_answers: bool) -> str | None:
    """Return a status's message, and how much is kept if nothing is copied; the source may have deleted more since."""
    is_followed = status.state is not PartitionState.FAILED and status.reason not in _KEEPING
    if is_followed or status.state is PartitionState.STOPPED or not kept:
        return status.message
    least = "" if source_answers else "at least "
    offsets = counted(kept, "offset")
    note = f"the mirror keeps {least}{offsets} that the source has deleted, until an engine copies it again"
    return f"{status.message}; {note}" if status.message else note


def _row(
    topic: TopicRecord,
    here: TopicPartition,
    status: _Status,
    topic_state: TopicState,
    record: PartitionRecord | None,
    report: Report | None,
    beside: UnmirroredPartition | None,
    shared: MirrorFacts,
) -> PartitionRow:
    destination, source, health, now_ms = shared.destination, shared.source, shared.health, shared.now_ms
    there = here if topic.source_topic == topic.topic else TopicPartition(topic.source_topic, here.partition)
    # an ordinary topic may have taken the name of a stopped one
    is_other = status.state is PartitionState.STOPPED and is_gone(topic, destination.topics.get(topic.topic))
    gone = status.reason is Reason.DESTINATION_TOPIC_DELETED or is_other
    destination_offset = None if gone else destination.high_watermark.get(here)
    answers = source is not None and there in source.last_stable_offset
    is_stopped = status.state is PartitionState.STOPPED
    at_stop = record.at_stop if record is not None and is_stopped else None
    if source is not None and answers:
        source_offset: int | None = source.last_stable_offset[there]
        high_watermark, log_start = source.high_watermark.get(there), source.log_start_offset.get(there)
        as_of_ms: int | None = source.seen_ms.get(there, source.time_ms)
    elif at_stop is not None and at_stop.source_offset is not None:
        source_offset, high_watermark = at_stop.source_offset, at_stop.source_high_watermark
        log_start, as_of_ms = report.row.source_log_start if report else None, at_stop.source_as_of_ms
    elif report is None and record is not None and (seen := record.source_seen) is not None:
        source_offset, high_watermark = seen.last_stable_offset, seen.high_watermark
        log_start, as_of_ms = seen.log_start, seen.time_ms
    else:
        last = report.row if report else None
        source_offset = last.source_offset if last else None
        high_watermark = last.source_high_watermark if last else None
        log_start = last.source_log_start if last else None
        as_of_ms = report.as_of_ms if report else None
    lag, is_extra = None, beside is not None and beside.is_extra
    if is_extra:
        lag = 0
    elif answers and not is_stopped:
        # a partition that nobody copies, or whose mirror topic is gone or will be, is behind by its whole log
        is_lacking = topic.rebuild is not None or ((beside is not None or gone) and destination_offset is None)
        starts_there = log_start if log_start is not None or report is None else report.row.source_log_start
        copied = (starts_there or 0) if is_lacking else destination_offset
        lag = _difference(source_offset, copied)
    last_known_lag = lag if lag is not None else _reported_lag(report)
    if at_stop is not None and record is not None and record.last_mirrored_offset is not None:
        last_known_lag = known_lost(record.last_mirrored_offset, at_stop)
    elif last_known_lag is None and record is not None and record.begun and not is_stopped:
        # its lane has not read the copy's end yet: only the source's end is of an earlier lane
        last_known_lag = _difference(source_offset, destination_offset)
    if status.reason in HISTORY_REASONS and not is_extra and topic.rebuild is None:
        # what makes the copy long enough need not be the source's
        lag, last_known_lag = lag or None, last_known_lag or None
    starts_here = None if gone else destination.log_start_offset.get(here)
    kept = kept_offsets(log_start, starts_here, destination_offset)
    current = report.row if report and is_reported(health, report.record) else None
    here_ms, engine = destination.seen_ms.get(here, destination.time_ms), health.record
    return PartitionRow(
        mirror=topic.mirror,
        topic=topic.topic,
        partition=here.partition,
        source_offset=source_offset,
        destination_offset=destination_offset,
        lag=lag,
        state=status.state,
        retry_attempt=(report.row.retry_attempt if report else 0) or (record.retry_attempt if record else 0),
        error_message=_with_kept(status, kept, source_answers=answers),
        source_topic=topic.source_topic,
        topic_state=topic_state,
        reason=status.reason,
        state_time_ms=status.since_ms,
        time_lag_ms=report.time_lag(lag, now_ms) if report else time_lag(lag, None, None, now_ms, now_ms),
        last_known_lag=last_known_lag,
        source_log_start=log_start,
        destination_log_start=starts_here,
        source_high_watermark=high_watermark,
        last_mirrored_offset=record.last_mirrored_offset if record else None,
        last_mirrored_epoch=record.last_mirrored_epoch if record else None,
        initial_copy_complete=record.initial_copy_complete if record else False,
        initial_copy_ms=record.initial_copy_ms if record else None,
        rebuilt_at_ms=topic.rebuilt_at_ms,
        archive=topic.archive,
        as_of_ms=as_of_ms,
        lag_as_of_ms=None if lag is None or as_of_ms is None else min(as_of_ms, here_ms),
        engine=health.name,
        engine_last_seen_ms=health.last_seen_ms,
        engine_age_ms=health.age_ms,
        is_reported=current is not None,
        is_extra=is_extra,
        throttle_bytes_per_second=shared.limit,
        objective_ms=None if is_stopped else shared.objectives.of(topic.source_topic),
        first_topics=(engine.first_topics if engine and health.reason is None else None) or (),
        bytes_per_second=int(current.bytes_per_second) if current else None,
        records_per_second=current.offsets_per_second if current else None,
        source_records_per_second=current.records_per_second if current else None,
        offsets_to_fill=current.offsets_to_fill if current else None,
        lane=report.record.lane if report and current else None,
        worker=_worker_of(health, report.record) if report and current else None,
        source_path=_source_path(report.record) if report and current else None,
        offsets_to_archive=_offsets_to_archive(topic.rebuild, here.partition) if topic.rebuild else None,
        archive_log_end=_archive_log_end(topic.rebuild, here.partition, destination) if topic.rebuild else None,
    )


def _offsets_to_archive(rebuild: Rebuild, partition: int) -> int | None:
    if rebuild.ranges is None:
        return None
    return sum(end - begin for begin, end in rebuild.ranges.get(partition, ()))


def _source_path(report: ProgressRecord) -> tuple[int, int] | None:
    return (report.path_connections, report.path_bytes_per_second) if report.path_connections > 0 else None


def _worker_of(health: EngineHealth, report: ProgressRecord) -> str:
    """Return where a lane runs: host and executor if Spark's driver knows them, else the host."""
    places = (health.record.places if health.record else None) or {}
    return places.get(report.lane, report.host)


def _reported_lag(report: Report | None) -> int | None:
    return _difference(report.row.source_offset, report.row.destination_offset) if report else None


def _difference(source_offset: int | None, destination_offset: int | None) -> int | None:
    # the two ends are not read at the same instant: the copy may have passed the source's end as read
    if source_offset is None or destination_offset is None:
        return None
    return max(0, source_offset - destination_offset)
