"""Addresses of brokers in client properties."""

from __future__ import annotations

import re

from kmirror.errors import UsageError

_ADDRESS = re.compile(
    r"(?:[A-Z0-9_]+://)?(?:\[(?P<ipv6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s:\[\]/@]*)):(?P<port>[0-9]{1,5})"
)


def parse_bootstrap_servers(text: str) -> tuple[tuple[str, int], ...]:
    """Return the (host, port) pairs of `host:port[,…]`; an IPv6 address is in brackets, `[::1]:9092`.

    Without a host, as in Kafka's own documents (`:9092`), it is this machine.

    Raises:
        UsageError: the list is empty, or an address has no port or is invalid.
    """
    addresses = []
    for address in filter(None, (part.strip() for part in text.split(","))):
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match["port"]) < 65536:
            # what is before an @ may be a login
            shown = address if "@" not in address else f"***@{address.rpartition('@')[2]}"
            raise UsageError(
                f"bootstrap.servers: {shown!r} is not HOST:PORT", "write kafka1:9092,kafka2:9092 or [::1]:9092"
            )
        addresses.append((match["ipv6"] or match["host"] or "localhost", int(match["port"])))
    if not addresses:
        raise UsageError(
            "bootstrap.servers is missing or empty", "name at least one broker: bootstrap.servers=kafka1:9092"
        )
    return tuple(addresses)
