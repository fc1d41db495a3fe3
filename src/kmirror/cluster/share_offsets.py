"""DescribeShareGroupOffsets (90) and AlterShareGroupOffsets (91), version 0: where share groups begin (KIP-932).

A share group has one offset per partition, the first that is not settled yet; the broker answers -1 before first use.
Describe: no topics means all of the group's. Alter makes the group where it does not exist; NON_EMPTY_GROUP (68) when
it has members. Encoded by hand, since no Python library knows these requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    INT32,
    FrameError,
    compact_string,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

DESCRIBE_API_KEY = 90
ALTER_API_KEY = 91

_VERSION = 0
_NO_TAGS = b"\0"
_NULL_ARRAY = b"\0"
_TOPIC_ID_SIZE = 16
_PARTITION_OFFSET = struct.Struct(">iq")
_DESCRIBED = struct.Struct(">iqih")
_ALTERED = struct.Struct(">ih")
_INT16 = struct.Struct(">h")


def are_supported(connection: Connection) -> bool:
    """Tell whether a broker knows share groups."""
    return DESCRIBE_API_KEY in connection.api_versions and ALTER_API_KEY in connection.api_versions


def describe(
    connection: Connection, groups: Sequence[str], timeout: float
) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
    """Return each group's error code and its offsets, those that it has.

    Raises:
        OutcomeUnknown: no whole answer in time.
        FrameError: an answer that cannot be read.
    """
    body = _array(compact_string(group) + _NULL_ARRAY + _NO_TAGS for group in groups) + _NO_TAGS
    return decode_described(_ask(connection, DESCRIBE_API_KEY, body, timeout))


def alter(
    connection: Connection, group: str, offsets: Mapping[TopicPartition, int], timeout: float
) -> dict[TopicPartition, int]:
    """Set a group's offsets and return an error code for each; 0 is done.

    Raises:
        OutcomeUnknown: no whole answer in time.
        FrameError: an answer that cannot be read.
    """
    return decode_altered(_ask(connection, ALTER_API_KEY, encode_alter(group, offsets), timeout), offsets)


def encode_alter(group: str, offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode the request's body."""
    by_topic: dict[str, list[bytes]] = {}
    for place, offset in sorted(offsets.items()):
        by_topic.setdefault(place.topic, []).append(_PARTITION_OFFSET.pack(place.partition, offset) + _NO_TAGS)
    topics = _array(compact_string(topic) + _array(placed) + _NO_TAGS for topic, placed in by_topic.items())
    return compact_string(group) + topics + _NO_TAGS


def decode_described(frame: memoryview) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
    """Decode an answer's frame, from its correlation id on. Raises FrameError."""
    try:
        return _decode_described(frame)
    except struct.error:
        raise FrameError("an answer about share groups ends too early") from None


def decode_altered(frame: memoryview, asked: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Decode an answer's frame, from its correlation id on; a code for the group is each partition's. FrameError."""
    try:
        return _decode_altered(frame, asked)
    except struct.error:
        raise FrameError("an answer about share groups ends too early") from None


def _ask(connection: Connection, api_key: int, body: bytes, timeout: float) -> memoryview:
    correlation_id = connection.next_correlation_id()
    request = request_header(api_key, _VERSION, correlation_id, connection.config.client_id) + body
    connection.wait_for_throttle()
    return connection.exchange_frame([INT32.pack(len(request)) + request], correlation_id, timeout)


def _array(elements: Iterable[bytes]) -> bytes:
    encoded = list(elements)
    return unsigned_varint(len(encoded) + 1) + b"".join(encoded)


def _decode_described(frame: memoryview) -> dict[str, tuple[int, dict[TopicPartition, int]]]:
    position = skip_tagged_fields(frame, 4) + INT32.size  # the header's tags, and the throttle
    groups, position = read_unsigned_varint(frame, position)
    found: dict[str, tuple[int, dict[TopicPartition, int]]] = {}
    for _ in range(groups - 1):
        group, position = read_compact_string(frame, position)
        topics, position = read_unsigned_varint(frame, position)
        offsets: dict[TopicPartition, int] = {}
        for _ in range(topics - 1):
            topic, position = read_compact_string(frame, position)
            partitions, position = read_unsigned_varint(frame, position + _TOPIC_ID_SIZE)
            for _ in range(partitions - 1):
                partition, offset, _, error_code = _DESCRIBED.unpack_from(frame, position)
                _, position = read_compact_string(frame, position + _DESCRIBED.size)
                position = skip_tagged_fields(frame, position)
                if error_code == 0 and offset >= 0:
                    offsets[TopicPartition(topic or "", partition)] = offset
            position = skip_tagged_fields(frame, position)
        (error_code,) = _INT16.unpack_from(frame, position)
        _, position = read_compact_string(frame, position + _INT16.size)
        position = skip_tagged_fields(frame, position)
        found[group or ""] = (error_code, offsets)
    return found


def _decode_altered(frame: memoryview, asked: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    position = skip_tagged_fields(frame, 4) + INT32.size
    (of_group,) = _INT16.unpack_from(frame, position)
    _, position = read_compact_string(frame, position + _INT16.size)
    if of_group:
        return dict.fromkeys(asked, of_group)
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
