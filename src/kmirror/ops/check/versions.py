"""Is a cluster new enough? Judged by the requests its brokers offer, which is what kmirror will use.

Kafka 3.9 brings Fetch 17 and Produce 11; 4.0 took Fetch below 4 away (KIP-896), which is how the two are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.errors import RefusedError

_PRODUCE, _FETCH = 0, 1
_LOWEST_PRODUCE, _LOWEST_FETCH = 11, 17


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """What one broker offers: the highest versions of Produce and Fetch, and the lowest of Fetch."""

    node_id: int
    address: str
    produce: int
    fetch: int
    lowest_fetch: int

    @property
    def is_supported(self) -> bool:
        """Tell whether the broker is Kafka 3.9 or later."""
        return self.produce >= _LOWEST_PRODUCE and self.fetch >= _LOWEST_FETCH

    def __str__(self) -> str:
        if not self.is_supported:
            release = "older than Kafka 3.9"
        else:
            release = "Kafka 4.0 or later" if self.lowest_fetch >= 4 else "Kafka 3.9"
        return f"{release} (Produce up to {self.produce}, Fetch up to {self.fetch})"


def broker_version(client: ClusterClient, node_id: int, host: str, port: int) -> BrokerVersion:
    """Ask one broker. Raises ConnectFailedError."""
    offered = client.connect(node_id, host, port).api_versions
    lowest_fetch, fetch = offered.get(_FETCH, (0, -1))
    return BrokerVersion(node_id, f"{host}:{port}", offered.get(_PRODUCE, (0, -1))[1], fetch, lowest_fetch)


def require_supported(client: ClusterClient, cluster: str) -> None:
    """Refuse a cluster that is too old, judged by one of its brokers (`check` asks all); `cluster` begins the refusal.

    Raises:
        RefusedError: the broker is older than Kafka 3.9; names it.
        UnreachableError: it does not answer.
    """
    broker = next(iter(client.metadata([]).brokers.values()))
    found = broker_version(client, broker.node_id, broker.host, broker.port)
    if not found.is_supported:
        raise RefusedError(
            f"{cluster}: broker {found.node_id} at {found.address} is {found}",
            "kmirror works with Kafka 3.9 and later on both sides",
        )
