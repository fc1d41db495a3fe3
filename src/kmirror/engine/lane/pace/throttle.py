"""How many bytes a lane may fetch now: a token bucket, filled at the lane's share of the mirror's limit.

A response is paid for when it arrives, and may cost more than the bucket holds: a broker sends at least one batch,
however large. The lane waits until the debt is paid, so the average holds. Pure: time is an argument of every call.
"""

from __future__ import annotations

#: The size of the bucket, in seconds of the limit: for a lane whose source has no more, and for one that cannot fetch
#: because the destination or the machine is busy. The second catches up later; the first would start with a burst.
_IDLE_SECONDS = 0.1
_HELD_UP_SECONDS = 2.0
#: The size of a request, in seconds of the limit: a larger response is a burst with a long wait after it.
_REQUEST_SECONDS = 0.1
_SMALLEST_REQUEST = 16 << 10


class Throttle:
    """Limit what a lane fetches; `limit` is in bytes per second, None for unlimited."""

    def __init__(self, at: float) -> None:
        self._limit: int | None = None
        self._tokens = 0.0
        self._full_seconds = _IDLE_SECONDS
        self._asked_bytes = 0
        self._counted_at = at
        self._waiting_since: float | None = None
        #: Bytes fetched, and seconds spent waiting for the limit, since the lane started.
        self.fetched_bytes = 0
        self.waited_seconds = 0.0

    def set_limit(self, limit: int | None, at: float) -> None:
        """Change the limit; a debt remains."""
        if limit != self._limit:
            self._count(at)
            self._limit = limit

    def allowance(self, at: float) -> int | None:
        """Return how many bytes the next request may ask for now: None for unlimited, 0 for none yet."""
        if self._limit is None:
            self._end_wait(at)
            return None
        self._count(at)
        if self._tokens <= 0:
            self._waiting_since = at if self._waiting_since is None else self._waiting_since
            return 0
        self._end_wait(at)
        self._asked_bytes = max(_SMALLEST_REQUEST, int(self._limit * _REQUEST_SECONDS))
        return self._asked_bytes

    def received(self, size: int, *, paid: int = 0) -> None:
        """Count a response, and pay for what was not paid for when it was asked for."""
        self.fetched_bytes += size
        self.spend(size - paid)

    def spend(self, size: int) -> None:
        """Pay for a response; a negative size is given back."""
        if self._limit is not None:
            self._tokens -= size
            self._full_seconds = _HELD_UP_SECONDS if size > self._asked_bytes // 2 else _IDLE_SECONDS

    def waited(self, at: float) -> float:
        """Return `waited_seconds` including the current wait."""
        return self.waited_seconds + (0.0 if self._waiting_since is None else at - self._waiting_since)

    def _count(self, at: float) -> None:
        if self._limit is None:
            self._tokens = 0.0
        else:
            earned = (at - self._counted_at) * self._limit
            self._tokens = min(self._tokens + earned, self._limit * self._full_seconds)
        self._counted_at = at

    def _end_wait(self, at: float) -> None:
        if self._waiting_since is not None:
            self.waited_seconds += at - self._waiting_since
            self._waiting_since = None
