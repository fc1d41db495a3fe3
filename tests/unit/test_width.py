"""The table of what many partitions cost holds what was measured."""

from __future__ import annotations

import json

from bench.width import BEGIN, END, PAGE, RESULTS, page_table


def test_the_page_says_what_was_measured() -> None:
    """`python -m bench.width --page` writes it."""
    table = page_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert BEGIN + table + END in PAGE.read_text(encoding="utf-8")
