"""The pages that `make docs` writes have every heading and every block of code that their Markdown has.

A CommonMark parser that the site is not made with says what the Markdown has.
"""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGES = {"index.md": ROOT / "README.md"} | {
    path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))
}
HEADINGS = {f"h{level}" for level in range(1, 7)}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the site was built, once."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return place


class Shown(HTMLParser):
    """The headings and blocks of code of a page, and how many items its lists have."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.blocks: list[str] = []
        self.items = 0
        self._into: list[str] | None = None
        self._article = False
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "article":
            self._article = True
        if self._article and tag in HEADINGS | {"pre"}:
            self._into = self.headings if tag in HEADINGS else self.blocks
            self._into.append("")
        self.items += self._article and tag == "li"
        if tag == "a" and ("class", "headerlink") in attrs:
            self._hidden += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._article = False
        if tag in HEADINGS | {"pre"}:
            self._into = None
        if tag == "a" and self._hidden:
            self._hidden -= 1

    def handle_data(self, data: str) -> None:
        if self._into is not None and not self._hidden:
            self._into[-1] += data


def words(token: Token) -> str:
    """Return what a reader sees of a heading."""
    return "".join(one.content for one in token.children or () if one.type in {"text", "code_inline"})


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_all_that_its_markdown_has(site: Path, page: str) -> None:
    tokens = MarkdownIt().enable("table").parse(PAGES[page].read_text(encoding="utf-8"))
    headings = [words(after) for one, after in pairwise(tokens) if one.type == "heading_open"]
    blocks = [one.content for one in tokens if one.type in {"fence", "code_block"}]
    where = site / page.removesuffix(".md") / "index.html" if page != "index.md" else site / "index.html"
    shown = Shown(where.read_text(encoding="utf-8"))
    assert [one.strip() for one in shown.headings] == headings
    assert shown.items == sum(one.type == "list_item_open" for one in tokens)
    assert [one.strip() for one in shown.blocks] == [one.strip() for one in blocks]
