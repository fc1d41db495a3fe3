"""After how long brokers forget an idle producer id."""

from __future__ import annotations

from collections.abc import Iterable

from kmirror.cluster.client import ClusterClient

#: Brokers before Kafka 3.4 (KIP-854) have no setting of its own for it: they go by the one for transactional ids.
_SETTINGS = ("producer.id.expiration.ms", "transactional.id.expiration.ms")


def producer_expiration_ms(client: ClusterClient, node_ids: Iterable[int]) -> dict[int, int]:
    """Return it in milliseconds by broker; one that does not say is left out."""
    told = client.broker_configs(node_ids, list(_SETTINGS))
    values = {node: next((found[key] for key in _SETTINGS if key in found), None) for node, found in told.items()}
    return {node: int(value) for node, value in values.items() if value}
