"""One partition that a lane is to copy, assigned at its start or later. Plain data: it crosses Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason


@dataclass(frozen=True, slots=True)
class Recovery:
    """Hold an operator's request for a FAILED partition: retry it, and accept which loss.

    `number` grows with every request, so that an engine tells a new one from one it knows. The loss that is accepted
    begins at `lost_from`, where the copy stood, and ended at `lost_until` when it was accepted; both None: none is.
    """

    number: int
    lost_from: int | None = None
    lost_until: int | None = None
    #: True: the destination's log will start after the loss. False: its older records are kept.
    trims: bool = False
    #: The topic may be archived and rebuilt where it FAILED for this reason; None: it may not.
    rebuilds: Reason | None = None
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
    #: Where the mirror begins when it is not to begin at the source's log start.
    first_offset: int = 0
    #: True when records of the source have been in the destination: an empty log is not the beginning then.
    begun: bool = False
    #: The operator's last request for the partition when it FAILED; None: there was none.
    recovery: Recovery | None = None
    #: True: skip records that the source lost before they were copied (source.truncation.policy).
    follows_truncation: bool = False
    #: True: put small batches that come together into one (copy.merge.batches).
    merges_batches: bool = False
    #: The destination's log end as an earlier lane last reported it; None where that is not known.
    known_end: int | None = None
    #: The offset of a batch that an earlier lane saw appended elsewhere, and its message; None: there was none.
    mismatch_offset: int | None = None
    mismatch: str | None = None

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
