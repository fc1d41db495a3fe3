"""What `run` is asked to do, and the address on which it listens, as `--http [HOST:]PORT` gives it. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kmirror.errors import UsageError

LOCALHOST = "127.0.0.1"
_FORM = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/]+):)?(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, flag: str = "--http") -> Address:
        """Parse `PORT` or `HOST:PORT`; an IPv6 address is in brackets.

        Raises:
            UsageError: the text is neither.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None or int(found["port"]) > 65_535:
            raise UsageError(
                f"{flag} {text} is neither a port nor HOST:PORT",
                f"use {flag} 8080 to listen on this machine only, {flag} 0.0.0.0:8080 on all its addresses",
            )
        return cls((found["host"] or LOCALHOST).strip("[]"), int(found["port"]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def named_host(header: str) -> str | None:
    """Return the name in a `Host` header; None if it is an address, or there is none."""
    host = re.sub(r":[0-9]*$", "", header.strip()).strip("[]").lower().removesuffix(".")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host or None
    return None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `run` is asked to do; durations in milliseconds, None for no limit. `all_mirrors` excludes `mirrors`."""

    mirrors: tuple[str, ...]
    master: str = "local[*]"
    until_caught_up: bool = False
    timeout_ms: int | None = None
    for_ms: int | None = None
    standby: bool = False
    take_over: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    all_mirrors: bool = False
    #: Where to answer HTTP; None for nowhere.
    http: Address | None = None
    #: Names under which clients may ask, besides those of this machine.
    http_hosts: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        """The mirrors to show before they are known; `*` stands for all."""
        return self.mirrors or ("*",)

    @property
    def fails_fast(self) -> bool:
        """True if nothing else would end the wait for a cluster that does not answer at the start."""
        return self.until_caught_up and self.timeout_ms is None
