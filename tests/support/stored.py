"""What brokers have on disk, read from their segment files by a reader of its own: the judge of every copy.

It knows the record batch layout from KIP-98 and shares no code with kmirror.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kmirror.sandbox.cluster import SandboxCluster


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


def first_difference(source: Path, destination: Path, topic: str, partition: int, mirror_topic: str = "") -> str | None:
    """Compare two replicas batch by batch; None when they are equal in offsets and content, with no gap between."""
    ours = stored_batches(destination, mirror_topic or topic, partition)
    expected = 0
    for theirs in stored_batches(source, topic, partition):
        copy = next(ours, None)
        if copy is None:
            return f"{topic}-{partition}: the copy ends before offset {theirs.base_offset}"
        if (copy.base_offset, copy.last_offset) != (theirs.base_offset, theirs.last_offset):
            return (
                f"{topic}-{partition}: offsets {theirs.base_offset}–{theirs.last_offset} at the source, "
                f"{copy.base_offset}–{copy.last_offset} in the copy"
            )
        if copy.base_offset != expected:
            return f"{topic}-{partition}: expected offset {expected}, found {copy.base_offset}"
        if copy.content != theirs.content:
            return f"{topic}-{partition}: the batch at offset {copy.base_offset} differs"
        expected = copy.last_offset + 1
    extra = next(ours, None)
    return f"{topic}-{partition}: the copy has offset {extra.base_offset}, the source ends before" if extra else None
