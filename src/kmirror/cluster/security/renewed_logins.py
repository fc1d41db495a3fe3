"""Passwords that were changed while this process runs.

If a cluster refuses a password, it may have been changed there, and in our file too. The file is read again only then:
a password that is changed in the file before it is changed in the cluster must not break working connections.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from kmirror.cluster.security.client_config import ClientConfig

#: The most logins that are remembered; the oldest is dropped, and found again if it is needed.
_MOST = 100

_Key = tuple[tuple[tuple[str, int], ...], str | None, str | None, str | None]


class RenewedLogins:
    """The logins that clusters accepted instead of ones that they refused. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[_Key, tuple[str | None, str | None]] = {}

    def current(self, config: ClientConfig) -> ClientConfig:
        """Return the configuration with the login that was last accepted instead of its own."""
        with self._lock:
            found = self._now.get(_key(config))
        return replace(config, username=found[0], password=found[1]) if found else config

    def record(self, refused: ClientConfig, accepted: ClientConfig) -> None:
        """Remember which login was accepted instead of a refused one."""
        with self._lock:
            self._now[_key(refused)] = accepted.username, accepted.password
            while len(self._now) > _MOST:
                del self._now[next(iter(self._now))]


def _key(config: ClientConfig) -> _Key:
    return config.bootstrap_servers, config.sasl_mechanism, config.username, config.password


#: The renewed logins of this process.
RENEWED = RenewedLogins()
