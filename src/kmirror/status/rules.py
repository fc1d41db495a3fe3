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
from functools import cached_property
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
from kmirror.status.observed import ClusterSnapshot, Report, is_gone, reports_of
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


@dataclass(frozen=True)
class MirrorFacts:
    """What the topics of a mirror share; `is_promoted`: a promote of some of them is at work."""

    destination: ClusterSnapshot
    source: ClusterSnapshot | None
    health: EngineHealth
    is_promoted: bool
    limit: int | None
    now_ms: int
    objectives: Objectives

    @cached_property
    def source_trouble(self) -> SourceTrouble:
        """The kind of trouble in the source's snapshot."""
        return source_trouble(self.source)

    @cached_property
    def has_link_trouble(self) -> bool:
        """Whether the source may be refusing or not answering, here or its engine."""
        engine = self.health.record
        is_well = self.source_trouble in (SourceTrouble.NONE, SourceTrouble.NOT_ASKED)
        return not is_well or (engine is not None and engine.source_reason is not None)

    @cached_property
    def copy_trouble(self) -> tuple[Reason, str] | None:
        """Why partitions that no live lane reports are not copied."""
        return copy_trouble(self.health, self.now_ms)

    @cached_property
    def first_topics(self) -> tuple[str, ...]:
        """The topics that the engine copies first."""
        engine = self.health.record
        return (engine.first_topics if engine is not None and self.health.reason is None else None) or ()


class _Topic(NamedTuple):
    """What the partitions of a topic share: its record, and by the snapshots whether it is gone at either end."""

    record: TopicRecord
    facts: MirrorFacts
    is_gone: bool
    source_reason: Reason | None
    source_message: str | None
    objective_ms: int | None

    @classmethod
    def of(cls, record: TopicRecord, facts: MirrorFacts) -> _Topic:
        """Return it for a topic of a mirror."""
        gone = is_gone(record, facts.destination.topics.get(record.topic))
        return cls(
            record, facts, gone, *_source_topic_trouble(record, facts.source), facts.objectives.of(record.source_topic)
        )


class _Partition(NamedTuple):
    """What is known of a partition; `is_reported`: its last report is from a live lane of the engine in charge."""

    here: TopicPartition
    record: PartitionRecord | None
    report: Report | None
    is_reported: bool
    beside: UnmirroredPartition | None


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
    health, shared = facts.health, _Topic.of(topic, facts)
    lacking = (health.record.lacking or {}).get(topic.topic) if health.record is not None else None
    unmirrored = unmirrored_partitions(topic, count, lacking, facts.destination, facts.source)
    found: list[tuple[_Partition, _Status]] = []
    for partition in (*range(count), *unmirrored):
        here = TopicPartition(topic.topic, partition)
        report = reports.get(here) if partition < count else None
        live = report is not None and is_reported(health, report.record)
        one = _Partition(here, records.get(partition), report, live, unmirrored.get(partition))
        status = _with_cause(_status_of(one, shared), one, shared)
        found.append((one, _as_unmirrored(status, one.beside)))
    own = [(status.state, status.reason) for one, status in found if one.beside is None or not one.beside.is_extra]
    state = topic_state_of(topic, own, records, facts.source_trouble)
    return TopicStatus.of([_row(one, status, state, shared) for one, status in found], is_wanted=topic.is_copied)


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


