"""What is broken on purpose is still there to be broken, something catches all of it, and the page says what."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.mutants import MUTANTS, Mutant
from campaign.mutations import BEGIN, END, PAGE, REPOSITORY, digest, mutated, stored, table
from campaign.places import StaleError, changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_fits_the_product_and_was_caught(mutant: Mutant) -> None:
    """`python -m campaign.mutations WORDS` runs those with these words in their names."""
    compile(mutated(mutant, REPOSITORY), mutant.file, "exec")
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


CODE = """
class Copy:
    def answered(self, code, offset):
        # A comment.
        if (code == 0 and
                offset < self.end):
            return None
        return self.end

    def other(self):
        return self.end


LIMITS = {"a": 1}
"""


@pytest.mark.parametrize(
    ("function", "old", "new", "expected"),
    [
        ("Copy.answered", "code == 0 and offset < self.end", "code == 0", "if code == 0:"),
        ("Copy.answered", "renamed == 0", "renamed < 0", "if code < 0 and offset < self.end:"),
        (
            "Copy.answered",
            "if code == 0 and at < self.end: ...",
            "if at < 0: ...",
            "if offset < 0:\n            return ",
        ),
        ("Copy.answered", "return self.log_end", "return self.log_end + 1", "return self.end + 1"),
        ("Copy.other", "return self.end", "pass", "def other(self):\n        pass"),
        ("LIMITS", "1", "2", "LIMITS = {'a': 2}"),
    ],
)
def test_a_place_is_found_by_its_function_and_its_shape(function: str, old: str, new: str, expected: str) -> None:
    """Whatever its layout, and what its names are now."""
    assert expected in changed(CODE, function, old, new)


@pytest.mark.parametrize(
    ("function", "old", "why"),
    [
        ("Copy.answered", "code == 1", "0 places"),
        ("Copy.answered", "self.end", "2 places"),
        ("Copy.answered", "offset == 0", "0 places"),  # the function still has an `offset`, and it is another name
        ("Copy.answered", "renamed == 0 and renamed < self.end", "0 places"),
        ("Copy.answered", "code == 0 and len < self.end", "0 places"),
        ("Copy.asked", "code", "there is no Copy.asked"),
        ("Other.answered", "code", "there is no Other.answered"),
    ],
)
def test_a_place_that_is_gone_or_not_unique_is_reported(function: str, old: str, why: str) -> None:
    with pytest.raises(StaleError, match=why):
        changed(CODE, function, old, "0")


@pytest.mark.parametrize("file", ["engine/lane/appending.py", "engine/gone.py"])
def test_where_the_function_of_a_stale_mutant_may_be_now_is_said(file: str) -> None:
    stale = Mutant("x", file, "why_unproven", "not answer.is_alone", "False", "y", ())
    with pytest.raises(StaleError, match=r"why_unproven occurs in: .*cluster/protocol/read_up_to\.py"):
        mutated(stale, REPOSITORY)
