"""Which of the source's ACLs are synced, in the format of Confluent's cluster links (`acl.filters`) or of Kafka's own
cluster mirroring (KIP-1279, `mirror.acl.include`).

    {"aclFilters": [{"resourceFilter": {"resourceType": "topic", "patternType": "prefixed", "name": "orders-"},
                     "accessFilter": {"principal": "User:app", "operation": "read", "permissionType": "allow"}}]}

A field that a filter leaves out, or that is `any`, matches everything; an ACL is synced if one of the filters matches.

    TOPIC;orders-.*, GROUP;*;READ;ALLOW;User:app

is a list of rules: resource type; name; operation; permission; principal. `*` matches everything, and so do fields left
out at the end. Name and principal are regular expressions that have to match the whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from kmirror.errors import UsageError
from kmirror.settings.patterns import TopicSelector, split_patterns

_HINT = (
    'write {"aclFilters": [{"resourceFilter": {"resourceType": "topic", "patternType": "any"}, '
    '"accessFilter": {"operation": "any", "permissionType": "any"}}]}, or leave it empty for all'
)
_RULE_HINT = "write rules such as TOPIC;orders-.*;READ;ALLOW;User:app separated by commas, with * for any"
_EXPRESSIONS = frozenset({"resource_name", "principal"})
_RESOURCE_KEYS = {"resourceType": "resource_type", "name": "resource_name", "patternType": "pattern_type"}
_ACCESS_KEYS = {
    "principal": "principal",
    "host": "host",
    "operation": "operation",
    "permissionType": "permission",
}
_WORDS = {
    "resource_type": ("TOPIC", "GROUP", "TRANSACTIONAL_ID", "CLUSTER"),
    "pattern_type": ("LITERAL", "PREFIXED"),
    "operation": (
        *("ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE"),
        *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "TWO_PHASE_COMMIT"),
    ),
    "permission": ("ALLOW", "DENY"),
}


@dataclass(frozen=True, slots=True)
class AclFilter:
    """One filter; None matches everything."""

    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None

    def matches(self, binding: Any) -> bool:
        """Return whether it matches an ACL, an object with attributes of these names."""
        asked = ((one.name, getattr(self, one.name)) for one in fields(self))
        return all(wanted is None or getattr(binding, name) == wanted for name, wanted in asked)

    def __str__(self) -> str:
        parts = {
            part: {
                name: value.lower() if attribute in _WORDS else value
                for name, attribute in known.items()
                if (value := getattr(self, attribute)) is not None
            }
            for part, known in (("resourceFilter", _RESOURCE_KEYS), ("accessFilter", _ACCESS_KEYS))
        }
        return json.dumps(parts, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class AclRule:
    """One rule; None matches everything, `resource_name` and `principal` are regular expressions."""

    resource_type: str | None = None
    resource_name: str | None = None
    operation: str | None = None
    permission: str | None = None
    principal: str | None = None

    def matches(self, binding: Any) -> bool:
        """Return whether it matches an ACL, an object with attributes of these names."""
        for one in fields(self):
            wanted, found = getattr(self, one.name), getattr(binding, one.name)
            if wanted is None or wanted == found:
                continue
            if one.name not in _EXPRESSIONS or not TopicSelector((wanted,)).matches(found):
                return False
        return True

    def __str__(self) -> str:
        given = [getattr(self, one.name) or "*" for one in fields(self)]
        while len(given) > 1 and given[-1] == "*":
            given.pop()
        return ";".join(given)


@dataclass(frozen=True, slots=True)
class AclFilters:
    """The filters of a mirror, all in one format; without any, every ACL on mirrored resources matches."""

    filters: tuple[AclFilter, ...] | tuple[AclRule, ...] = ()

    def matches(self, binding: Any) -> bool:
        """Return whether to sync an ACL."""
        return not self.filters or any(one.matches(binding) for one in self.filters)

    def __str__(self) -> str:
        """Return the JSON or the rules as they are written in the setting; "" without filters."""
        if not self.filters or isinstance(self.filters[0], AclRule):
            return ",".join(map(str, self.filters))
        return '{"aclFilters":[' + ",".join(map(str, self.filters)) + "]}"


def parse_acl_filters(key: str, text: str) -> AclFilters:
    """Read the filters or rules; `key` is the setting that errors begin with.

    Raises:
        UsageError: it is neither such JSON nor a list of rules; says where.
    """
    if not text:
        return AclFilters()
    if not text.startswith(("{", "[", '"')):
        rules = tuple(dict.fromkeys(_rule(key, one) for one in text.split(",")))
        return AclFilters(() if rules == (AclRule(),) else rules)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{key} is not JSON: {error}", _HINT) from None
    filters = document.pop("aclFilters", None) if isinstance(document, dict) else None
    if not isinstance(filters, list) or document:
        raise UsageError(f"{key} is not an object with a list aclFilters and nothing else", _HINT)
    if not filters:
        raise UsageError(f"{key} has no filter in aclFilters, which would select no ACL", _HINT)
    return AclFilters(tuple(dict.fromkeys(_filter(key, one) for one in filters)))


def _rule(key: str, text: str) -> AclRule:
    given = [part.strip() for part in text.split(";")]
    names = [one.name for one in fields(AclRule)]
    if len(given) > len(names) or "" in given:
        raise UsageError(f"{key}: {text.strip()!r} is not a rule", _RULE_HINT)
    values: dict[str, str] = {}
    for name, part in zip(names, given, strict=False):
        if part == "*":
            continue
        if name in _EXPRESSIONS:
            values[name] = split_patterns(part, key)[0]
        elif (word := _word(f"{key}: {name.replace('_', ' ')}", name, part)) is not None:
            values[name] = word
    return AclRule(**values)


def _filter(key: str, given: Any) -> AclFilter:
    if not isinstance(given, dict) or not set(given) <= {"resourceFilter", "accessFilter"}:
        raise UsageError(f"{key}: a filter has resourceFilter and accessFilter, not {_shown(given)}", _HINT)
    values: dict[str, str] = {}
    for part, known in (("resourceFilter", _RESOURCE_KEYS), ("accessFilter", _ACCESS_KEYS)):
        entries = given.get(part, {})
        if not isinstance(entries, dict):
            raise UsageError(f"{key}: {part} is not an object: {_shown(entries)}", _HINT)
        for name, value in entries.items():
            if name not in known or not isinstance(value, str):
                raise UsageError(f"{key}: {part} has no {name}={_shown(value)}", f"its fields: {', '.join(known)}")
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
        raise UsageError(f"{where}={value} is unknown", f"use one of: any, {', '.join(words).lower()}")
    return match


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
