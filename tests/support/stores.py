"""State stores of a cluster, for tests that need several of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.state.records import MirrorRecord
from kmirror.state.store import StateStore


def state_store(config: ClientConfig | Mapping[str, str]) -> StateStore:
    """Return a store, by its configuration or by Java properties; its connections end with it."""
    store = StateStore(config if isinstance(config, ClientConfig) else client_config(config))
    weakref.finalize(store, store._client.close)
    return store


def mirror(name: str, at: int = 0) -> MirrorRecord:
    """Return a mirror's record; its source does not exist and is never queried."""
    return MirrorRecord(name, {"bootstrap.servers": "a:9092"}, {}, None, "eve@ops", at)
