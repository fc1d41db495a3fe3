"""What this host's policy says about properties that an operator is about to store, or has stored."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.security.trust import StoredProperties, host_policy
from kmirror.errors import PolicyError, Reason
from kmirror.words import address_of


def refusal_once_stored(properties: Mapping[str, str]) -> PolicyError | None:
    """Return why this host would refuse these properties if a record had them; None if it would not.

    Raises:
        UsageError, UnreachableError: they cannot be used at all.
    """
    try:
        client_config(StoredProperties(properties))
    except PolicyError as error:
        return error
    return None


def require_usable_once_stored(properties: Mapping[str, str]) -> None:
    """Refuse properties that are stored now and used afterwards, if this host would refuse them then."""
    if refused := refusal_once_stored(properties):
        message = f"this host could not use the mirror after it was stored: {refused.message}"
        raise PolicyError(message, refused.hint, Reason.SECRET_UNRESOLVED)


def unlimited_sources(config: ClientConfig) -> tuple[str, str] | None:
    """Return a warning and a hint if any record can have this host log in anywhere; None if `sources` is set."""
    policy = host_policy()
    if policy.limits_sources or config.security_protocol == "PLAINTEXT":
        return None
    return (
        "this host logs in to whatever address the record of a mirror names: [trust] has no sources",
        policy.sources.line([address_of(host, port) for host, port in config.bootstrap_servers]),
    )
