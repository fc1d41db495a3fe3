"""A request to the HTTP server of `run` and `serve`, and its answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from kmirror.errors import ExitCode
from kmirror.words import json_text, visible_lines

_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: its path, its query, and its Accept header."""

    path: str
    query: Mapping[str, str]
    accept: str = ""

    @classmethod
    def of(cls, target: str, accept: str) -> HttpRequest:
        """Parse the target of a request; of a parameter that occurs twice the last value counts."""
        parts = urlsplit(target)
        return cls(parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), accept)

    def number(self, name: str) -> int | None:
        """Return a parameter that is a time in epoch milliseconds; None if it is not given.

        Raises:
            BadRequestError: it is no such number.
        """
        text = self.query.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            raise BadRequestError(HTTPStatus.BAD_REQUEST, f"{name}={text} is no time in epoch milliseconds")
        return int(text)


#: Of a time in epoch milliseconds.
_MOST_DIGITS = 15


class BadRequestError(Exception):
    """A request that cannot be answered: the status, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


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

    @classmethod
    def of_json(cls, found: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
        """Return a JSON document."""
        return cls(status, _JSON, json_text(found).encode())

    @classmethod
    def of_error(cls, status: HTTPStatus, code: ExitCode, why: str) -> Answer:
        """Return the document `error`."""
        return cls.of_json({"error": {"code": int(code), "message": why, "hint": None, "reason": None}}, status)
