"""Which of the source's ACLs are taken over: the JSON filters of Confluent's cluster links (`acl.filters`).

    {"aclFilters": [{"resourceFilter": {"resourceType": "topic", "patternType": "prefixed", "name": "orders-"},
                     "accessFilter": {"principal": "User:app", "operation": "read", "permissionType": "allow"}}]}

Whatever a filter leaves out, or says `any` of, it does not ask for; an ACL is taken that one of the filters takes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from kmirror.errors import UsageError

_HINT = (
    'write {"aclFilters": [{"resourceFilter": {"resourceType": "topic", "patternType": "any"}, '
    '"accessFilter": {"operation": "any", "permissionType": "any"}}]}, or leave it empty for all'
)
_RESOURCE_KEYS = {"resourceType": "resource_type", "name": "resource_name", "patternType": "pattern_type"}
_ACCESS_KEYS = {
    "principal": "principal",
    "host": "host",
    "operation": "operation",
    "permissionType": "permission",
}
_WORDS = {
    "resource_type": ("TOPIC", "GROUP"),
    "pattern_type": ("LITERAL", "PREFIXED"),
    "operation": (
        *("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE"),
        *("DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    ),
    "permission": ("ALLOW", "DENY"),
}


@dataclass(frozen=True, slots=True)
class AclFilter:
    """One filter; None asks for nothing."""

    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None

    def takes(self, binding: Any) -> bool:
        """Tell whether it takes an ACL, an object with attributes of these names."""
        asked = ((one.name, getattr(self, one.name)) for one in fields(self))
        return all(wanted is None or getattr(binding, name) == wanted for name, wanted in asked)


@dataclass(frozen=True, slots=True)
class AclFilters:
    """The filters of a mirror; without any it takes every ACL on what is mirrored."""

    filters: tuple[AclFilter, ...] = ()

    def takes(self, binding: Any) -> bool:
        """Tell whether an ACL is to be taken over."""
        return not self.filters or any(one.takes(binding) for one in self.filters)

    def __str__(self) -> str:
        """Return the JSON as one can write it again; empty for no filter."""
        if not self.filters:
            return ""
        return json.dumps({"aclFilters": [_written(one) for one in self.filters]}, separators=(",", ":"))


def parse_acl_filters(key: str, text: str) -> AclFilters:
    """Read the filters; `key` is the setting that errors begin with.

    Raises:
        UsageError: it is not such JSON; says where.
    """
    if not text:
        return AclFilters()
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{key} is not JSON: {error}", _HINT) from None
    filters = document.pop("aclFilters", None) if isinstance(document, dict) else None
    if not isinstance(filters, list) or document:
        raise UsageError(f"{key} is not an object with a list aclFilters and nothing else", _HINT)
    return AclFilters(tuple(dict.fromkeys(_filter(key, one) for one in filters)))


def _filter(key: str, given: Any) -> AclFilter:
    if not isinstance(given, dict) or not set(given) <= {"resourceFilter", "accessFilter"}:
        raise UsageError(f"{key}: a filter holds resourceFilter and accessFilter, not {_shown(given)}", _HINT)
    values: dict[str, str] = {}
    for part, known in (("resourceFilter", _RESOURCE_KEYS), ("accessFilter", _ACCESS_KEYS)):
        entries = given.get(part, {})
        if not isinstance(entries, dict):
            raise UsageError(f"{key}: {part} is not an object: {_shown(entries)}", _HINT)
        for name, value in entries.items():
            if name not in known or not isinstance(value, str):
                raise UsageError(f"{key}: {part} has no {name}={_shown(value)}", f"it knows {', '.join(known)}")
            read = _word(f"{key}: {name}", known[name], value)
            if read is not None:
                values[known[name]] = read
    return AclFilter(**values)


def _word(where: str, attribute: str, value: str) -> str | None:
    words = _WORDS.get(attribute)
    if words is None:
        return value or None
    word = value.upper().replace("-", "_")
    if not word or word == "ANY":
        return None
    match = next((one for one in words if one.replace("_", "") == word.replace("_", "")), None)
    if match is None:
        raise UsageError(f"{where}={value} is not known", f"it is one of: any, {', '.join(words).lower()}")
    return match


def _written(one: AclFilter) -> dict[str, dict[str, str]]:
    parts: dict[str, dict[str, str]] = {}
    for part, known in (("resourceFilter", _RESOURCE_KEYS), ("accessFilter", _ACCESS_KEYS)):
        parts[part] = {
            name: value.lower() if attribute in _WORDS else value
            for name, attribute in known.items()
            if (value := getattr(one, attribute)) is not None
        }
    return parts


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
