"""Passwords that took the place of others while this process runs.

A cluster that refuses a password may have got another one, and so may the file that holds ours. It is looked at then,
and only then: one that was changed here before it is changed there must not end what works.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from kmirror.cluster.security.client_config import ClientConfig

#: As many logins are remembered; the oldest is forgotten, and found again where it is needed.
_MOST = 100

_Key = tuple[tuple[tuple[str, int], ...], str | None, str | None, str | None]


class RenewedLogins:
    """Keep which login a cluster took in place of one that it refused; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[_Key, tuple[str | None, str | None]] = {}

    def current(self, config: ClientConfig) -> ClientConfig:
        """Return the configuration with the login that was taken last in place of its own."""
        with self._lock:
            found = self._now.get(_key(config))
        return replace(config, username=found[0], password=found[1]) if found else config

    def take(self, refused: ClientConfig, taken: ClientConfig) -> None:
        """Remember that the second was taken where the first was refused."""
        with self._lock:
            self._now[_key(refused)] = taken.username, taken.password
            while len(self._now) > _MOST:
                del self._now[next(iter(self._now))]


def _key(config: ClientConfig) -> _Key:
    return config.bootstrap_servers, config.sasl_mechanism, config.username, config.password


#: Those of this process.
RENEWED = RenewedLogins()
