"""Quotas of a source that may slow a copy down."""

from __future__ import annotations

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import describe_quotas
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError, OutcomeUnknown

#: For how long brokers let a client borrow of its quota by default: quota.window.num × quota.window.size.seconds.
BORROWED_S = 11.0
#: How long a trial must last to show a quota: its rate is that of the second half of its bytes.
LEAST_UNDER_QUOTA_S = 3 * BORROWED_S
_READING = "consumer_byte_rate"
_SLOWING = frozenset({_READING, "request_percentage"})
_ANONYMOUS = "ANONYMOUS"


def bytes_to_show_a_quota(client: ClusterClient) -> float | None:
    """Return how many bytes a trial must have at least to show a quota on what this client reads.

    None if none may apply. 0 if it is not known: we may not see quotas, or one is on the time that brokers spend.
    """
    try:
        quotas = [one for one in describe_quotas(client) if may_apply(one, client.config)]
    except (KmirrorError, OutcomeUnknown):
        return 0.0
    if not quotas:
        return None
    on_each_broker = max((one.value for one in quotas if one.key == _READING), default=0.0)
    return on_each_broker * len(client.metadata([]).brokers) * (LEAST_UNDER_QUOTA_S + BORROWED_S)


def may_apply(quota: Quota, config: ClientConfig) -> bool:
    """Return whether a quota on reading may be that of a client; where several are, brokers take the closest one."""
    own = {"user": config.username or _ANONYMOUS, "client-id": config.client_id}
    return quota.key in _SLOWING and all(name in ("", own.get(kind)) for kind, name in quota.entity)
