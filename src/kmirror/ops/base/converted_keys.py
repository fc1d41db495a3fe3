"""What became of each key of another tool's file that was converted, and the rows that show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kmirror.columns import TEXT, Column, Table, one_of
from kmirror.words import UNKNOWN, one_line


class KeyOutcome(StrEnum):
    """What became of a key."""

    TAKEN = "TAKEN"
    DEFAULT = "DEFAULT"
    NO_MEANING = "NO_MEANING"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class KeyResult:
    """What became of one key of the file: what it is taken as, or why it is not, and what to do."""

    key: str
    became: KeyOutcome
    message: str
    hint: str | None = None
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


KEYS: Table[KeyRow] = Table(
    (
        Column(
            "mirror",
            TEXT.null_when("it applies to no mirror that is created"),
            "the mirror",
            lambda row: row.mirror,
            "MIRROR",
            cell=lambda row: row.mirror or UNKNOWN,
        ),
        Column("key", TEXT, "the key in the file", lambda row: row.key_result.key, "KEY"),
        Column(
            "became", one_of("became", KeyOutcome), "what became of it", lambda row: row.key_result.became, "BECAME"
        ),
        Column(
            "message",
            TEXT,
            "what it was converted to, or why it was not",
            lambda row: row.key_result.message,
            "MEANING",
            cell=lambda row: one_line(": ".join(filter(None, (row.key_result.message, row.key_result.hint)))),
        ),
        Column("hint", TEXT.null_when("there is nothing to do"), "what to do instead", lambda row: row.key_result.hint),
    ),
    "MIRROR KEY BECAME MEANING",
)
