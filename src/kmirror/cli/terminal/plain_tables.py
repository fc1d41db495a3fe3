"""The layout and style of tables, and durations as people read them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic

from kmirror.columns import R, Table
from kmirror.settings.durations import format_duration

#: Between two columns.
GAP = "  "

#: The terminal style of the codes in cells: states, outcomes, reasons. Others have none.
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
    """Return the terminal style of a cell with this code, empty for none."""
    return _STYLES.get(code, "") if code else ""


def lines(table: Table[R], rows: Sequence[R]) -> Iterator[str]:
    """Yield the heading and the rows, aligned with spaces, numbers to the right."""
    return RowWriter(table).lines(rows)


class RowWriter(Generic[R]):
    """Format the rows of a table as they arrive: the heading once, columns that only widen."""

    def __init__(self, table: Table[R]) -> None:
        self._table, self._columns = table, table.shown
        self._widths = [0] * len(self._columns)
        self._has_heading = False

    def lines(self, rows: Sequence[R]) -> Iterator[str]:
        """Yield the lines of more rows, the first time below the heading."""
        cells_of_rows = [[cell.text for cell in cells] for cells in self._table.cells(rows)]
        if not self._has_heading:
            cells_of_rows.insert(0, [column.header for column in self._columns])
            self._has_heading = True
        for line in cells_of_rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, line, strict=True)]
        for line in cells_of_rows:
            cells = zip(line, self._widths, self._columns, strict=True)
            yield GAP.join(
                cell.rjust(width) if column.is_number else cell.ljust(width) for cell, width, column in cells
            ).rstrip()


def elapsed(seconds: float) -> str:
    """Format seconds: `0.4s`, `12.3s`, `1m5s`."""
    return format_duration(round(seconds * 1000))