def _status_of(one: _Partition, shared: _Topic) -> _Status:
    """Return a partition's status by record and report, unless the destination's snapshot disproves them."""
    topic, record, report = shared.record, one.record, one.report
    if record is not None and (report is None or report.record.time_ms <= record.state_time_ms):
        status = _Status(record.state, record.state_time_ms, record.reason, record.message)
    elif report is not None:
        row = report.row
        since_ms = record.state_time_ms if record is not None and record.state is row.state else None
        if since_ms is None and row.state is PartitionState.FAILED:
            since_ms = report.time_ms  # the engine has not recorded it yet
        status = _Status(row.state, since_ms, row.reason, row.message)
    else:
        status = _Status(PartitionState.LOG_ALIGNMENT, None, None, None)
    # STOPPED is final: a lane's late report does not change it
    if record is not None and record.state is PartitionState.STOPPED:
        return _Status(record.state, record.state_time_ms, record.reason, record.message)
    if shared.is_gone and topic.desired is not DesiredState.STOPPED:
        found = shared.facts.destination.topics[topic.topic].printed_topic_id
        now_there = f"topic {found} now has its name" if found else "no topic has its name now"
        is_known = (status.state, status.reason) == (PartitionState.FAILED, Reason.DESTINATION_TOPIC_DELETED)
        return _Status(
            PartitionState.FAILED,
            status.since_ms if is_known else None,  # no engine has noticed it yet
            Reason.DESTINATION_TOPIC_DELETED,
            f"the mirror topic {topic.topic} ({topic.destination_topic_id}) was deleted; {now_there}",
        )
    return status


def _with_cause(status: _Status, one: _Partition, shared: _Topic) -> _Status:
    """Return the status with the state that operators asked for, and a reason wherever nothing is copied."""
    topic, facts, record, report = shared.record, shared.facts, one.record, one.report
    health = facts.health
    if status.state is PartitionState.STOPPED:
        return status
    if topic.pending_operation == PENDING_STOP:
        text = "it is being stopped; if that command was interrupted, run it again to finish"
        return _Status(PartitionState.STOPPING, status.since_ms, topic.stop_reason, text)
    if topic.rebuild is not None:
        return _being_rebuilt(topic.rebuild, facts.destination)
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
    if not one.is_reported and (trouble := facts.copy_trouble) is not None:
        return status._replace(reason=trouble[0], message=trouble[1])
    if status.reason is not None or facts.has_link_trouble:
        link = _link_status(status, facts, topic.mirror) or _engine_link_status(status, report, health, topic.mirror)
        if link is not None or status.reason is not None:
            return link or status
    reason, message = shared.source_reason, shared.source_message
    if reason is None and report is not None:
        reason, message = report.row.reason, report.row.message
    return status if (reason, message) == (None, status.message) else status._replace(reason=reason, message=message)


def _link_status(status: _Status, facts: MirrorFacts, mirror: str) -> _Status | None:
    """Return the status of a link that is refused or down: as the engine reports it, with its time, or by the snapshot.

    A refusal of either counts for more than a source that does not answer the other.
    """
    seen = facts.source_trouble
    trouble = facts.source.trouble if facts.source is not None else None
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


