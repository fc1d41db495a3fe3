"""Typed access to Java client properties, with their references resolved; those of a record are judged first. Also
the addresses of brokers in them.

Errors show values as they are written: what a reference stands for may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kmirror.cluster.security.properties import resolve_value
from kmirror.cluster.security.trust import Judge, StoredProperties, host_policy
from kmirror.errors import UsageError

_ADDRESS = re.compile(
    r"(?:[A-Z0-9_]+://)?(?:\[(?P<ipv6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^\s\x00-\x1f\x7f:\[\]/@]*)):(?P<port>[0-9]{1,5})"
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


@dataclass(frozen=True, slots=True)
class PropertyReader:
    """Read values by their keys; a reference is resolved when its key is read."""

    properties: Mapping[str, str]
    environ: Mapping[str, str] | None
    #: None for what an operator has given on this host.
    judge: Judge | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str], environ: Mapping[str, str] | None) -> PropertyReader:
        """Return a reader; properties of a record are refused here if this host's policy does not allow them.

        Raises:
            PolicyError: reason SECRET_UNRESOLVED.
            UsageError: the policy, or the record's list of brokers, is invalid.
        """
        if not isinstance(properties, StoredProperties):
            return cls(properties, environ)
        judge = Judge(host_policy(), ())
        judge.all_of(properties)
        judge = Judge(judge.policy, parse_bootstrap_servers(properties.get("bootstrap.servers", "")))
        judge.policy.refuse_sources(judge.servers)
        return cls(properties, environ, judge)

    def text(self, key: str) -> str | None:
        """Return a value without surrounding white space; None if it is missing or empty."""
        value = self.properties.get(key)
        if value is None or not (found := resolve_value(key, value, self.environ, self.judge).strip()):
            return None
        if self.judge is not None:
            self.judge.file(key, found, value)
        return found

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(key) or default).upper()
        if value not in choices:
            raise UsageError(f"{key}={self.properties[key]} is not known", f"it is one of {', '.join(choices)}")
        return value

    def number(self, key: str, lowest: int) -> int | None:
        value = self.text(key)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,10}", value) or not lowest <= int(value) < 1 << 31:
            raise UsageError(
                f"{key}={self.properties[key]} is not a number from {lowest} to {(1 << 31) - 1}", f"correct {key}"
            )
        return int(value)

    def buffer_size(self, key: str) -> int | None:
        size = self.number(key, -1)
        return size if size is not None and size > 0 else None

    def verify_hostname(self) -> bool:
        key = "ssl.endpoint.identification.algorithm"
        if key not in self.properties:
            return True
        value = self.text(key)
        if value is not None and value.lower() != "https":
            raise UsageError(
                f"{key}={self.properties[key]} is not known", f"write https, or {key}= to leave host names unchecked"
            )
        return value is not None
