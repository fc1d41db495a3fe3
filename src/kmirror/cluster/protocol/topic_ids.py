"""Ask which ids topics have now, behind a fetch by name and on the same connection. No I/O here.

A broker answers the requests of one connection in turn. So where Metadata names the same id before a fetch by name and
after it, the records in between are of that topic: an id is never given twice. A leader that has a new topic's log
forgot the old topic's metadata first, and so never names the old id then. Version 10, the first with ids, is spoken by
every broker that fetches by name and has any. What an error code means here: 3, 5: there is no such topic, or not yet.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from kmirror.cluster.protocol.wire import (
    NO_TOPIC_ID,
    FrameError,
    compact_string,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

API_KEY = 3
VERSION = 10

_INT32 = struct.Struct(">i")
_NO_TAGS = b"\x00"
#: No topic is created; what we may do on the cluster and on topics is not asked.
_NOTHING_ELSE = b"\x00\x00\x00"
_ERROR = struct.Struct(">h")
_PARTITION_BYTES = 14


def request(correlation_id: int, client_id: str, topics: Collection[str]) -> bytes:
    """Encode one framed request for these topics."""
    out = bytearray(4)
    out += request_header(API_KEY, VERSION, correlation_id, client_id) + unsigned_varint(len(topics) + 1)
    for topic in topics:
        out += NO_TOPIC_ID + compact_string(topic) + _NO_TAGS
    out += _NOTHING_ELSE + _NO_TAGS
    _INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def answer(frame: memoryview) -> dict[str, bytes | None]:
    """Decode one frame (from its correlation id on) into the topics' ids; None of one that the broker does not know.

    Raises:
        FrameError: not such an answer.
    """
    try:
        return _decode(frame)
    except struct.error:
        raise FrameError("a Metadata answer ends too early") from None


def _decode(frame: memoryview) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    brokers, position = read_unsigned_varint(frame, skip_tagged_fields(frame, 4) + _INT32.size)
    for _ in range(brokers - 1):
        _, position = read_compact_string(frame, position + _INT32.size)
        _, position = read_compact_string(frame, position + _INT32.size)
        position = skip_tagged_fields(frame, position)
    _, position = read_compact_string(frame, position)
    topics, position = read_unsigned_varint(frame, position + _INT32.size)
    for _ in range(topics - 1):
        (code,) = _ERROR.unpack_from(frame, position)
        topic, position = read_compact_string(frame, position + _ERROR.size)
        topic_id = bytes(frame[position : position + len(NO_TOPIC_ID)])
        found[topic or ""] = None if code else topic_id
        partitions, position = read_unsigned_varint(frame, position + len(NO_TOPIC_ID) + 1)
        for _ in range(partitions - 1):
            position += _PARTITION_BYTES
            for _ in ("replicas", "in sync", "offline"):
                count, position = read_unsigned_varint(frame, position)
                position += max(count - 1, 0) * _INT32.size
            position = skip_tagged_fields(frame, position)
        position = skip_tagged_fields(frame, position + _INT32.size)
    skip_tagged_fields(frame, position + _INT32.size)
    return found
