"""How many bytes a lane keeps in flight on one connection: enough to keep it busy, and no more.

What waits in socket buffers is out of the CPU cache when the broker reads it: on one machine, twice as much in flight
cost a third of the throughput. Over a distance, too little leaves the connection idle. So the window follows the
bandwidth-delay product at the best rate seen, as in BBR, with some room to find out whether more would be faster: it
grows by a quarter each round trip until the rate no longer does.

A request that waits behind others takes longer than the path and the broker do. So a round trip counts as no longer
than twice the path's own and what a broker may need in addition; else the window would grow with its own queue.
"""

from __future__ import annotations

from math import inf

LEAST_BYTES = 2 << 20
#: The same over a long path, where the buffers of most connections hold less.
LEAST_FAR_BYTES = 256 << 10
#: What a broker may need for a request, replication included.
_BROKER_SECONDS = 0.02
_GAIN = 1.25
#: The best rate and the shortest round trip are forgotten after at most twice this many seconds.
_MEMORY_SECONDS = 5.0


class Window:
    """Decide whether one connection may carry more. Pure."""

    def __init__(self) -> None:
        self.bytes_in_flight = 0
        self.limit = self._least_bytes = LEAST_BYTES
        self._longest_round_trip = inf
        #: True if the request that was answered last had waited behind others.
        self.is_queueing = False
        self._delivered = 0
        self._rate = self._rate_before = 0.0
        self._round_trip = self._round_trip_before = inf
        self._turned_at = 0.0

    def know_round_trip(self, seconds: float, *, is_long: bool) -> None:
        """Note how long the path is, without what the broker needs."""
        self._longest_round_trip = 2 * seconds + _BROKER_SECONDS
        least_bytes = LEAST_FAR_BYTES if is_long else LEAST_BYTES
        if least_bytes != self._least_bytes:
            self._least_bytes = self.limit = least_bytes

    @property
    def is_open(self) -> bool:
        """True while more may be sent."""
        return self.bytes_in_flight < self.limit

    def sent(self, size: int) -> int:
        """Note a request; return the bytes delivered so far, for `answered`."""
        self.bytes_in_flight += size
        return self._delivered

    def answered(self, size: int, delivered_before: int, sent_at: float, now: float) -> None:
        """Note the response to a request that was sent when `delivered_before` bytes had been delivered."""
        self.bytes_in_flight -= size
        self._delivered += size
        took = now - sent_at
        self.is_queueing = took > self._longest_round_trip
        if took <= 0:
            return
        if now - self._turned_at > _MEMORY_SECONDS:
            self._turned_at = now
            self._rate_before, self._rate = self._rate, 0.0
            self._round_trip_before, self._round_trip = self._round_trip, inf
        self._rate = max(self._rate, (self._delivered - delivered_before) / took)
        self._round_trip = min(self._round_trip, took)
        rate = max(self._rate, self._rate_before)
        round_trip = min(self._round_trip, self._round_trip_before, self._longest_round_trip)
        self.limit = max(self._least_bytes, int(_GAIN * rate * round_trip))
