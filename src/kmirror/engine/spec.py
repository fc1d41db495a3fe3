"""What a lane is given when it starts, and what it reports when it ends. Plain data: it crosses Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.state.assignment import Assignment


def own_producer_id(mirror: str, topic: str, partition: int) -> int:
    """Return the producer id under which this mirror, and nobody else, writes this destination partition."""
    digest = blake2b(f"{mirror}\0{topic}\0{partition}".encode(), digest_size=8).digest()
    return FIRST_OWN_PRODUCER_ID | (int.from_bytes(digest) & (FIRST_OWN_PRODUCER_ID - 1))


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane's work. `generation` grows whenever the driver replaces the lane; durations in milliseconds."""

    mirror: str
    lane: int
    generation: int
    lease_id: str
    source_properties: Mapping[str, str]
    destination_properties: Mapping[str, str]
    assignments: tuple[Assignment, ...]
    #: How long a lane may still write after it last saw that no one took over.
    ttl_ms: int
    #: False when no older claim can still write to these partitions.
    predecessor_may_write: bool
    retry_timeout_ms: int
    source_cluster_id: str | None = None
    #: The lanes of this mirror that may have left transactions open with which they filled offsets.
    unsettled_lanes: tuple[int, ...] = ()


def filling_transactional_id(mirror: str, lane: int) -> str:
    """Return the transactional id with which a lane fills offsets where it may not write markers."""
    return f"kmirror-{mirror}-fill-{lane}"


@dataclass(frozen=True, slots=True)
class LaneResult:
    """How a lane ended. `ended` is one of STOPPED, SUPERSEDED, OUTDATED, FENCED, LOST_ENGINE."""

    lane: int
    generation: int
    attempt: int
    ended: str
    message: str
    #: True when every append was answered, so that nothing of ours can still be on its way.
    clean: bool = False
