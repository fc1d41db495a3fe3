"""Two logs that part somewhere, by a seed, and a search that is given to read them; which offset is right is known.

What each log says is decided offset by offset, and packed into batches afterwards, each log in its own way. So the
answer is found by looking at every offset.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.engine.histories.fork import Fork, find_fork
from kmirror.engine.histories.stretches import LogEnds, Section, Sections
from tests.support.histories import batch, marker, record
from tests.support.log_batches import ABORT, LogBatch, encode

#: What a log says of an offset: the name of the record it shows; or nothing for good; or nothing any more.
QUIET, HOLE = "quiet", "hole"

_ABORTED_PRODUCER = 3


class Readable(Protocol):
    """A log that a search is given to read."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def read(self, offset: int, max_bytes: int, end: int) -> Section: ...


def search(
    source: Readable, destination: Readable, section_bytes: int = 1, hint: int | None = None
) -> tuple[Fork, list[tuple[int | None, int | None]]]:
    """Search the fork; return it, and what was read for it: (destination, source)."""
    searching = find_fork(LogEnds(source.start, source.end, destination.start, destination.end), hint)
    reads: list[tuple[int | None, int | None]] = []
    end = min(source.end, destination.end)
    try:
        wanted = next(searching)
        while True:
            here, there = wanted
            reads.append((here, there))
            assert len(reads) < 1000, "it does not come to an end"
            wanted = searching.send(
                Sections(
                    None if here is None else destination.read(here, section_bytes, end),
                    None if there is None else source.read(there, section_bytes, end),
                )
            )
    except StopIteration as done:
        fork = done.value
        assert isinstance(fork, Fork)
        return fork, reads


class PackedLog:
    """A log with this content from offset `start` on, in batches of up to this many offsets, read in memory."""

    def __init__(self, says: Sequence[str], start: int, rng: random.Random, longest: int) -> None:
        self.start, self.end = start, start + len(says)
        self.says = dict(enumerate(says, start))
        self._aborted: list[tuple[int, int]] = []
        batches = _packed(self.says, rng, longest, self._aborted)
        self._ends = [stored.next_offset for stored in batches]
        self._bases = [stored.base_offset for stored in batches]
        self._bytes = [encode(stored) for stored in batches]

    def read(self, offset: int, max_bytes: int, end: int) -> Section:
        """Return whole batches from the one with `offset` on, at least one if there is any below `end`."""
        assert self.start <= offset < self.end, "out of range"
        data = b""
        for index in range(bisect.bisect_right(self._ends, offset), len(self._ends)):
            if self._bases[index] >= end or (data and len(data) + len(self._bytes[index]) > max_bytes):
                break
            data += self._bytes[index]
        aborted = [AbortedTransaction(_ABORTED_PRODUCER, first) for first, last in self._aborted if last >= offset]
        return Section(offset, memoryview(data), aborted[::-1], None if data else end)


def _packed(says: dict[int, str], rng: random.Random, longest: int, aborted: list[tuple[int, int]]) -> list[LogBatch]:
    batches: list[LogBatch] = []
    offset, end = min(says, default=0), max(says, default=-1) + 1
    while offset < end:
        if says[offset] == HOLE:
            offset += 1
            continue
        first, limit = offset, min(end, offset + rng.randint(1, longest))
        is_quiet = says[first] == QUIET
        while offset < limit and (says[offset] == QUIET if is_quiet else says[offset] != QUIET):
            offset += 1
        if not is_quiet:
            while says[offset - 1] == HOLE and rng.random() < 0.5:
                offset -= 1
            records = tuple(record(o, says[o]) for o in range(first, offset) if says[o] != HOLE)
            batches.append(batch(first, offset - first, records=records, codec=rng.choice(["none", "zstd"])))
        elif offset - first < 2 or rng.random() < 0.5:
            batches += [marker(o) for o in range(first, offset)]
        else:
            hidden = batch(first, offset - 1 - first, producer_id=_ABORTED_PRODUCER, producer_epoch=0, base_sequence=0)
            batches += [replace(hidden, transaction=1), marker(offset - 1, _ABORTED_PRODUCER, ABORT)]
            aborted.append((first, offset - 1))
    return batches


