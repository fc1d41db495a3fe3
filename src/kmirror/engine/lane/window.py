"""How many bytes a lane keeps in flight to one broker: enough to keep it busy, and no more.

What waits in socket buffers is out of the CPU cache when the broker reads it: on one machine, twice as much in flight
cost a third of the throughput. Over a distance, too little leaves the connection idle. So the window follows the
bandwidth-delay product at the best rate seen, as in BBR, with some room to find out whether more would be faster: it
grows by a quarter each round trip until the rate no longer does.
"""

from __future__ import annotations

LEAST_BYTES = 2 << 20
_GAIN = 1.25
#: The best rate and the shortest round trip are forgotten after at most twice this many seconds.
_MEMORY_SECONDS = 5.0


class Window:
    """Decide whether one connection may carry more. Pure."""

    def __init__(self) -> None:
        self.bytes_in_flight = 0
        self.limit = LEAST_BYTES
        self._delivered = 0
        self._rate = self._rate_before = 0.0
        self._round_trip = self._round_trip_before = float("inf")
        self._turned_at = 0.0

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
        if took <= 0:
            return
        if now - self._turned_at > _MEMORY_SECONDS:
            self._turned_at = now
            self._rate_before, self._rate = self._rate, 0.0
            self._round_trip_before, self._round_trip = self._round_trip, float("inf")
        self._rate = max(self._rate, (self._delivered - delivered_before) / took)
        self._round_trip = min(self._round_trip, took)
        rate = max(self._rate, self._rate_before)
        round_trip = min(self._round_trip, self._round_trip_before)
        self.limit = max(LEAST_BYTES, int(_GAIN * rate * round_trip))
