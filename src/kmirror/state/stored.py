"""The stored form of all records: compact JSON objects with a schema version, decoded by the types of their fields.

Every field's type is checked, so that what another program or a newer kmirror wrote is never half understood. A missing
or null field gets its default. Unknown fields are kept in `extra`.

A mapping's keys are JSON strings even if they are numbers; a named tuple is an array of its fields, or an object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

SCHEMA_VERSION = 1

#: What decoding bytes of another program may raise here.
UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)

#: Characters of a bad field that an error message shows.
_SHOWN = 80
#: Numbers as Kafka has them.
_INT64 = range(-(1 << 63), 1 << 63)
#: More partitions than any topic has, or lanes, or pages: numbers that are counted up to.
_COUNTS = range(100_001)
_INT16, _INT32 = range(-1, 1 << 15), range(-1, 1 << 31)
#: What is waited for is a lease, which is some seconds.
_WAITS_MS = range(600_001)
#: By a field's name, what it may be where another number would fill the memory, be waited for, or never be sent.
_LIMITS = {
    **dict.fromkeys(("partition", "partitions", "lane", "page", "pages"), _COUNTS),
    **dict.fromkeys(("ttl_ms", "settle_ms"), _WAITS_MS),
    **dict.fromkeys(("coordinator_epoch", "last_epoch", "last_mirrored_epoch"), _INT32),
    **dict.fromkeys(("producer_epoch", "replicas"), _INT16),
}

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Rows(NamedTuple):
    """Stored objects of one kind: the names of their fields once, and the values of each."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def dump(value: Any, fields_of: Callable[[Any], dict[str, Any] | list[Any]] | None = None) -> bytes:
    """Return compact JSON, the same bytes for the same content; `fields_of` turns objects into mappings or arrays.

    NaN and infinity are refused with ValueError.
    """
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False, default=fields_of).encode()


