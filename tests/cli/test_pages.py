"""`kmirror help`: the pages as they are in docs/, and the help of commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kmirror.cli.commands import help_pages as pages

if TYPE_CHECKING:
    from .conftest import Run

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_pages_are_listed_with_their_titles(run: Run) -> None:
    shown = run("help")
    assert (shown.code, shown.err) == (0, "")
    assert len(shown.out.splitlines()) == len(list(DOCS.rglob("*.md")))
    assert dict(line.split(maxsplit=1) for line in shown.out.splitlines())["glossary"] == "Glossary"


@pytest.mark.parametrize("topic", ["runbooks/drill", "docs/runbooks/drill.md"])
def test_a_page_is_shown_as_it_is(run: Run, topic: str) -> None:
    shown = run("help", topic)
    assert (shown.code, shown.out) == (0, (DOCS / "runbooks" / "drill.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("verb", ["wait", "sandbox"])
def test_a_command_s_help_is_what_help_shows(run: Run, verb: str) -> None:
    assert run("help", verb) == run(verb, "--help")


def test_a_topic_that_is_none_is_usage(run: Run) -> None:
    shown = run("help", "troubelshooting")
    assert (shown.code, shown.out) == (2, "")
    assert "did you mean troubleshooting?" in shown.err


def test_without_pages_it_says_where_to_get_them(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pages, "_folders", lambda: iter([tmp_path]))
    shown = run("help", "settings")
    assert shown.code == 3
    assert "install kmirror's wheel with pip" in shown.err
    assert run("help", "wait").code == 0
