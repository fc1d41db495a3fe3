"""One client quota as plain data, and what is said of one that is used up."""

from __future__ import annotations

from typing import NamedTuple


class Quota(NamedTuple):
    """One value of one client quota.

    `entity` has pairs of type (user, client-id, ip) and name, sorted; the name "" is the default of its type.
    """

    entity: tuple[tuple[str, str], ...]
    key: str
    value: float

    @property
    def place(self) -> tuple[tuple[tuple[str, str], ...], str]:
        """The entity and the key, without the value."""
        return self.entity, self.key

    def __str__(self) -> str:
        whose = " and ".join(f"{kind} {name or '<default>'}" for kind, name in self.entity)
        return f"{self.key}={self.value:g} for {whose}"


def throttle_text(address: str) -> str:
    """Return what a broker that throttles a client for long means, and what to do."""
    return (
        f"the destination's broker {address} throttles kmirror, so heartbeats and reports are late: raise the client "
        "quota of its user or client id (producer_byte_rate or request_percentage)"
    )
