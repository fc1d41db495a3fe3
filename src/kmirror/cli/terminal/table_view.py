"""The live view of a table, for `--watch`. Pure: no clock."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Generic

from kmirror.cli.terminal.layout import Line, fitting_parts
from kmirror.cli.terminal.observation import Observation, faded, on_whole_terminal, title_lines, unread_lines
from kmirror.columns import R, Table
from kmirror.words import counted

#: Notes take at most one line of three.
_NOTES_SHARE = 3


class TableView(Generic[R]):
    """The table's notes, then as many of its rows as fit."""

    def __init__(self, title: str, table: Table[R]) -> None:
        self._title, self._table = title, table

    def press(self, key: str) -> bool:
        """Handle a key; return False to quit."""
        return key != "q"

    def lines(
        self, observed: Observation[tuple[Sequence[R], Sequence[str]]], at: float, width: int, height: int
    ) -> list[Line]:
        """Return the lines for a terminal of this size."""
        title = title_lines(self._title, observed, at, width)
        if observed.snapshot is None:
            return on_whole_terminal([*title, [("loading …", "")]], [("q quit", "dim")], height)
        rows, unread = observed.snapshot
        title += unread_lines(unread, width)
        texts = [*(self._table.notes(rows) if self._table.notes else ()), *([] if rows else [self._table.none])]
        notes: list[Line] = [[(line, "")] for text in texts for line in textwrap.wrap(text, width)]
        notes = notes[: height // _NOTES_SHARE]
        table = self._table.used_by(rows)
        parts = fitting_parts(table, rows, width, height - len(title) - len(notes) - 2)
        body = [*notes, [], *(line for part in parts for line in part)]
        shown, all_rows = max(0, len(parts) - 1), counted(len(rows), "row")
        more = "" if shown == len(rows) else f"{shown:,} of "
        hint = "; enlarge the terminal or use --topics to see the others" if more else ""
        foot: Line = [(f"q quit   {more}{all_rows}{hint}", "dim")]
        return on_whole_terminal([*title, *faded(body, observed, at)], foot, height)
