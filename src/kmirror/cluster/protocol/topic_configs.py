"""DescribeConfigs of topics: the settings of many at a time. No I/O here.

Engines ask for the settings of thousands of topics again and again: this takes a fraction of the time of a general
decoder. Most topics are like others: what is said of their settings is the same, byte for byte, and taken apart once.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kmirror.cluster.protocol.topic_setting import TopicSetting
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

API_KEY = 32
#: The only flexible version, which all brokers from 2.7 on speak.
VERSION = 4

_TOPIC = 2
#: So many kinds of topics are remembered while an answer is read.
_KINDS_OF_TOPICS = 16
_DYNAMIC_TOPIC_CONFIG = 1
_INT16 = struct.Struct(">h")
_NO_TAGS = b"\x00"


class TopicConfigs(NamedTuple):
    """One topic's answer: `error_code` is 0, or why the broker returns no settings."""

    topic: str
    error_code: int
    settings: Mapping[str, TopicSetting]


def request(
    correlation_id: int, version: int, client_id: str, topics: Collection[str], keys: Collection[str] | None
) -> bytes:
    """Encode one framed request for settings of topics: all for None, defaults included."""
    asked = b"\x00" if keys is None else unsigned_varint(len(keys) + 1) + b"".join(map(compact_string, keys))
    out = bytearray(4)
    out += request_header(API_KEY, version, correlation_id, client_id) + unsigned_varint(len(topics) + 1)
    for topic in topics:
        out += bytes([_TOPIC]) + compact_string(topic) + asked + _NO_TAGS
    # neither synonyms nor documentation
    out += bytes(2) + _NO_TAGS
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def answer(frame: memoryview, version: int) -> tuple[list[TopicConfigs], int]:
    """Decode one frame (from its correlation id on), and for how many milliseconds the broker asks for silence.

    Raises:
        FrameError: not such an answer.
    """
    del version  # there is one
    try:
        return _decode(bytes(frame))
    except (struct.error, IndexError):
        raise FrameError("a DescribeConfigs answer ends too early") from None


def _decode(frame: bytes) -> tuple[list[TopicConfigs], int]:
    found = []
    position = skip_tagged_fields(frame, 4)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    count, position = read_unsigned_varint(frame, position + INT32.size)
    #: The bytes that tell a topic's settings, and these; the last first.
    known: deque[tuple[bytes, dict[str, TopicSetting]]] = deque(maxlen=_KINDS_OF_TOPICS)
    for _ in range(count - 1):
        (code,) = _INT16.unpack_from(frame, position)
        _, position = read_compact_string(frame, position + _INT16.size)
        # one byte tells the kind of the resource
        topic, position = read_compact_string(frame, position + 1)
        one = next((one for one in known if frame.startswith(one[0], position)), None)
        if one is None:
            settings, end = _settings(frame, position)
            one = frame[position:end], settings
            known.appendleft(one)
        said, settings = one
        position = skip_tagged_fields(frame, position + len(said))
        found.append(TopicConfigs(topic or "", code, settings))
    skip_tagged_fields(frame, position)
    return found, throttle_time_ms


def _settings(frame: bytes, position: int) -> tuple[dict[str, TopicSetting], int]:
    count, position = read_unsigned_varint(frame, position)
    settings = {}
    for _ in range(count - 1):
        name, position = read_compact_string(frame, position)
        value, position = read_compact_string(frame, position)
        # before the source whether it is read-only, after it whether it is sensitive
        settings[name or ""] = TopicSetting(value, frame[position + 1] == _DYNAMIC_TOPIC_CONFIG)
        synonyms, position = read_unsigned_varint(frame, position + 3)
        for _ in range(synonyms - 1):
            _, position = read_compact_string(frame, position)
            _, position = read_compact_string(frame, position)
            position = skip_tagged_fields(frame, position + 1)
        # its type is a byte
        _, position = read_compact_string(frame, position + 1)
        position = skip_tagged_fields(frame, position)
    return settings, position
