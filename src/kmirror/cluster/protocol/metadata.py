"""What a cluster says about itself: brokers, topics, partitions and their leaders; the Metadata request. No I/O here.

Engines ask for thousands of partitions again and again: this takes a tenth of the time of a general decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from kmirror.cluster.protocol.wire import (
    INT32,
    NO_TOPIC_ID,
    FrameError,
    compact_string,
    format_topic_id,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

API_KEY = 3
#: The first flexible version. From 12 on topics may be asked for by id; what comes after that is not needed.
LOWEST_VERSION = 9
HIGHEST_VERSION = 12
#: From here on topics have ids; up to here the cluster's authorized operations are asked for here.
_TOPIC_IDS = _CLUSTER_OPERATIONS = 10

_INT16 = struct.Struct(">h")
_PARTITION = struct.Struct(">hiii")
_NO_TAGS = b"\x00"
#: What is said of topics is remembered when it is longer.
_WORTH_BYTES = 16 << 10
#: Lists of integers by what their length is encoded as: one more than their count, and 0 for none.
_LISTS = tuple(struct.Struct(f">{max(0, count - 1)}i") for count in range(16))


class TopicPartition(NamedTuple):
    """Name one partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(NamedTuple):
    """One partition's leader, None while there is none, and its replicas."""

    partition: int
    error_code: int
    leader_id: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic. `error_code` is 0, or why the broker says nothing more of it; `topic_id` is 16 bytes."""

    name: str
    error_code: int
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]

    @property
    def printed_topic_id(self) -> str | None:
        """The topic id as Kafka's tools print it; None where the broker has none."""
        return format_topic_id(self.topic_id)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One broker's answer to Metadata."""

    cluster_id: str | None
    controller_id: int | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    def leader(self, partition: TopicPartition) -> PartitionMetadata | None:
        """Return what is known of a partition that has a leader we can reach, else None."""
        topic = self.topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic else None
        return found if found and found.leader_id in self.brokers else None


def request(correlation_id: int, version: int, client_id: str, topics: Collection[str] | None) -> bytes:
    """Encode one framed request for topics by name, for none, or for all (None); none is created by it."""
    out = bytearray(4)
    out += request_header(API_KEY, version, correlation_id, client_id)
    out += unsigned_varint(0 if topics is None else len(topics) + 1)
    topic_id = NO_TOPIC_ID if version >= _TOPIC_IDS else b""
    for topic in topics or ():
        out += topic_id + compact_string(topic) + _NO_TAGS
    # no creation of topics; no authorized operations of topics, and before version 11 none of the cluster
    out += bytes(3 if version <= _CLUSTER_OPERATIONS else 2) + _NO_TAGS
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


@dataclass(slots=True)
class Topics:
    """What an answer said of many topics: as long as a cluster says the same of them, it is taken apart only once."""

    #: Its version, and its bytes from the topics on.
    said: bytes = b""
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)


def answer(frame: memoryview, version: int, before: Topics | None = None) -> tuple[ClusterMetadata, int]:
    """Decode one frame (from its correlation id on), and for how many milliseconds the broker asks for silence.

    `before` is what another answer said of topics; it is replaced where this one says something else of many.

    Raises:
        FrameError: not such an answer.
    """
    try:
        return _decode(frame, version, before)
    except (struct.error, IndexError):
        raise FrameError("a Metadata answer ends too early") from None


def _decode(frame: memoryview, version: int, before: Topics | None) -> tuple[ClusterMetadata, int]:
    position = skip_tagged_fields(frame, 4)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    count, position = read_unsigned_varint(frame, position + 4)
    brokers = {}
    for _ in range(count - 1):
        (node_id,) = INT32.unpack_from(frame, position)
        host, position = read_compact_string(frame, position + 4)
        (port,) = INT32.unpack_from(frame, position)
        _, position = read_compact_string(frame, position + 4)
        position = skip_tagged_fields(frame, position)
        brokers[node_id] = Broker(node_id, host or "", port)
    cluster_id, position = read_compact_string(frame, position)
    (controller,) = INT32.unpack_from(frame, position)
    topics = _topics(frame, position + 4, version, before)
    return ClusterMetadata(cluster_id, controller if controller >= 0 else None, brokers, topics), throttle_time_ms


def _topics(frame: memoryview, position: int, version: int, before: Topics | None) -> Mapping[str, TopicMetadata]:
    said = bytes([version]) + frame[position:] if len(frame) - position >= _WORTH_BYTES else b""
    if said and before is not None and said == before.said:
        return before.topics
    count, position = read_unsigned_varint(frame, position)
    topics = {}
    for _ in range(count - 1):
        topic, position = _topic(frame, position, has_id=version >= _TOPIC_IDS)
        topics[topic.name] = topic
    if said and before is not None:
        before.said, before.topics = said, topics
    return topics


def _topic(frame: memoryview, position: int, *, has_id: bool) -> tuple[TopicMetadata, int]:
    (code,) = _INT16.unpack_from(frame, position)
    name, position = read_compact_string(frame, position + _INT16.size)
    topic_id = NO_TOPIC_ID
    if has_id:
        topic_id, position = bytes(frame[position : position + len(NO_TOPIC_ID)]), position + len(NO_TOPIC_ID)
    is_internal = frame[position] != 0
    count, position = read_unsigned_varint(frame, position + 1)
    partitions = []
    for _ in range(count - 1):
        partition_code, partition, leader, leader_epoch = _PARTITION.unpack_from(frame, position)
        replicas, position = _nodes(frame, position + _PARTITION.size)
        in_sync, position = _nodes(frame, position)
        _, position = _nodes(frame, position)
        position = skip_tagged_fields(frame, position) if frame[position] else position + 1
        leader_id = leader if leader >= 0 else None
        partitions.append(PartitionMetadata(partition, partition_code, leader_id, leader_epoch, replicas, in_sync))
    partitions.sort(key=itemgetter(0))
    position = skip_tagged_fields(frame, position + INT32.size)
    by_number = {partition.partition: partition for partition in partitions}
    return TopicMetadata(name or "", code, topic_id, is_internal, by_number), position


def _nodes(frame: memoryview, position: int) -> tuple[tuple[int, ...], int]:
    count = frame[position]
    if count < len(_LISTS):
        return _LISTS[count].unpack_from(frame, position + 1), position + 1 + _LISTS[count].size
    count, position = read_unsigned_varint(frame, position)
    # a count that lies is found before anything is made of it
    if position + (size := INT32.size * (count - 1)) > len(frame):
        raise FrameError("a list in a Metadata answer is longer than the answer")
    return struct.unpack_from(f">{count - 1}i", frame, position), position + size
