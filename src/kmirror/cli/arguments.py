"""Words that cannot be meant: ones that are no text, and empty or missing ones, as of a variable that is not set.

They are refused before anything is read or asked: an empty `--bootstrap-server` must not lead to the default cluster,
and an option without its value must not take `--dry-run` for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import click

from kmirror.errors import UsageError
from kmirror.words import visible

#: Options for which nothing else checks that they are not empty.
_NEVER_EMPTY = frozenset({"FILE", "DIR", "HOST:PORT", "NAME", "ID", "M"})
#: The operating system takes any bytes for these.
_ANY_BYTES = frozenset({"FILE", "DIR", "CMD"})


def require_value(flag: str, word: str, flags: Container[str]) -> None:
    """Raise UsageError if the word after an option is an option too, mistyped or one of `flags`, and not its value."""
    if word.startswith("--") or word in flags:
        hint = f"a variable may not be set; a value that begins with a dash is written as {flag}=VALUE"
        raise UsageError(f"{flag} needs a value", hint)


def check_arguments(parameters: Iterable[click.Parameter], words: Sequence[str]) -> None:
    """Check the values of options. Raises UsageError."""
    flags = {flag: one for one in parameters if isinstance(one, click.Option) for flag in one.opts}
    options = {flag: one for flag, one in flags.items() if not one.is_flag and not one.count}
    left = iter(words)
    for word in left:
        if word == "--":
            return
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None:
            continue
        if not equals:
            value = next(left, " ")
            if not isinstance(option.flag_value, str):  # else it may have none
                require_value(flag, value, flags)
        if not value and option.metavar in _NEVER_EMPTY:
            raise UsageError(f"{flag} is empty", "give a value, or leave it out; a variable may not be set")
        if not _is_text(value) and option.metavar not in _ANY_BYTES and not value.startswith("@"):
            raise UsageError(f"{flag}: {visible(value)} is not UTF-8 text", "check the encoding of the terminal")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
