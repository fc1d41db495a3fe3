"""One partition that a lane is to copy, assigned at its start or later. Plain data: it crosses Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason


@dataclass(frozen=True, slots=True)
class Recovery:
    """An operator's request to retry a FAILED partition, and the loss that it accepts.

    `number` grows with every request, so that an engine can tell a new one from one it knows. The accepted loss begins
    at `lost_from`, the copy's position, and ended at `lost_until` when it was accepted; both None: no loss is accepted.
    """

    number: int
    lost_from: int | None = None
    lost_until: int | None = None
    #: True: trim the destination's log up to the end of the loss. False: keep its older records.
    trims: bool = False
    #: Archive and rebuild the topic if it FAILED for this reason; None: do not rebuild it.
    rebuilds: Reason | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What a source partition last returned to an earlier lane or engine, and when."""

    last_stable_offset: int
    time_ms: int
    high_watermark: int | None = None
    log_start: int | None = None
    #: When a connection to it broke for the first time after that; None: none has.
    lost_ms: int | None = None
    records_per_second: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One partition to mirror. Topic ids are as Kafka's tools print them; None where they are not known yet."""

    topic: str
    partition: int
    source_topic: str
    source_topic_id: str | None
    destination_topic_id: str | None
    producer_id: int
    producer_epoch: int = 0
    #: Where the mirror begins, unless at the source's log start.
    first_offset: int = 0
    #: True once records of the source were in the destination: an empty log then does not mean a fresh start.
    begun: bool = False
    #: The end of an adopted log that was compared with its source's as a whole; None: it was not.
    compared_end: int | None = None
    #: The operator's last request for the FAILED partition, if any.
    recovery: Recovery | None = None
    #: True: skip records that the source lost before they were copied (source.truncation.policy).
    follows_truncation: bool = False
    #: True: merge small batches of one fetch (copy.merge.batches).
    merges_batches: bool = False
    #: The destination's log end that an earlier lane last reported; None: unknown.
    known_end: int | None = None
    #: The offset of a batch that an earlier lane saw appended at another offset, and its message; None: there was none.
    mismatch_offset: int | None = None
    mismatch: str | None = None
    #: What the lane reports of the source until that answers; None: unknown.
    source_seen: SourceSeen | None = None

    @property
    def source(self) -> TopicPartition:
        """The partition read from."""
        return TopicPartition(self.source_topic, self.partition)

    @property
    def destination(self) -> TopicPartition:
        """The partition written to."""
        return TopicPartition(self.topic, self.partition)


#: The columns of the stored form.
COLUMNS = tuple(column.name for column in fields(Assignment))
