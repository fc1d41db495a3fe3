"""Pages without a script, of plans and rehearsals: what surrounds their sections, and tables. Pure: no I/O or clock."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

from kmirror.columns import R, Table
from kmirror.words import visible

_MOST_ROWS = 500


def plain_page(title: str, command: str, intro: str, parts: Iterable[str], note: str) -> str:
    """Return a page; `parts` are its sections as HTML, the rest is text. `command` made it."""
    style = files("kmirror.web").joinpath("style.css").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {policy_hash(style)}; base-uri 'none'; form-action 'none'"
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            f'<meta name="generator" content="kmirror {command}">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n',
            f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            f'<h1>{text(title)}</h1>\n<p class="soft">{text(intro)}</p>\n<main>\n',
            *parts,
            f"</main>\n<footer><p>{text(note)}</p></footer>\n</body>\n</html>\n",
        )
    )


def policy_hash(part: str) -> str:
    """Return the hash by which a page's policy names a script or a style sheet."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


def text(found: str) -> str:
    """Return foreign text as HTML."""
    return escape(visible(found))


def section(title: str, body: Iterable[str]) -> Iterator[str]:
    """Yield a section with a heading."""
    yield f"<section>\n<h2>{title}</h2>\n"
    yield from body
    yield "</section>\n"


def sentences(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a paragraph for each pair of how bad something is (nothing, warn or bad) and a sentence."""
    for level, sentence in found:
        yield f"<p{f' class={level!r}' if level else ''}>{text(sentence)}</p>\n"


def table_of(table: Table[R], rows: Sequence[R], whole: str) -> Iterator[str]:
    """Yield a table, of long ones the first rows; `whole` is the file that has all of them."""
    if not rows:
        yield f'<p class="soft">{table.none or "none"}</p>\n'
        return
    columns = table.shown
    heads = "".join(f"<th{_number(column.is_number)}>{escape(column.header)}</th>" for column in columns)
    yield f'<div class="table"><table><thead><tr>{heads}</tr></thead><tbody>\n'
    for cells in table.cells(rows[:_MOST_ROWS]):
        shown = zip(cells, columns, strict=True)
        yield f"<tr>{''.join(f'<td{_number(c.is_number)}>{escape(cell.text)}</td>' for cell, c in shown)}</tr>\n"
    yield "</tbody></table></div>\n"
    if len(rows) > _MOST_ROWS:
        yield f'<p class="soft">Left out here: {len(rows) - _MOST_ROWS:,} rows; {whole} has them.</p>\n'


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of texts."""
    shown = "".join(f"<th>{text(one)}</th>" for one in heads)
    yield f'<div class="table"><table><thead><tr>{shown}</tr></thead><tbody>\n'
    for cells in rows:
        yield f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>\n"
    yield "</tbody></table></div>\n"


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""
