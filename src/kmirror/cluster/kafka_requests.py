"""The requests of kafka-python that are sent, by name: `kafka_requests.CreateAclsRequest`.

What has one is imported when it is first asked for, and by one thread: it would be a third of a verb's start.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kmirror.cluster import KAFKA_IMPORTS

#: Where they are, if not in `kafka.protocol.admin`.
_PACKAGES = {
    "metadata": ("FindCoordinatorRequest", "MetadataRequest"),
    "producer": ("EndTxnRequest", "InitProducerIdRequest"),
    "consumer": ("OffsetCommitRequest", "OffsetDeleteRequest", "OffsetFetchRequest"),
    "sasl": ("SaslAuthenticateRequest", "SaslHandshakeRequest"),
}


def __getattr__(name: str) -> Any:
    if not name.endswith("Request"):
        raise AttributeError(name)
    package = next((one for one, names in _PACKAGES.items() if name in names), "admin")
    with KAFKA_IMPORTS:
        found = globals()[name] = getattr(import_module(f"kafka.protocol.{package}"), name)
    return found
