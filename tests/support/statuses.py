"""The status of mirrors and topics, made of stored records and snapshots, or of a few numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kmirror.errors import Reason
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import engine_health
from kmirror.status.mirror_status import MirrorStatus
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PartitionRow
from kmirror.status.rules import mirror_status
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus


def status_of(
    state: State,
    mirror: MirrorRecord,
    topics: Iterable[TopicRecord],
    destination: ClusterSnapshot,
    source: ClusterSnapshot | None,
    now_ms: int,
    *,
    engine_has_ended: bool | None = None,
) -> MirrorStatus:
    """Return the status of a mirror, of whose engine's process that is known."""
    health = engine_health(state.engine(mirror.name), mirror.name, now_ms, has_ended=engine_has_ended)
    return mirror_status(state, mirror, topics, destination, source, now_ms, health=health)


def partition_row(**more: Any) -> PartitionRow:
    """Return the row of a partition that has everything."""
    fields: dict[str, Any] = {
        "mirror": "m",
        "topic": "t",
        "partition": 0,
        "source_offset": None,
        "destination_offset": None,
        "lag": 0,
        "state": PartitionState.MIRRORING,
        "retry_attempt": 0,
        "error_message": None,
        "source_topic": "t",
        "topic_state": TopicState.ACTIVE,
        "reason": None,
        "state_time_ms": None,
        "time_lag_ms": None,
        "last_known_lag": None,
        "source_log_start": None,
        "destination_log_start": None,
        "source_high_watermark": None,
        "last_mirrored_offset": None,
        "last_mirrored_epoch": None,
        "initial_copy_complete": True,
        "rebuilt_at_ms": None,
        "archive": None,
        "as_of_ms": None,
    }
    return PartitionRow(**{**fields, **more})


def topic_of(
    topic: str,
    partitions: int = 1,
    lag: int | None = 0,
    bytes_per_second: int | None = 0,
    state: TopicState = TopicState.ACTIVE,
    reason: Reason | None = None,
    error_message: str | None = None,
    lag_as_of_ms: int | None = None,
    *,
    mirror: str = "m",
) -> TopicStatus:
    """Return a topic whose first partition has all of this; of the others nothing is left to copy."""
    failed, stopped = state is TopicState.FAILED, state is TopicState.STOPPED
    first = partition_row(
        mirror=mirror,
        topic=topic,
        lag=lag,
        bytes_per_second=bytes_per_second,
        topic_state=state,
        state=PartitionState.FAILED if failed else PartitionState.STOPPED if stopped else PartitionState.MIRRORING,
        reason=reason,
        error_message=error_message,
        lag_as_of_ms=lag_as_of_ms,
    )
    others = [
        partition_row(
            mirror=mirror,
            topic=topic,
            partition=number,
            topic_state=state,
            state=first.state,
            lag_as_of_ms=lag_as_of_ms,
        )
        for number in range(1, partitions)
    ]
    is_wanted = state not in (TopicState.PAUSED, TopicState.STOPPED)
    return TopicStatus.of([first, *others], is_wanted=is_wanted)
