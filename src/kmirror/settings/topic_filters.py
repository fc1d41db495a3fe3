"""Topic and group filters in the format of Confluent's cluster links: one JSON document of names and prefixes.

`{"topicFilters": [{"name": "orders", "patternType": "PREFIXED", "filterType": "INCLUDE"}]}`: a LITERAL name is that
topic only, or every topic if it is `*`; a PREFIXED one is every topic whose name begins with it. A topic is selected if
a filter includes it and none excludes it, in any order. Group filters are the same under `groupFilters`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kmirror.errors import UsageError
from kmirror.settings.patterns import is_plain_name

_EXAMPLE = '{"%s":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}'
_TOPICS, _GROUPS = "topicFilters", "groupFilters"
_ALL = "*"
_FIELDS = ("name", "patternType", "filterType")
_PATTERN_TYPES = ("LITERAL", "PREFIXED")
_FILTER_TYPES = ("INCLUDE", "EXCLUDE")


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """One filter: a name, or a prefix if `is_prefix`; it excludes unless `includes`."""

    name: str
    is_prefix: bool
    includes: bool

    def matches(self, topic: str) -> bool:
        """Return whether the filter applies to a topic."""
        if self.is_prefix:
            return topic.startswith(self.name)
        return self.name in (_ALL, topic)


@dataclass(frozen=True, slots=True)
class TopicFilters:
    """Selects topics by filters; without any, none. `str` returns the JSON document, or "" without filters."""

    filters: tuple[TopicFilter, ...] = ()

    @classmethod
    def parse(cls, key: str, text: str, field: str = _TOPICS) -> TopicFilters:
        """Return the filters of a JSON document, none for an empty text; `key` is the setting that errors name.

        Raises:
            UsageError: it is not such a document; says where.
        """
        if not text:
            return cls()
        try:
            document = json.loads(text, object_pairs_hook=_object)
            if not isinstance(document, dict):
                raise _FilterError("it is not a JSON object")
            _require_fields(document, (field,), "the document")
            entries = document[field]
            if not isinstance(entries, list):
                raise _FilterError(f"{field} is not a list")
            filters = [_filter(entry, f"filter {number}") for number, entry in enumerate(entries, 1)]
        except _FilterError as error:
            raise UsageError(f"{key}: {error}", f"write it as {_EXAMPLE % field}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{key}: this is not JSON: {error}", f"write it as {_EXAMPLE % field}") from None
        return cls(tuple(dict.fromkeys(filters)))

    def matches(self, topic: str) -> bool:
        """Return whether a topic is included and not excluded."""
        about = [one.includes for one in self.filters if one.matches(topic)]
        return bool(about) and all(about)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the topics that are included by name."""
        return tuple(one.name for one in self.filters if one.includes and not one.is_prefix and one.name != _ALL)

    @property
    def includes_something(self) -> bool:
        """Return whether any filter includes topics."""
        return any(one.includes for one in self.filters)

    def __str__(self) -> str:
        if not self.filters:
            return ""
        entries = [
            {
                "name": one.name,
                "patternType": _PATTERN_TYPES[one.is_prefix],
                "filterType": _FILTER_TYPES[not one.includes],
            }
            for one in self.filters
        ]
        return json.dumps({"topicFilters": entries}, separators=(",", ":"), ensure_ascii=False)


def group_patterns(key: str, text: str) -> tuple[str, str]:
    """Return the groups that filters include and exclude, as `groups.include` and `groups.exclude`.

    Raises:
        UsageError: as `TopicFilters.parse`.
    """
    filters = TopicFilters.parse(key, text, _GROUPS).filters
    included = [_pattern(one) for one in filters if one.includes]
    return ",".join(included), ",".join(_pattern(one) for one in filters if not one.includes)


def _pattern(one: TopicFilter) -> str:
    if one.name == _ALL:
        return ".*"
    if is_plain_name(one.name) and not one.is_prefix:
        return one.name
    escaped = re.sub(r"[!-,./:-@[-^`{-~]", r"\\\g<0>", one.name)
    return escaped + (".*" if one.is_prefix else "")


class _FilterError(Exception):
    """What is wrong with filters."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _FilterError(f"a field is given twice: {', '.join(name for name, _ in pairs)}")
    return found


def _filter(entry: object, where: str) -> TopicFilter:
    if not isinstance(entry, dict):
        raise _FilterError(f"{where} is not a JSON object")
    _require_fields(entry, _FIELDS, where)
    name = entry["name"]
    if not isinstance(name, str) or not name.strip():
        raise _FilterError(f"{where} has no name")
    pattern_type = _word(entry, "patternType", _PATTERN_TYPES, where)
    filter_type = _word(entry, "filterType", _FILTER_TYPES, where)
    if pattern_type == "PREFIXED" and name == _ALL:
        raise _FilterError(f"{where}: * means everything only if it is LITERAL; no name begins with *")
    return TopicFilter(name.strip(), pattern_type == "PREFIXED", filter_type == "INCLUDE")


def _require_fields(found: dict[str, Any], wanted: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in wanted:
            near = get_close_matches(name, wanted, n=1)
            raise _FilterError(f"{where} has an unknown field {name}{f', is {near[0]} meant?' if near else ''}")
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _FilterError(f"{where} lacks {', '.join(missing)}")


def _word(entry: dict[str, Any], name: str, words: tuple[str, ...], where: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or value.upper() not in words:
        raise _FilterError(f"{where}: {name}={value} is not {' or '.join(words)}")
    return value.upper()
