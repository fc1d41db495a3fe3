"""The work a lane starts with, and how it ended. Plain data, pickled by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.state.assignment import Assignment

#: How many transactions a lane has under way at once where it fills offsets with them.
_FILLING_IDS = 64


def own_producer_id(mirror: str, topic: str, partition: int) -> int:
    """Return the producer id with which only this mirror writes this destination partition."""
    digest = blake2b(f"{mirror}\0{topic}\0{partition}".encode(), digest_size=8).digest()
    return FIRST_OWN_PRODUCER_ID | (int.from_bytes(digest) & (FIRST_OWN_PRODUCER_ID - 1))


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """One lane's work; `generation` increases whenever the driver replaces the lane."""

    mirror: str
    lane: int
    generation: int
    lease_id: str
    source_properties: Mapping[str, str]
    destination_properties: Mapping[str, str]
    assignments: tuple[Assignment, ...]
    #: How long a lane may write after it last read that no other lane took over.
    ttl_ms: int
    #: False when no holder of an older claim can still write to these partitions.
    predecessor_may_write: bool
    retry_timeout_ms: int
    source_cluster_id: str | None = None
    #: Lanes of this mirror that may have left open the transactions they filled offsets with.
    unsettled_lanes: tuple[int, ...] = ()
    destination_cluster_id: str | None = None


def filling_transactional_ids(mirror: str, lane: int) -> list[str]:
    """Return the transactional ids with which a lane fills offsets when it may not write markers."""
    name = f"{filling_prefix(mirror)}{lane}"
    # earlier versions had the first one only
    return [name, *(f"{name}-{number}" for number in range(1, _FILLING_IDS))]


def filling_prefix(mirror: str) -> str:
    """Return what the transactional ids of all lanes of a mirror begin with."""
    return f"kmirror-{mirror}-fill-"


@dataclass(frozen=True, slots=True)
class LaneResult:
    """How a lane ended. `ended` is one of STOPPED, SUPERSEDED, OUTDATED, FENCED, LOST_ENGINE."""

    lane: int
    generation: int
    attempt: int
    ended: str
    message: str
    #: True when every append was answered, so that none of them can still arrive.
    clean: bool = False
