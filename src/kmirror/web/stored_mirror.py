"""The status of a mirror by what is stored on its cluster, for `serve`. Pure.

The rules are those of `describe` (`kmirror.status`). In place of snapshots of both clusters taken now they are given
the newest ends that are known: those that lanes of a live engine report, or those of the last look at the clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.engine.status.health import KNOWN_SECONDS
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
    topics, reports = state.topics(record.name), current_reports(state, record.name, health)
    here, there = _known_ends(topics, reports, health, look, time_ms)
    status = mirror_status(state, record, topics, here, there, time_ms, health=health)
    missing = missing_of(record.name, status.partitions)
    settings = stored_settings(record.settings)
    is_here = is_here if health.name is not None else None
    return ServedMirror(record.name, cluster, time_ms, state, settings, status, missing, None, is_here)


def current_reports(state: State, mirror: str, health: EngineHealth) -> dict[TopicPartition, Report]:
    """Return the last reports on partitions by lanes of a live engine."""
    if health.reason is not None:
        return {}
    return {at: report for at, report in reports_of(state, mirror).items() if is_reported(health, report.record)}


def _known_ends(
    topics: tuple[TopicRecord, ...],
    reports: Mapping[TopicPartition, Report],
    health: EngineHealth,
    look: OffsetLook | None,
    time_ms: int,
) -> tuple[ClusterSnapshot, ClusterSnapshot]:
    """Return the newest snapshots of destination and source; what is newer, a report or the look, counts."""
    here = _still_true(look.destination, look, topics, of_source=False) if look else ClusterSnapshot(time_ms)
    there = _still_true(look.source, look, topics, of_source=True) if look and look.source else ClusterSnapshot(time_ms)
    ends, here_ms = dict(here.log_end_offset), dict(here.seen_ms)
    stable, starts, watermarks = (
        dict(there.last_stable_offset),
        dict(there.log_start_offset),
        dict(there.high_watermark),
    )
    there_ms = dict(there.seen_ms)
    sources = {topic.topic: topic.source_topic for topic in topics}
    for at, report in reports.items():
        row = report.row
        at_source = TopicPartition(sources.get(at.topic, at.topic), at.partition)
        if row.destination_offset is not None and _is_newer(report.time_ms, at, ends, here):
            ends[at], here_ms[at] = row.destination_offset, report.time_ms
        is_known = report.time_ms - report.as_of_ms <= _KNOWN_MS
        if row.source_offset is None or not is_known or not _is_newer(report.as_of_ms, at_source, stable, there):
            continue
        stable[at_source], there_ms[at_source] = row.source_offset, report.as_of_ms
        if row.source_log_start is not None:
            starts[at_source] = row.source_log_start
        if row.source_high_watermark is not None:
            watermarks[at_source] = max(row.source_offset, row.source_high_watermark)
    # the engine knows better whether the source answers it
    is_engine_well = health.reason is None and health.record is not None and health.record.source_reason is None
    trouble = None if is_engine_well and reports else there.trouble
    return (
        replace(here, log_end_offset=ends, seen_ms=here_ms),
        replace(
            there,
            last_stable_offset=stable,
            log_start_offset=starts,
            high_watermark=watermarks,
            seen_ms=there_ms,
            trouble=trouble,
        ),
    )


def _is_newer(seen_ms: int, at: TopicPartition, known: Mapping[TopicPartition, int], snapshot: ClusterSnapshot) -> bool:
    return at not in known or seen_ms >= snapshot.seen_ms.get(at, snapshot.time_ms)


def _still_true(
    snapshot: ClusterSnapshot, look: OffsetLook, topics: tuple[TopicRecord, ...], *, of_source: bool
) -> ClusterSnapshot:
    """Return a snapshot without what it says of topics that were changed since."""
    same = {topic.source_topic if of_source else topic.topic for topic in topics if _is_same(look, topic)}
    if len(same) == len(look.topics):
        return snapshot

    def kept(found: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {at: value for at, value in found.items() if at.topic in same}

    metadata: dict[str, TopicMetadata] = {name: one for name, one in snapshot.topics.items() if name in same}
    return replace(
        snapshot,
        topics=metadata,
        log_start_offset=kept(snapshot.log_start_offset),
        last_stable_offset=kept(snapshot.last_stable_offset),
        high_watermark=kept(snapshot.high_watermark),
        log_end_offset=kept(snapshot.log_end_offset),
    )


def _is_same(look: OffsetLook, topic: TopicRecord) -> bool:
    return look.topics.get(topic.topic) == topic
