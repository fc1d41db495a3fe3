"""What a lane is told when it starts, and what it tells when it ends. Plain data: it crosses Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.wire import format_topic_id, parse_topic_id
from kmirror.state.records import AssignedPartition, Recovery


def own_producer_id(mirror: str, topic: str, partition: int) -> int:
    """Return the producer id under which this mirror, and nobody else, writes this destination partition."""
    digest = blake2b(f"{mirror}\0{topic}\0{partition}".encode(), digest_size=8).digest()
    return FIRST_OWN_PRODUCER_ID | (int.from_bytes(digest) & (FIRST_OWN_PRODUCER_ID - 1))


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition to mirror. Topic ids are 16 bytes; None where they are not known yet."""

    topic: str
    partition: int
    source_topic: str
    source_topic_id: bytes | None
    destination_topic_id: bytes | None
    producer_id: int
    producer_epoch: int = 0
    #: Where the mirror begins when it is not to begin at the source's log start.
    first_offset: int = 0
    #: True when records of the source have been in the destination: an empty log is not the beginning then.
    begun: bool = False
    #: What an operator wanted when the partition FAILED; None when that never was.
    recovery: Recovery | None = None
    #: True when records that the source has lost before they were copied are gone past (source.truncation.policy).
    follows_truncation: bool = False
    #: The destination's log end as a lane before last told it; None where that is not known.
    known_end: int | None = None
    #: The offset for which a batch was appended elsewhere by a lane before, and what it said; None where none was.
    mismatch_offset: int | None = None
    mismatch: str | None = None

    @classmethod
    def of(cls, told: AssignedPartition) -> Assignment:
        """Read what a lane is told while it runs."""
        fields = told._asdict()
        for name in ("source_topic_id", "destination_topic_id"):
            fields[name] = parse_topic_id(fields[name]) if fields[name] is not None else None
        return cls(**fields)

    def told(self) -> AssignedPartition:
        """Return what a running lane is told of it."""
        return AssignedPartition(
            self.topic,
            self.partition,
            self.source_topic,
            format_topic_id(self.source_topic_id) if self.source_topic_id else None,
            format_topic_id(self.destination_topic_id) if self.destination_topic_id else None,
            self.producer_id,
            self.producer_epoch,
            self.first_offset,
            self.begun,
            self.recovery,
            self.follows_truncation,
            self.known_end,
            self.mismatch_offset,
            self.mismatch,
        )

    @property
    def source(self) -> TopicPartition:
        """The partition read from."""
        return TopicPartition(self.source_topic, self.partition)

    @property
    def destination(self) -> TopicPartition:
        """The partition written to."""
        return TopicPartition(self.topic, self.partition)


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
    #: How long a lane may go on writing after it last saw that nobody took over.
    ttl_ms: int
    #: False when nobody can be left who still writes to these partitions under an older claim.
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
