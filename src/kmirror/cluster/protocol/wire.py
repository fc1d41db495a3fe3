"""Kafka's primitive types, for the requests encoded by hand on the hot path.

Flexible versions (KIP-482) only: lengths are unsigned varints of length + 1, every structure ends with tagged fields.
Reading a length never allocates; a length that points outside the frame is a `FrameError`.

Inside records, integers are signed and of variable length: zig-zag, 7 bits a byte, lowest first (KIP-98).
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kmirror.errors import KmirrorError

Buffer = bytes | bytearray | memoryview

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
#: A structure without tagged fields ends with this.
NO_TAGS = b"\x00"
#: The topic id of a topic that has none.
NO_TOPIC_ID = bytes(16)

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))

P = ParamSpec("P")
R = TypeVar("R")


class FrameError(KmirrorError):
    """A response that cannot be read; the connection it came from is of no more use."""


class Api(NamedTuple):
    """A kind of request, and the versions of it that will do."""

    key: int
    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request encoded by hand: its kind, the versions that its codec knows, and the codec.

    `encode` takes a correlation id, a version and a client id, and returns a framed request; `decode` takes the
    answer's frame (from its correlation id on) and the version, and returns its content and its throttle time in
    milliseconds. It raises FrameError for anything else.
    """

    api: Api
    encode: Callable[[int, int, str], bytes]
    decode: Callable[[memoryview, int], tuple[Any, int]]


def decodes(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a decoder raise FrameError, with the name of the request, where an answer ends too early."""

    def decorated(decode: Callable[P, R]) -> Callable[P, R]:
        @wraps(decode)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return decode(*args, **kwargs)
            except (struct.error, IndexError):
                raise FrameError(f"a {name} answer ends too early") from None

        return checked

    return decorated


def framed(body: bytes | bytearray) -> bytes:
    """Put a request's length before it."""
    return INT32.pack(len(body)) + body


def unsigned_varint(value: int) -> bytes:
    """Encode a non-negative integer, 7 bits a byte, lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if 0x4000 <= value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(value: str) -> bytes:
    """Encode a string that is not null."""
    data = value.encode()
    return unsigned_varint(len(data) + 1) + data


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a length; return it and the position after it.

    Raises:
        FrameError: more than five bytes, or past the end.
    """
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > 28:
                raise FrameError("a length in a broker's answer has more than five bytes")
    except IndexError:
        raise FrameError("a broker's answer ends in the middle of a length") from None


def read_compact_string(data: Buffer, position: int) -> tuple[str | None, int]:
    """Read a nullable compact string; return it and the position after it.

    Raises:
        FrameError: longer than the frame, or not UTF-8.
    """
    length, position = read_unsigned_varint(data, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(data):
        raise FrameError("a string in a broker's answer is longer than the answer")
    try:
        return bytes(data[position:end]).decode(), end
    except UnicodeDecodeError:
        raise FrameError("a string in a broker's answer is not UTF-8") from None


def tagged_fields(data: Buffer, position: int) -> tuple[dict[int, Buffer], int]:
    """Return the tagged fields that start at `position` by tag, and the position after them."""
    count, position = read_unsigned_varint(data, position)
    fields: dict[int, Buffer] = {}
    for _ in range(count):
        tag, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        if position + size > len(data):
            raise FrameError("a tagged field in a broker's answer is longer than the answer")
        fields[tag] = data[position : position + size]
        position += size
    return fields, position


def skip_tagged_fields(data: Buffer, position: int) -> int:
    """Return the position after the tagged fields that start at `position`."""
    count, position = read_unsigned_varint(data, position)
    for _ in range(count):
        _, position = read_unsigned_varint(data, position)
        size, position = read_unsigned_varint(data, position)
        position += size
    if position > len(data):
        raise FrameError("a tagged field in a broker's answer is longer than the answer")
    return position


def read_partitions(
    data: Buffer, position: int, layout: struct.Struct
) -> tuple[list[tuple[str, tuple[Any, ...]]], int]:
    """Read an array of topics with their partitions, which have the fields of `layout` and no more.

    Returns topic and fields of each partition, and the position after the array.
    """
    found: list[tuple[str, tuple[Any, ...]]] = []
    topics, position = read_unsigned_varint(data, position)
    for _ in range(topics - 1):
        topic, position = read_compact_string(data, position)
        count, position = read_unsigned_varint(data, position)
        for _ in range(count - 1):
            found.append((topic or "", layout.unpack_from(data, position)))
            position = skip_tagged_fields(data, position + layout.size)
        position = skip_tagged_fields(data, position)
    return found, position


def read_throttled_partitions(frame: Buffer, layout: struct.Struct) -> tuple[list[tuple[str, tuple[Any, ...]]], int]:
    """Read a whole answer that is a throttle in milliseconds and partitions as in `read_partitions`; return both."""
    position = skip_tagged_fields(frame, 4)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    found, position = read_partitions(frame, position + INT32.size, layout)
    skip_tagged_fields(frame, position)
    return found, throttle_time_ms


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode request header version 2 (flexible)."""
    client = client_id.encode()
    return struct.pack(f">hhih{len(client)}sB", api_key, api_version, correlation_id, len(client), client, 0)


def encoded_exchange(api: Api, body: bytes, decode: Callable[[memoryview], tuple[Any, int]]) -> Exchange:
    """Return a request whose body is encoded already, and is the same in all versions; `decode` takes the frame."""

    def encode(correlation_id: int, version: int, client_id: str) -> bytes:
        return framed(request_header(api.key, version, correlation_id, client_id) + body)

    return Exchange(api, encode, lambda frame, _: decode(frame))


def format_topic_id(topic_id: bytes) -> str | None:
    """Print a topic id as Kafka's tools do (base64url without padding); None for the all-zero id."""
    if topic_id == NO_TOPIC_ID:
        return None
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> bytes:
    """Read a topic id as Kafka's tools print it: 16 bytes. Raises ValueError."""
    topic_id = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(topic_id) != len(NO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id")
    return topic_id


def is_topic_name(text: str) -> bool:
    """Return whether there can be a topic of this name."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


#: A 64-bit number takes at most ten bytes.
_LONGEST = 10
_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_TABLE_SIZE = 1 << 14


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a number; return it and the position after it.

    Raises:
        ValueError: it has more than ten bytes.
        IndexError: the data ends in the middle of it.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63:
                value &= _MASK  # the tenth byte has room for more bits, which Java drops
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift == 7 * _LONGEST:
            raise ValueError("a number has more than ten bytes")


def varint(value: int) -> bytes:
    """Encode a number of 64 bits; only the lower 64 bits of a larger one, as Java does."""
    if 0 <= value < _TABLE_SIZE:
        return VARINTS[value]
    value = int64(value)
    return unsigned_varint((value << 1) ^ (value >> 63))


def int64(value: int) -> int:
    """Wrap a number to 64 bits, as Java's long does on overflow."""
    return ((value + _SIGN) & _MASK) - _SIGN


#: The varints of the numbers from 0 up: most offset deltas and lengths are small.
VARINTS = tuple(unsigned_varint(value << 1) for value in range(_TABLE_SIZE))
