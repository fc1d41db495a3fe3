"""How columns become narrow enough for a terminal, and where words are folded."""

from __future__ import annotations

import pytest

from kmirror.cli.terminal.layout import fitting_widths, fold


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("orders", 6, ["orders"]),
        ("", 3, [""]),
        ("payments-refunds-eu", 9, ["payments-", "refunds-", "eu"]),
        ("payments-refunds-eu", 17, ["payments-refunds-", "eu"]),
        ("a sentence of some words", 10, ["a sentence", "of some", "words"]),
        ("NO_ENGINE (MIRRORING)", 12, ["NO_ENGINE", "(MIRRORING)"]),
        ("/var/log/kmirror", 9, ["/var/log/", "kmirror"]),
        ("abcdefgh-x", 3, ["abc", "def", "gh-", "x"]),
        ("--", 1, ["-", "-"]),
    ],
)
def test_texts_are_folded_where_they_may_be(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines
    assert "".join(lines) == text or " " in text


HEADERS = ["TOPIC", "SOURCE-OFFSET", "STATE"]
ROWS = [["payments-refunds", "12", "MIRRORING"], ["orders", "1234567", "NO_ENGINE (MIRRORING)"]]


@pytest.mark.parametrize(
    ("width", "widths"),
    [
        (100, [16, 13, 21]),
        (54, [16, 13, 21]),
        (53, [16, 7, 21]),  # the heading first
        (48, [16, 7, 21]),
        (47, [16, 7, 11]),
        (37, [9, 7, 11]),
        (27, [8, 7, 8]),  # words, when nothing else is left
        (1, [1, 1, 1]),
    ],
)
def test_columns_are_no_wider_than_the_terminal_and_no_narrower_than_needed(width: int, widths: list[int]) -> None:
    assert fitting_widths(HEADERS, ROWS, width) == widths


def test_a_table_without_rows_has_its_heading() -> None:
    assert fitting_widths(HEADERS, [], 80) == [5, 13, 5]
    assert fitting_widths(HEADERS, [], 20) == [5, 6, 5]
