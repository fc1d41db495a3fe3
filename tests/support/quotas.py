"""Quotas of clients, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import alter_quotas, describe_quotas
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.waiting import wait_until


@contextmanager
def slowed(cluster: SandboxCluster, client_id: str, limit: float, key: str = "consumer_byte_rate") -> Iterator[None]:
    """Let a client read no more than this: brokers answer its fetches without records when it has had more.

    With another `key`, it is limited by that quota.
    """
    quota = Quota((("client-id", client_id),), key, limit)
    with ClusterClient(client_config(cluster.client_properties())) as admin:
        assert not alter_quotas(admin, [quota], [])
        try:
            wait_until(lambda: quota in describe_quotas(admin))
            yield
        finally:
            assert not alter_quotas(admin, [], [quota])
