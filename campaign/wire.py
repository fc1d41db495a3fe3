"""A producer of raw batches: Produce and WriteTxnMarkers to one broker, so that a log can hold what no client sends."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_PRODUCE, _PRODUCE_VERSION = 0, 7
_WRITE_MARKERS, _WRITE_MARKERS_VERSION = 27, 1
_CLIENT = b"campaign"
_PATIENCE_S = 60.0
_ANSWER = struct.Struct(">ihqqq")

Place = tuple[str, int]


class Appended(NamedTuple):
    """A broker's answer for one batch; `error` 0 if it was appended at `base_offset`."""

    error: int
    base_offset: int


class Marker(NamedTuple):
    """The end of one producer's transaction in some partitions."""

    producer_id: int
    epoch: int
    is_commit: bool
    places: tuple[Place, ...]


class Wire:
    """One connection to the one broker of a cluster."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.partition(":")
        self._socket = socket.create_connection((host, int(port)), _PATIENCE_S)
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def produce(self, batches: Mapping[Place, bytes], transactional_id: str | None = None) -> dict[Place, Appended]:
        """Append one batch to each of some partitions."""
        topics: dict[str, list[bytes]] = {}
        for (topic, partition), batch in batches.items():
            topics.setdefault(topic, []).append(struct.pack(">ii", partition, len(batch)) + batch)
        body = _string(transactional_id) + struct.pack(">hii", -1, int(_PATIENCE_S * 1000), len(topics))
        for topic, parts in topics.items():
            body += _string(topic) + struct.pack(">i", len(parts)) + b"".join(parts)
        answer = self._ask(struct.pack(">hh", _PRODUCE, _PRODUCE_VERSION), b"", body)
        return _appended(answer)

    def end_transactions(self, markers: Iterable[Marker]) -> None:
        """Write markers.

        Raises:
            RuntimeError: one was refused.
        """
        some = list(markers)
        body = _count(len(some))
        for one in some:
            topics: dict[str, list[int]] = {}
            for topic, partition in one.places:
                topics.setdefault(topic, []).append(partition)
            body += struct.pack(">qhb", one.producer_id, one.epoch, one.is_commit) + _count(len(topics))
            for topic, partitions in topics.items():
                body += _count(len(topic.encode())) + topic.encode() + _count(len(partitions))
                body += struct.pack(f">{len(partitions)}i", *partitions) + b"\0"
            body += struct.pack(">i", 0) + b"\0"
        answer = self._ask(struct.pack(">hh", _WRITE_MARKERS, _WRITE_MARKERS_VERSION), b"\0", body + b"\0")
        _check_markers(answer[1:])

    def _ask(self, api: bytes, tags: bytes, body: bytes) -> bytes:
        number = next(self._numbers)
        frame = api + struct.pack(">ih", number, len(_CLIENT)) + _CLIENT + tags + body
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = self._receive(size)
        if struct.unpack_from(">i", answer) != (number,):
            raise RuntimeError("an answer to another request")
        return answer[4:]

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker hung up")
            received += part
        return bytes(received)


def _appended(answer: bytes) -> dict[Place, Appended]:
    (topics,) = struct.unpack_from(">i", answer)
    position, found = 4, {}
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", answer, position)
        topic = answer[position + 2 : position + 2 + length].decode()
        (count,) = struct.unpack_from(">i", answer, position + 2 + length)
        position += 6 + length
        for _ in range(count):
            partition, error, base_offset, _, _ = _ANSWER.unpack_from(answer, position)
            found[topic, partition] = Appended(error, base_offset)
            position += _ANSWER.size
    return found


def _check_markers(answer: bytes) -> None:
    markers, position = _read_count(answer, 0)
    for _ in range(markers):
        topics, position = _read_count(answer, position + 8)
        for _ in range(topics):
            length, position = _read_count(answer, position)
            count, position = _read_count(answer, position + length)
            for _ in range(count):
                partition, error = struct.unpack_from(">ih", answer, position)
                if error:
                    raise RuntimeError(f"a marker was refused with error {error} in partition {partition}")
                position += 7
            position += 1
        position += 1


def _string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text.encode())) + text.encode()


def _count(number: int) -> bytes:
    """Write the length of a compact array or string."""
    rest, out = number + 1, bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_count(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value - 1, position
