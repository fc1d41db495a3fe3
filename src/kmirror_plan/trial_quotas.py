"""Quotas of a source that may slow a copy down."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import describe_quotas
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError, OutcomeUnknown

#: For how long brokers let a client borrow of its quota by default: quota.window.num × quota.window.size.seconds.
BORROWED_S = 11.0
_SLOWING = frozenset({"consumer_byte_rate", "request_percentage"})
_ANONYMOUS = "ANONYMOUS"


def may_be_slowed(client: ClusterClient) -> bool:
    """Return whether a quota for what this client reads may apply: one that could, or that we may not see."""
    try:
        quotas = describe_quotas(client)
    except (KmirrorError, OutcomeUnknown):
        return True
    return any(may_apply(one, client.config) for one in quotas)


def may_apply(quota: Quota, config: ClientConfig) -> bool:
    """Return whether a quota on reading may be that of a client; where several are, brokers take the closest one."""
    own = {"user": config.username or _ANONYMOUS, "client-id": config.client_id}
    return quota.key in _SLOWING and all(name in ("", own.get(kind)) for kind, name in quota.entity)
