"""The table of what one large partition costs holds what was measured."""

from __future__ import annotations

import json

from bench.big_page import BEGIN, END, PAGE, RESULTS, page_table


def test_the_page_says_what_was_measured() -> None:
    """`python -m bench.big --page` writes it."""
    table = page_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert BEGIN + table + END in PAGE.read_text(encoding="utf-8")
