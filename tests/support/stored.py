"""What brokers have on disk, read from their segment files by a reader of its own: the judge of every copy.

It knows the record batch layout from KIP-98 and shares no code with kmirror.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cramjam

from kmirror_sandbox.cluster import SandboxCluster

_MAX_TIMESTAMP = struct.Struct(">q")
#: How the framing of Java's snappy begins.
_XERIAL = b"\x82SNAPPY\x00"


class StoredBatch(NamedTuple):
    """One batch on disk; `content` is all that a mirror may not change (attributes to max timestamp, and records)."""

    base_offset: int
    last_offset: int
    record_count: int
    producer_id: int
    base_sequence: int
    content: bytes


def stored_batches(log_dir: Path, topic: str, partition: int) -> Iterator[StoredBatch]:
    """Read the batches of one replica in offset order."""
    for segment in sorted((log_dir / f"{topic}-{partition}").glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + 61 <= len(data):
            base_offset, length = struct.unpack_from(">qi", data, position)
            if length <= 0 or position + 12 + length > len(data):
                break  # the preallocated or half-written end of the active segment
            last_delta, producer_id = (
                struct.unpack_from(">i", data, position + 23)[0],
                *struct.unpack_from(">q", data, position + 43),
            )
            base_sequence, count = struct.unpack_from(">ii", data, position + 53)
            content = data[position + 21 : position + 43] + data[position + 57 : position + 12 + length]
            yield StoredBatch(base_offset, base_offset + last_delta, count, producer_id, base_sequence, content)
            position += 12 + length


def log_dir_of(cluster: SandboxCluster, node_id: int | None = None) -> Path:
    """Return the data folder of a node, by default the first."""
    brokers = cluster.brokers
    return next(b.log_dir for b in brokers if node_id in {None, b.node_id})


def records_of(batch: StoredBatch) -> list[tuple[int, int, bytes]]:
    """Read a batch's records: offset, timestamp, and the bytes of key, value and headers."""
    attributes, _, base_timestamp = struct.unpack_from(">hiq", batch.content)
    body = _plain(batch.content[26:], attributes & 7)
    found, position = [], 0
    for _ in range(batch.record_count):
        length, position = _varint(body, position)
        end = position + length
        timestamp, middle = _varint(body, position + 1)
        offset, begin = _varint(body, middle)
        found.append((batch.base_offset + offset, base_timestamp + timestamp, body[begin:end]))
        position = end
    assert position == len(body), "bytes are left behind the last record"
    return found


def _plain(section: bytes, codec: int) -> bytes:
    match codec:
        case 0:
            return section
        case 1:
            return gzip.decompress(section)
        case 2 if section.startswith(_XERIAL):
            blocks, position = [], 16
            while position < len(section):
                (length,) = struct.unpack_from(">i", section, position)
                blocks.append(bytes(cramjam.snappy.decompress_raw(section[position + 4 : position + 4 + length])))
                position += 4 + length
            return b"".join(blocks)
        case 2:
            return bytes(cramjam.snappy.decompress_raw(section))
        case 3:
            return bytes(cramjam.lz4.decompress(section))
        case _:
            return bytes(cramjam.zstd.decompress(section))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), position


def first_difference(
    source: Path, destination: Path, topic: str, partition: int, mirror_topic: str = "", *, same_batches: bool = False
) -> str | None:
    """Compare two replicas; None when they are equal in offsets and content, with no gap between.

    A batch of the copy may hold what several neighbours at the source do, unless these have to be `same_batches`.
    """
    ours = stored_batches(destination, mirror_topic or topic, partition)
    theirs = stored_batches(source, topic, partition)
    expected = 0
    for one in theirs:
        copy = next(ours, None)
        if copy is None:
            return f"{topic}-{partition}: the copy ends before offset {one.base_offset}"
        parts = [one]
        while not same_batches and parts[-1].last_offset < copy.last_offset and (more := next(theirs, None)):
            parts.append(more)
        first, last = one.base_offset, parts[-1].last_offset
        if (copy.base_offset, copy.last_offset) != (first, last):
            return (
                f"{topic}-{partition}: offsets {first}–{last} at the source, "
                f"{copy.base_offset}–{copy.last_offset} in the copy"
            )
        if copy.base_offset != expected:
            return f"{topic}-{partition}: expected offset {expected}, found {copy.base_offset}"
        if len(parts) == 1:
            is_same = copy.content == one.content
        else:
            attributes = {part.content[:2] for part in parts}
            records = [record for part in parts for record in records_of(part)]
            newest = max(_MAX_TIMESTAMP.unpack_from(part.content, 14) for part in parts)
            is_same = attributes == {copy.content[:2]} and records == records_of(copy)
            is_same = is_same and newest == _MAX_TIMESTAMP.unpack_from(copy.content, 14)
        if not is_same:
            return f"{topic}-{partition}: the batch at offset {copy.base_offset} differs"
        expected = copy.last_offset + 1
    extra = next(ours, None)
    return f"{topic}-{partition}: the copy has offset {extra.base_offset}, the source ends before" if extra else None
