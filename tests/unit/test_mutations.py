"""What is broken on purpose is still there to be broken, something catches all of it, and the page says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.mutants import MUTANTS, Mutant
from campaign.mutations import BEGIN, END, PAGE, REPOSITORY, digest, mutated, stored, table

PRODUCT = REPOSITORY / "src" / "kmirror"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_fits_the_product_and_was_caught(mutant: Mutant) -> None:
    """`python -m campaign.mutations WORDS` runs those with these words in their names."""
    broken = mutated(mutant, (PRODUCT / mutant.file).read_text(encoding="utf-8"))
    compile(broken, mutant.file, "exec")
    known = stored()[mutant.name]
    assert known["digest"] == digest(mutant)
    assert known["caught_by"]
    for test in (*mutant.tests, known["caught_by"]):
        file, _, name = test.partition("[")[0].partition("::")
        assert f"def {name.rpartition('::')[2]}" in Path(REPOSITORY, file).read_text(encoding="utf-8")


def test_the_page_says_what_caught_each() -> None:
    """`python -m campaign.mutations --table` writes it."""
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    assert BEGIN + table(stored()) + END in PAGE.read_text(encoding="utf-8")
