"""The status of a mirror as its running engine knows it, for whoever asks over HTTP. Pure."""

from __future__ import annotations

from dataclasses import replace

from kmirror.engine.driver.live_status import Known, own_health
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import EngineRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import engine_health
from kmirror.status.partition_row import PartitionRow
from kmirror.status.rules import mirror_status
from kmirror.web.served import ServedMirror, missing_of
from kmirror.words import counted
from kmirror.work import WorkView


def live_mirror(snapshot: MirrorSnapshot) -> ServedMirror:
    """Return a mirror as its engine knew it at the time of the snapshot."""
    state, name, time_ms = _state(snapshot), snapshot.mirror, snapshot.time_ms
    record, is_here = state.mirror(name), True if snapshot.lost is None else None
    if record is None:
        return ServedMirror(name, None, time_ms, state, None, None, f"there is no mirror {name} any more", snapshot)
    topics, settings = state.topics(record.name), stored_settings(record.settings)
    if snapshot.lost is None:
        health = own_health(snapshot.engine, time_ms, snapshot.destination_trouble)
    else:
        health = engine_health(state.engine(record.name), record.name, time_ms)
    known = Known(
        snapshot.at,
        time_ms,
        health,
        snapshot.source_trouble,
        snapshot.lacking,
        snapshot.lacking_starts,
        snapshot.paused_ends,
        settings.refresh_interval_seconds,
        snapshot.rows.get,
        snapshot.reported_at.get,
        snapshot.source_ends.get,
    )
    status = mirror_status(state, record, topics, *known.snapshots(topics), time_ms, health=health)
    if snapshot.rebuilding:
        status = status.changed(lambda row: _with_progress(row, snapshot.rebuilding.get(row.topic)))
    missing = missing_of(status) if snapshot.lost is None else str(snapshot.lost)
    return ServedMirror(name, None, time_ms, state, settings, status, missing, snapshot, is_here)


def _state(snapshot: MirrorSnapshot) -> State:
    """Return the stored state; the engine's own lease record is newer, unless another engine took over."""
    records = dict(snapshot.stored)
    stored = records.get(snapshot.engine.key)
    is_ours = not isinstance(stored, EngineRecord) or stored.lease_id == snapshot.engine.lease_id
    if snapshot.lost is None or is_ours:
        records[snapshot.engine.key] = snapshot.engine
    return State.of(records.values())


def _with_progress(row: PartitionRow, view: WorkView | None) -> PartitionRow:
    """Return the row of a topic that is being rebuilt with how much of its archive is done."""
    if view is None or view.total is None:
        return row
    done = f"{view.what}: {view.done:,} of {counted(view.total, view.unit)}"
    return replace(row, error_message=f"{row.error_message}; {done}" if row.error_message else done)
