"""Fit a table to the width of a terminal, by narrowing columns and folding cells. Pure.

A cell that is too long continues in the line below. It is folded after a space, `-`, `.`, `_`, `,` or `/`, headings
before cells, and inside a word only as a last resort.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from kmirror.cli.terminal.plain_tables import GAP, style_of
from kmirror.columns import Cell, Column, R, Table

_PIECE = re.compile(r"[^-\s._,/]*(?:[-\s._,/]+|$)")
_HEADING = "bold"

#: A text and its style.
Span = tuple[str, str]
Line = list[Span]


def laid_out(table: Table[R], rows: Sequence[R], width: int) -> Iterator[list[Line]]:
    """Yield a table fitted to `width` characters: the lines of the heading, then those of each row."""
    columns = table.shown
    cells = table.cells(rows)
    widths = fitting_widths(
        [column.header for column in columns], [[cell.text for cell in row] for row in cells], width
    )
    heading = [Cell(column.header, None) for column in columns]
    yield list(_lines(columns, heading, widths, _HEADING))
    for row in cells:
        yield list(_lines(columns, row, widths, ""))


def fitting_parts(table: Table[R], rows: Sequence[R], width: int, height: int) -> list[list[Line]]:
    """Return the heading and as many whole rows as fit in `height` lines."""
    parts, left = [], height
    for part in laid_out(table, rows[: max(0, height)], width):
        left -= len(part)
        if left < 0:
            break
        parts.append(part)
    return parts


def _lines(columns: Sequence[Column[R]], row: Sequence[Cell], widths: Sequence[int], style: str) -> Iterator[Line]:
    folded = [fold(cell.text, width) for cell, width in zip(row, widths, strict=True)]
    for index in range(max(map(len, folded))):
        line: Line = []
        blank = 0
        for column, cell, parts, width in zip(columns, row, folded, widths, strict=True):
            part = parts[index] if index < len(parts) else ""
            left = width - len(part) if column.is_number else 0
            if part:
                line += [(" " * (blank + left), ""), (part, style or style_of(cell.code))]
                blank = 0
            blank += width - left - len(part) + len(GAP) if part else width + len(GAP)
        yield line


def fitting_widths(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return column widths that fit in a line of `width` characters."""
    contents = [set(column) for column in zip(*rows, strict=True)] or [set[str]() for _ in headers]
    longest = [max(map(len, texts), default=0) for texts in contents]
    heads = [_longest_piece(header) for header in headers]
    pieces = [max(map(_longest_piece, texts), default=0) for texts in contents]
    columns = [_Column(header, texts) for header, texts in zip(headers, contents, strict=True)]
    room = width - len(GAP) * (len(headers) - 1)
    for floors in (
        [max(head, text) for head, text in zip(heads, longest, strict=True)],
        [max(head, piece) for head, piece in zip(heads, pieces, strict=True)],
        [1] * len(headers),
    ):
        while sum(column.width for column in columns) > room:
            wide = [column for column, floor in zip(columns, floors, strict=True) if column.width > floor]
            if not wide:
                break
            max(wide, key=lambda column: column.width).narrow()
    return [column.width for column in columns]


class _Column:
    """The texts of a column and its current width."""

    def __init__(self, header: str, contents: Iterable[str]) -> None:
        self._texts = {header, *contents}
        self.width = max(map(len, self._texts))

    def narrow(self) -> None:
        """Reduce to the next smaller width that the folded texts need."""
        self.width = max(len(line) for text in self._texts for line in fold(text, self.width - 1))


def fold(text: str, width: int) -> list[str]:
    """Fold a text into lines of at most `width` characters."""
    if len(text) <= width:
        return [text]
    lines, line = [], ""
    for piece in _PIECE.findall(text):
        if line and len(line) + len(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line.rstrip()] if line.strip() else lines


def _longest_piece(text: str) -> int:
    return max(len(piece.rstrip()) for piece in _PIECE.findall(text))
