"""Rows of tables filled by hypothesis: every text in them hostile, and everything else possible."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from tests.support.hostile_text import hostile_text

_NUMBERS = st.integers(0, 1 << 40)


def made(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        return st.one_of([made(part) for part in parts])
    if origin is tuple and parts[-1] is not Ellipsis:
        return st.tuples(*map(made, parts))
    if origin in {tuple, list, Sequence, Collection, frozenset}:
        return st.lists(made(parts[0]), max_size=2).map(tuple)
    if origin in {dict, Mapping}:
        return st.dictionaries(made(parts[0]), made(parts[1]), max_size=2)
    if origin is typing.Literal:
        return st.sampled_from(parts)
    if kind in {str, Any, object}:
        return hostile_text
    if kind in {int, float}:
        return _NUMBERS
    if kind in {bool, types.NoneType}:
        return st.sampled_from((True, False)) if kind is bool else st.none()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    hints = typing.get_type_hints(kind)
    if is_dataclass(kind):
        return st.builds(kind, **{one.name: made(hints[one.name]) for one in fields(kind) if one.init})  # type: ignore[arg-type]
    return st.builds(kind, **{name: made(hint) for name, hint in hints.items()})
