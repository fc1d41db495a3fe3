"""The brokers that lately throttled this process for long (KIP-219): a client quota is then why things take long."""

from __future__ import annotations

import time
from typing import NamedTuple

from kmirror.cluster.security.client_config import ClientConfig

#: A quota that holds a client up for less does not make its heartbeats or its lanes' reports late.
_LONG_MS = 1_000
#: A throttle counts for this long after its end: those of one quota follow each other with pauses.
_LINGER_SECONDS = 60.0

_Key = tuple[tuple[tuple[str, int], ...], str]


class SeenThrottle(NamedTuple):
    """A broker's address, for how long it throttled a client, and until when that counts (CLOCK_MONOTONIC)."""

    address: str
    throttle_time_ms: int
    until: float


class SeenThrottles:
    """The last long throttle by cluster and client id; there are few of them. Thread-safe: single steps on a dict."""

    def __init__(self) -> None:
        self._last: dict[_Key, SeenThrottle] = {}

    def note(self, config: ClientConfig, address: str, throttle_time_ms: int) -> None:
        """Note what an answer of a broker says."""
        if throttle_time_ms >= _LONG_MS:
            until = time.monotonic() + throttle_time_ms / 1000 + _LINGER_SECONDS
            self._last[_key(config)] = SeenThrottle(address, throttle_time_ms, until)

    def of(self, config: ClientConfig) -> SeenThrottle | None:
        """Return the last long throttle of a client; None if there was none lately."""
        found = self._last.get(_key(config))
        return found if found is not None and time.monotonic() < found.until else None


def _key(config: ClientConfig) -> _Key:
    return config.bootstrap_servers, config.client_id


#: What this process was told.
SEEN_THROTTLES = SeenThrottles()
