"""Two logs with a common history, by a seed: a source, its copy, and what has happened to either since.

They are not logs of real brokers; they are input for comparing and judging. Their contents are known record by record,
and so is the right verdict.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from kmirror.cluster.protocol.batch import HEADER, batch_headers, set_producer
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.engine.clock import now_ms
from kmirror.engine.histories.stretches import LogEnds, Section, Sections
from kmirror.engine.histories.tails import TailFinding, compare_tails
from tests.support.log_batches import ABORT, COMMIT, LogBatch, VisibleRecord, control_record, encode

OWN_ID = (1 << 62) + 5
#: The producer id of another mirror.
OLD_ID = (1 << 62) + 99
FOREIGN_ID = 7_000
EPOCH_MS = 1_700_000_000_000
WHOLE = 1 << 20
_CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")


@lru_cache(maxsize=1 << 16)
def record(offset: int, name: str = "s", key: str = "k") -> VisibleRecord:
    """Make a record that names its writer."""
    return VisibleRecord(offset, EPOCH_MS + offset, key.encode(), f"{name}{offset}".encode(), (("h", b"x"),))


def batch(first: int, count: int = 1, name: str = "s", **fields: Any) -> LogBatch:
    """Make a dense batch of records that name their writer."""
    if "records" not in fields:
        fields["records"] = tuple(record(first + i, name) for i in range(count))
    last = first + count - 1
    return LogBatch(**{"base_offset": first, "last_offset": last, "max_timestamp": EPOCH_MS + last, **fields})


def marker(offset: int, producer_id: int = OWN_ID, what: str = COMMIT) -> LogBatch:
    """Make a control batch."""
    records = (control_record(offset, EPOCH_MS + offset, what, 0),)
    return LogBatch(offset, offset, records, EPOCH_MS + offset, producer_id=producer_id, transaction=-1, marker=what)


def without(stored: LogBatch, *offsets: int) -> LogBatch:
    """Return what compaction leaves of a batch when these records are removed."""
    return replace(stored, records=tuple(r for r in stored.records if r.offset not in offsets))


@dataclass
class Log:
    """A log that can be read as brokers let it be read. `visible` is the last stable offset; None: all is visible."""

    batches: list[LogBatch] = field(default_factory=list)
    start: int = 0
    end: int = -1
    visible: int | None = None
    #: Producer, first and last offset of each aborted transaction.
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    #: From which offset on which leader epoch.
    epochs: list[tuple[int, int]] = field(default_factory=list)
    filler_end: int = 0

    def __post_init__(self) -> None:
        if self.end < 0:
            self.end = max([self.start, self.filler_end, *(b.next_offset for b in self.batches)])

    @property
    def shown_end(self) -> int:
        return self.end if self.visible is None else self.visible

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch in which this offset was written."""
        return max((epoch for first, epoch in self.epochs if first <= offset), default=0)

    def read(self, offset: int, max_bytes: int, end: int) -> Section:
        """Return stored batches from the one with `offset` on: whole ones below `end`, then perhaps part of one."""
        assert self.start <= offset <= self.end, "out of range"
        data = b""
        if self.filler_end > offset:
            filler = memoryview(filler_batch(self.filler_end - self.start, now_ms(), base_offset=self.start))
            data = stored_by(bytes(filler), OWN_ID)
        for stored in self.batches:
            if stored.next_offset > offset and stored.base_offset < end:
                if data and len(data) >= max_bytes:
                    break
                data += _encoded(stored, self.epoch_of(stored.base_offset))
        overlapping = [AbortedTransaction(p, low) for p, low, high in self.aborted if high >= offset and low < end]
        # messages of an old format are batches of their own
        begins = next((h.position for h in batch_headers(memoryview(data)) if h.next_offset > offset), 0)
        read = memoryview(data)[begins:]
        read = read[: max(max_bytes, _first_size(bytes(read[:12])))]
        return Section(offset, read, overlapping[::-1], None if data else max(end, offset + 1))

    def shown(self) -> dict[int, VisibleRecord]:
        """Return what a read_committed consumer is shown, by offset."""
        return {
            r.offset: r
            for b in self.batches
            if b.marker is None and not self.is_aborted(b)
            for r in b.visible
            if self.start <= r.offset < self.shown_end
        }

    def silent(self) -> set[int]:
        """Return the offsets at which nothing is ever shown."""
        quiet = [b for b in self.batches if b.marker is not None or self.is_aborted(b)]
        return {o for b in quiet for o in range(b.base_offset, b.next_offset) if self.start <= o < self.shown_end}

    def is_aborted(self, stored: LogBatch) -> bool:
        """Return whether a batch belongs to an aborted transaction."""
        return stored.transaction is not None and any(
            stored.producer_id == producer and first <= stored.base_offset <= last
            for producer, first, last in self.aborted
        )


_encoded = lru_cache(maxsize=None)(encode)