@dataclass(frozen=True)
class ForkedLogs:
    """Two logs, and what is to be found of them."""

    source: PackedLog
    destination: PackedLog
    fork: Fork

    @property
    def shared(self) -> range:
        """The offsets that both have."""
        low = max(self.source.start, self.destination.start)
        return range(low, max(low, min(self.source.end, self.destination.end)))


def what_is_right(source: PackedLog, destination: PackedLog) -> Fork:
    """Look at every offset."""
    low, high = max(source.start, destination.start), min(source.end, destination.end)
    agreed_at = None
    for offset in range(low, high):
        pair = source.says[offset], destination.says[offset]
        if HOLE in pair or pair == (QUIET, QUIET):
            continue
        if pair[0] != pair[1]:
            return Fork(offset, True, agreed_at)
        agreed_at = offset
    return Fork(max(low, high), False, agreed_at)


def forked_logs(seed: int, *, longest_log: int = 400, coincidences: float = 0.0) -> ForkedLogs:
    """Build the logs of this seed; behind the fork, that part of the records is the same in both."""
    rng = random.Random(seed)
    length = rng.randint(1, longest_log)
    fork = rng.choice([0, rng.randint(0, length), rng.randint(0, length), length])
    fork = length if rng.random() < 0.2 else fork
    ends = rng.choice([(length, length), (length, rng.randint(fork, length)), (rng.randint(fork, length), length)])
    shared = _written(rng, "s", fork)
    source = shared + _written(rng, "s", ends[0] - fork)
    destination = shared + [
        there if there != QUIET and rng.random() < coincidences else ours
        for there, ours in zip(
            [*source[fork:], *["-"] * length], _written(rng, "d", max(0, ends[1] - fork)), strict=False
        )
    ]
    logs = []
    for says in (source, destination):
        _clean(rng, says)
        start = rng.choice([0, 0, 0, rng.randint(0, len(says))])
        logs.append(PackedLog(says[start:], start, rng, rng.choice([1, 5, 60])))
    return ForkedLogs(logs[0], logs[1], what_is_right(*logs))


def _written(rng: random.Random, name: str, length: int) -> list[str]:
    """Return records, with runs of offsets that show nothing."""
    says = [name] * length
    for _ in range(rng.choice([0, 0, 1, 3, 20])):
        first = rng.randint(0, length)
        last = min(length, first + rng.choice([1, 3, 100]))
        says[first:last] = [QUIET] * (last - first)
    return says


def _clean(rng: random.Random, says: list[str]) -> None:
    """Make holes: none, single ones, long ones, or nearly everything up to somewhere."""
    end = rng.randint(0, len(says))
    left = rng.choice([1.0, 1.0, 0.9, 0.5, 0.1, 0.02])
    says[:end] = [one if rng.random() < left else HOLE for one in says[:end]]
    for _ in range(rng.choice([0, 0, 2])):
        first = rng.randint(0, len(says))
        last = min(len(says), first + rng.choice([10, 100]))
        says[first:last] = [HOLE] * (last - first)


class DenseLog:
    """A log of `end` records in batches of a hundred, made when they are read; rewritten from `fork` on.

    `start` and `end` may be changed: they may lie in batches.
    """

    def __init__(self, end: int, fork: int | None = None, batch_records: int = 100) -> None:
        self.start, self.end = 0, end
        self._stored_end = end
        self._fork = end if fork is None else fork
        self._batch_records = batch_records

    def read(self, offset: int, max_bytes: int, end: int) -> Section:
        """Return whole batches from the one with `offset` on, at least one."""
        assert self.start <= offset < self.end, "out of range"
        data, first = b"", offset // self._batch_records * self._batch_records
        while first < end and len(data) < max_bytes:
            last = min(first + self._batch_records, self._stored_end)
            data += _dense(first, last, min(max(first, self._fork), last))
            first = last
        return Section(offset, memoryview(data))


@lru_cache(maxsize=1 << 12)
def _dense(first: int, last: int, fork: int) -> bytes:
    records = tuple(record(o, "s" if o < fork else "d") for o in range(first, last))
    return encode(batch(first, last - first, records=records))