def _row(one: _Partition, status: _Status, topic_state: TopicState, shared: _Topic) -> PartitionRow:
    topic, facts, here, record, report = shared.record, shared.facts, one.here, one.record, one.report
    destination, source, health, beside = facts.destination, facts.source, facts.health, one.beside
    last = None if report is None else report.row
    current = last if one.is_reported else None
    is_stopped, is_extra = status.state is PartitionState.STOPPED, beside is not None and beside.is_extra
    there = here if topic.source_topic == topic.topic else TopicPartition(topic.source_topic, here.partition)
    # an ordinary topic may have taken the name of a stopped one
    gone = status.reason is Reason.DESTINATION_TOPIC_DELETED or (is_stopped and shared.is_gone)
    destination_offset = None if gone else destination.high_watermark.get(here)
    starts_here = None if gone else destination.log_start_offset.get(here)
    at_stop = record.at_stop if record is not None and is_stopped else None
    source_offset = None if source is None else source.last_stable_offset.get(there)
    answers = source_offset is not None
    if source is not None and answers:
        high_watermark, log_start = source.high_watermark.get(there), source.log_start_offset.get(there)
        as_of_ms: int | None = source.seen_ms.get(there, source.time_ms)
    elif at_stop is not None and at_stop.source_offset is not None:
        source_offset, high_watermark = at_stop.source_offset, at_stop.source_high_watermark
        log_start, as_of_ms = last.source_log_start if last else None, at_stop.source_as_of_ms
    elif report is not None:
        source_offset, high_watermark = report.row.source_offset, report.row.source_high_watermark
        log_start, as_of_ms = report.row.source_log_start, report.as_of_ms
    elif record is not None and (seen := record.source_seen) is not None:
        source_offset, high_watermark = seen.last_stable_offset, seen.high_watermark
        log_start, as_of_ms = seen.log_start, seen.time_ms
    else:
        high_watermark = log_start = as_of_ms = None
    lag = None
    if is_extra:
        lag = 0
    elif answers and not is_stopped:
        # a partition that nobody copies, or whose mirror topic is gone or will be, is behind by its whole log
        is_lacking = topic.rebuild is not None or ((beside is not None or gone) and destination_offset is None)
        starts_there = log_start if log_start is not None or last is None else last.source_log_start
        lag = _difference(source_offset, (starts_there or 0) if is_lacking else destination_offset)
    last_known_lag = lag
    if lag is None and last is not None:
        last_known_lag = _difference(last.source_offset, last.destination_offset)
    if at_stop is not None and record is not None and record.last_mirrored_offset is not None:
        last_known_lag = known_lost(record.last_mirrored_offset, at_stop)
    elif last_known_lag is None and record is not None and record.begun and not is_stopped:
        # its lane has not read the copy's end yet: only the source's end is of an earlier lane
        last_known_lag = _difference(source_offset, destination_offset)
    if status.reason in HISTORY_REASONS and not is_extra and topic.rebuild is None:
        # what makes the copy long enough need not be the source's
        lag, last_known_lag = lag or None, last_known_lag or None
    time_lag_ms = lag
    if lag:
        time_lag_ms = None if report is None else report.time_lag(lag, facts.now_ms)
    kept = kept_offsets(log_start, starts_here, destination_offset)
    lag_as_of_ms = None
    if lag is not None and as_of_ms is not None:
        lag_as_of_ms = min(as_of_ms, destination.seen_ms.get(here, destination.time_ms))
    return PartitionRow(
        mirror=topic.mirror,
        topic=topic.topic,
        partition=here.partition,
        source_offset=source_offset,
        destination_offset=destination_offset,
        lag=lag,
        state=status.state,
        retry_attempt=(last.retry_attempt if last else 0) or (record.retry_attempt if record else 0),
        error_message=_with_kept(status, kept, source_answers=answers) if kept else status.message,
        source_topic=topic.source_topic,
        topic_state=topic_state,
        reason=status.reason,
        state_time_ms=status.since_ms,
        time_lag_ms=time_lag_ms,
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
        lag_as_of_ms=lag_as_of_ms,
        engine=health.name,
        engine_last_seen_ms=health.last_seen_ms,
        engine_age_ms=health.age_ms,
        is_reported=current is not None,
        is_settled=is_stopped or _is_settled(one, status, time_lag_ms, facts),
        is_extra=is_extra,
        throttle_bytes_per_second=facts.limit,
        objective_ms=None if is_stopped else shared.objective_ms,
        first_topics=facts.first_topics,
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


def _is_settled(one: _Partition, status: _Status, time_lag_ms: int | None, facts: MirrorFacts) -> bool:
    """Return whether the row is the same at any later time, as long as no record, row or look is another one."""
    if time_lag_ms or status.reason in NOT_COPYING:
        return False  # how long that has lasted is shown
    if not one.is_reported or one.report is None:
        # a lane's silence becomes a trouble
        return facts.health.record is None or not facts.health.record.silent_lanes
    # its lane reports the same again, later than what is recorded
    return one.record is None or one.report.record.time_ms > one.record.state_time_ms


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


def _difference(source_offset: int | None, destination_offset: int | None) -> int | None:
    # the two ends are not read at the same instant: the copy may have passed the source's end as read
    if source_offset is None or destination_offset is None:
        return None
    return max(0, source_offset - destination_offset)
