"""What a table shows that is watched, and the key that it takes. Pure: no clock."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Generic

from kmirror.cli.layout import Line, fitting_parts
from kmirror.cli.sight import Sight, faded, on_whole_terminal, title_lines, unread_lines
from kmirror.columns import R, Table
from kmirror.words import counted

#: Notes leave the most of the terminal to rows.
_NOTES_SHARE = 3


class TableView(Generic[R]):
    """The rows of a table, as many as there is room for, below what people should know besides."""

    def __init__(self, title: str, table: Table[R]) -> None:
        self._title, self._table = title, table

    def press(self, key: str) -> bool:
        """Take a key; tell whether to go on."""
        return key != "q"

    def lines(self, sight: Sight[tuple[Sequence[R], Sequence[str]]], at: float, width: int, height: int) -> list[Line]:
        """Return what a terminal of this size shows."""
        title = title_lines(self._title, sight, at, width)
        if sight.picture is None:
            return on_whole_terminal([*title, [("looking …", "")]], [("q quit", "dim")], height)
        rows, unread = sight.picture
        title += unread_lines(unread, width)
        said = [*(self._table.notes(rows) if self._table.notes else ()), *([] if rows else [self._table.none])]
        notes: list[Line] = [[(line, "")] for note in said for line in textwrap.wrap(note, width)]
        notes = notes[: height // _NOTES_SHARE]
        parts = fitting_parts(self._table, rows, width, height - len(title) - len(notes) - 2)
        body = [*notes, [], *(line for part in parts for line in part)]
        shown, all_rows = max(0, len(parts) - 1), counted(len(rows), "row")
        told = (
            all_rows
            if shown == len(rows)
            else f"{shown:,} of {all_rows}; a larger terminal or --topics shows the others"
        )
        return on_whole_terminal([*title, *faded(body, sight, at)], [(f"q quit   {told}", "dim")], height)
