"""The HTML page of a running engine: one document that needs only the other paths of its server.

Its policy names its script and its style by their hashes: no other one is run, whatever becomes part of the page.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from kmirror.ops.report.page import style


@cache
def page_text() -> bytes:
    """Return the document."""
    text = _part("page.html").replace("/* style.css */", style()).replace("/* page.js */", script())
    return text.encode()


@cache
def page_policy() -> str:
    """Return the page's Content-Security-Policy."""
    return (
        f"default-src 'none'; script-src {_hash(script())}; style-src {_hash(style())}; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def script() -> str:
    """Return the script of the page."""
    return _part("page.js")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
