"""Tests, campaign and benchmarks are written in the English of the product's help: words that sound odd stay out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: Each with what to write instead; as whole words, in comments, docstrings, names of tests and what asserts say.
INSTEAD = {
    r"told": "reported, sent, asked, learns",
    r"somebody": "another client, someone",
    r"nobody": "no one, nothing, no lane",
    r"whoever": "any client that, what",
    r"anew": "again",
    r"go(?:es|ing)? on|went on": "continue, resume, still",
    r"borne": "retried",
    r"beyond": "after, above, past",
    r"thereof": "of it",
    r"as ever": "unchanged",
    r"lies|stands": "is",
    r"surely": "certain to",
    r"left out": "omitted",
    r"by now": "now",
    r"at rest": "idle, that does not change",
    r"cannot be asked": "could not query",
}
ODD = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b", re.IGNORECASE)
COMMENT = re.compile(r"(?:^|\s)#(?::|\s)(.*)$", re.MULTILINE)


def prose_of(text: str) -> Iterator[str]:
    """Yield what a module says in sentences."""
    yield from COMMENT.findall(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name.replace("_", " ")
        if isinstance(node, ast.Assert) and node.msg is not None:
            for one in ast.walk(node.msg):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.value


def odd_words(text: str) -> list[str]:
    """Return the odd words of a module, each in its sentence."""
    return [prose for prose in prose_of(text) if ODD.search(prose)]


@pytest.mark.parametrize("folder", ["bench", "campaign", "tests"])
def test_no_word_sounds_odd(folder: str) -> None:
    files = [file for file in sorted((ROOT / folder).rglob("*.py")) if file != Path(__file__)]
    found = {str(file.relative_to(ROOT)): odd for file in files if (odd := odd_words(file.read_text(encoding="utf-8")))}
    assert found == {}, INSTEAD


def test_odd_words_are_found_where_people_read_them() -> None:
    module = '"""Tell nobody."""\n# It goes on.\nx = "nobody"  # anew\ndef test_it_lies():\n    assert x, "told"\n'
    assert odd_words(module) == ["It goes on.", "anew", "Tell nobody.", "test it lies", "told"]
    assert odd_words('assert told == "beyond"\n') == []
