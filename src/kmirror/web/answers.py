"""The answer for each path of a running engine's HTTP server. No sockets here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from kmirror import __version__, columns
from kmirror.columns import Column, R, Table, Type, document
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.partition_row import PARTITIONS
from kmirror.status.topic_status import TOPICS
from kmirror.web.exposition import exposition
from kmirror.web.look import page_policy, page_text
from kmirror.web.metrics import PHASES, RunStatus
from kmirror.web.recent import HISTORY, LastHour
from kmirror.web.run_service import Service, StuckError
from kmirror.words import json_text, visible_lines

_TEXT, _JSON, _HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
_NOT_COPYING = "copying has not begun"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; its headers are added to those that every answer has."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] | None = None

    @classmethod
    def of_text(cls, status: HTTPStatus, text: str) -> Answer:
        """Return a plain text answer."""
        return cls(status, _TEXT, f"{visible_lines(text)}\n".encode())


def _while_copying(run: RunStatus, table: Table[R], rows: Iterable[R]) -> list[dict[str, Any]] | None:
    """Return rows as JSON documents; None while the run waits."""
    return None if run.waits_for is not None else [table.document(row) for row in rows]


#: The keys of /status.json.
STATUS: tuple[Column[RunStatus], ...] = (
    Column("version", columns.TEXT, "the version of kmirror", lambda _: __version__),
    Column("phase", Type("string", "phase", codes=PHASES), "what `run` is doing", lambda run: run.phase),
    Column("asOf", columns.TIME, "the time of this snapshot", lambda run: run.time_ms),
    Column(
        "ready",
        columns.FLAG,
        "whether records flow, or all topics are STOPPED, as `wait --for healthy` judges it and /readyz answers",
        lambda run: run.missing is None,
    ),
    Column(
        "missing",
        columns.TEXT.null_when("records flow"),
        "why they do not, a line for each mirror",
        lambda run: run.missing,
    ),
    Column(
        "mirrors",
        MIRRORS.type.null_when(_NOT_COPYING),
        "the mirrors that this engine copies, as `list` shows them",
        lambda run: _while_copying(run, MIRRORS, (one.status.row for one in run.mirrors if one.status is not None)),
    ),
    Column(
        "partitions",
        PARTITIONS.type.null_when(_NOT_COPYING),
        "their partitions, as `describe` shows them",
        lambda run: _while_copying(run, PARTITIONS, (row for one in run.mirrors for row in one.partitions)),
    ),
    Column(
        "topics",
        TOPICS.type.null_when(_NOT_COPYING),
        "their topics, as `top` shows them",
        lambda run: _while_copying(run, TOPICS, (topic for one in run.mirrors for topic in one.topics)),
    ),
)


def answer(service: Service, path: str, accept: str) -> Answer:
    """Return the answer for a path and an Accept header."""
    found = ROUTES.get(path)
    if found is None:
        return Answer.of_text(HTTPStatus.NOT_FOUND, f"no such path; there are: {', '.join(ROUTES)}")
    try:
        return found(service, accept)
    except StuckError as stuck:
        if not path.endswith(".json"):
            return Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, str(stuck))
        error = {"error": {"code": 1, "message": str(stuck), "hint": None, "reason": None}}
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _JSON, json_text(error).encode())


def _page(service: Service, accept: str) -> Answer:
    return Answer(HTTPStatus.OK, _HTML, page_text(), {"Content-Security-Policy": page_policy()})


def _health(service: Service, accept: str) -> Answer:
    if (stuck := service.stuck) is not None:
        return Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, stuck)
    return Answer.of_text(HTTPStatus.OK, "the driver is running")


def _readiness(service: Service, accept: str) -> Answer:
    status = service.status()
    if status.missing is not None:
        return Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, status.missing)
    text = "nothing to copy: all topics are stopped" if status.are_stopped else "records flow"
    return Answer.of_text(HTTPStatus.OK, text)


def _status(service: Service, accept: str) -> Answer:
    return _json(document(STATUS, service.status()))


def _history(service: Service, accept: str) -> Answer:
    return _json(document(HISTORY, LastHour.of(service.status(), service.recent.last())))


def _json(found: object) -> Answer:
    return Answer(HTTPStatus.OK, _JSON, json_text(found).encode())


def _metrics(service: Service, accept: str) -> Answer:
    body, content_type = exposition(service.status(), accept)
    return Answer(HTTPStatus.OK, content_type, body)


ROUTES: Mapping[str, Callable[[Service, str], Answer]] = {
    "/": _page,
    "/healthz": _health,
    "/readyz": _readiness,
    "/status.json": _status,
    "/history.json": _history,
    "/metrics": _metrics,
}
