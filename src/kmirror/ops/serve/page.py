"""The HTML page of a running engine: one document that needs only the other paths of its server."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from kmirror.ops.report.page import style


@cache
def page_text() -> bytes:
    """Return the document."""
    text = _part("page.html").replace("/* style.css */", style()).replace("/* page.js */", script())
    return text.encode()


def script() -> str:
    """Return the script of the page."""
    return _part("page.js")


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