def _first_size(data: bytes) -> int:
    return 12 + int.from_bytes(data[8:12]) if data else 0


def stored_by(data: bytes, producer_id: int) -> bytes:
    """Return one batch as it is stored when this producer appended it."""
    changed = bytearray(data)
    base_offset = HEADER.unpack_from(changed)[0]
    set_producer(memoryview(changed), producer_id, 0, base_offset & 0x7FFFFFFF)
    changed[:8] = base_offset.to_bytes(8)
    return bytes(changed)


def compare(
    source: Log,
    destination: Log,
    section_bytes: int = WHOLE,
    producer_id: int = OWN_ID,
    holes_from: int | None = None,
) -> tuple[TailFinding, list[tuple[int | None, int | None]]]:
    """Compare the ends of two logs; return what was found, and what was read for it: (destination, source)."""
    ends = LogEnds(source.start, source.shown_end, destination.start, destination.end)
    reads: list[tuple[int | None, int | None]] = []
    comparing = compare_tails(ends, producer_id, holes_from)
    try:
        wanted = next(comparing)
        while True:
            here, there = wanted
            reads.append((here, there))
            assert len(reads) < 200, "it does not come to an end"
            wanted = comparing.send(
                Sections(
                    None if here is None else destination.read(here, section_bytes, destination.end),
                    None if there is None else source.read(there, section_bytes, source.shown_end),
                )
            )
    except StopIteration as done:
        finding = done.value
        assert isinstance(finding, TailFinding)
        return finding, reads


# -- histories by a seed -----------------------------------------------------------------------------------------------


@dataclass
class History:
    """A source and a destination, and what happened to them.

    `last_sequence` is what the destination's leader remembers of us; `copied_end` is where our own copy ended.
    """

    source: Log
    destination: Log
    last_sequence: int | None
    copied_end: int
    happened: set[str]

    def evidence(self) -> Mapping[int, bool]:
        """Return by offset whether the logs agree; offsets without evidence are omitted."""
        ours, theirs = self.destination.shown(), self.source.shown()
        quiet_here, quiet_there = self.destination.silent(), self.source.silent()
        low = max(self.source.start, self.destination.start)
        high = min(self.source.shown_end, self.destination.end)
        said = {}
        for offset in range(low, high):
            if offset in ours and offset in theirs:
                said[offset] = ours[offset] == theirs[offset]
            elif (offset in ours and offset in quiet_there) or (offset in theirs and offset in quiet_here):
                said[offset] = False
        return said


class _Writer:
    """Write a source log of all kinds of batches."""

    def __init__(self, rng: random.Random, log: Log, name: str) -> None:
        self.rng, self.log, self.name = rng, log, name
        self.open: dict[int, int] = {}
        #: First and last offset of each transaction that has ended.
        self.ended: list[tuple[int, int]] = []

    def write(self, steps: int) -> None:
        for _ in range(steps):
            rng, producer = self.rng, self.rng.randrange(1000, 1003)
            if producer in self.open and rng.random() < 0.4:
                self.finish(producer)
            elif rng.random() < 0.35:
                self.open.setdefault(producer, self.log.end)
                self.data(producer)
            else:
                self.data(None)

    def data(self, producer: int | None) -> None:
        rng, first = self.rng, self.log.end
        count = rng.choice([1, 1, 2, 3, 6])
        records = tuple(record(first + i, self.name, f"key{rng.randrange(6)}") for i in range(count))
        stored = LogBatch(first, first + count - 1, records, records[-1].timestamp, codec=rng.choice(_CODECS))
        if producer is not None:
            stored = replace(stored, producer_id=producer, producer_epoch=0, base_sequence=0, transaction=1)
        elif rng.random() < 0.2:
            stored = replace(stored, append_time=EPOCH_MS + 77)
        self.log.batches.append(stored)
        self.log.end = stored.next_offset

    def finish(self, producer: int) -> None:
        first = self.open.pop(producer)
        self.ended.append((first, self.log.end))
        what = self.rng.choice([COMMIT, ABORT])
        if what == ABORT:
            self.log.aborted.append((producer, first, self.log.end))
        self.log.batches.append(marker(self.log.end, producer, what))
        self.log.end += 1

    def settle(self, rng: random.Random) -> None:
        """End most transactions; an open one hides the rest."""
        for producer in list(self.open):
            if rng.random() < 0.8:
                self.finish(producer)
        self.log.visible = min([self.log.end, *self.open.values()])

    def fork(self, rng: random.Random) -> int:
        """Go back to an offset at which no transaction was open, and write another history from there."""
        log = self.log
        spans = [*self.ended, *((first, log.end) for first in self.open.values())]
        boundaries = [log.end, *(b.base_offset for b in log.batches if b.base_offset >= log.start)]
        fork = rng.choice([o for o in boundaries if not any(first < o <= last for first, last in spans)] or [log.start])
        log.batches = [b for b in log.batches if b.next_offset <= fork]
        log.aborted = [one for one in log.aborted if one[2] < fork]
        log.end, self.name = fork, "forked"
        log.epochs.append((fork, 1))
        self.open.clear()
        self.ended = [span for span in self.ended if span[1] < fork]
        return fork


