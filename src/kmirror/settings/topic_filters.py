"""Filters of topics as Confluent's cluster links write them: one JSON document of names and prefixes.

`{"topicFilters": [{"name": "orders", "patternType": "PREFIXED", "filterType": "INCLUDE"}]}`: a LITERAL name is that
topic alone, or every topic where it is `*`; a PREFIXED one is every topic whose name begins so. A topic is taken when a
filter includes it and none excludes it; their order means nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kmirror.errors import UsageError

_EXAMPLE = '{"topicFilters":[{"name":"*","patternType":"LITERAL","filterType":"INCLUDE"}]}'
_ALL = "*"
_FIELDS = ("name", "patternType", "filterType")
_PATTERN_TYPES = ("LITERAL", "PREFIXED")
_FILTER_TYPES = ("INCLUDE", "EXCLUDE")


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """One filter: a name, or with `is_prefix` the beginning of names; it excludes unless `includes`."""

    name: str
    is_prefix: bool
    includes: bool

    def matches(self, topic: str) -> bool:
        """Tell whether the filter is about a topic."""
        if self.is_prefix:
            return topic.startswith(self.name)
        return self.name in (_ALL, topic)


@dataclass(frozen=True, slots=True)
class TopicFilters:
    """Select topics by filters; without any it selects none. `str` gives the JSON document, nothing for no filter."""

    filters: tuple[TopicFilter, ...] = ()

    @classmethod
    def parse(cls, key: str, text: str) -> TopicFilters:
        """Return the filters of a JSON document, nothing for an empty text; `key` is the setting that errors name.

        Raises:
            UsageError: it is no such document; says where.
        """
        if not text:
            return cls()
        try:
            document = json.loads(text, object_pairs_hook=_object(key))
        except (ValueError, RecursionError) as error:
            raise _refused(key, f"this is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise _refused(key, "a JSON object is wanted")
        _require_fields(key, document, ("topicFilters",), "the document")
        entries = document["topicFilters"]
        if not isinstance(entries, list):
            raise _refused(key, "topicFilters is not a list")
        filters = [_filter(key, entry, f"filter {number}") for number, entry in enumerate(entries, 1)]
        return cls(tuple(dict.fromkeys(filters)))

    def matches(self, topic: str) -> bool:
        """Tell whether a topic is included and not excluded."""
        about = [one.includes for one in self.filters if one.matches(topic)]
        return bool(about) and all(about)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the topics that are included by name."""
        return tuple(one.name for one in self.filters if one.includes and not one.is_prefix and one.name != _ALL)

    @property
    def includes_something(self) -> bool:
        """Tell whether any filter includes topics."""
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


def _object(key: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _refused(key, f"a field is given twice: {', '.join(name for name, _ in pairs)}")
        return found

    return read


def _filter(key: str, entry: object, where: str) -> TopicFilter:
    if not isinstance(entry, dict):
        raise _refused(key, f"{where} is not a JSON object")
    _require_fields(key, entry, _FIELDS, where)
    name = entry["name"]
    if not isinstance(name, str) or not name.strip():
        raise _refused(key, f"{where} has no name")
    pattern_type = _word(key, entry, "patternType", _PATTERN_TYPES, where)
    filter_type = _word(key, entry, "filterType", _FILTER_TYPES, where)
    if pattern_type == "PREFIXED" and name == _ALL:
        raise _refused(key, f"{where}: * stands for every topic when it is LITERAL, and begins no topic's name")
    return TopicFilter(name.strip(), pattern_type == "PREFIXED", filter_type == "INCLUDE")


def _require_fields(key: str, found: dict[str, Any], wanted: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in wanted:
            near = get_close_matches(name, wanted, n=1)
            raise _refused(key, f"{where} has an unknown field {name}{f', is {near[0]} meant?' if near else ''}")
    missing = [name for name in wanted if name not in found]
    if missing:
        raise _refused(key, f"{where} lacks {', '.join(missing)}")


def _word(key: str, entry: dict[str, Any], name: str, words: tuple[str, ...], where: str) -> str:
    value = entry[name]
    if not isinstance(value, str) or value.upper() not in words:
        raise _refused(key, f"{where}: {name}={value} is not {' or '.join(words)}")
    return value.upper()


def _refused(key: str, why: str) -> UsageError:
    return UsageError(f"{key}: {why}", f"write it as {_EXAMPLE}")
