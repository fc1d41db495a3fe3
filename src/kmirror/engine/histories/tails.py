"""Compare the tails of two logs by what consumers see of them. Pure: a generator of reads.

The copy of a log need not have the same batches: holes, markers and aborted records of the source are our markers in
the destination, batches with holes were rebuilt, and both sides are compacted independently. What consumers see must
agree. At one offset a log shows a record, or certainly shows none (a marker, a record of an aborted transaction), or
has a hole: compaction has removed what was there. Two logs

* agree where both show the same record;
* contradict each other where both show records that differ, or one shows a record and the other certainly none;
* say nothing about each other where one has a hole, or neither shows a record.

Our own markers may be taken for holes from an offset on: where it is proved that the source's log is still the one that
was copied, a record of the source at such a marker is one that another replica's cleaner had removed.

The destination is read backwards from its end, at distances that double, and the source at the same offsets, until the
first stretch where they agree or contradict each other. Usually that is one read of each.

Two things are found on the way. A log of nothing but our filler is still being filled up to its start; if other batches
precede or follow it, what looks like filler is a copied record, or filler that is back after it was trimmed. And
records of another writer where the source has holes, or shows nothing yet, may never have been copied. The first
records below them that agree decide: those of a mirror contradict them, because the later writer was no mirror; those
of another writer excuse them, because then the log was adopted with them in it. If nothing below them agrees, this
stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.filler import is_filler
from kmirror.cluster.protocol.isolation import BatchKind
from kmirror.engine.histories.filler_end import find_filler_end
from kmirror.engine.histories.judge import TailMatch
from kmirror.engine.histories.stretches import LogEnds, Read, Sections, Side, StoredBatch, Stretch, stretch_of

#: How many stretches of each log are kept: the last one read, and one that it may have to be compared with.
_STRETCHES_KEPT = 2


@dataclass(frozen=True, slots=True)
class TailFinding:
    """How the tails compare; the fields as in `judge.Facts`."""

    tail: TailMatch = TailMatch.NOTHING
    epoch: int | None = None
    producer_id: int | None = None
    differs_at: int | None = None
    only_filler: bool = False
    unproven: bool = False
    compared_from: int = field(default=0, compare=False)  # not what was found, but how far was looked


Comparing = Generator[Read, Sections, TailFinding]


def compare_tails(ends: LogEnds, producer_id: int, holes_from: int | None = None) -> Comparing:
    """Compare the records before `ends.destination_end`; `producer_id` is ours there.

    From `holes_from` on, our markers count as holes. Yields what to read, is sent what was read, and returns the
    finding.

    Raises:
        DamagedLogError: a checksum does not match, or a batch cannot be read.
        UnsupportedFormatError: a batch of an unknown codec.
    """
    return (yield from _TailWalk(ends, producer_id, holes_from).run())


class _Compared(NamedTuple):
    """The result of comparing one stretch of both logs: offsets, with the destination's batch there."""

    contradiction: tuple[int, int] | None
    agreement: tuple[int, StoredBatch] | None
    #: Offsets of records of another writer at holes of the source.
    foreign: list[int]


def _compare(
    ours: Iterable[StoredBatch],
    theirs: Iterable[StoredBatch],
    low: int,
    high: int,
    is_hole: Callable[[StoredBatch], bool],
) -> _Compared:
    """Compare what both logs show from `low` to `high`."""
    twins = {batch.base_offset: batch for batch in theirs if batch.shows_records}
    agreement: tuple[int, StoredBatch] | None = None
    others: list[StoredBatch] = []
    for batch in ours:
        twin = twins.get(batch.base_offset) if batch.shows_records else None
        if twin and low <= batch.base_offset and batch.next_offset <= high and batch.is_same_as(twin):
            agreement = batch.next_offset - 1, batch
            del twins[batch.base_offset]
        else:
            others.append(batch)
    here, there = _records_of(others, low, high), _records_of(twins.values(), low, high)
    silent_here = _silent((batch for batch in others if not is_hole(batch)), low, high)
    silent_there = _silent(theirs, low, high)
    contradictions = [(offset, silent_here[offset]) for offset in there if offset in silent_here]
    foreign = []
    for offset, (record, batch) in here.items():
        if offset in there:
            if record != there[offset][0]:
                contradictions.append((offset, batch))
            elif agreement is None or offset > agreement[0]:
                agreement = offset, batch
        elif offset in silent_there:
            contradictions.append((offset, batch))
        elif batch.is_foreign:
            foreign.append(offset)
    first = min(((offset, batch.producer_id) for offset, batch in contradictions), default=None)
    return _Compared(first, agreement, foreign)


