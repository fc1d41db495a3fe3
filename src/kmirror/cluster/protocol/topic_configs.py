"""The DescribeConfigs request for topics: the settings of many at a time.

Engines ask for the settings of thousands of topics again and again: this takes a fraction of the time of a general
decoder. Most topics have the same settings as others, byte for byte; those are decoded once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

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

API_KEY = 32
#: The only flexible version, which all brokers from 2.7 on know.
VERSION = 4
API = Api(API_KEY, "DescribeConfigs", VERSION, VERSION)

#: ConfigResource.Type and DescribeConfigsResponse.ConfigSource.
TOPIC = 2
DYNAMIC_TOPIC_CONFIG = 1

#: Number of different lists of settings that are remembered while an answer is decoded.
_KNOWN_LISTS = 16


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One setting of a topic as its cluster reports it; `value` is None where the broker does not return it."""

    value: str | None
    #: True when it is set on the topic itself, not taken from the brokers.
    is_override: bool


TopicSettings = Mapping[str, TopicSetting]


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
    out = bytearray(request_header(API_KEY, version, correlation_id, client_id) + unsigned_varint(len(topics) + 1))
    for topic in topics:
        out += bytes([TOPIC]) + compact_string(topic) + asked + NO_TAGS
    # neither synonyms nor documentation
    out += bytes(2) + NO_TAGS
    return framed(out)


def exchange(topics: Collection[str], keys: Collection[str] | None) -> Exchange:
    """Return the request for settings of topics: all for None, defaults included."""
    return Exchange(API, partial(request, topics=topics, keys=keys), answer)


@decodes("DescribeConfigs")
def answer(view: memoryview, version: int) -> tuple[list[TopicConfigs], int]:
    """Decode one frame (from its correlation id on) into the topics' settings and the throttle in milliseconds.

    Raises:
        FrameError: not such an answer.
    """
    found = []
    frame = bytes(view)
    position = skip_tagged_fields(frame, 4)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    count, position = read_unsigned_varint(frame, position + INT32.size)
    #: Lists of settings as encoded and as decoded, the last one first.
    known: deque[tuple[bytes, dict[str, TopicSetting]]] = deque(maxlen=_KNOWN_LISTS)
    for _ in range(count - 1):
        (code,) = INT16.unpack_from(frame, position)
        _, position = read_compact_string(frame, position + INT16.size)
        # one byte is the type of the resource
        topic, position = read_compact_string(frame, position + 1)
        one = next((one for one in known if frame.startswith(one[0], position)), None)
        if one is None:
            settings, end = _settings(frame, position)
            one = frame[position:end], settings
            known.appendleft(one)
        encoded, settings = one
        position = skip_tagged_fields(frame, position + len(encoded))
        found.append(TopicConfigs(topic or "", code, settings))
    skip_tagged_fields(frame, position)
    return found, throttle_time_ms


def _settings(frame: bytes, position: int) -> tuple[dict[str, TopicSetting], int]:
    count, position = read_unsigned_varint(frame, position)
    settings = {}
    for _ in range(count - 1):
        name, position = read_compact_string(frame, position)
        value, position = read_compact_string(frame, position)
        # one byte each: read-only, source, sensitive
        settings[name or ""] = TopicSetting(value, frame[position + 1] == DYNAMIC_TOPIC_CONFIG)
        synonyms, position = read_unsigned_varint(frame, position + 3)
        for _ in range(synonyms - 1):
            _, position = read_compact_string(frame, position)
            _, position = read_compact_string(frame, position)
            position = skip_tagged_fields(frame, position + 1)
        # one byte is the type of the value
        _, position = read_compact_string(frame, position + 1)
        position = skip_tagged_fields(frame, position)
    return settings, position
