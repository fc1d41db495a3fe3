"""The page: of a fleet of mirrors, which asks for its data, and of a report, which has its data within itself.

Both are one document, with one script and one style sheet, and are made from the declarations of columns. Its policy
names its script and its style by their hashes: no other one is run, whatever becomes part of the page. A report needs
nothing else, and may ask no one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from kmirror.columns import DURATION, TIME, Column
from kmirror.errors import Reason
from kmirror.status.objective import BREACHES
from kmirror.status.partition_row import PARTITIONS, RATE
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS_ON_PAGE
from kmirror.web.plain_page import policy_hash
from kmirror.words import json_text, visible_lines

#: The order in which topics are shown: those that need attention first.
_ORDER = (
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
#: The scripts, in the order in which they become one.
_SCRIPTS = ("words.js", "charts.js", "views.js", "fleet.js", "page.js")
#: The reasons with which nothing of a mirror is copied.
_NOT_COPYING = (Reason.NO_ENGINE, Reason.ENGINE_SILENT, Reason.NO_WORKERS)
#: What is shown of a topic's partitions, and its heading where tables of the command line have none.
_PARTITION_KEYS = {
    "partition": "PARTITION",
    "state": "STATE",
    "sourceOffset": "SOURCE-OFFSET",
    "destinationOffset": "DESTINATION-OFFSET",
    "lag": "LAG",
    "timeLagMs": "TIME-LAG",
    "bytesPerSecond": "RATE",
    "stateTimeMs": "SINCE",
    "lane": "LANE",
    "worker": "WORKER",
}
#: The results of events that need attention.
_BAD_RESULTS = (
    "FAILED",
    "LOSS_ACCEPTED",
    "DESTINATION_TRUNCATED",
    "NO_WORKERS",
    "LINK_FAILED",
    "SOURCE_UNAVAILABLE",
    "died",
    "BREACHED",
)
#: How values are shown, by their units; others that are numbers as numbers.
_KINDS = {DURATION.words: "duration", RATE.words: "rate", TIME.words: "time"}
#: Marks a page that `kmirror report` may overwrite.
GENERATOR = '<meta name="generator" content="kmirror report">'
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z")
_OF_AN_ENGINE = (
    'The same for programs: <a href="fleet.json">fleet.json</a>, <a href="status.json">status.json</a>,'
    ' <a href="history.json">history.json</a>,'
    ' <a href="metrics">metrics</a>, <a href="readyz">readyz</a>, <a href="healthz">healthz</a>. Nothing can be changed'
    " here."
)
_OF_A_REPORT = (
    "State, lag and offsets are those of kmirror describe at the time of this report; lag, rates and states over time"
    " were recorded by engines once a minute (the worst of it, and average rates) and are kept for two days; events are"
    " kept forever."
)


@cache
def page_text() -> bytes:
    """Return the page of a running engine, or of a server that watches clusters."""
    return _page(
        head="",
        title="kmirror",
        age="asking …",
        summary="",
        events="What happened",
        about=_OF_AN_ENGINE,
        report="",
    ).encode()


@cache
def page_policy() -> str:
    """Return its Content-Security-Policy."""
    return f"{_policy()}; connect-src 'self'; frame-ancestors 'none'"


def report_text(title: str, made: str, summary: Sequence[str], data: dict[str, Any]) -> str:
    """Return the page of a report: its title, how it was made, its summary, and the data that the script shows.

    The summary is part of the document, for readers that run no script, such as the preview of a mail.
    """
    sentences = "".join(f"<p>{_prose(sentence)}</p>\n" for sentence in summary)
    return _page(
        head=f'{GENERATOR}\n<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n',
        title=escape(visible_lines(title)),
        age=_prose(made),
        summary=f"<section>\n<h2>Summary</h2>\n{sentences}</section>\n",
        events="Events",
        about=_OF_A_REPORT,
        report=_inert(json_text(data)),
    )


def _page(**parts: str) -> str:
    return Template(_part("page.html")).substitute(parts, style=_part("style.css"), script=script())


def _prose(text: str) -> str:
    """Return a text as markup, in which no time is broken at the end of a line."""
    return _TIME.sub(r"<time>\g<0></time>", escape(visible_lines(text)))


def _inert(text: str) -> str:
    """Return JSON that is the same, and that neither ends the element it is in nor begins another."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def script() -> str:
    """Return the script of the page, with the declarations that it needs."""
    declared = {
        "BAD": _BAD,
        "FINE": _FINE,
        "ORDER": _ORDER,
        "BAD_RESULTS": _BAD_RESULTS,
        "COLUMNS": [(one.key, one.header, kind_of(one)) for one in TOPICS_ON_PAGE.shown],
        "PARTITIONS": [
            (key, head, kind_of(column))
            for key, head in _PARTITION_KEYS.items()
            for column in PARTITIONS.columns
            if column.key == key
        ],
        "NOT_COPYING": _NOT_COPYING,
        "BREACHES": [(one.key, one.header, kind_of(one)) for one in BREACHES.shown],
        "OPTIONAL": TOPICS_ON_PAGE.optional.split(),
    }
    return "\n".join(map(_part, _SCRIPTS)).replace("{/* look */}", json_text(declared))


def kind_of(column: Column[Any]) -> str:
    """Return how a column's values are shown and sorted: duration, rate, time, number or text."""
    return _KINDS.get(column.type.words, "number" if column.is_number else "text")


def _policy() -> str:
    hashes = f"script-src {policy_hash(script())}; style-src {policy_hash(_part('style.css'))}"
    return f"default-src 'none'; {hashes}; img-src data:; base-uri 'none'; form-action 'none'"


def _part(name: str) -> str:
    """Return a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
