"""ListOffsets for the true log end, for connections that never wait. No I/O here.

With timestamp −1 and replica id −2 a leader answers with its log end, not the high watermark, to any client. The leader
epoch given with each partition makes it refuse (74, 75) where another broker is the leader, or it is not yet.
What else an error code means here: 6, 3: the leader is elsewhere; 78: it was just elected; 29: DESCRIBE on the topic is
not granted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    FrameError,
    compact_string,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

API_KEY = 2
#: The first flexible version. Version 10 adds a time-out for tiered storage, which a log end never needs.
LOWEST_VERSION = 6
HIGHEST_VERSION = 9

#: What brokers allow to tools that are no replica.
_DEBUGGING_REPLICA = -2
_LATEST = -1
_ANY_EPOCH = -1
_READ_UNCOMMITTED = 0

_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">ib")
_PARTITION = struct.Struct(">iiqB")
_PARTITION_ANSWER = struct.Struct(">ihqqi")
_NO_TAGS = b"\x00"


def request(
    correlation_id: int, version: int, client_id: str, leader_epochs: Mapping[TopicPartition, int | None]
) -> bytes:
    """Encode one framed request for partitions led by one broker, each with its current leader epoch (None: any)."""
    by_topic: dict[str, bytearray] = {}
    for (topic, partition), known in leader_epochs.items():
        leader_epoch = _ANY_EPOCH if known is None else known
        by_topic.setdefault(topic, bytearray()).extend(_PARTITION.pack(partition, leader_epoch, _LATEST, 0))
    out = bytearray(4)
    out += request_header(API_KEY, version, correlation_id, client_id)
    out += _HEAD.pack(_DEBUGGING_REPLICA, _READ_UNCOMMITTED) + unsigned_varint(len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        out += compact_string(topic) + unsigned_varint(len(partitions) // _PARTITION.size + 1) + partitions + _NO_TAGS
    out += _NO_TAGS
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def answer(frame: memoryview, version: int) -> dict[TopicPartition, tuple[int, int | None]]:
    """Decode one frame (from its correlation id on) into error code and log end, None where there is an error.

    All versions are alike.

    Raises:
        FrameError: not such an answer.
    """
    try:
        return _decode(frame)
    except struct.error:
        raise FrameError("a ListOffsets answer ends too early") from None


def throttle_time_ms(frame: memoryview) -> int:
    """Return for how long the broker asks us to send nothing on this connection."""
    try:
        return int(_INT32.unpack_from(frame, skip_tagged_fields(frame, 4))[0])
    except struct.error:
        raise FrameError("a ListOffsets answer ends too early") from None


def _decode(frame: memoryview) -> dict[TopicPartition, tuple[int, int | None]]:
    found: dict[TopicPartition, tuple[int, int | None]] = {}
    topics, position = read_unsigned_varint(frame, skip_tagged_fields(frame, 4) + _INT32.size)
    for _ in range(topics - 1):
        topic, position = read_compact_string(frame, position)
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count - 1):
            partition, code, _, offset, _ = _PARTITION_ANSWER.unpack_from(frame, position)
            position = skip_tagged_fields(frame, position + _PARTITION_ANSWER.size)
            log_end = offset if offset >= 0 and not code else None
            found[TopicPartition(topic or "", partition)] = (code, log_end)
        position = skip_tagged_fields(frame, position)
    skip_tagged_fields(frame, position)
    return found
