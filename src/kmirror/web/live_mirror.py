"""The status of a mirror as its running engine knows it, for whoever asks over HTTP. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kmirror.engine.driver.live_status import Known, own_health
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.wait import Condition, judge
from kmirror.settings.parsing import stored_settings
from kmirror.settings.table import Settings
from kmirror.state.records import EngineRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import engine_health
from kmirror.status.mirror_status import MirrorStatus
from kmirror.status.partition_row import PartitionRow
from kmirror.status.rules import mirror_status
from kmirror.status.topic_status import TopicStatus
from kmirror.words import counted
from kmirror.work import WorkView


@dataclass(frozen=True, slots=True)
class LiveMirror:
    """One mirror under a running engine; `status` and `settings` are None if the mirror is deleted."""

    snapshot: MirrorSnapshot
    state: State
    settings: Settings | None
    status: MirrorStatus | None
    #: What `wait --for healthy` would miss; None if it would succeed.
    missing: str | None

    @property
    def name(self) -> str:
        """The mirror's name."""
        return self.snapshot.mirror

    @property
    def topics(self) -> tuple[TopicStatus, ...]:
        """Its topics."""
        return self.status.topics if self.status is not None else ()

    @property
    def partitions(self) -> list[PartitionRow]:
        """Its partitions."""
        return self.status.partitions if self.status is not None else []

    def age(self, moment: float) -> float:
        """Return the seconds since a time of the engine's clock."""
        return max(0.0, self.snapshot.at - moment)


def live_mirror(snapshot: MirrorSnapshot) -> LiveMirror:
    """Return a mirror as its engine knew it at the time of the snapshot."""
    state = _state(snapshot)
    record = state.mirror(snapshot.mirror)
    if record is None:
        return LiveMirror(snapshot, state, None, None, f"there is no mirror {snapshot.mirror} any more")
    topics, settings = state.topics(record.name), stored_settings(record.settings)
    if snapshot.lost is None:
        health = own_health(snapshot.engine, snapshot.time_ms, snapshot.destination_trouble)
    else:
        health = engine_health(state.engine(record.name), record.name, snapshot.time_ms)
    known = Known(
        snapshot.at,
        snapshot.time_ms,
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
    status = mirror_status(state, record, topics, *known.snapshots(topics), snapshot.time_ms, health=health)
    if snapshot.rebuilding:
        status = status.changed(lambda row: _with_progress(row, snapshot.rebuilding.get(row.topic)))
    return LiveMirror(snapshot, state, settings, status, _missing(snapshot, status.partitions))


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
