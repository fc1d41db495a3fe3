"""From whatever ended a command to one sentence, one hint and one exit code. Pure.

The exit code comes with the error: `KmirrorError` carries it, and what click complains about is usage.
"""

from __future__ import annotations

from collections.abc import Iterable

import click

from kmirror.errors import KmirrorError, OutcomeUnknown, UsageError

#: Ctrl-C, as shells count it: 128 + SIGINT. `run` and `events --follow`, which end so as a rule, end with 0.
INTERRUPTED = 130


def explain(error: Exception, command: str = "kmirror") -> KmirrorError:
    """Return the error to show; what is not known is `unexpected`, exit code 1. Usage errors point at `command`."""
    if isinstance(error, KmirrorError):
        return error
    if isinstance(error, click.UsageError):
        return _usage(error, f"see `{command} --help`")
    if isinstance(error, OutcomeUnknown):
        return KmirrorError(
            f"{error}: it may have happened or not", "check with `kmirror describe` before trying again"
        )
    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return KmirrorError(
        f"unexpected: {told}", "-vv shows the traceback; this is a fault of kmirror's, please report it"
    )


def _usage(error: click.UsageError, see: str) -> UsageError:
    match error:
        case click.NoSuchOption():
            return UsageError(f"no such option {error.option_name}", _did_you_mean(error.possibilities) or see)
        case click.MissingParameter() if error.param is not None:
            return UsageError(f"{_name(error.param)} is missing", see)
        case click.BadParameter() if error.param is not None:
            return UsageError(f"{_name(error.param)}: {error.message.rstrip('.')}", see)
    return UsageError(_lower(error.format_message()).rstrip("."), see)


def _name(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name


def _did_you_mean(possibilities: Iterable[str] | None) -> str | None:
    nearest = list(possibilities or ())
    return f"did you mean {nearest[0]}?" if nearest else None


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
