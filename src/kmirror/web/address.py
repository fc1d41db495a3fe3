"""The address on which a running engine listens, as `--http [HOST:]PORT` gives it. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from kmirror.errors import UsageError
from kmirror.words import address_of

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
        return address_of(self.host, self.port)


def named_host(header: str) -> str | None:
    """Return the name in a `Host` header; None if it is an address, or there is none."""
    host = re.sub(r":[0-9]*$", "", header.strip()).strip("[]").lower().removesuffix(".")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host or None
    return None
