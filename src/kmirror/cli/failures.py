"""How a command ends: an exception becomes a message, a hint and an exit code; signals end one that cleans up.

A `KmirrorError` carries its exit code; click's own errors are usage errors.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from kmirror.errors import KmirrorError, OutcomeUnknown, UsageError

#: Exit code after Ctrl-C, as in shells: 128 + SIGINT. `run` and `events --follow` answer it themselves.
INTERRUPTED = 130


def explain(error: Exception, command: str = "kmirror") -> KmirrorError:
    """Return the error to show: `unexpected`, exit code 1, for any unknown exception. Usage errors name `command`."""
    if isinstance(error, KmirrorError):
        return error
    if isinstance(error, click.UsageError):
        return _usage(error, f"see `{command} --help`")
    if isinstance(error, OutcomeUnknown):
        return KmirrorError(
            f"{error}: it may or may not have happened", "check with `kmirror describe` before trying again"
        )
    name = type(error).__name__
    return KmirrorError(
        f"unexpected: {name}: {error}" if str(error) else f"unexpected: {name}",
        "this is a bug in kmirror, please report it; -vv shows the traceback",
    )


def _usage(error: click.UsageError, see: str) -> UsageError:
    match error:
        case click.NoSuchOption():
            return UsageError(f"no such option {error.option_name}", _did_you_mean(error.possibilities) or see)
        case click.MissingParameter() if error.param is not None:
            return UsageError(f"{_name(error.param)} is missing", see)
        case click.BadParameter() if error.param is not None:
            return UsageError(f"{_name(error.param)}: {error.message.rstrip('.')}", see)
    text = error.format_message().rstrip(".")
    return UsageError(text[:1].lower() + text[1:], see)


def _name(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def _did_you_mean(possibilities: Iterable[str] | None) -> str | None:
    nearest = list(possibilities or ())
    return f"did you mean {nearest[0]}?" if nearest else None


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, and let no signal disturb the cleanup."""

    def end(*_: object) -> NoReturn:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
