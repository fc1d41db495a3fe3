"""The HTML page of a running engine: one document that needs only the other paths of its server.

Its policy names its script and its style by their hashes: no other one is run, whatever becomes part of the page.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from kmirror.columns import DURATION
from kmirror.ops.report.page import style
from kmirror.status.partition_row import RATE
from kmirror.status.topic_status import ATTENTION_FIRST, TOPICS_ON_PAGE
from kmirror.words import json_text

#: How the page shows values and sorts by them, by their units; others that are numbers as numbers.
_KINDS = {DURATION.words: "duration", RATE.words: "rate"}


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
    """Return the script of the page, with the columns of topics as they are declared."""
    columns = [
        (one.key, one.header, _KINDS.get(one.type.words, "number") if one.is_number else "text")
        for one in TOPICS_ON_PAGE.shown
    ]
    text = _part("page.js").replace("[/* columns */]", json_text(columns))
    return text.replace("[/* order */]", json_text(ATTENTION_FIRST))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
