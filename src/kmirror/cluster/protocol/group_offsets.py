"""Groups and what they have committed, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition


class GroupKind(StrEnum):
    """The kind of a group: `CONSUMER` for all that commit offsets, Kafka Streams included."""

    CONSUMER = "consumer"
    SHARE = "share"
    #: Other users of the classic protocol, such as Connect's workers.
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group that a broker has listed."""

    group: str
    kind: GroupKind
    has_members: bool
    #: Its protocol in lower case: classic, consumer (KIP-848), streams (KIP-1071), share.
    protocol: str = "classic"


class Committed(NamedTuple):
    """The offset that a group has committed for a partition; share groups have no metadata."""

    offset: int
    metadata: str = ""


Offsets = Mapping[TopicPartition, Committed]
