"""The ListOffsets request: the offsets of many partitions by their ends, starts or times.

With timestamp −1 and replica id −2 a leader answers with its log end, not the high watermark, to any client. The leader
epoch given with each partition makes a broker refuse (74, 75) if another one is the leader, or it is not yet.
What else an error code means here: 6, 3: the leader has moved; 78: it was just elected; 29: DESCRIBE on the topic is
not granted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    compact_string,
    decodes,
    framed,
    read_throttled_partitions,
    request_header,
    unsigned_varint,
)

API_KEY = 2
#: The first flexible version, which all brokers from 2.5 on know; from 10 on it has a time-out, for tiered storage.
LOWEST_VERSION = 6
HIGHEST_VERSION = 10
API = Api(API_KEY, "ListOffsets", LOWEST_VERSION, HIGHEST_VERSION)
#: The first version with MAX_TIMESTAMP; earlier ones return a wrong offset.
MAX_TIMESTAMP_VERSION = 7
#: The first version with EARLIEST_LOCAL (KIP-405).
EARLIEST_LOCAL_VERSION = 8
_TIMEOUT_VERSION = 10

EARLIEST = -2
LATEST = -1
#: The record with the largest timestamp (KIP-734).
MAX_TIMESTAMP = -3
#: The local log start: where the leader's own disk starts; records before it are in remote storage (KIP-405).
EARLIEST_LOCAL = -4

_FIRST_VERSIONS = {MAX_TIMESTAMP: MAX_TIMESTAMP_VERSION, EARLIEST_LOCAL: EARLIEST_LOCAL_VERSION}

CONSUMER = -1
#: For tools: a leader answers with the log end instead of the high watermark.
DEBUGGING_REPLICA = -2
READ_COMMITTED = 1
_ANY_EPOCH = -1

_HEAD = struct.Struct(">ib")
_PARTITION = struct.Struct(">iiqB")
_PARTITION_ANSWER = struct.Struct(">ihqqi")


class OffsetAnswer(NamedTuple):
    """One partition's answer; `offset` is None when no offset fits or `error_code` is not 0.

    `timestamp` is that of the record found, in epoch milliseconds; None for EARLIEST and LATEST, which find offsets.
    """

    error_code: int
    offset: int | None
    leader_epoch: int
    timestamp: int | None = None


def request(
    correlation_id: int,
    version: int,
    client_id: str,
    wanted: Mapping[TopicPartition, tuple[int | None, int]],
    *,
    replica_id: int = CONSUMER,
    isolation_level: int = 0,
    timeout_ms: int = 0,
) -> bytes:
    """Encode one framed request for partitions led by one broker, each with its current leader epoch and a timestamp.

    An epoch of None is any. A timestamp is EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, or epoch milliseconds.
    """
    by_topic: dict[str, bytearray] = {}
    for (topic, partition), (known, timestamp) in wanted.items():
        leader_epoch = _ANY_EPOCH if known is None else known
        by_topic.setdefault(topic, bytearray()).extend(_PARTITION.pack(partition, leader_epoch, timestamp, 0))
    out = bytearray(request_header(API_KEY, version, correlation_id, client_id))
    out += _HEAD.pack(replica_id, isolation_level) + unsigned_varint(len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        out += compact_string(topic) + unsigned_varint(len(partitions) // _PARTITION.size + 1) + partitions + NO_TAGS
    if version >= _TIMEOUT_VERSION:
        out += INT32.pack(timeout_ms)
    return framed(out + NO_TAGS)


def exchange(
    wanted: Mapping[TopicPartition, tuple[int | None, int]], replica_id: int, isolation_level: int, timeout_ms: int
) -> Exchange:
    """Return the request for partitions led by one broker, in a version that has what is wanted."""
    lowest = max(_FIRST_VERSIONS.get(timestamp, LOWEST_VERSION) for _, timestamp in wanted.values())
    encode = partial(
        request, wanted=wanted, replica_id=replica_id, isolation_level=isolation_level, timeout_ms=timeout_ms
    )
    return Exchange(API._replace(lowest=lowest), encode, answer)


@decodes("ListOffsets")
def answer(frame: memoryview, version: int) -> tuple[dict[TopicPartition, OffsetAnswer], int]:
    """Decode one frame (from its correlation id on) into offsets and the throttle in milliseconds; versions are alike.

    Raises:
        FrameError: not such an answer.
    """
    found: dict[TopicPartition, OffsetAnswer] = {}
    partitions, throttle_time_ms = read_throttled_partitions(frame, _PARTITION_ANSWER)
    for topic, (partition, code, time_ms, offset, leader_epoch) in partitions:
        is_found = offset >= 0 and not code
        found[TopicPartition(topic, partition)] = OffsetAnswer(
            code, offset if is_found else None, leader_epoch, time_ms if is_found and time_ms >= 0 else None
        )
    return found, throttle_time_ms
