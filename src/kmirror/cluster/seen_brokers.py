"""The brokers of clusters whose ids are known, as they last reported them: addresses for when bootstrap.servers is old.

They are remembered for this process only, and used with the login and for the cluster that they were learnt with: what
a cluster reports is no address for the credentials of another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kmirror.cluster.security.client_config import ClientConfig

Address = tuple[str, int]
#: The most clusters that are remembered; those that were heard of longest ago are forgotten.
_MOST = 100


class SeenBrokers:
    """The brokers' addresses by cluster and login. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[object, tuple[Address, ...]] = {}

    def note(self, config: ClientConfig, addresses: Iterable[Address]) -> None:
        """Remember what the cluster with the id that `config` expects reports."""
        if config.cluster_id is None:
            return
        with self._lock:
            self._seen.pop(key := _key(config), None)
            self._seen[key] = tuple(addresses)
            while len(self._seen) > _MOST:
                del self._seen[next(iter(self._seen))]

    def of(self, config: ClientConfig) -> tuple[Address, ...]:
        """Return what was reported last; nothing without an expected id."""
        with self._lock:
            return self._seen.get(_key(config), ()) if config.cluster_id is not None else ()


def _key(config: ClientConfig) -> object:
    login = config.security_protocol, config.sasl_mechanism, config.username
    return config.cluster_id, config.bootstrap_servers, *login


#: The brokers that this process has heard of.
SEEN_BROKERS = SeenBrokers()
