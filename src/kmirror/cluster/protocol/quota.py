"""One client quota as plain data."""

from __future__ import annotations

from typing import NamedTuple


class Quota(NamedTuple):
    """One value of one quota: whose it is, by user and client id, and what it limits.

    `entity` are pairs of type and name in the order of the types; a name of "" is the default of its type.
    """

    entity: tuple[tuple[str, str], ...]
    key: str
    value: float

    @property
    def place(self) -> tuple[tuple[tuple[str, str], ...], str]:
        """What it limits, whatever its value."""
        return self.entity, self.key

    def __str__(self) -> str:
        whose = " and ".join(f"{kind} {name or '<default>'}" for kind, name in self.entity)
        return f"{self.key}={self.value:g} for {whose}"
