"""Over how many connections a lane talks to one broker: as many as a long path has use for.

A connection brings its window once a round trip, and that window may be small: a broker's own send buffer bounds it
(`socket.send.buffer.bytes`, 100 KB by default), whatever is asked for. More connections bring more, each its share, up
to what the path or the machines can carry. So their number doubles while the rate grows with it, goes back one step
when it does not, and is tried again now and then, upwards and downwards: other traffic comes and goes. Pure.
"""

from __future__ import annotations

from math import inf

from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP

__all__ = ["LONG_ROUND_TRIP", "Breadth"]

#: How many connections to begin with, by the round trip in seconds.
_FIRST_A_SECOND = 100
_MOST_AT_FIRST = 8
#: The part of the expected gain that makes more connections worth it.
_WORTH = 0.4
#: With fewer connections, this part of the rate must remain.
_REMAINS = 0.93
#: How long a number is kept before another is tried, and after connections were refused, in seconds.
_KEEP_SECONDS = 20.0
_REFUSED_SECONDS = 60.0
#: How many round trips a new connection needs to get up to speed, and how many a rate is measured for; at least as
#: many seconds.
_STARTING, _LEAST_STARTING_SECONDS = 6, 0.2
_MEASURED, _LEAST_MEASURED_SECONDS = 4, 0.3
#: New connections are waited for no longer than this, in seconds.
_LONGEST_START = 5.0


class Breadth:
    """Decide the number of connections; `limit` is the most allowed, at least 1. Times are in seconds."""

    def __init__(self, limit: int, round_trip: float) -> None:
        self.limit = limit
        #: How many a broker accepts; None while it refuses none.
        self._accepted: int | None = None
        self._round_trip = round_trip
        self._wanted = max(1, min(int(_FIRST_A_SECOND * round_trip), _MOST_AT_FIRST))
        #: The rate in bytes per second when it was last measured; 0 before.
        self.rate = 0.0
        #: When the number was changed, and when the last of its connections was not open yet.
        self._changed_at = self._ready_at = 0.0
        self._measuring_since: tuple[float, int] | None = None
        #: The number and rate before the last change, while it is not known yet if that was worth it.
        self._before: tuple[int, float] | None = None
        self._keep_until = -inf
        self._refused_until = -inf
        self._goes_down = False

    @property
    def wanted(self) -> int:
        """How many connections to use."""
        return max(1, min(self._wanted, self._most))

    @property
    def _most(self) -> int:
        return self.limit if self._accepted is None else min(self.limit, self._accepted)

    def on_tick(self, at: float, received_bytes: int, open_connections: int, *, is_limit: bool) -> None:
        """Take how much has arrived in all; `is_limit` says that more would be asked for over more connections."""
        if at >= self._refused_until:
            self._accepted = None
        if open_connections < self.wanted and at - self._changed_at < _LONGEST_START:
            self._ready_at = at
        start = max(_LEAST_STARTING_SECONDS, _STARTING * self._round_trip)
        if not is_limit or at < max(self._ready_at, self._changed_at) + start:
            self._measuring_since = None
            return
        if self._measuring_since is None:
            self._measuring_since = at, received_bytes
            return
        since, bytes_before = self._measuring_since
        if at - since >= max(_LEAST_MEASURED_SECONDS, _MEASURED * self._round_trip):
            self._measuring_since = None
            self._measured((received_bytes - bytes_before) / (at - since), at)

    def _measured(self, rate: float, at: float) -> None:
        self.rate = rate
        number = self.wanted
        if self._before is not None:
            (number_before, rate_before), self._before = self._before, None
            if number < number_before:
                if rate < _REMAINS * rate_before:
                    self._change(number_before, at)
                self._keep(at)
                return
            gain = rate / rate_before - 1 if rate_before else inf
            if gain < _WORTH * (number / number_before - 1):
                # a smaller gain than that is still one
                if gain < _WORTH / 2:
                    self._change(number_before, at)
                self._keep(at)
                return
        elif at < self._keep_until:
            return
        elif self._goes_down and number > 1:
            self._goes_down = False
            self._try(number - max(1, number // 4), rate, at)
            return
        self._goes_down = True
        self._try(2 * number, rate, at)

    def _try(self, number: int, rate: float, at: float) -> None:
        number = max(1, min(number, self._most))
        if number == self.wanted:
            self._keep(at)
            return
        self._before = self.wanted, rate
        self._change(number, at)

    def _change(self, number: int, at: float) -> None:
        self._wanted, self._changed_at = number, at
        self._measuring_since = None

    def _keep(self, at: float) -> None:
        self._keep_until = at + _KEEP_SECONDS

    def throttled(self, at: float) -> None:
        """Note that the broker throttles us: more connections bring nothing."""
        if self._before is not None or at >= self._keep_until:
            self._before = None
            self._change(max(1, self.wanted // 2), at)
        self._keep(at)

    def refused(self, open_connections: int, at: float) -> None:
        """Note that the broker accepts no more connections than are open."""
        self._accepted = max(1, open_connections)
        self._refused_until = at + _REFUSED_SECONDS
        if self._wanted > self._accepted:
            self._before = None
            self._change(self._accepted, at)
