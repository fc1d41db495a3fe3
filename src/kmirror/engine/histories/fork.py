"""Find where two logs fork: the first offset at which they contradict each other. Pure: a generator of reads.

`tails` defines what agrees, contradicts, or says nothing. Two logs of one history agree up to their fork and contradict
each other after it, so the fork is found by binary search: a probe reads both logs at one offset and compares
everything read, in order, up to the first contradiction. The first probes are at the hint, if there is one, and at the
end; the next ones go back from there at distances that grow sixteenfold, until something agrees. What remains between
the highest agreement and the lowest contradiction is finally read without gaps: the answer is exact.

Two logs of n offsets take about log2(n) probes, usually with one read of each log. Holes cost little: what one log
lacks is skipped in the other. If both are stored densely and show nothing (an aborted transaction here, the markers
that replace it there), the upper end of that range is searched, then its lower end, and finally it is read from end to
end; but only with 64 reads, after which there may be more: such an answer is not `is_exact`.

After a fork the logs may show the same record by coincidence. Nothing is concluded from fewer than eight records that
agree in a row, unless nothing was left out between them and an earlier conclusion (or eight reads found no more); but
every contradiction counts. So a coincidence misleads only if eight records in a row are the same and a probe hits
exactly those. The answer is then too high, never too low: still a contradiction, directly above records that agree,
but not the lowest one. If a history was written again identically, in whole or from some offset on, no fork can be seen
there, unless a hint leads to it.

A mirror's marker stands where its source showed nothing when it was copied. Each replica of a compacted source is
cleaned by its own broker, so a later leader may show a record there. A marker that contradicts a record is no fork if
eight records in a row agree above it.

A hint is only where to start: a wrong one costs two probes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.isolation import BatchKind
from kmirror.engine.histories.stretches import LogEnds, Read, Sections, Side, StoredBatch, Stretch, stretch_of

#: This many records that agree in a row are no coincidence.
_BELIEVED = 8
#: After this many reads a probe that found agreement accepts fewer.
_READS_PER_PROBE = 8
#: The most agreeing records a probe compares, once it has passed its target offset.
_ENOUGH = 1000
#: The factor by which the distances of the first probes from the end grow.
_FARTHER = 16
#: How many times both logs are read in order where neither shows a record.
_WALKED_READS = 64
_STRETCHES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Fork:
    """Where two logs fork.

    `offset` is the lowest at which they contradict each other. If `contradicts` is false no contradiction was found,
    and `offset` is where the shorter one ends. `agreed_at` is the highest offset below it at which both show the same
    record, None if there is none: nothing between the two can be compared, so its original content is unknown.
    `is_exact` is false if not everything between the two was compared.
    """

    offset: int
    contradicts: bool
    agreed_at: int | None
    is_exact: bool = True


Searching = Generator[Read, Sections, Fork]


def find_fork(ends: LogEnds, hint: int | None = None) -> Searching:
    """Search the offsets that both logs have; `hint` is where the fork may be, or a little above it.

    Hints are the end offset of a leader epoch (OffsetForLeaderEpoch, DivergingEpoch), or an offset that is known to
    differ. Yields what to read, is sent what was read, and returns the fork.

    Raises:
        DamagedLogError: a checksum does not match, or a batch cannot be read.
        UnsupportedFormatError: a batch of an unknown codec.
    """
    floor, agreed_at = 0, None
    while True:
        search = _Search(ends, hint, floor)
        fork = yield from search.run()
        agreed_at = agreed_at if fork.agreed_at is None else fork.agreed_at
        if search.ends_at_marker:
            above = _Search(ends, hint, fork.offset + 1, skips_markers=True)
            same = yield from above.run()
            if above.is_proved and same.agreed_at is not None:
                agreed_at, floor = same.agreed_at, same.agreed_at + 1
                continue
        return replace(fork, agreed_at=agreed_at)


class _Twin:
    """Represents the records of batches that are the same in both logs."""


_TWIN = _Twin()


class _Statement(NamedTuple):
    """What a log shows at the offsets from `start` to `end`: a record or batch, or None: certainly nothing."""

    start: int
    end: int
    shown: Record | _Twin | None
    records: int = 0
    is_marker: bool = False


class _Seen(NamedTuple):
    """The result of a comparison, from the bottom up to the first contradiction."""

    agreements: int
    agreed_at: int | None
    contradiction: int | None
    #: Everything below was compared.
    compared_to: int
    #: True if the contradiction is between a mirror's marker and a record.
    at_marker: bool = False


def _compare(
    ours: Iterable[StoredBatch],
    theirs: Iterable[StoredBatch],
    low: int,
    high: int,
    content_at: int | None,
    *,
    skips_markers: bool,
) -> _Seen:
    """Compare from `low` to `high`, up to a contradiction, or past `content_at` once enough has agreed."""
    known = {b.base_offset: b for b in theirs if b.shows_records and not b.header.has_holes}
    twins = {
        b.base_offset
        for b in ours
        if b.base_offset in known and b.next_offset <= high
        if b.shows_records and b.is_same_as(known[b.base_offset])
    }
    here, there = (_statements(side, low, high, twins, skips_markers=skips_markers) for side in (ours, theirs))
    agreements, agreed_at = 0, None
    a, b = next(here, None), next(there, None)
    while a and b:
        if a.end <= b.start or (a.shown is b.shown is None and a.end <= b.end):
            a = next(here, None)
        elif b.end <= a.start or a.shown is b.shown is None:
            b = next(there, None)
        elif a.shown != b.shown:
            offset = max(a.start, b.start)
            return _Seen(agreements, agreed_at, offset, offset, a.is_marker or b.is_marker)
        else:
            agreements, agreed_at = agreements + a.records, a.end - 1
            if content_at is not None and agreements >= _ENOUGH and a.end > content_at:
                return _Seen(agreements, agreed_at, None, a.end)
            a, b = next(here, None), next(there, None)
    return _Seen(agreements, agreed_at, None, high)


def _statements(
    batches: Iterable[StoredBatch], low: int, high: int, twins: Collection[int], *, skips_markers: bool
) -> Iterator[_Statement]:
    for batch in batches:
        if batch.next_offset <= low or batch.base_offset >= high:
            continue
        if batch.kind is not BatchKind.DATA:
            is_marker = batch.kind is BatchKind.CONTROL and not batch.is_foreign
            if not (is_marker and skips_markers):
                yield _Statement(max(batch.base_offset, low), min(batch.next_offset, high), None, 0, is_marker)
        elif batch.base_offset in twins:
            yield _Statement(batch.base_offset, batch.next_offset, _TWIN, batch.header.record_count)
        elif batch.shows_records:
            for record in batch.iter_records():
                if record.offset >= high:
                    return
                if record.offset >= low:
                    yield _Statement(record.offset, record.offset + 1, record, 1)


class _Search:
    """One search from an offset on. Everything is known below `_bottom`, and above `_known_from`, until these meet.

    If it `skips_markers`, those of mirrors count as holes.
    """

    def __init__(self, ends: LogEnds, hint: int | None, floor: int, *, skips_markers: bool = False) -> None:
        #: True if the fork that was found is a marker of a mirror against a record; and if enough was found to agree.
        self.ends_at_marker = self.is_proved = False
        self._skips_markers = skips_markers
        self._floor = max(ends.source_start, ends.destination_start, floor)
        self._end = max(self._floor, ends.shared_end)
        self._hint = hint
        self._known: dict[Side, list[Stretch]] = {"destination": [], "source": []}
        #: The lowest contradiction, or the end.
        self._high = self._end
        self._contradicts = False
        #: The highest offset at which the logs are believed to agree.
        self._agreed_at: int | None = None
        #: From there up to here, everything was compared and nothing agreed or contradicted.
        self._bottom = self._floor
        #: From here to `_high` everything was compared. Agreement in there is not believed by itself.
        self._known_from = self._end
        self._weakly_agreed_at: int | None = None
        #: A range where probes found nothing to compare, but which they did not read completely.
        self._silent = (self._end, self._end)
        self._walked = 0
        #: How many offsets the last read could compare.
        self._span = _BELIEVED
        self._distance = 0

    def run(self) -> Searching:
        """Probe until nothing remains between agreements and contradictions."""
        if self._hint is not None and self._floor < self._hint <= self._end:
            yield from self._probe(max(self._floor, self._hint - _BELIEVED))
            if not self._contradicts and self._bottom == self._hint < self._end:
                yield from self._probe(self._hint)
        if not self._contradicts and self._bottom < self._end:
            yield from self._probe(max(self._bottom, self._end - _BELIEVED))
        while self._bottom < self._known_from and self._walked < _WALKED_READS:
            yield from self._probe(self._next_offset())
        agreed_at = self._agreed_at if self._weakly_agreed_at is None else self._weakly_agreed_at
        return Fork(self._high, self._contradicts, agreed_at, self._bottom >= self._known_from)

    def _next_offset(self) -> int:
        bottom, (silent_from, silent_to) = self._bottom, self._silent
        is_above = silent_from < silent_to < self._known_from
        low, high = (silent_to, self._known_from) if is_above else (bottom, min(silent_from, self._known_from))
        left = high - low
        if not left:
            self._walked += 1
            return bottom
        if left <= self._span:
            return low
        if self._agreed_at is None and not is_above:
            self._distance = max(self._distance, self._span) * _FARTHER
            if self._distance < left:
                return high - self._distance
        return low + left // 2

    def _probe(self, target: int) -> Generator[Read, Sections, None]:
        """Compare from `target` on, until enough agrees, something contradicts, or there is nothing to compare."""
        bottom, high = self._bottom, self._high
        offset, begun = target, target
        agreements, agreed_at, reads = 0, None, 0
        while offset < high:
            ours, theirs = yield from self._stretches(offset)
            reads += 1
            low = max(ours.low, theirs.low, bottom) if reads == 1 else offset
            begun = min(begun, low)
            is_gapless = begun <= bottom
            top = min(ours.high, theirs.high, high)
            content_at = None if is_gapless else target
            seen = _compare(ours.batches, theirs.batches, low, top, content_at, skips_markers=self._skips_markers)
            agreements += seen.agreements
            agreed_at = agreed_at if seen.agreed_at is None else seen.agreed_at
            offset = min(_next_comparable(top, ours, theirs), high) if seen.compared_to == top else seen.compared_to
            self._span = max(1, offset - low)
            self.is_proved = self.is_proved or agreements >= _BELIEVED
            if seen.contradiction is not None:
                self.ends_at_marker = seen.at_marker
                self._note_contradiction(seen.contradiction, begun, agreed_at, agreements >= _BELIEVED)
                return
            if agreed_at is None:
                self._note_silence(begun, offset)
                return
            if is_gapless or agreements >= _BELIEVED or reads >= _READS_PER_PROBE:
                self._believe(agreed_at, offset)
                return
        self._known_from = min(self._known_from, begun)
        self._weakly_agreed_at = agreed_at
        self._clip_silence()

    def _note_silence(self, low: int, high: int) -> None:
        """Note that nothing can be compared from `low` to `high`."""
        if low <= self._bottom:
            self._bottom = high
        elif high >= self._known_from:
            self._known_from = low
        else:
            silent_from, silent_to = self._silent
            self._silent = (min(silent_from, low), max(silent_to, high) if silent_from < silent_to else high)
        self._clip_silence()

    def _clip_silence(self) -> None:
        """Clip the silent range to what is still between agreement and contradiction."""
        low, high = max(self._silent[0], self._bottom), min(self._silent[1], self._known_from)
        self._silent = (low, high) if low < high else (self._known_from, self._known_from)

    def _believe(self, agreed_at: int, compared_to: int) -> None:
        """Conclude that the logs are the same up to `agreed_at`, and say nothing from there to `compared_to`."""
        self._agreed_at, self._bottom = agreed_at, compared_to
        self._clip_silence()

    def _note_contradiction(self, offset: int, known_from: int, agreed_at: int | None, is_believed: bool) -> None:
        """Note a lowest contradiction at `offset`; from `known_from` up to it everything was compared."""
        self._high, self._contradicts = offset, True
        self._known_from, self._weakly_agreed_at = known_from, agreed_at
        self._clip_silence()
        if is_believed and agreed_at is not None:
            self._believe(agreed_at, offset)

    def _stretches(self, offset: int) -> Generator[Read, Sections, tuple[Stretch, Stretch]]:
        """Return what both logs have at `offset`, reading what is not known."""
        ours, theirs = self._at("destination", offset), self._at("source", offset)
        if not ours or not theirs:
            seen = yield Read(None if ours else offset, None if theirs else offset)
            ours = ours or self._keep("destination", seen)
            theirs = theirs or self._keep("source", seen)
        return ours, theirs

    def _at(self, side: Side, offset: int) -> Stretch | None:
        return next((known for known in self._known[side] if known.low <= offset < known.high), None)

    def _keep(self, side: Side, seen: Sections) -> Stretch:
        section = seen.destination if side == "destination" else seen.source
        if section is None:
            raise RuntimeError(f"the {side} was not read")
        stretch = stretch_of(side, section, self._end)
        self._known[side] = [*self._known[side], stretch][-_STRETCHES_KEPT:]
        return stretch


def _next_comparable(offset: int, *stretches: Stretch) -> int:
    """Return the next offset, from this one on, at which both logs may have something."""
    for stretch in stretches:
        if stretch.high > offset:
            offset = next((max(offset, b.base_offset) for b in stretch.batches if b.next_offset > offset), stretch.high)
    return offset
