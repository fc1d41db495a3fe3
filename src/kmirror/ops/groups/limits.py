"""Name the limit for which the destination's brokers refuse to commit a group's offsets."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import OFFSETS_TOPIC, TOO_LARGE
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import KmirrorError, OutcomeUnknown

_METADATA_LIMIT = "offset.metadata.max.bytes"
_BATCH_LIMIT = "max.message.bytes"
_UNREADABLE = "its value is unknown without DESCRIBE_CONFIGS"


def metadata_limit(client: ClusterClient, codes: Collection[int]) -> str:
    """Return which limit commit metadata exceeds, with its value if that can be read."""
    if Code.OFFSET_METADATA_TOO_LARGE not in codes:
        return _batch_limit(client)
    values: list[int] = []
    with suppress(KmirrorError, OutcomeUnknown):
        found = client.broker_configs(client.metadata([]).brokers, [_METADATA_LIMIT])
        values = [int(own[_METADATA_LIMIT]) for own in found.values() if _METADATA_LIMIT in own]
    return f"{_METADATA_LIMIT}={min(values)}" if values else f"{_METADATA_LIMIT} ({_UNREADABLE})"


def limit_text(client: ClusterClient, code: int) -> str:
    """Return what brokers said when they refused an offset, and the limit if it is one."""
    text = f"{code_name(code)} (error {code})"
    return f"{text}; {_batch_limit(client)}" if code in TOO_LARGE else text


def _batch_limit(client: ClusterClient) -> str:
    known = f"{_BATCH_LIMIT} ({_UNREADABLE})"
    with suppress(KmirrorError, OutcomeUnknown):
        found = topic_settings(client, [OFFSETS_TOPIC], [_BATCH_LIMIT])[OFFSETS_TOPIC]
        if not isinstance(found, int) and _BATCH_LIMIT in found:
            known = f"{_BATCH_LIMIT}={found[_BATCH_LIMIT].value}"
    return f"{known} of topic {OFFSETS_TOPIC}"
