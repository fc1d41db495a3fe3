"""The page of drills says what was measured, and a failover that tells less than was lost is no honest one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.drills import BEGIN, END, PAGE, FailoverDrill, stored, tables

UNKNOWN = FailoverDrill(10, 1, 1000, 1.0, 1.1, 2.0, 50, 0.1, 0.2, 0, 40, None, False, 1, None)


def test_the_page_says_what_was_measured() -> None:
    """`python -m bench.drills --page` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables(stored()).items():
        assert BEGIN.format(name) + table + END in page


@pytest.mark.parametrize(
    ("drill", "is_honest"),
    [
        (UNKNOWN, True),
        (replace(UNKNOWN, told_rpo_seconds=0.0), False),
        (replace(UNKNOWN, told_rpo_seconds=0.2, told_more_records=49), False),
        (replace(UNKNOWN, told_rpo_seconds=0.2, told_lost_records=10), True),
        (replace(UNKNOWN, told_rpo_seconds=0.2, told_lost_records=None, told_more_records=0), False),
        (replace(UNKNOWN, told_rpo_at_loss_seconds=0.2), False),
        (replace(UNKNOWN, told_rpo_at_loss_seconds=0.2, told_more_at_loss_records=50), True),
        (replace(UNKNOWN, told_rpo_at_loss_seconds=0.1, told_more_at_loss_records=50), False),
    ],
)
def test_reports_must_be_as_alarming_as_the_truth(drill: FailoverDrill, is_honest: bool) -> None:
    assert drill.is_honest is is_honest