def load(value: bytes) -> Any:
    """Return the value of compact JSON, if it can be stored again and printed. Raises one of UNREADABLE."""
    parsed = _DECODER.decode(value.decode())
    if b"\\u" in value:
        json.dumps(parsed, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return parsed


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def parse(value: bytes) -> dict[str, Any]:
    """Return the fields of a stored value whose schema version is known. Raises one of UNREADABLE."""
    parsed = load(value)
    if not isinstance(parsed, dict):
        raise ValueError("its value is not a JSON object")
    version = parsed.pop("v", None)
    if type(version) is not int or version > SCHEMA_VERSION:
        raise ValueError(f"its schema version is {_shown(version)}, this kmirror knows {SCHEMA_VERSION}")
    return parsed


def read(kind: type[T], stored: dict[str, Any], names: Sequence[str | int] = ()) -> T:
    """Make a dataclass from its stored fields, the first of them from `names`. Raises one of UNREADABLE."""
    whole: Any = kind
    found: T = _object(whole)(dict(zip(_readers(whole), names, strict=False)) | stored)
    return found


@cache
def _reader(kind: Any) -> Reader:
    arguments = get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind is float:
        return lambda value: float(_integer(value) if type(value) is int else _exactly(value, float))
    if kind is int:
        return _integer
    if kind in (str, bool):
        return lambda value: _exactly(value, kind)  # not isinstance: true is no number
    if get_origin(kind) is UnionType:
        (one,) = (argument for argument in arguments if argument is not NoneType)
        each = _reader(one)
        return lambda value: None if value is None else each(value)  # null counts as missing
    if get_origin(kind) is tuple:
        return _array(arguments)
    if get_origin(kind) is Mapping:
        return _mapping(*arguments)
    if issubclass(kind, StrEnum):
        return lambda value: kind(_exactly(value, str))
    return _named_tuple(kind) if issubclass(kind, tuple) else _object(kind)


def _exactly(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ValueError(repr(value))
    return value


def _integer(value: Any, limits: range = _INT64) -> int:
    if type(value) is not int or value not in limits:
        raise ValueError(repr(value))
    return value


def _are_within(values: Iterable[int | None], limits: range) -> bool:
    numbers = list(filter(None, values))
    return limits.start <= min(numbers, default=0) and max(numbers, default=0) < limits.stop


def _integers(value: Any) -> tuple[int, ...]:
    found: list[int] = _exactly(value, list)
    if set(map(type, found)) - {int} or not _are_within(found, _INT64):
        raise ValueError(repr(value))
    return tuple(found)


def _shown(value: Any) -> str:
    return cut(repr(value), _SHOWN)


def cut(text: str, most: int = 500) -> str:
    """Return at most so many characters of what another program may have written."""
    return text if len(text) <= most else f"{text[:most]}…"


def _array(arguments: tuple[Any, ...]) -> Reader:
    readers = [_reader(argument) for argument in arguments if argument is not Ellipsis]
    if Ellipsis in arguments:
        (each,), kind = readers, arguments[0]
        if kind is int:
            return _integers
        has_columns = hasattr(kind, "_make")
        return lambda value: (
            _of_columns(kind, value)
            if has_columns and type(value) is Rows
            else tuple(each(one) for one in _objects(value))
        )
    return lambda value: tuple(reader(one) for reader, one in zip(readers, _exactly(value, list), strict=True))


def _mapping(key_kind: type, value_kind: Any) -> Reader:
    each = _reader(value_kind)
    if key_kind is int:
        # of partitions or lanes
        return lambda value: {_integer(int(key), _COUNTS): each(one) for key, one in _exactly(value, dict).items()}
    return lambda value: {str(key): each(one) for key, one in _exactly(value, dict).items()}


def _named_tuple(kind: Any) -> Reader:
    from_object, readers = _object(kind), _readers(kind).values()

    def read_it(value: Any) -> Any:
        if isinstance(value, dict):
            return from_object(value)
        given = zip(readers, _exactly(value, list), strict=True)
        return kind(*(None if one is None else reader(one) for reader, one in given))

    return read_it


def _objects(value: Any) -> list[Any]:
    if type(value) is Rows:
        return [dict(zip(value.columns, row, strict=True)) for row in value.rows]
    found: list[Any] = _exactly(value, list)
    return found


def _of_columns(kind: Any, stored: Rows) -> tuple[Any, ...]:
    """Make named tuples from rows, checking each column as a whole: engines report thousands of rows a second."""
    count = len(stored.rows)
    if not count:
        return ()
    values = dict(zip(stored.columns, zip(*stored.rows, strict=True), strict=True))
    found = []
    for name, plain, reader, may_be_none in _columns(kind):
        column, default = values.get(name, (None,) * count), kind._field_defaults.get(name)
        types = set(map(type, column))
        if NoneType in types and not may_be_none:
            raise ValueError(f"its field {name!r} is None")
        if types <= {str, NoneType} and plain is None:
            made = {one: default if one is None else reader(one) for one in set(column)}
            column = tuple(map(made.__getitem__, column))
        elif not types <= {plain} and (default is not None or not types <= {plain, NoneType}):
            column = tuple(default if one is None else reader(one) for one in column)
        elif plain is int and not _are_within(column, _LIMITS.get(name, _INT64)):
            raise ValueError(f"its field {name!r} has a number that is too large")
        found.append(column)
    return tuple(map(kind._make, zip(*found, strict=True)))


@cache
def _columns(kind: Any) -> list[tuple[str, type | None, Reader, bool]]:
    """Return of each field the name, the type that needs no conversion, the reader, and whether it may be missing."""
    found = []
    for name, hint in get_type_hints(kind).items():
        (base,) = [one for one in get_args(hint) or (hint,) if one is not NoneType]
        is_optional = NoneType in get_args(hint) or name in kind._field_defaults
        found.append((name, base if base in (int, float, str, bool) else None, _field(name, base), is_optional))
    return found


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    return {name: _field(name, hint) for name, hint in get_type_hints(kind).items() if name != "extra"}


def _field(name: str, hint: Any) -> Reader:
    if name in _LIMITS and hint in (int, int | None):
        return lambda value: _integer(value, _LIMITS[name])
    return _reader(hint)


@cache
def _object(kind: Any) -> Reader:
    readers = _readers(kind)
    hints = get_type_hints(kind)
    has_default = set(getattr(kind, "_field_defaults", ()))
    if is_dataclass(kind):
        has_default = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
    may_be_none = {name for name in readers if NoneType in get_args(hints[name])} - has_default
    keeps_extra = "extra" in hints

    def read_it(value: Any) -> Any:
        rest = dict(_exactly(value, dict))
        known: dict[str, Any] = dict.fromkeys(may_be_none)
        for name, reader in readers.items():
            found = rest.pop(name, None)
            if found is not None:
                try:
                    known[name] = reader(found)
                except UNREADABLE as error:
                    raise ValueError(f"its field {name!r} is {_shown(found)}") from error
            elif name not in known and name not in has_default:
                raise ValueError(f"its field {name!r} is None")
        return kind(**known, extra=rest) if keeps_extra else kind(**known)

    return read_it