def copied(source: Log, end: int, rng: random.Random, producer_id: int = OWN_ID) -> tuple[Log, int]:
    """Copy the source as it is now up to `end`; return the copy and its last sequence number."""
    shown = source.shown()
    log, offset, sequence = Log([], source.start), source.start, -1
    while offset < end:
        if offset not in shown:
            log.batches.append(marker(offset, producer_id))
            offset += 1
            continue
        last = offset
        longest = rng.choice([1, 2, 100])
        while last + 1 in shown and last + 1 < end and last + 1 - offset < longest:
            last += 1
        records = tuple(shown[o] for o in range(offset, last + 1))
        latest = max(r.timestamp for r in records)
        log.batches.append(LogBatch(offset, last, records, latest, codec=rng.choice(_CODECS), producer_id=producer_id))
        sequence += len(records)
        offset = last + 1
    log.end = end
    return log, sequence


def clean(log: Log, rng: random.Random) -> None:
    """Remove records that later ones of their key supersede, and markers; the last batch stays."""
    latest = {r.key: r.offset for b in log.batches for r in b.records if b.marker is None}
    end = rng.randrange(log.end + 1)
    kept: list[LogBatch] = []
    for stored in log.batches:
        if stored.next_offset > end or stored is log.batches[-1]:
            kept.append(stored)
        elif stored.marker is None:
            left = without(stored, *(r.offset for r in stored.records if latest[r.key] != r.offset))
            if left.records or rng.random() < 0.2:
                kept.append(left)
        elif stored.marker == ABORT or rng.random() < 0.5:
            kept.append(stored)
    log.batches = kept


def _foreign(log: Log, rng: random.Random) -> None:
    """Append what another client might."""
    kind = rng.choice(["plain", "idempotent", "transactional"])
    producer_id = -1 if kind == "plain" else FOREIGN_ID
    for _ in range(rng.randrange(1, 3)):
        written = batch(log.end, rng.randrange(1, 4), "foreign", producer_id=producer_id)
        if kind == "transactional":
            written = replace(written, transaction=1)
        log.batches.append(written)
        log.end = written.next_offset
    if kind == "transactional":
        log.batches.append(marker(log.end, FOREIGN_ID))
        log.end += 1


def build(seed: int) -> History:
    """Build the history of this seed."""
    rng = random.Random(seed)
    happened: set[str] = set()

    def happens(what: str, probability: float) -> bool:
        if rng.random() < probability:
            happened.add(what)
        return what in happened

    source = Log(end=0)
    writer = _Writer(rng, source, "s")
    writer.write(rng.randrange(0, 25))
    writer.settle(rng)
    if happens("source cleaned before", 0.3):
        clean(source, rng)
    if happens("source trimmed before", 0.2):
        source.start = rng.randrange(source.shown_end + 1)
    destination, last_sequence = copied(
        source,
        rng.randrange(source.start, source.shown_end + 1),
        rng,
        FOREIGN_ID + 1 if happens("adopted", 0.15) else OWN_ID,
    )
    if source.start > 0 and happens("still filling", 0.5):
        done = rng.randrange(source.start + 1)
        destination, last_sequence = Log(end=done, filler_end=done), done - 1
    if happens("source grew", 0.7):
        writer.write(rng.randrange(1, 25))
    writer.settle(rng)
    copied_end = destination.end
    if happens("source forked", 0.2):
        fork = writer.fork(rng)
        writer.write(rng.randrange(20))
        writer.settle(rng)
        if fork >= copied_end:
            happened.discard("source forked")
    if happens("foreign", 0.2):
        _foreign(destination, rng)
    elif "still filling" not in happened and happens("tail lost", 0.15):
        destination.end = rng.choice([destination.end, *(b.base_offset for b in destination.batches)])
        destination.batches = [b for b in destination.batches if b.next_offset <= destination.end]
        last_sequence = sum(len(b.records) for b in destination.batches if b.marker is None) - 1
    if "still filling" not in happened:
        if happens("source cleaned", 0.3):
            clean(source, rng)
        if happens("destination cleaned", 0.3) and destination.batches:
            clean(destination, rng)
        if happens("destination trimmed", 0.2):
            destination.start = rng.randrange(destination.start, destination.end + 1)
    if happens("source trimmed", 0.2):
        source.start = rng.randrange(source.start, source.shown_end + 1)
    if happens("hidden", 0.15):
        source.visible = rng.randrange(source.start, source.shown_end + 1)
    forgotten = happens("forgotten", 0.3) or "adopted" in happened
    return History(source, destination, None if forgotten else last_sequence, copied_end, happened)
