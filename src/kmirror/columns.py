"""How the rows of a table are shown: each column is declared once, for people and for scripts. Pure.

A table keeps its columns when it is piped into a script: names without spaces, `-` for what is not known, one row a
line, never cut. Only the last column may hold spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from kmirror.words import UNKNOWN

R = TypeVar("R")


class Cell(NamedTuple):
    """What people see of one value of a row; `code`, where there is one, decides the style."""

    text: str
    code: str | None


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """Show one value of a row: as `key` in JSON, under `header` in tables that have it.

    People see `cell` instead of the value where it is given. Only a code has a style: the member of an enum, or what
    `code` returns. Text has none, whatever it says.
    """

    key: str
    value: Callable[[R], object]
    header: str = ""
    cell: Callable[[R], object] | None = None
    code: Callable[[R], str | None] | None = None
    is_number: bool = False

    def shown(self, row: R) -> Cell:
        """Return what people see in a row's place of this column."""
        found = (self.cell or self.value)(row)
        code = self.code(row) if self.code else str(found) if isinstance(found, Enum) else None
        return Cell(UNKNOWN if found is None else str(found), code)


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

    def document(self, row: R) -> dict[str, Any]:
        """Return a row as `--json` prints it."""
        return {column.key: column.value(row) for column in self.columns}
