"""What calls of the library are given, and how a command's exit code becomes an error."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from kmirror.cluster.security.properties import read_properties
from kmirror.errors import (
    ExitCode,
    HistoriesDifferError,
    KmirrorError,
    PartlyDoneError,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from kmirror.ops.base.results import ErrorInfo, VerbResult
from kmirror.ops.stop.promote_request import IDLE_MS
from kmirror.settings.patterns import TopicSelector

R = TypeVar("R")

#: Names and regular expressions as in `--topics`: one string, or a sequence of them.
Topics = str | Sequence[str]
#: Client properties, or the path of a Java properties file.
Properties = Mapping[str, str] | str | os.PathLike[str]

_ERRORS: dict[ExitCode, type[KmirrorError]] = {
    kind.exit_code: kind
    for kind in (UsageError, RefusedError, PartlyDoneError, TimedOutError, UnreachableError, HistoriesDifferError)
}


def result_of(result: VerbResult) -> VerbResult:
    """Return a result with exit code 0; raise any other as an error."""
    if result.exit_code is ExitCode.OK:
        return result
    raise error_of(result.error or ErrorInfo(result.exit_code, f"{result.verb} ended with {result.exit_code}"), result)


def error_of(why: ErrorInfo, result: object) -> KmirrorError:
    """Return the error that the library raises; `result` is what was found and done until then."""
    error = _ERRORS.get(why.code, KmirrorError)(why.message, why.hint, why.reason)
    error.result = result
    return error


def readable(rows: tuple[R, ...], unreadable: Sequence[str]) -> tuple[R, ...]:
    """Return rows; raise PartlyDoneError if some records could not be read."""
    if not unreadable:
        return rows
    message = f"the result is incomplete: {unreadable[0]}"
    hint = "use the kmirror version that wrote it, or a newer one"
    raise error_of(ErrorInfo(ExitCode.PARTLY_DONE, message, hint, Reason.STATE_UNREADABLE), rows)


def given_properties(given: Properties) -> dict[str, str]:
    """Return client properties. Raises UsageError if their file cannot be read."""
    return dict(given) if isinstance(given, Mapping) else read_properties(os.fspath(given))


def required_selector(topics: Topics, name: str) -> TopicSelector:
    """Return the selector of topics. Raises UsageError if there is none, or it is invalid."""
    if not topics:
        raise UsageError(f"{name} is empty", "give names or regular expressions, or omit it for all topics")
    return TopicSelector.parse((topics,) if isinstance(topics, str) else topics, name)


def selector_of(topics: Topics | None, name: str) -> TopicSelector | None:
    """Return the selector of topics, None for all."""
    return None if topics is None else required_selector(topics, name)


def idle_ms(idle: float | None, *, allow_producers: bool, block_producers: bool) -> int | None:
    """Return how long producers must have been idle; None if they need not be. Raises UsageError."""
    if sum((idle is not None, allow_producers, block_producers)) > 1:
        raise UsageError("idle, allow_producers and block_producers exclude each other", "give one of them")
    if allow_producers:
        return None
    return IDLE_MS if idle is None else milliseconds(idle)


def milliseconds(seconds: float) -> int:
    """Return seconds as milliseconds."""
    return round(seconds * 1000)
