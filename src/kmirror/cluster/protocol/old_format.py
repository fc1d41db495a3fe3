"""Messages of the formats 0 and 1, which brokers before 0.11 wrote and later ones still store and return.

A stored message, big-endian, each position derived from the one before::

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | [timestamp i64, format 1] |
    key length i32 | key | value length i32 | value

The CRC (the one of zlib) covers magic to the end. With a codec in its attributes a message is a wrapper: its value
holds the compressed messages themselves, its own offset is that of the last of them. Inside, format 0 has absolute
offsets, format 1 relative ones (KIP-31), where the last inner one stands for the wrapper's. A wrapper of format 1 with
LogAppendTime gives its own timestamp to all messages in it (KIP-32).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

from kmirror.cluster.protocol.batch import (
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    CorruptBatchError,
    OversizedBatchError,
    UnsupportedFormatError,
)
from kmirror.cluster.protocol.batch_records import SectionTooLargeError, decompress
from kmirror.errors import Reason

#: The timestamp that consumers are shown for messages without one.
NO_TIMESTAMP = -1

_PREFIX = struct.Struct(">qiIbb")
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_ATTRIBUTES_POSITION = 17
_LZ4_DESCRIPTOR_POSITION = 4
_LZ4_CONTENT_SIZE = 0x08
_HIGHEST_CODEC = 3
#: A wrapper with more takes far more memory than its bytes; Kafka's clients wrap what fits into some KB.
_MOST_MESSAGES = 1_000_000


class Message(NamedTuple):
    """One message as an application is shown it; `timestamp` in epoch milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class _Stored(NamedTuple):
    """One stored message, not unwrapped."""

    offset: int
    magic: int
    attributes: int
    timestamp: int
    key: bytes | None
    value: memoryview | None
    size: int


def read_messages(stored: memoryview) -> tuple[str, list[Message]]:
    """Read one stored message, unwrapped; return its codec's name and the messages, at least one, in offset order.

    Raises:
        CorruptBatchError: a checksum is wrong, or the content cannot be read.
        OversizedBatchError: its messages take more memory than allowed.
        UnsupportedFormatError: a codec that these formats do not have.
    """
    offset = int(struct.unpack_from(">q", stored)[0]) if len(stored) >= LOG_OVERHEAD else -1
    try:
        outer = _read(stored)
        if outer.size != len(stored):
            raise ValueError(f"its length field says {outer.size - LOG_OVERHEAD}")
        codec = outer.attributes & COMPRESSION_MASK
        if codec == 0:
            return COMPRESSION_TYPES[0], [_plain(outer)]
        if codec > _HIGHEST_CODEC:
            raise UnsupportedFormatError(
                f"the message at offset {offset}, of format {outer.magic}, has the unknown compression type {codec}",
                "rewrite its records with a current client, or start the mirror after it",
                Reason.UNSUPPORTED_MESSAGE_FORMAT,
            )
        name = COMPRESSION_TYPES[codec]
        inner = list(islice(_inner(outer, name), _MOST_MESSAGES + 1))
        if len(inner) > _MOST_MESSAGES:
            raise OversizedBatchError(offset, f"it stands for more than {_MOST_MESSAGES:,} messages")
        return name, _unwrap(outer, inner)
    except SectionTooLargeError as error:
        raise OversizedBatchError(offset, str(error)) from None
    except (ValueError, IndexError, struct.error) as error:
        raise CorruptBatchError(offset, str(error) or "it ends too early") from None


def _read(data: memoryview) -> _Stored:
    offset, length, crc, magic, attributes = _PREFIX.unpack_from(data)
    size = LOG_OVERHEAD + length
    if not _PREFIX.size <= size <= len(data):
        raise ValueError(f"its length field says {length}")
    if magic not in {0, 1}:
        raise ValueError(f"a message of format {magic} is among those of an older one")
    found = zlib.crc32(data[MAGIC_POSITION:size])
    if found != crc:
        raise ValueError(f"its checksum is {found:08x}, its header says {crc:08x}")
    position, timestamp = _ATTRIBUTES_POSITION + 1, NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(data, position)
        position += _TIMESTAMP.size
    key, position = _field(data[:size], position)
    value, position = _field(data[:size], position)
    if position != size:
        raise ValueError("a message's length does not fit its content")
    return _Stored(offset, magic, attributes, timestamp, None if key is None else bytes(key), value, size)


def _field(data: memoryview, position: int) -> tuple[memoryview | None, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    if length < 0:
        return None, position
    if position + length > len(data):
        raise ValueError("a field is longer than its message")
    return data[position : position + length], position + length


def _plain(stored: _Stored) -> Message:
    value = None if stored.value is None else bytes(stored.value)
    return Message(stored.offset, stored.timestamp, stored.key, value)


def _inner(outer: _Stored, codec: str) -> Iterator[_Stored]:
    if outer.value is None:
        raise ValueError("a wrapper has no content")
    compressed = _with_right_checksum(outer.value) if codec == "lz4" and outer.magic == 0 else outer.value
    data = decompress(compressed, codec)
    position = 0
    while position < len(data):
        stored = _read(data[position:])
        if stored.magic != outer.magic or stored.attributes & COMPRESSION_MASK:
            raise ValueError("a wrapper holds a message of another format, or another wrapper")
        yield stored
        position += stored.size


def _unwrap(outer: _Stored, inner: list[_Stored]) -> list[Message]:
    if not inner:
        raise ValueError("a wrapper has no messages")
    shift = outer.offset - inner[-1].offset if outer.magic == 1 else 0
    shown = [_plain(stored)._replace(offset=stored.offset + shift) for stored in inner]
    if outer.magic == 1 and outer.attributes & LOG_APPEND_TIME:
        shown = [message._replace(timestamp=outer.timestamp) for message in shown]
    if shown[-1].offset > outer.offset or any(later.offset <= earlier.offset for earlier, later in pairwise(shown)):
        raise ValueError("the offsets in a wrapper do not grow, or pass its own")
    return shown


def _with_right_checksum(frame: memoryview) -> memoryview:
    """Return an lz4 frame with the correct header checksum: format 0 computes it over the wrong bytes (KIP-57)."""
    flags = frame[_LZ4_DESCRIPTOR_POSITION]
    end = _LZ4_DESCRIPTOR_POSITION + 2 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    repaired = bytearray(frame)
    repaired[end] = _short_xxh32(bytes(frame[_LZ4_DESCRIPTOR_POSITION:end])) >> 8 & 0xFF
    return memoryview(repaired)


def _short_xxh32(data: bytes) -> int:
    """Compute xxHash-32 with seed 0 of less than 16 bytes."""
    mask = 0xFFFFFFFF
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1

    def rotated(value: int, bits: int) -> int:
        value &= mask
        return value << bits & mask | value >> (32 - bits)

    words = len(data) // 4 * 4
    value = prime5 + len(data)
    for position in range(0, words, 4):
        value = rotated(value + int.from_bytes(data[position : position + 4], "little") * prime3, 17) * prime4
    for byte in data[words:]:
        value = rotated(value + byte * prime5, 11) * prime1
    value &= mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16
