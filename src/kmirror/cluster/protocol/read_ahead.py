"""Read one partition's log over several connections: which offsets to ask for, and in which order to take them. Pure.

Over a distance one request at a time leaves the path empty. So later parts of the log are asked for before earlier ones
have arrived, from guessed offsets: a fetch returns the batch that contains an offset, whole, or the next one. What two
responses both have is left out when the second is taken, what neither has is asked for again.

Responses are taken strictly in the order of offsets, and a guess proves less than a fetch that goes on where the last
batch ended and names its leader epoch: the log may have been replaced in between. So what was asked for by a guess is
taken only if its next batch is of the same leader epoch as the one before, because one leader writes one log. Otherwise
it is asked for again as usual. Anything else than batches proves nothing here and is left to the usual way, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kmirror.cluster.protocol.batch import BATCH_OVERHEAD, HEADER, LOG_OVERHEAD, MAGIC_POSITION

#: A path with a shorter round trip, in seconds, is filled by one connection.
LONG_ROUND_TRIP = 0.002
#: Batches of one kind differ by a record: this part of them is asked for in addition.
_SPREAD = 32
#: A guess that is not where a batch begins brings that batch twice, so it asks for at least so many.
_GUESSED_BATCHES = 4


class Covered(NamedTuple):
    """What the whole batches of a response cover: offsets up to `next_offset`, in `batches` with `size` bytes."""

    base_offset: int
    next_offset: int
    batches: int
    size: int
    #: True if all have as many offsets, and begin at a multiple of that after the first.
    is_even: bool


def covered(records: memoryview) -> Covered | None:
    """Return what the whole batches of format 2 cover, up to the first other one; None without any."""
    position, end = 0, len(records)
    unpack = HEADER.unpack_from
    batches = base_offset = next_offset = first = 0
    is_even = True
    while end - position >= BATCH_OVERHEAD:
        base, length, _, magic, _, _, delta, *_ = unpack(records, position)
        following = position + LOG_OVERHEAD + length
        if following > end or magic != 2 or length < BATCH_OVERHEAD - LOG_OVERHEAD:
            break
        is_even = is_even and (not batches or (base == next_offset and delta == first))
        if not batches:
            base_offset, first = base, delta
        next_offset = base + delta + 1
        batches += 1
        position = following
    return Covered(base_offset, next_offset, batches, position, is_even) if batches else None


def goes_on(records: memoryview, offset: int, leader_epoch: int | None) -> bool:
    """Return True if the first batch that ends after `offset` is of format 2 and of this leader epoch."""
    position, end = 0, len(records)
    while end - position >= BATCH_OVERHEAD and records[position + MAGIC_POSITION] == 2:
        base, length, epoch, _, _, _, delta, *_ = HEADER.unpack_from(records, position)
        if base + delta >= offset:
            return bool(epoch == leader_epoch)
        position += LOG_OVERHEAD + length
    return False


class Range:
    """Offsets that are asked for, or have arrived: from `offset` up to `until`, as expected until they have."""

    __slots__ = ("is_guess", "offset", "records", "response", "size", "until")

    def __init__(self, offset: int, until: int, max_bytes: int, *, is_guess: bool) -> None:
        self.offset = offset
        self.until = until
        #: The bytes asked for, or that have arrived.
        self.size = max_bytes
        #: True if it was not known yet that the batch before ends at `offset`, nor its leader epoch.
        self.is_guess = is_guess
        #: What has arrived; `response` is the caller's.
        self.records: memoryview | None = None
        self.response: Any = None

    @property
    def batches(self) -> memoryview:
        """What has arrived, of a range that `ReadAhead.take` returned."""
        if self.records is None:
            raise RuntimeError(f"{self!r} is not to be taken")
        return self.records

    def __repr__(self) -> str:
        return f"<Range {self.offset}–{self.until} {'asked for' if self.records is None else 'arrived'}>"


class ReadAhead:
    """The ranges of one partition between what is taken and what is not asked for yet.

    One request asks for about `request_bytes`, or for some batches if they are larger.
    """

    def __init__(self, request_bytes: int) -> None:
        self._request_bytes = request_bytes
        #: In the order of offsets; two of them may have the same batch.
        self.ranges: list[Range] = []
        #: Ranges that had arrived and are not needed, for the caller to release.
        self.dropped: list[Range] = []
        #: The bytes asked for, or arrived and not taken.
        self.held_bytes = 0
        #: The mean size of a batch, in bytes and offsets; None before the first response.
        self._batch_bytes: float | None = None
        self._batch_offsets = 1.0
        self._is_even = False

    def learn(self, found: Covered) -> None:
        """Learn the usual size of batches from a response."""
        offsets = max((found.next_offset - found.base_offset) / found.batches, 1.0)
        # a single batch says nothing, unless it is like the one before
        self._is_even = found.is_even and (found.batches > 1 or offsets == self._batch_offsets)
        self._batch_bytes, self._batch_offsets = found.size / found.batches, offsets

    @property
    def bytes_per_offset(self) -> float:
        """The mean size of an offset in bytes; 0 while it is unknown."""
        return 0.0 if self._batch_bytes is None else self._batch_bytes / self._batch_offsets

    def lacks(self, position: int) -> bool:
        """Return True if nothing that was asked for has what comes next at a position."""
        return not self.ranges or self.ranges[0].offset > position

    def ask(self, position: int, end: int) -> Range | None:
        """Return what to ask for next of the offsets from `position` to `end`; None if there is nothing."""
        if self._batch_bytes is None:
            return None
        start, place = position, 0
        while place < len(self.ranges) and self.ranges[place].offset <= start:
            start = max(start, self.ranges[place].until)
            place += 1
        limit = min(end, self.ranges[place].offset) if place < len(self.ranges) else end
        if start >= limit:
            return None
        is_guess = start != position
        least = _GUESSED_BATCHES if is_guess and not self._is_even else 1
        batches = max(least, round(self._request_bytes / self._batch_bytes))
        until = min(start + max(1, int(batches * self._batch_offsets)), limit)
        expected = (until - start) / self._batch_offsets * self._batch_bytes
        if not self._is_even or expected < self._batch_bytes:
            # a guess that is not where a batch begins also brings what that batch has before it
            expected += self._batch_bytes
            if not is_guess:
                until = min(until + max(1, int(self._batch_offsets)), limit)
        new = Range(start, until, int(expected * (1 + 1 / _SPREAD)) + 1, is_guess=is_guess)
        self.ranges.insert(place, new)
        self.held_bytes += new.size
        return new

    def arrived(self, one: Range, records: memoryview, response: object) -> bool:
        """Take the response to a request; return False if nothing in it is of use, and the range is given up."""
        found = covered(records) if one in self.ranges else None
        if found is None or found.next_offset <= one.offset:
            self.give_up(one)
            return False
        self.learn(found)
        self.held_bytes += found.size - one.size
        one.until, one.size = found.next_offset, found.size
        one.records, one.response = records[: found.size], response
        return True

    def give_up(self, one: Range) -> None:
        """Forget a range: what is missing is asked for again."""
        if one in self.ranges:
            self.ranges.remove(one)
            self.held_bytes -= one.size
            if one.records is not None:
                self.dropped.append(one)

    def take(self, position: int, leader_epoch: int | None) -> Range | None:
        """Remove and return the range to take at `position`, None if it has not arrived.

        `leader_epoch` is that of the batch before. What was asked for by a guess is given up if its next batch is of
        another: in between the log may have been replaced.
        """
        while self.ranges:
            first = self.ranges[0]
            if first.records is None or first.offset > position:
                return None
            if first.until <= position or (first.is_guess and not goes_on(first.records, position, leader_epoch)):
                self.give_up(first)
                continue
            self.ranges.remove(first)
            self.held_bytes -= first.size
            return first
        return None

    def clear(self) -> None:
        """Give up all ranges."""
        for one in list(self.ranges):
            self.give_up(one)
