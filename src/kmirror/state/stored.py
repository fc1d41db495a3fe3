"""The stored form under all records: compact JSON objects with a schema version, read field by field.

Every field is checked for its type as it is taken out, so that what another program or a newer kmirror wrote is
never half understood. What nobody took is what this version does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

SCHEMA_VERSION = 1

#: What reading bytes that somebody else wrote may raise here.
UNREADABLE = (ValueError, TypeError, KeyError, RecursionError)

Word = TypeVar("Word", bound=StrEnum)


def dump(value: Any, fields_of: Callable[[Any], dict[str, Any]] | None = None) -> bytes:
    """Return compact JSON, the same bytes for the same content; `fields_of` turns objects into mappings.

    NaN and infinity are refused with ValueError.
    """
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False, default=fields_of).encode()


class Stored:
    """Take fields out of a stored JSON object; a missing field is None. Raises one of UNREADABLE."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    @classmethod
    def parse(cls, value: bytes) -> Stored:
        """Open a stored value whose schema version is known."""
        parsed = json.loads(value)
        if not isinstance(parsed, dict):
            raise ValueError("its value is not a JSON object")
        version = parsed.pop("v", None)
        if type(version) is not int or version > SCHEMA_VERSION:
            raise ValueError(f"its schema version is {version!r}, this kmirror knows {SCHEMA_VERSION}")
        return cls(parsed)

    def _take(self, name: str, *kinds: type) -> Any:
        value = self._fields.pop(name, None)
        if type(value) not in kinds:  # not isinstance: true is no number
            raise ValueError(f"its field {name!r} is {value!r}")
        return value

    def text(self, name: str) -> str:
        value: str = self._take(name, str)
        return value

    def optional_text(self, name: str) -> str | None:
        value: str | None = self._take(name, str, type(None))
        return value

    def integer(self, name: str) -> int:
        value: int = self._take(name, int)
        return value

    def optional_integer(self, name: str) -> int | None:
        value: int | None = self._take(name, int, type(None))
        return value

    def number(self, name: str) -> float:
        return float(self._take(name, int, float))

    def flag(self, name: str) -> bool:
        value: bool = self._take(name, bool)
        return value

    def optional_flag(self, name: str) -> bool:
        return self._fields.get(name) is not None and self.flag(name)

    def word(self, name: str, words: type[Word]) -> Word:
        return words(self.text(name))

    def optional_word(self, name: str, words: type[Word]) -> Word | None:
        value = self.optional_text(name)
        return None if value is None else words(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = self._take(name, dict)
        return value

    def optional_mapping(self, name: str) -> dict[str, Any] | None:
        value: dict[str, Any] | None = self._take(name, dict, type(None))
        return value

    def texts(self, name: str) -> dict[str, str]:
        value = self.mapping(name)
        if not all(type(entry) is str for entry in value.values()):
            raise ValueError(f"its field {name!r} is {value!r}")
        return value

    def optional_texts(self, name: str) -> dict[str, str] | None:
        return None if self._fields.get(name) is None else self.texts(name)

    def array(self, name: str) -> list[Any]:
        value: list[Any] = self._take(name, list)
        return value

    def optional_words(self, name: str) -> tuple[str, ...] | None:
        if self._fields.get(name) is None:
            return None
        value = self.array(name)
        if not all(type(entry) is str for entry in value):
            raise ValueError(f"its field {name!r} is {value!r}")
        return tuple(value)

    def rest(self) -> dict[str, Any]:
        """Return the fields nobody has taken."""
        return self._fields
