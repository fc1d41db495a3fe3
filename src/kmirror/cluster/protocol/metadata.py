"""The Metadata request: brokers, topics, partitions and their leaders.

Engines ask for thousands of partitions again and again: this takes a tenth of the time of a general decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    NO_TOPIC_ID,
    Api,
    Exchange,
    FrameError,
    compact_string,
    decodes,
    format_topic_id,
    framed,
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
API = Api(API_KEY, "Metadata", LOWEST_VERSION, HIGHEST_VERSION)
#: Topics have ids from this version on. Every broker that is fetched from by name and has topic ids knows it.
FIRST_VERSION_WITH_TOPIC_IDS = 10
#: The last version that asks for the cluster's authorized operations.
_CLUSTER_OPERATIONS = 10

_PARTITION = struct.Struct(">hiii")
#: An answer about topics is cached if it is longer than this.
_CACHED_BYTES = 16 << 10
#: Lists of integers by their encoded length, which is one more than their count, and 0 for null.
_LISTS = tuple(struct.Struct(f">{max(0, count - 1)}i") for count in range(16))


class TopicPartition(NamedTuple):
    """Name one partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, in the order in which they come."""
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int


class LeaderAddress(NamedTuple):
    """Where a partition's leader listens, its leader epoch, and the id of its topic."""

    node_id: int
    host: str
    port: int
    topic_id: bytes
    leader_epoch: int

    @property
    def known_epoch(self) -> int | None:
        """The leader epoch; None where the broker names none."""
        return self.leader_epoch if self.leader_epoch >= 0 else None


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
    """One topic. `error_code` is 0, or why the broker returns nothing more about it; `topic_id` is 16 bytes."""

    name: str
    error_code: int
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]

    @property
    def printed_topic_id(self) -> str | None:
        """The topic id as Kafka's tools print it; None where the broker has none."""
        return format_topic_id(self.topic_id)

    @property
    def replication_factor(self) -> int:
        """The replicas of the partition that has the fewest; -1, the brokers' default, if it has no partition."""
        return min((len(partition.replicas) for partition in self.partitions.values()), default=-1)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One broker's answer to Metadata."""

    cluster_id: str | None
    controller_id: int | None
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    def leader(self, partition: TopicPartition) -> PartitionMetadata | None:
        """Return a partition that has a leader among the brokers, else None."""
        topic = self.topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic else None
        return found if found and found.leader_id in self.brokers else None

    def leader_address(self, partition: TopicPartition) -> LeaderAddress | None:
        """Return where the leader of a partition listens, None where it has none."""
        leader = self.leader(partition)
        if leader is None or leader.leader_id is None:
            return None
        broker = self.brokers[leader.leader_id]
        topic_id = self.topics[partition.topic].topic_id
        return LeaderAddress(broker.node_id, broker.host, broker.port, topic_id, leader.leader_epoch)

    def has_replica_on(self, partition: TopicPartition, brokers: Set[int]) -> bool:
        """Return whether a replica of a partition is on one of these brokers."""
        topic = self.topics.get(partition.topic)
        found = topic.partitions.get(partition.partition) if topic else None
        return found is not None and not brokers.isdisjoint(found.replicas)


def newest(answers: Sequence[ClusterMetadata]) -> ClusterMetadata:
    """Return what several brokers of a cluster answered to one request as one answer: of each partition the newest.

    Leader epochs only grow. A topic that one does not know may be known to another; of two topics of one name, one is
    older, and nothing tells which: the first one stays.
    """
    first, *others = answers
    topics = dict(first.topics)
    for name, topic in topics.items():
        for other in others:
            there, known = other.topics.get(name), topics[name]
            if there is None or there.error_code or there is known:
                continue
            if known.error_code:
                topics[name] = there
            elif there.topic_id == topic.topic_id:
                topics[name] = replace(known, partitions={**known.partitions, **_later(known, there)})
    brokers = {node_id: broker for one in reversed(answers) for node_id, broker in one.brokers.items()}
    return replace(first, brokers=brokers, topics=topics)


def _later(known: TopicMetadata, there: TopicMetadata) -> dict[int, PartitionMetadata]:
    return {
        index: partition
        for index, partition in there.partitions.items()
        if index not in known.partitions or partition.leader_epoch > known.partitions[index].leader_epoch
    }


def request(correlation_id: int, version: int, client_id: str, topics: Collection[str] | None) -> bytes:
    """Encode one framed request for topics by name, for none, or for all (None); it creates no topic."""
    out = bytearray(request_header(API_KEY, version, correlation_id, client_id))
    out += unsigned_varint(0 if topics is None else len(topics) + 1)
    topic_id = NO_TOPIC_ID if version >= FIRST_VERSION_WITH_TOPIC_IDS else b""
    for topic in topics or ():
        out += topic_id + compact_string(topic) + NO_TAGS
    # no creation of topics; no authorized operations of topics, and before version 11 none of the cluster
    out += bytes(3 if version <= _CLUSTER_OPERATIONS else 2) + NO_TAGS
    return framed(out)


@dataclass(slots=True)
class TopicsCache:
    """The last long list of topics: while a cluster returns the same bytes for them, they are decoded only once."""

    #: The answer's version, and its bytes from the topics on.
    encoded: bytes = b""
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)


def exchange(topics: Collection[str] | None, cache: TopicsCache | None = None) -> Exchange:
    """Return the request for topics by name, for none, or for all (None)."""
    decode = partial(answer, cache=cache)
    return Exchange(API, partial(request, topics=topics), decode)


@decodes("Metadata")
def answer(frame: memoryview, version: int, cache: TopicsCache | None = None) -> tuple[ClusterMetadata, int]:
    """Decode one frame (from its correlation id on) into the metadata and the throttle in milliseconds.

    Raises:
        FrameError: not such an answer.
    """
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
    topics = _topics(frame, position + 4, version, cache)
    return ClusterMetadata(cluster_id, controller if controller >= 0 else None, brokers, topics), throttle_time_ms


def _topics(frame: memoryview, position: int, version: int, cache: TopicsCache | None) -> Mapping[str, TopicMetadata]:
    encoded = bytes([version]) + frame[position:] if len(frame) - position >= _CACHED_BYTES else b""
    if encoded and cache is not None and encoded == cache.encoded:
        return cache.topics
    count, position = read_unsigned_varint(frame, position)
    topics = {}
    for _ in range(count - 1):
        topic, position = _topic(frame, position, has_id=version >= FIRST_VERSION_WITH_TOPIC_IDS)
        topics[topic.name] = topic
    if encoded and cache is not None:
        cache.encoded, cache.topics = encoded, topics
    return topics


def _topic(frame: memoryview, position: int, *, has_id: bool) -> tuple[TopicMetadata, int]:
    (code,) = INT16.unpack_from(frame, position)
    name, position = read_compact_string(frame, position + INT16.size)
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
    # a count is checked before any memory is taken for it
    if position + (size := INT32.size * (count - 1)) > len(frame):
        raise FrameError("a list in a Metadata answer is longer than the answer")
    return struct.unpack_from(f">{count - 1}i", frame, position), position + size
