"""A real broker behind a wire that breaks one thing: what it takes for a broker that guarantees less than Kafka's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    COMPRESSION_TYPES,
    PRODUCER,
    PRODUCER_POSITION,
    set_producer,
)
from kmirror.cluster.protocol.filler import FILLER_RECORDS
from kmirror.cluster.protocol.wire import compact_string, read_unsigned_varint, unsigned_varint
from kmirror.ops.probe.topic import PROBE_TOPICS
from tests.support.wire import METADATA, PRODUCE, Wire

LIST_OFFSETS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, MARKERS = 2, 19, 20, 21, 27
#: After the only partition's batch: no tagged fields of partition, topic and request.
_TAGS_AFTER_BATCH = 3
_MAGIC_AT, _OVERHEAD = 16, 12
_OFFSET_ANSWER = struct.Struct(">ihqqi")
_ID_BYTES = 16

Change = Callable[[bytes], bytes]
Batch = memoryview


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _after_header(frame: bytes) -> int:
    """Return where the body of a request begins: after the header's client id and tagged fields."""
    (length,) = struct.unpack_from(">h", frame, 12)
    return int(14 + max(length, 0) + 1)


# -- appends -----------------------------------------------------------------------------------------------------------


def _batches(change: Callable[[Batch], None], frame: bytes) -> bytes:
    """Change the only batch of a Produce request in place."""
    changed = bytearray(frame)
    end = len(changed) - _TAGS_AFTER_BATCH
    for start in range(_after_header(frame), end - _MAGIC_AT):
        if (
            struct.unpack_from(">i", changed, start + 8)[0] == end - start - _OVERHEAD
            and changed[start + _MAGIC_AT] == 2
        ):
            change(memoryview(changed)[start:end])
            break
    return bytes(changed)


def _without_producer(batch: Batch) -> None:
    set_producer(batch, -1, -1, -1)


def _with_other_id(batch: Batch) -> None:
    producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
    set_producer(batch, producer_id & 0xFFFFFF, epoch, sequence)


def _with_other_value(batch: Batch) -> None:
    if bytes(batch[-2:-1]) == b"v":  # uncompressed: the end of a value, no headers
        batch[-2:-1] = b"w"
        set_producer(batch, *PRODUCER.unpack_from(batch, PRODUCER_POSITION))


def _with_unknown_codec(batch: Batch) -> None:
    if batch[ATTRIBUTES_POSITION + 1] == COMPRESSION_TYPES.index("gzip"):
        batch[ATTRIBUTES_POSITION + 1] = len(COMPRESSION_TYPES)
        set_producer(batch, *PRODUCER.unpack_from(batch, PRODUCER_POSITION))


