"""Over how many connections a lane talks to one broker: as many as a long path has use for.

A connection carries at most its window each round trip, and that window may be small: the smaller of both ends' buffers
bounds it, and a stock broker's are 100 KB (`socket.send.buffer.bytes`, `socket.receive.buffer.bytes`), whatever is
asked for. More connections carry more, each its share, up to what the path or the machines can carry. Where that is
shows only when it is tried: while there is more to carry than the connections take, their number is doubled, and again
once the added ones have brought at least half of what as many brought before. If they do not, only as many are kept as
it takes, and the next attempt waits.

There are fewer when each brings less than half of what it did, when the broker throttles or accepts no more, and when
what there is to carry leaves room on them. Over a short path there is one: what waits there waits for the broker. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP

#: How many round trips a rate is measured for; at least as many seconds.
_MEASURED, _LEAST_MEASURED_SECONDS = 4, 0.4
#: How long added connections have to bring their share, which begins slowly: seconds, and round trips in addition.
_STARTING_SECONDS, _STARTING = 1.0, 12
#: Connections that take longer to open than this, in seconds, are not waited for.
_LONGEST_OPENING = 5.0
#: The part of what a connection brought before that an added one has to bring, and below which there are too many.
_SHARE = 0.5
#: Less than this, as a factor, is no gain.
_GAIN = 1.1
#: The pause after an attempt that brought nothing, in seconds; it doubles up to the second.
_PAUSE, _LONGEST_PAUSE = 30.0, 600.0
#: How long no others are tried after connections were refused, in seconds.
_REFUSED_SECONDS = 60.0
#: While the broker throttles there are half as many after so many seconds; it averages over about ten.
_THROTTLED_SECONDS = 10.0
#: After so many seconds with room on the connections there are half as many, after so many with nothing to carry the
#: first.
_UNUSED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """More connections, while it is not known yet what they bring: the number and rate before, and since when."""

    number: int
    rate: float
    since: float


class Breadth:
    """Decide the number of connections; times are in seconds.

    `limit` is the most allowed, at least 1; it begins with `first` of them, and keeps those while nothing is carried.
    """

    def __init__(self, limit: int, round_trip: float, *, first: int = 1) -> None:
        self.limit = limit
        self.round_trip = round_trip
        self._first = self._wanted = first
        #: The rate in bytes per second when it was last measured while the connections were the limit; 0 before.
        self.rate = 0.0
        #: Since when the rate is measured, what had been carried by then, and how long the connections were the limit.
        self._since = self._ticked_at = -inf
        self._bytes_before = self._bytes = 0
        self._limit_seconds = 0.0
        #: When the number was changed, when the connections were last the limit, and when they last carried something.
        self._changed_at = self._limit_at = self._carried_at = -inf
        self._attempt: _Attempt | None = None
        #: What each connection brought when their number was last found right; None if it has not been.
        self._share: float | None = None
        self._was_slow = False
        self._pause_until = -inf
        self._pause = _PAUSE
        #: Until when none are to be opened, because some were refused.
        self.refused_until = -inf

    @property
    def is_long(self) -> bool:
        """True if more than one connection may be of use."""
        return self.round_trip >= LONG_ROUND_TRIP

    @property
    def wanted(self) -> int:
        """How many connections to use."""
        return max(1, min(self._wanted, self.limit))

    def on_tick(self, at: float, carried_bytes: int, open_connections: int, *, is_limit: bool) -> None:
        """Take how much was carried in all; `is_limit` says that more would be over more connections. Call it often."""
        if self._since == -inf:
            self._ticked_at = self._changed_at = self._limit_at = self._carried_at = at
            self._bytes = carried_bytes
            self._measure(at)
        if is_limit:
            self._limit_seconds += at - self._ticked_at
            self._limit_at = at
        if carried_bytes != self._bytes:
            self._carried_at = at
        self._ticked_at, self._bytes = at, carried_bytes
        self._wanted = self.wanted
        if self._wanted == 1 and not self.is_long:
            self._measure(at)
        elif open_connections < self._wanted and at - self._changed_at < _LONGEST_OPENING:
            # what those bring that are open already says nothing yet
            self._measure(at)
            if self._attempt is not None:
                self._attempt = _Attempt(self._attempt.number, self._attempt.rate, at)
        elif at - self._since >= max(_LEAST_MEASURED_SECONDS, _MEASURED * self.round_trip):
            self._measured(at)
        if at - self._carried_at > _UNUSED_SECONDS:
            self._shrink(self._first, at)
        elif at - self._limit_at > _UNUSED_SECONDS:
            self._limit_at = at
            self._shrink(max(self._first, self._wanted // 2), at)
            # it was not for lack of gain: once they are the limit again, there may be more at once
            self._pause_until, self._pause = min(self._pause_until, at), _PAUSE

    def _measured(self, at: float) -> None:
        seconds = at - self._since
        rate, was_limit = (self._bytes - self._bytes_before) / seconds, self._limit_seconds >= seconds / 2
        self._measure(at)
        attempt, was_slow, self._was_slow = self._attempt, self._was_slow, False
        if not was_limit:
            # they carry all there is: that takes no more of them, and says nothing about what they could bring
            self._attempt = None
            return
        self.rate = rate
        if attempt is not None:
            share = attempt.rate / attempt.number
            if rate - attempt.rate >= _SHARE * share * (self._wanted - attempt.number):
                self._pause = _PAUSE
                self._settle(rate)
                self._try_more(rate, at)
            elif at - attempt.since > _STARTING_SECONDS + _STARTING * self.round_trip:
                enough = ceil(rate / share) if rate > _GAIN * attempt.rate > 0 else 0
                self._change(max(attempt.number, min(self._wanted, enough)), at)
                self._settle(rate)
                self._wait(at)
        elif self._share is not None and rate < _SHARE * self._share * self._wanted:
            # the first time it may have become slow only meanwhile
            self._was_slow = not was_slow
            if was_slow:
                self._shrink(ceil(rate / self._share), at)
        elif at >= self._pause_until:
            self._try_more(rate, at)

    def _try_more(self, rate: float, at: float) -> None:
        if self._wanted < self.limit:
            self._attempt = _Attempt(self._wanted, rate, at)
            self._change(min(self.limit, 2 * self._wanted), at)

    def _settle(self, rate: float) -> None:
        self._share = rate / self._wanted
        self._attempt = None

    def _change(self, number: int, at: float) -> None:
        self._wanted, self._changed_at = number, at

    def _shrink(self, number: int, at: float) -> None:
        if number < self._wanted:
            self._change(max(1, number), at)
            self._share = self._attempt = None
            self._measure(at)

    def _wait(self, at: float) -> None:
        """Try no more connections for a while, longer each time in vain."""
        self._attempt = None
        self._pause_until = at + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _measure(self, at: float) -> None:
        """Measure from now on."""
        self._since, self._bytes_before, self._limit_seconds = at, self._bytes, 0.0

    def throttled(self, at: float) -> None:
        """Note that the broker throttles us: more connections bring nothing."""
        if at - self._changed_at > _THROTTLED_SECONDS:
            self._shrink(self._wanted // 2, at)
        self._attempt = None
        self._pause_until = max(self._pause_until, at + _PAUSE)

    def refused(self, open_connections: int, at: float) -> None:
        """Note that the broker accepts no more connections than are open; leave some of them to others."""
        self._shrink(open_connections - max(1, open_connections // 4), at)
        self._wait(at)
        self.refused_until = at + _REFUSED_SECONDS
        self._pause_until = max(self._pause_until, self.refused_until)
