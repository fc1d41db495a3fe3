"""Typed access to Java client properties, with their references resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kmirror.cluster.security.properties import resolve_value
from kmirror.errors import UsageError


@dataclass(frozen=True, slots=True)
class PropertyReader:
    """Read values by their keys; a reference is resolved when its key is read."""

    properties: Mapping[str, str]
    environ: Mapping[str, str] | None

    def text(self, key: str) -> str | None:
        """Return a value without surrounding white space; None if it is missing or empty."""
        value = self.properties.get(key)
        return (resolve_value(key, value, self.environ).strip() or None) if value is not None else None

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(key) or default).upper()
        if value not in choices:
            raise UsageError(f"{key}={value} is not known", f"it is one of {', '.join(choices)}")
        return value

    def number(self, key: str, lowest: int) -> int | None:
        value = self.text(key)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,10}", value) or not lowest <= int(value) < 1 << 31:
            raise UsageError(f"{key}={value} is not a number from {lowest} to {(1 << 31) - 1}", f"correct {key}")
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
            raise UsageError(f"{key}={value} is not known", f"write https, or {key}= to leave host names unchecked")
        return value is not None
