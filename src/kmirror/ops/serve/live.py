"""The rows of `list` and `describe` from what a running engine knows, without reading the clusters. Pure.

The same code makes them as for the commands. Instead of reading both clusters it takes the source ends that the source
returned lately, and the destination ends that the lanes last reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.errors import Reason
from kmirror.ops.base.results import Outcome
from kmirror.ops.show.cluster_view import ClusterSnapshot
from kmirror.ops.show.rows import mirror_row, partition_rows, source_trouble
from kmirror.ops.show.tables import MirrorRow, PartitionRow
from kmirror.ops.show.wait import Condition, judge
from kmirror.settings.parsing import stored_settings
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState, EngineRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import at_time, counted
from kmirror.work import WorkView


@dataclass(frozen=True, slots=True)
class LiveMirror:
    """One mirror under a running engine; `row` and `settings` are None if the mirror is deleted."""

    snapshot: MirrorSnapshot
    state: State
    settings: Settings | None
    row: MirrorRow | None
    partitions: tuple[PartitionRow, ...]
    #: What `wait --for healthy` would miss; None if it would succeed.
    missing: str | None


def live_mirror(snapshot: MirrorSnapshot) -> LiveMirror:
    """Return a mirror as its engine knew it at the time of the snapshot."""
    state = _state(snapshot)
    record = state.mirror(snapshot.mirror)
    if record is None:
        return LiveMirror(snapshot, state, None, None, (), f"there is no mirror {snapshot.mirror} any more")
    topics, now_ms = state.topics(record.name), snapshot.time_ms
    settings = stored_settings(record.settings)
    paused = _paused_ends(snapshot, topics, settings.refresh_interval_seconds)
    source = _source(snapshot, topics, {partition: end for partition, (end, _) in paused.items()})
    destination = ClusterSnapshot(
        now_ms,
        log_end_offset={partition: end for partition, (_, end) in paused.items()}
        | {
            partition: row.destination_offset
            for partition, row in snapshot.rows.items()
            if row.destination_offset is not None
        },
    )
    ours = {"engine_has_ended": False} if snapshot.lost is None else {}
    rows = partition_rows(state, record, topics, destination, source, now_ms, **ours)
    rows = [_with_progress(row, snapshot.rebuilding.get(row.topic)) for row in rows]
    if snapshot.lost is None:
        rows = _explained(rows, snapshot)
    row = mirror_row(state, record, rows, source_trouble(source), now_ms, **ours)
    return LiveMirror(snapshot, state, settings, row, tuple(rows), _missing(snapshot, rows))


def _state(snapshot: MirrorSnapshot) -> State:
    """Return the stored state; the engine's own lease record is newer, unless another engine took over."""
    records = dict(snapshot.stored)
    stored = records.get(snapshot.engine.key)
    is_ours = not isinstance(stored, EngineRecord) or stored.lease_id == snapshot.engine.lease_id
    if snapshot.lost is None or is_ours:
        records[snapshot.engine.key] = snapshot.engine
    return State.of(records.values())


def _paused_ends(
    snapshot: MirrorSnapshot, topics: tuple[TopicRecord, ...], refresh_seconds: float
) -> Mapping[TopicPartition, tuple[int, int]]:
    """Return the ends of paused partitions, if the last look at them was not missed."""
    read_at, ends = snapshot.paused_ends
    paused = {topic.topic for topic in topics if topic.desired is DesiredState.PAUSED}
    if snapshot.source_trouble is not None or snapshot.at - read_at > 2 * refresh_seconds + KNOWN_SECONDS:
        return {}
    return {partition: both for partition, both in ends.items() if partition.topic in paused}


def _source(
    snapshot: MirrorSnapshot, topics: tuple[TopicRecord, ...], paused: Mapping[TopicPartition, int]
) -> ClusterSnapshot:
    """Return what the source said within the last `KNOWN_SECONDS`; older answers say nothing of now.

    Of `paused` partitions, which change nothing here, the ends are given.
    """
    names = {topic.topic: topic.source_topic for topic in topics}
    ends: dict[TopicPartition, int] = {}
    seen_ms: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    high_watermarks: dict[TopicPartition, int] = {}
    for topic_partition, (seen_at, end) in snapshot.source_ends.items():
        name = names.get(topic_partition.topic)
        if name is None or snapshot.at - seen_at > KNOWN_SECONDS:
            continue
        there = topic_partition if name == topic_partition.topic else TopicPartition(name, topic_partition.partition)
        ends[there] = end
        seen_ms[there] = snapshot.time_ms - int(1000 * (snapshot.at - seen_at))
        row = snapshot.rows.get(topic_partition)
        if row is None or row.source_seen_ms is not None or not _is_fresh(snapshot, topic_partition):
            continue
        if row.source_high_watermark is not None:
            high_watermarks[there] = max(end, row.source_high_watermark)
        if row.source_log_start is not None:
            starts[there] = row.source_log_start
    for topic_partition, end in paused.items():
        there = TopicPartition(names[topic_partition.topic], topic_partition.partition)
        ends[there], seen_ms[there] = end, snapshot.time_ms - int(1000 * (snapshot.at - snapshot.paused_ends[0]))
    for topic_partition, start in snapshot.lacking_starts.items():
        if (name := names.get(topic_partition.topic)) is not None:
            starts[TopicPartition(name, topic_partition.partition)] = start
    return ClusterSnapshot(
        snapshot.time_ms,
        log_start_offset=starts,
        last_stable_offset=ends,
        high_watermark=high_watermarks,
        partition_counts={names[name]: one.partitions for name, one in snapshot.lacking.items() if name in names},
        seen_ms=seen_ms,
        trouble=snapshot.source_trouble,
    )


def _is_fresh(snapshot: MirrorSnapshot, partition: TopicPartition) -> bool:
    reported_at = snapshot.reported_at.get(partition)
    return reported_at is not None and snapshot.at - reported_at <= KNOWN_SECONDS


def _with_progress(row: PartitionRow, view: WorkView | None) -> PartitionRow:
    """Return the row of a topic that is being rebuilt with how much of its archive is done."""
    if view is None or view.total is None:
        return row
    done = f"{view.what}: {view.done:,} of {counted(view.total, view.unit)}"
    return replace(row, error_message=f"{row.error_message}; {done}" if row.error_message else done)


def _explained(rows: list[PartitionRow], snapshot: MirrorSnapshot) -> list[PartitionRow]:
    """Return the rows; when its heartbeats are not accepted, the engine knows why others call it silent."""
    if all(row.reason is not Reason.ENGINE_SILENT for row in rows):
        return rows
    why = silence_text(snapshot)
    return [replace(row, error_message=why) if row.reason is Reason.ENGINE_SILENT else row for row in rows]


def silence_text(snapshot: MirrorSnapshot) -> str:
    """Return the sentence for an engine that runs, but whose heartbeats do not arrive."""
    since = at_time(snapshot.engine.last_seen_ms)
    return f"the destination has not accepted a heartbeat of this engine since {since}; check the destination"


def _missing(snapshot: MirrorSnapshot, rows: list[PartitionRow]) -> str | None:
    """Return what keeps the mirror from being healthy, as `wait --for healthy` judges it."""
    if snapshot.lost is not None:
        return str(snapshot.lost)
    if not rows:
        return f"mirror {snapshot.mirror} has no topics yet"
    bad = [one for one in judge(Condition.HEALTHY, rows, {}) if one.result is not Outcome.DONE]
    if not bad:
        return None
    more = f", and {len(bad) - 1:,} more topics" if len(bad) > 2 else ", and one more topic" if len(bad) == 2 else ""
    return f"{bad[0].message}{more}"
