"""How tables look in a pipe and on a terminal, and how amounts are written for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic

from kmirror.columns import R, Table
from kmirror.settings.durations import format_duration
from kmirror.words import byte_rate

#: What stands between two columns.
GAP = "  "

#: How the codes of cells are styled on a terminal: states, outcomes, reasons; what is not named here is not.
_STYLES = {
    "MIRRORING": "green",
    "ACTIVE": "green",
    "DONE": "green",
    "equal": "green",
    "ok": "green",
    "RUNNING": "green",
    "STARTING": "yellow",
    "DOWN": "red",
    "SYNCED": "green",
    "HELD_BACK": "yellow",
    "LOG_ALIGNMENT": "yellow",
    "PENDING_MIRROR": "yellow",
    "PENDING_STOPPED": "yellow",
    "PAUSED": "yellow",
    "SOURCE_UNAVAILABLE": "yellow",
    "TIMED_OUT": "yellow",
    "REFUSED": "red",
    "FAILED": "bold red",
    "FAIL": "bold red",
    "LINK_FAILED": "bold red",
    "NO_ENGINE": "bold red",
    "ENGINE_SILENT": "bold red",
    "NO_WORKERS": "bold red",
    "DIFFERENT": "bold red",
    "not-compared": "yellow",
}


def style_of(code: str | None) -> str:
    """Return how a cell with this code is styled on a terminal; one without a code is not."""
    return _STYLES.get(code, "") if code else ""


def lines(table: Table[R], rows: Sequence[R]) -> Iterator[str]:
    """Yield the heading and the rows, aligned by spaces; numbers stand to the right."""
    return RowWriter(table).lines(rows)


class RowWriter(Generic[R]):
    """Write the rows of a table as they come: the heading once, and columns that grow where they have to."""

    def __init__(self, table: Table[R]) -> None:
        self._columns = table.shown
        self._widths = [0] * len(self._columns)
        self._is_begun = False

    def lines(self, rows: Sequence[R]) -> Iterator[str]:
        """Yield more rows, the first time below the heading."""
        written = [[column.shown(row).text for column in self._columns] for row in rows]
        if not self._is_begun:
            written.insert(0, [column.header for column in self._columns])
            self._is_begun = True
        for line in written:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, line, strict=True)]
        for line in written:
            cells = zip(line, self._widths, self._columns, strict=True)
            yield GAP.join(
                cell.rjust(width) if column.is_number else cell.ljust(width) for cell, width, column in cells
            ).rstrip()


def size(size_in_bytes: int) -> str:
    """Return a number of bytes for people: `512 B`, `1.2 GB`."""
    return byte_rate(size_in_bytes).removesuffix("/s")


def elapsed(seconds: float) -> str:
    """Return seconds for people: `0.4s`, `12.3s`, `1m5s`."""
    return format_duration(round(seconds * 1000))
