"""How many bytes a lane may fetch now: a bucket of tokens that is filled at the lane's share of the mirror's limit.

An answer is paid for when it has come, and may cost more than is in the bucket: a broker sends at least one batch,
however large. The debt is waited for, so the average holds. Pure: time arrives with every call.
"""

from __future__ import annotations

#: So much of a second's bytes gathers for a lane whose source has no more, and for one that is kept from fetching: by
#: the destination, or by a busy machine. The second makes up for that later, the first would begin with a burst.
_IDLE_SECONDS = 0.1
_HELD_UP_SECONDS = 2.0
#: A request asks for so much of a second's bytes: a larger answer is a burst, with a long wait behind it.
_REQUEST_SECONDS = 0.1
_SMALLEST_REQUEST = 16 << 10


class Throttle:
    """Say what a lane may fetch; `limit` is in bytes a second, None for as much as it can."""

    def __init__(self, at: float) -> None:
        self._limit: int | None = None
        self._tokens = 0.0
        self._full_seconds = _IDLE_SECONDS
        self._asked_bytes = 0
        self._counted_at = at
        self._waiting_since: float | None = None
        #: Bytes fetched, and seconds for which more was wanted than allowed, since the lane began.
        self.fetched_bytes = 0
        self.waited_seconds = 0.0

    def set_limit(self, limit: int | None, at: float) -> None:
        """Go by another limit from now on; a debt stays."""
        if limit != self._limit:
            self._count(at)
            self._limit = limit

    def allowance(self, at: float) -> int | None:
        """Return how many bytes the next request may ask for, None for any number, 0 for none yet; it is wanted now."""
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

    def spend(self, size: int) -> None:
        """Pay for an answer."""
        self.fetched_bytes += size
        if self._limit is not None:
            self._tokens -= size
            self._full_seconds = _HELD_UP_SECONDS if size > self._asked_bytes // 2 else _IDLE_SECONDS

    def waited(self, at: float) -> float:
        """Return `waited_seconds`, with what is being waited for now."""
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
