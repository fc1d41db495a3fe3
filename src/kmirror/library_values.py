"""What `kmirror.Client` is given and returns: arguments as the verbs take them, and results as errors."""

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

#: Names and regular expressions as in `--topics`: one string, or a sequence of them.
Topics = str | Sequence[str]
#: Client properties, or the path of a Java properties file.
Properties = Mapping[str, str] | str | os.PathLike[str]

_ERRORS: dict[ExitCode, type[KmirrorError]] = {
    kind.exit_code: kind
    for kind in (UsageError, RefusedError, PartlyDoneError, TimedOutError, UnreachableError, HistoriesDifferError)
}
R = TypeVar("R")


def done_of(result: VerbResult) -> VerbResult:
    """Return a result with exit code 0; raise any other as an error."""
    if result.exit_code is ExitCode.OK:
        return result
    raise error_of(result.error or ErrorInfo(result.exit_code, f"{result.verb} ended with {result.exit_code}"), result)


def error_of(why: ErrorInfo, result: object) -> KmirrorError:
    error = _ERRORS.get(why.code, KmirrorError)(why.message, why.hint, why.reason)
    error.result = result
    return error


def readable(rows: tuple[R, ...], unreadable: Sequence[str]) -> tuple[R, ...]:
    if not unreadable:
        return rows
    message = f"the result is incomplete: {unreadable[0]}"
    raise error_of(ErrorInfo(ExitCode.PARTLY_DONE, message, reason=Reason.STATE_UNREADABLE), rows)


def properties_of(given: Properties) -> dict[str, str]:
    return dict(given) if isinstance(given, Mapping) else read_properties(os.fspath(given))


def destination_properties(bootstrap_server: str | None, command_config: Properties) -> dict[str, str]:
    """Return the client properties of the destination. Raises UsageError: it is missing."""
    properties = properties_of(command_config)
    if bootstrap_server is not None:
        properties["bootstrap.servers"] = bootstrap_server
    if not properties.get("bootstrap.servers", "").strip():
        raise UsageError("the destination is missing", "give bootstrap_server, such as localhost:9092")
    return properties


def required(topics: Topics, name: str) -> TopicSelector:
    if not topics:
        raise UsageError(f"{name} is empty", "give names or regular expressions, or omit it for all topics")
    return TopicSelector.parse((topics,) if isinstance(topics, str) else topics, name)


def selector(topics: Topics | None, name: str) -> TopicSelector | None:
    return None if topics is None else required(topics, name)


def idle_ms_of(idle: float | None, *, allow_producers: bool, block_producers: bool) -> int | None:
    if sum((idle is not None, allow_producers, block_producers)) > 1:
        raise UsageError("idle, allow_producers and block_producers exclude each other", "give one of them")
    if allow_producers:
        return None
    return IDLE_MS if idle is None else milliseconds(idle)


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
