"""What mkdocs is told besides mkdocs.yml: README.md is the first page; links out of docs/ lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify
from pymdownx.superfences import fence_code_format

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_ITEM = re.compile(r" *(?:[-*]|\d+\.) +")
#: A fence with words after its language, which tests of the docs read; superfences would not take it for a fence.
_FENCE = re.compile(r"^([ ]*```\w+)[ ]+\S[^\n`]*$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make anchors as GitHub does, and draw diagrams."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    fences = [{"name": "mermaid", "class": "mermaid", "format": fence_code_format}]
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = fences
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md as the first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Lead links as they work in the repository to pages of the site or to the repository; leave fences a language."""
    source = page.file.src_uri
    folder = PurePosixPath() if source == "index.md" else PurePosixPath("docs", source).parent

    def led(found: re.Match[str]) -> str:
        target = normpath(str(folder / found[2]))
        if not (ROOT / target).exists():
            return found[0]  # mkdocs warns of it
        inside = "index.md" if target == "README.md" else target.removeprefix("docs/")
        if files.get_file_from_path(inside) is None or (inside == target and inside != "index.md"):
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{found[1]}{config.repo_url}/{kind}/main/{target}{found[3]}"
        up = "../" * (len(PurePosixPath(source).parts) - 1)
        return f"{found[1]}{up}{inside}{found[3]}"

    return _LINK.sub(led, indented(_FENCE.sub(r"\1", markdown)))


def indented(markdown: str) -> str:
    """Return the same with what belongs to items of lists moved in by four, and empty lines between items if needed.

    Python-Markdown needs both, CommonMark neither.
    """
    lines: list[str] = []
    items: list[int] = []
    is_fenced = has_gap = False
    for line in markdown.split("\n"):
        spaces = len(line) - len(line.lstrip(" "))
        ended, has_gap = None, has_gap or not line.strip()
        while items and line.strip() and not is_fenced and spaces < items[-1]:
            ended = items.pop()
        moved = " " * (4 * len(items) - items[-1]) if items and line.strip() else ""
        if line.lstrip(" ").startswith("```"):
            is_fenced = not is_fenced
        elif not is_fenced and (item := _ITEM.match(line)) and spaces - (items[-1] if items else 0) < 4:
            items.append(len(item[0]))
            if (ended is None or has_gap) and lines and lines[-1].strip():
                lines.append("")
            has_gap = False
        lines.append(moved + line)
    return "\n".join(lines)
