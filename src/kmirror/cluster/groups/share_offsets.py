"""DescribeShareGroupOffsets (90) and AlterShareGroupOffsets (91), version 0: share groups' start offsets (KIP-932).

A share group has one offset per partition, the first that is not acknowledged yet; -1 before first use. Describe: no
topics means all of the group's; a coordinator that cannot ask a partition's leader for its end gives an error instead
of the offset. Alter creates the group if it does not exist; NON_EMPTY_GROUP (68) if it has members.
Encoded by hand, since no Python library knows these requests.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence

from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    compact_string,
    decodes,
    framed,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

DESCRIBE_API_KEY = 90
ALTER_API_KEY = 91

_VERSION = 0
_NULL_ARRAY = b"\0"
_TOPIC_ID_SIZE = 16
_PARTITION_OFFSET = struct.Struct(">iq")
_DESCRIBED = struct.Struct(">iqih")
_ALTERED = struct.Struct(">ih")


def are_supported(connection: Connection) -> bool:
    """Return whether a broker supports share groups."""
    return DESCRIBE_API_KEY in connection.api_versions and ALTER_API_KEY in connection.api_versions


def describe(
    connection: Connection, groups: Sequence[str], timeout: float, topics: Collection[str] | None = None
) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
    """Return each group's error code and the offsets that it has.

    The code is LEADER_NOT_AVAILABLE if an offset of these `topics` is not known; default: of any topic.

    Raises:
        OutcomeUnknown: no whole answer in time.
        FrameError: an answer that cannot be read.
    """
    body = _array(compact_string(group) + _NULL_ARRAY + NO_TAGS for group in groups) + NO_TAGS
    return decode_described(connection.ask(DESCRIBE_API_KEY, _VERSION, body, timeout), topics)


def altering(group: str, offsets: Mapping[TopicPartition, int]) -> Exchange:
    """Return the request that sets a group's offsets; its answer is an error code for each, 0 for success."""

    def encode(correlation_id: int, version: int, client_id: str) -> bytes:
        return framed(request_header(ALTER_API_KEY, version, correlation_id, client_id) + encode_alter(group, offsets))

    def decode(frame: memoryview, _: int) -> tuple[dict[TopicPartition, int], int]:
        return decode_altered(frame, offsets), 0

    return Exchange(Api(ALTER_API_KEY, "AlterShareGroupOffsets", _VERSION, _VERSION), encode, decode)


def encode_alter(group: str, offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode the request's body."""
    by_topic: dict[str, list[bytes]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(_PARTITION_OFFSET.pack(partition, offset) + NO_TAGS)
    topics = _array(compact_string(topic) + _array(partitions) + NO_TAGS for topic, partitions in by_topic.items())
    return compact_string(group) + topics + NO_TAGS


def _array(elements: Iterable[bytes]) -> bytes:
    encoded = list(elements)
    return unsigned_varint(len(encoded) + 1) + b"".join(encoded)


@decodes("DescribeShareGroupOffsets")
def decode_described(
    frame: memoryview, of_topics: Collection[str] | None = None
) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
    """Decode an answer's frame, from its correlation id on. Raises FrameError."""
    position = skip_tagged_fields(frame, 4) + INT32.size  # the header's tags, and the throttle
    groups, position = read_unsigned_varint(frame, position)
    found: dict[str, tuple[int, dict[TopicPartition, int]]] = {}
    for _ in range(groups - 1):
        group, position = read_compact_string(frame, position)
        topics, position = read_unsigned_varint(frame, position)
        offsets: dict[TopicPartition, int] = {}
        is_known = True
        for _ in range(topics - 1):
            topic, position = read_compact_string(frame, position)
            partitions, position = read_unsigned_varint(frame, position + _TOPIC_ID_SIZE)
            for _ in range(partitions - 1):
                partition, offset, _, code = _DESCRIBED.unpack_from(frame, position)
                _, position = read_compact_string(frame, position + _DESCRIBED.size)
                position = skip_tagged_fields(frame, position)
                is_known &= not code or (of_topics is not None and topic not in of_topics)
                if not code and offset >= 0:
                    offsets[TopicPartition(topic or "", partition)] = offset
            position = skip_tagged_fields(frame, position)
        (error_code,) = INT16.unpack_from(frame, position)
        _, position = read_compact_string(frame, position + INT16.size)
        position = skip_tagged_fields(frame, position)
        found[group or ""] = (error_code if is_known else error_code or int(Code.LEADER_NOT_AVAILABLE), offsets)
    return found


@decodes("AlterShareGroupOffsets")
def decode_altered(frame: memoryview, asked: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Decode an answer's frame, from its correlation id on; an error of the group is each partition's. FrameError."""
    position = skip_tagged_fields(frame, 4) + INT32.size
    (group_code,) = INT16.unpack_from(frame, position)
    _, position = read_compact_string(frame, position + INT16.size)
    if group_code:
        return dict.fromkeys(asked, group_code)
    topics, position = read_unsigned_varint(frame, position)
    found: dict[TopicPartition, int] = {}
    for _ in range(topics - 1):
        topic, position = read_compact_string(frame, position)
        partitions, position = read_unsigned_varint(frame, position + _TOPIC_ID_SIZE)
        for _ in range(partitions - 1):
            partition, error_code = _ALTERED.unpack_from(frame, position)
            _, position = read_compact_string(frame, position + _ALTERED.size)
            position = skip_tagged_fields(frame, position)
            found[TopicPartition(topic or "", partition)] = error_code
        position = skip_tagged_fields(frame, position)
    return found
