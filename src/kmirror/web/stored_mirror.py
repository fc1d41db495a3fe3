"""The status of a mirror by what is stored on its cluster, for `serve`. Pure.

The rules are those of `describe` (`kmirror.status`). In place of snapshots of both clusters taken now they are given
the newest ends that are known: those that lanes of a live engine report, or those of the last look at the clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.ops.show.describe import naming_transactions
from kmirror.ops.show.open_transactions import OpenTransaction
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import EngineHealth, is_reported
from kmirror.status.observed import ClusterSnapshot, Report, reports_of
from kmirror.status.rules import mirror_status
from kmirror.web.served import ServedMirror, missing_of

_KNOWN_MS = int(KNOWN_SECONDS * 1000)


@dataclass(frozen=True, slots=True)
class OffsetLook:
    """Where the logs of a mirror's topics began and ended when they were last looked at; `source` None: not asked."""

    destination: ClusterSnapshot
    source: ClusterSnapshot | None
    #: The topics as they were stored then.
    topics: Mapping[str, TopicRecord]
    #: At the source, the first open transactions of partitions that nothing was committed to since the look before.
    transactions: Mapping[TopicPartition, OpenTransaction] = field(default_factory=dict)


def stored_mirror(
    cluster: str,
    state: State,
    record: MirrorRecord,
    look: OffsetLook | None,
    health: EngineHealth,
    time_ms: int,
    *,
    is_here: bool | None,
) -> ServedMirror:
    """Return a mirror as it is stored; its engine's health is that at the time `time_ms`."""
    topics, reports = state.topics(record.name), reports_of(state, record.name)
    here, there, are_settled = _known_ends(topics, reports, health, look, time_ms)
    status = mirror_status(state, record, topics, here, there, time_ms, health=health, reports=reports)
    if look is not None:
        # one that has ended since does not begin where the source's log is stable now
        stable = there.last_stable_offset
        opened = {at: one for at, one in look.transactions.items() if stable.get(at) == one.start_offset}
        status = naming_transactions(status, opened, time_ms)
        are_settled = are_settled and not look.transactions
    missing = missing_of(status)
    settings = stored_settings(record.settings)
    is_here = is_here if health.name is not None else None
    return ServedMirror(record.name, cluster, time_ms, state, settings, status, missing, None, is_here, are_settled)


def _known_ends(
    topics: tuple[TopicRecord, ...],
    reports: Mapping[TopicPartition, Report],
    health: EngineHealth,
    look: OffsetLook | None,
    time_ms: int,
) -> tuple[ClusterSnapshot, ClusterSnapshot, bool]:
    """Return the newest snapshots of destination and source, and whether time alone changes neither.

    What is newer counts, the look or a report by a lane of a live engine.
    """
    here = _still_true(look.destination, look, topics, of_source=False) if look else ClusterSnapshot(time_ms)
    there = _still_true(look.source, look, topics, of_source=True) if look and look.source else ClusterSnapshot(time_ms)
    ends, here_ms = dict(here.high_watermark), dict(here.seen_ms)
    stable, starts, watermarks = (
        dict(there.last_stable_offset),
        dict(there.log_start_offset),
        dict(there.high_watermark),
    )
    there_ms = dict(there.seen_ms)
    renamed = {topic.topic: topic.source_topic for topic in topics if topic.source_topic != topic.topic}
    answers_lanes, are_settled = False, True
    lane, is_live = None, False
    for at, report in reports.items():
        record, row = report.record, report.row
        if record is not lane:
            lane, is_live = record, is_reported(health, record)
        if not is_live:
            continue
        at_source = TopicPartition(renamed[at.topic], at.partition) if at.topic in renamed else at
        reported_ms, as_of_ms = record.time_ms, record.as_of_ms(row)
        if row.source_seen_ms is not None or (look is not None and reported_ms < here.time_ms):
            are_settled = False
        if row.destination_offset is not None and (at not in ends or reported_ms >= here.time_ms):
            ends[at], here_ms[at] = row.destination_offset, reported_ms
        if row.source_offset is None or reported_ms - as_of_ms > _KNOWN_MS:
            continue
        answers_lanes = True
        if at_source in stable and as_of_ms < there.time_ms:
            continue
        stable[at_source], there_ms[at_source] = row.source_offset, as_of_ms
        if row.source_log_start is not None:
            starts[at_source] = row.source_log_start
        if row.source_high_watermark is not None:
            watermarks[at_source] = max(row.source_offset, row.source_high_watermark)
    # lanes know better whether the source answers them
    is_well = answers_lanes and health.record is not None and health.record.source_reason is None
    trouble = None if is_well else there.trouble
    return (
        replace(here, high_watermark=ends, seen_ms=here_ms),
        replace(
            there,
            last_stable_offset=stable,
            log_start_offset=starts,
            high_watermark=watermarks,
            seen_ms=there_ms,
            trouble=trouble,
        ),
        are_settled,
    )


def _still_true(
    snapshot: ClusterSnapshot, look: OffsetLook, topics: tuple[TopicRecord, ...], *, of_source: bool
) -> ClusterSnapshot:
    """Return a snapshot without what it says of topics that were changed since."""
    same = {topic.source_topic if of_source else topic.topic for topic in topics if _is_same(look, topic)}
    return snapshot if len(same) == len(look.topics) else snapshot.of_topics(same)


def _is_same(look: OffsetLook, topic: TopicRecord) -> bool:
    return look.topics.get(topic.topic) == topic