class _Repeats:
    """Appends a repeated batch a second time."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()

    def __call__(self, batch: Batch) -> None:
        producer = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        if producer in self._seen:
            _without_producer(batch)
        self._seen.add(producer)


# -- topics ------------------------------------------------------------------------------------------------------------


def _setting(wanted: str, given: str, frame: bytes) -> bytes:
    """Create topics with another value of a setting than asked for."""
    return _framed(frame[4:].replace(compact_string(wanted), compact_string(given)))


def _ignored_deletion(frame: bytes) -> bytes:
    """Delete no topic that is named by its id."""
    count, at = read_unsigned_varint(memoryview(frame), _after_header(frame))
    if count != 2 or frame[at]:
        return frame
    return frame[: at + 1] + b"\x01" * _ID_BYTES + frame[at + 1 + _ID_BYTES :]


class _SameIds:
    """Shows each topic of a probe with the id that it had first."""

    def __init__(self) -> None:
        self._ids: dict[bytes, bytes] = {}

    def __call__(self, frame: bytes) -> bytes:
        start = frame.find(PROBE_TOPICS.encode())
        if start < 0:
            return frame
        length, _ = read_unsigned_varint(memoryview(frame), start - 1)
        at = start + length - 1
        found = frame[at : at + _ID_BYTES]
        if not any(found):
            return frame
        first = self._ids.setdefault(frame[start:at], found)
        return frame[:at] + first + frame[at + _ID_BYTES :]


def _no_trim(frame: bytes) -> bytes:
    return frame.replace(struct.pack(">q", FILLER_RECORDS), bytes(8))


def _lower_end(frame: bytes) -> bytes:
    """Return offsets that are one too low."""
    at = len(frame) - _OFFSET_ANSWER.size - 3
    partition, code, timestamp, offset, epoch = _OFFSET_ANSWER.unpack_from(frame, at)
    lower = max(offset - 1, 0)
    return frame[:at] + _OFFSET_ANSWER.pack(partition, code, timestamp, lower, epoch) + frame[-3:]


# -- markers -----------------------------------------------------------------------------------------------------------


def _markers(change: Callable[[list[bytearray], int], list[bytearray]], frame: bytes) -> bytes:
    """Change the entries of a request for markers; `change` is given where an entry has its coordinator epoch."""
    count, at = read_unsigned_varint(memoryview(frame), _after_header(frame))
    size = (len(frame) - 1 - at) // (count - 1)
    epoch_at = size - 5 - (frame[7] > 1)
    entries = [bytearray(frame[at + size * index : at + size * (index + 1)]) for index in range(count - 1)]
    changed = change(entries, epoch_at)
    return _framed(frame[4 : _after_header(frame)] + unsigned_varint(len(changed) + 1) + b"".join(changed) + frame[-1:])


def _twice(entries: list[bytearray], _: int) -> list[bytearray]:
    return [*entries, *entries]


def _in_first_epoch(entries: list[bytearray], _: int) -> list[bytearray]:
    for entry in entries:
        entry[8:10] = b"\0\0"
    return entries


def _stale_ones(entries: list[bytearray], epoch_at: int) -> list[bytearray]:
    if len(entries) == 1 and not any(entries[0][epoch_at : epoch_at + 4]):
        entries[0][epoch_at : epoch_at + 4] = struct.pack(">i", 5)
    return entries


#: By what is broken, the requests that are changed on their way.
REWRITTEN: Mapping[str, Callable[[], tuple[int, Change]]] = {
    "checks no sequence": lambda: (PRODUCE, partial(_batches, _without_producer)),
    "appends repeats": lambda: (PRODUCE, partial(_batches, _Repeats())),
    "assigns producer ids": lambda: (PRODUCE, partial(_batches, _with_other_id)),
    "changes values": lambda: (PRODUCE, partial(_batches, _with_other_value)),
    "refuses a codec": lambda: (PRODUCE, partial(_batches, _with_unknown_codec)),
    "sets timestamps": lambda: (CREATE_TOPICS, partial(_setting, "CreateTime", "LogAppendTime")),
    "compresses again": lambda: (CREATE_TOPICS, partial(_setting, "producer", "gzip")),
    "takes small batches": lambda: (CREATE_TOPICS, partial(_setting, "2147483647", "1048588")),
    "refuses old records": lambda: (CREATE_TOPICS, partial(_setting, "9223372036854775807", "3600000")),
    "keeps deleted topics": lambda: (DELETE_TOPICS, _ignored_deletion),
    "trims nothing": lambda: (DELETE_RECORDS, _no_trim),
    "writes markers twice": lambda: (MARKERS, partial(_markers, _twice)),
    "writes stale markers": lambda: (MARKERS, partial(_markers, _stale_ones)),
    "does not fence": lambda: (MARKERS, partial(_markers, _in_first_epoch)),
}
#: The same for answers.
MISTOLD: Mapping[str, Callable[[], tuple[int, Change]]] = {
    "reports another log end": lambda: (LIST_OFFSETS, _lower_end),
    "reuses topic ids": lambda: (METADATA, _SameIds()),
}


def weaken(wire: Wire, how: str) -> None:
    """Break one thing of the broker behind a wire."""
    if how in REWRITTEN:
        wire.rewrite(*REWRITTEN[how]())
    else:
        wire.lie(*MISTOLD[how]())
