"""How the page of a running engine and a report look: their style sheet, their colours, their table of topics.

Both are made from the same declarations; the script of the page gets them as JSON. The page is one document that needs
only the other paths of its server. Its policy names its script and its style by their hashes: no other one is run,
whatever becomes part of the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from functools import cache
from importlib.resources import files

from kmirror.columns import DURATION, Column
from kmirror.errors import Reason
from kmirror.status.partition_row import RATE
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS_ON_PAGE, TopicStatus
from kmirror.words import json_text

#: The order in which topics are shown: those that need attention first.
ORDER = (
    TopicState.FAILED,
    TopicState.LINK_FAILED,
    TopicState.SOURCE_UNAVAILABLE,
    TopicState.PENDING_STOPPED,
    TopicState.PENDING_MIRROR,
    TopicState.PAUSED,
    TopicState.ACTIVE,
    TopicState.STOPPED,
)
_BAD = (TopicState.FAILED, TopicState.LINK_FAILED, TopicState.SOURCE_UNAVAILABLE)
_FINE = (TopicState.ACTIVE, TopicState.STOPPED)
#: The results of events that need attention.
BAD_RESULTS = (
    "FAILED",
    "LOSS_ACCEPTED",
    "DESTINATION_TRUNCATED",
    "NO_WORKERS",
    "LINK_FAILED",
    "SOURCE_UNAVAILABLE",
    "died",
)
#: How values are shown, by their units; others that are numbers as numbers.
_KINDS = {DURATION.words: "duration", RATE.words: "rate"}


def kind_of(column: Column[TopicStatus]) -> str:
    """Return how a column's values are shown and sorted: duration, rate, number or text."""
    return _KINDS.get(column.type.words, "number") if column.is_number else "text"


def color_of(state: TopicState, reasons: Collection[Reason], failed: int) -> str:
    """Return the colour of a topic or mirror in this state, with so many FAILED partitions: a class of the style."""
    if state in _BAD or failed:
        return "bad"
    if state not in _FINE or (state is TopicState.ACTIVE and reasons):
        return "warn"
    return "soft" if state is TopicState.STOPPED else "ok"


@cache
def page_text() -> bytes:
    """Return the document."""
    text = _part("live_page.html").replace("/* style.css */", style()).replace("/* page.js */", script())
    return text.encode()


@cache
def page_policy() -> str:
    """Return the page's Content-Security-Policy."""
    return (
        f"default-src 'none'; script-src {_hash(script())}; style-src {_hash(style())}; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def script() -> str:
    """Return the script of the page, with the declarations that it needs."""
    return _part("live_page.js").replace("{/* look */}", _for_script())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _for_script() -> str:
    """Return the declarations for the script of the page."""
    columns = [(one.key, one.header, kind_of(one)) for one in TOPICS_ON_PAGE.shown]
    return json_text({"BAD": _BAD, "FINE": _FINE, "ORDER": ORDER, "BAD_RESULTS": BAD_RESULTS, "COLUMNS": columns})


def _part(name: str) -> str:
    """Return a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet."""
    return _part("style.css")
