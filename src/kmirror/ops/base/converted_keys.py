"""What became of each key of another tool's file that was converted, and the rows that show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kmirror.columns import TEXT, Column, Table, columns_of, one_of, shown, table_row
from kmirror.words import one_line


class KeyOutcome(StrEnum):
    """What became of a key."""

    TAKEN = "TAKEN"
    DEFAULT = "DEFAULT"
    NO_MEANING = "NO_MEANING"
    REFUSED = "REFUSED"


@table_row(kw_only=False)
class KeyResult:
    """What became of one key of the file: what it is taken as, or why it is not, and what to do."""

    key: str = shown(TEXT, "the key in the file", "KEY")
    became: KeyOutcome = shown(one_of("became", KeyOutcome), "what became of it", "BECAME")
    message: str = shown(
        TEXT,
        "what it was converted to, or why it was not",
        "MEANING",
        of_row=lambda row: one_line(": ".join(filter(None, (row.message, row.hint)))),
    )
    hint: str | None = shown(TEXT.null_when("there is nothing to do"), "what to do instead", default=None)
    #: The properties of the mirror that it sets.
    properties: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRow:
    """How one key was converted for one mirror; `mirror` is None if it applies to none."""

    mirror: str | None
    key_result: KeyResult


def rows_of(mirror: str | None, key_results: Iterable[KeyResult]) -> Iterator[KeyRow]:
    """Yield a row for each key_result."""
    return (KeyRow(mirror, key_result) for key_result in key_results)


_MIRROR: Column[KeyRow] = Column(
    "mirror", TEXT.null_when("it applies to no mirror that is created"), "the mirror", lambda row: row.mirror, "MIRROR"
)
KEYS: Table[KeyRow] = Table(
    (_MIRROR, *(column.of_part(lambda row: row.key_result) for column in columns_of(KeyResult))),
    "MIRROR KEY BECAME MEANING",
)
