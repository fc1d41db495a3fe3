"""What rows and JSON documents hold: each key is declared once, with its type, for people and for scripts. Pure.

`docs/json.md` and the schemas in `kmirror/schemas` are made from these declarations.

A table keeps its columns when it is piped into a script: names without spaces, `-` for what is not known, one row a
line, never cut. Only the last column may hold spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from kmirror.words import UNKNOWN

R = TypeVar("R")


class Cell(NamedTuple):
    """What people see of one value of a row; `code`, where there is one, decides the style."""

    text: str
    code: str | None


@dataclass(frozen=True, slots=True)
class Type:
    """Say what a value is in JSON: its type there, and in `words` what that stands for, with its unit.

    `null` says when it is null instead; nothing where it never is.
    """

    json: str
    words: str
    minimum: int | None = None
    #: All values there are, where they are codes.
    codes: tuple[str | int, ...] = ()
    #: What each entry of an array, or each value of an object without fixed keys, is.
    items: Type | None = None
    fields: tuple[Column[Any], ...] = ()
    null: str = ""

    def null_when(self, null: str) -> Type:
        """Return the same type for a value that may be unknown or absent."""
        return replace(self, null=null)


TEXT = Type("string", "text")
FLAG = Type("boolean", "true or false")
COUNT = Type("integer", "number", minimum=0)
#: The offset of a record.
OFFSET = Type("integer", "offset", minimum=0)
#: The offset after the last record, as in Kafka.
END = Type("integer", "offset, exclusive", minimum=0)
TIME = Type("integer", "epoch ms", minimum=0)
DURATION = Type("integer", "ms", minimum=0)
#: One whose keys are not fixed here.
OBJECT = Type("object", "object")


def one_of(words: str, *enums: type[Enum]) -> Type:
    """Return the type of a value that is a member of one of these enums."""
    codes = tuple(dict.fromkeys(member.value for enum in enums for member in enum))
    return Type("string" if isinstance(codes[0], str) else "integer", words, codes=codes)


def object_of(fields: Sequence[Column[Any]]) -> Type:
    """Return the type of an object with these keys."""
    return Type("object", "object", fields=tuple(fields))


def list_of(items: Type) -> Type:
    """Return the type of an array of these."""
    return Type("array", "list", items=items)


@dataclass(frozen=True, slots=True)
class Only(Generic[R]):
    """Say in words which rows have a key, and tell whether one of them does."""

    where: str
    has: Callable[[R], object]


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """Show one value of a row: as `key` in JSON, under `header` in tables that have it.

    `type` and `meaning` say what the value is, in a few words.

    People see `cell` instead of the value where it is given. Only a code has a style: the member of an enum, or what
    `code` returns. Text has none, whatever it says.
    """

    key: str
    type: Type
    meaning: str
    value: Callable[[R], object]
    header: str = ""
    cell: Callable[[R], object] | None = None
    code: Callable[[R], str | None] | None = None
    is_number: bool = False
    #: Which rows have the key at all; None where each has it.
    only: Only[R] | None = None

    def shown(self, row: R) -> Cell:
        """Return what people see in a row's place of this column."""
        found = (self.cell or self.value)(row)
        code = self.code(row) if self.code else str(found) if isinstance(found, Enum) else None
        return Cell(UNKNOWN if found is None else str(found), code)


def document(fields: Iterable[Column[R]], row: R) -> dict[str, Any]:
    """Return a row as `--json` prints it."""
    return {field.key: field.value(row) for field in fields if field.only is None or field.only.has(row)}


@dataclass(frozen=True, slots=True)
class Table(Generic[R]):
    """Hold all columns of one kind of row, in the order of the JSON, and the `headers` that people see, in theirs."""

    columns: tuple[Column[R], ...]
    headers: str
    #: What people are told where there are no rows.
    none: str = ""
    #: What people should know besides the rows, in sentences.
    notes: Callable[[Sequence[R]], Iterable[str]] | None = None

    @property
    def shown(self) -> list[Column[R]]:
        """The columns that people see."""
        by_header = {column.header: column for column in self.columns}
        return [by_header[header] for header in self.headers.split()]

    @property
    def type(self) -> Type:
        """The type of the rows as `--json` prints them."""
        return list_of(object_of(self.columns))

    def document(self, row: R) -> dict[str, Any]:
        """Return a row as `--json` prints it."""
        return document(self.columns, row)
