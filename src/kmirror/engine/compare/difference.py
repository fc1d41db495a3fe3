"""The results of comparing two logs: plain data that identifies records without their content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from kmirror.cluster.protocol.batch_records import Record


class DifferenceKind(StrEnum):
    """What differs."""

    CONTENT = "CONTENT"
    #: The destination lacks a record.
    MISSING = "MISSING"
    #: The source lacks a record.
    EXTRA = "EXTRA"
    #: The destination ends where the source continues.
    MISSING_TAIL = "MISSING_TAIL"
    #: The source ends where the destination continues.
    EXTRA_TAIL = "EXTRA_TAIL"
    CORRUPT = "CORRUPT"
    #: The destination shows filler, which kmirror writes below a log start and deletes before anyone reads it.
    FILLER = "FILLER"


class RecordSummary(NamedTuple):
    """Identifies a record; `checksum` covers key, value and headers (blake2b, hexadecimal)."""

    offset: int
    timestamp: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first offset at which two logs differ; `what` is a sentence; a side without a record there is None."""

    offset: int
    kind: DifferenceKind
    what: str
    source: RecordSummary | None
    destination: RecordSummary | None


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The result of comparing the offsets from `start` to `end` (exclusive).

    `records` and `size_in_bytes` (as the source stores them) count what was compared. `obstacle` says why the
    comparison could not be completed.
    """

    start: int
    end: int
    records: int
    size_in_bytes: int
    first_difference: Difference | None = None
    obstacle: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True when everything was compared and nothing differs."""
        return self.first_difference is None and self.obstacle is None


def summary_of(record: Record) -> RecordSummary:
    """Return the summary of a record."""
    digest = blake2b(digest_size=16)
    parts = [record.key, record.value]
    for name, value in record.headers:
        parts += name.encode(errors="surrogateescape"), value
    for part in parts:
        digest.update(b"\0" if part is None else b"\1" + len(part).to_bytes(4) + part)
    return RecordSummary(record.offset, record.timestamp, digest.hexdigest())


def what_differs(source: Record, destination: Record) -> str | None:
    """Return a sentence on how two records at the same offset differ; None if they are equal."""
    if source == destination:
        return None
    parts = [name for name in ("key", "value", "headers") if getattr(source, name) != getattr(destination, name)]
    verb = "differs" if parts in (["key"], ["value"]) else "differ"
    sentences = [f"{' and '.join(parts)} {verb}"] if parts else []
    if source.timestamp != destination.timestamp:
        times = f"{source.timestamp} at the source, {destination.timestamp} at the destination"
        sentences.append(f"the timestamp is {times}")
    return "; ".join(sentences)


def retention_note(source_start: int, destination_start: int) -> str:
    """Return the note on what is not compared because one log starts later than the other."""
    side = "source" if source_start > destination_start else "destination"
    low, high = sorted((source_start, destination_start))
    return f"offsets {low} to {high - 1} were not compared: the {side}'s log starts at {high}"