def _records_of(batches: Iterable[StoredBatch], low: int, high: int) -> dict[int, tuple[Record, StoredBatch]]:
    return {
        record.offset: (record, batch)
        for batch in batches
        if batch.shows_records
        for record in batch.records()
        if low <= record.offset < high
    }


def _silent(batches: Iterable[StoredBatch], low: int, high: int) -> dict[int, StoredBatch]:
    """Return the offsets at which certainly no record is shown."""
    return {
        offset: batch
        for batch in batches
        if batch.kind is not BatchKind.DATA
        for offset in range(max(batch.base_offset, low), min(batch.next_offset, high))
    }


class _TailWalk:
    """One walk backwards from the destination's end."""

    def __init__(self, ends: LogEnds, producer_id: int, holes_from: int | None) -> None:
        self._ends = ends
        self._producer_id = producer_id
        self._holes_from = ends.destination_end if holes_from is None else holes_from
        #: From here on everything was read: greater distances leave something out.
        self._compared_from = ends.destination_end
        #: The range that can be compared.
        self._floor = max(ends.source_start, ends.destination_start)
        self._top = ends.shared_end
        self._source: list[Stretch] = []
        self._destination: list[Stretch] = []
        self._last: StoredBatch | None = None
        #: Leader epoch of the source batch with the last offset: that of an earlier batch may be too low.
        self._epoch: int | None = None
        #: True once a record of the destination was read.
        self._has_data = False
        #: The lowest offset so far with an unconfirmed record of another writer.
        self._foreign_at: int | None = None
        self._foreign_producer_id: int | None = None

    def run(self) -> Comparing:
        """Walk until there is a finding."""
        start, end = self._ends.destination_start, self._ends.destination_end
        if start >= end:
            return TailFinding()
        self._note((yield Read(end - 1, end - 1 if self._floor < self._top == end else None)))
        stretch = self._destination[-1]
        self._last = stretch.batches[-1] if stretch.batches else None
        low, distance = end, 1
        while True:
            batches = [batch for batch in stretch.batches if batch.base_offset < low]
            if stretch.high >= low == self._compared_from:
                self._compared_from = min(low, stretch.low)
            found = (yield from self._compare_skipped(stretch.high, low)) or (
                yield from self._compare_batches(batches, low)
            )
            if found:
                return found
            low = min(low, stretch.low)
            is_comparing = self._floor < min(low, self._top)
            target = self._floor if is_comparing else low if self._has_data else start
            if low <= target:
                return self._finding(TailMatch.NOTHING, unproven=self._foreign_at is not None)
            while end - distance >= low:
                distance *= 2
            offset = max(end - distance, target)
            self._note((yield Read(offset, offset if is_comparing and offset < self._top else None)))
            stretch = self._destination[-1]

    def _note(self, seen: Sections) -> None:
        """Keep what was read; older stretches are dropped."""
        if seen.destination is not None:
            self._destination.append(stretch_of("destination", seen.destination, self._ends.destination_end))
            del self._destination[:-_STRETCHES_KEPT]
        if seen.source is not None:
            self._source.append(stretch_of("source", seen.source, self._top))
            del self._source[:-_STRETCHES_KEPT]
            last = self._ends.destination_end - 1
            for batch in self._source[-1].batches:
                if batch.base_offset <= last < batch.next_offset:
                    epoch = batch.header.partition_leader_epoch
                    self._epoch = epoch if epoch >= 0 else None

    def _covering(self, side: Side, low: int, high: int) -> Generator[Read, Sections, list[StoredBatch]]:
        """Return one side's batches with offsets from `low` to `high`, reading what is not known."""
        known = self._source if side == "source" else self._destination
        batches: list[StoredBatch] = []
        offset = low
        while offset < high:
            stretch = next((s for s in known if s.low <= offset < s.high), None)
            if stretch is None:
                self._note((yield Read(None, offset) if side == "source" else Read(offset, None)))
                stretch = known[-1]
            batches += [batch for batch in stretch.batches if batch.next_offset > offset]
            offset = stretch.high
        return batches

    def _is_hole(self, batch: StoredBatch) -> bool:
        is_ours = batch.kind is BatchKind.CONTROL and batch.producer_id == self._producer_id
        return is_ours and batch.base_offset >= self._holes_from

    def _is_filler(self, batches: Iterable[StoredBatch]) -> bool:
        """Return True if the last records in these batches are our filler."""
        newest = [batch for batch in batches if batch.shows_records][-1:]
        return any(batch.producer_id == self._producer_id and is_filler(batch.data) for batch in newest)

    def _compare_skipped(self, low: int, high: int) -> Generator[Read, Sections, TailFinding | None]:
        """Compare at a record of the source between two stretches of the destination, whose log may be much shorter."""
        if low >= high:
            return None
        offsets = [
            record.offset
            for stretch in self._source
            for batch in stretch.batches
            if batch.shows_records and batch.base_offset < high and batch.next_offset > low
            for record in batch.records()
            if max(low, self._floor) <= record.offset < high
        ]
        if not offsets:
            return None
        self._note((yield Read(max(offsets), None)))
        return (
            yield from self._compare_batches([b for b in self._destination[-1].batches if b.base_offset < high], high)
        )

    def _compare_batches(
        self, batches: Sequence[StoredBatch], below: int
    ) -> Generator[Read, Sections, TailFinding | None]:
        """Compare these batches of the destination up to `below`."""
        for batch in batches:
            if batch.shows_records and batch.is_foreign and batch.next_offset > self._top:
                self._note_foreign(max(batch.base_offset, self._top), batch)
        low = max(batches[0].base_offset, self._floor) if batches else below
        high = min(batches[-1].next_offset, below, self._top) if batches else below
        compared = _Compared(None, None, [])
        if low < high:
            theirs = yield from self._covering("source", low, high)
            compared = _compare(batches, theirs, low, high, self._is_hole)
        if compared.agreement is None and not self._has_data and self._is_filler(batches):
            start, end = self._ends.destination_start, self._ends.destination_end
            if (yield from find_filler_end(start, end, self._producer_id)) == end:
                return self._finding(TailMatch.NOTHING, only_filler=True)
        self._has_data = self._has_data or any(batch.shows_records for batch in batches)
        if compared.contradiction:
            differs_at, producer_id = compared.contradiction
            return self._finding(TailMatch.DIFFERENT, differs_at=differs_at, producer_id=producer_id)
        agreed_at = compared.agreement[0] if compared.agreement else -1
        for offset in compared.foreign:
            if offset > agreed_at:
                batch = next(batch for batch in batches if batch.base_offset <= offset < batch.next_offset)
                self._note_foreign(offset, batch)
        if compared.agreement is None:
            return None
        if self._foreign_at is not None and not compared.agreement[1].is_foreign:
            return self._finding(
                TailMatch.DIFFERENT, differs_at=self._foreign_at, producer_id=self._foreign_producer_id
            )
        return self._finding(TailMatch.SAME)

    def _note_foreign(self, offset: int, batch: StoredBatch) -> None:
        if self._foreign_at is None or offset < self._foreign_at:
            self._foreign_at, self._foreign_producer_id = offset, batch.producer_id

    def _finding(
        self,
        tail: TailMatch,
        *,
        differs_at: int | None = None,
        producer_id: int | None = None,
        only_filler: bool = False,
        unproven: bool = False,
    ) -> TailFinding:
        if producer_id is None and self._last is not None:
            producer_id = self._last.producer_id
        compared_from = max(self._compared_from, self._floor)
        return TailFinding(tail, self._epoch, producer_id, differs_at, only_filler, unproven, compared_from)
