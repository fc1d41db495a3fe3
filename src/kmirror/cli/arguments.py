"""Words that cannot be meant: empty ones, as of a script's variable that is not set, and ones that are no text.

Both are refused before anything is read or asked: an empty `--bootstrap-server` must not lead to the default cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from kmirror.errors import UsageError
from kmirror.words import visible

#: Options for which nothing else checks that they are not empty.
_NEVER_EMPTY = frozenset({"FILE", "DIR", "HOST:PORT", "NAME", "ID", "M"})
#: The operating system takes any bytes for these.
_ANY_BYTES = frozenset({"FILE", "DIR", "CMD"})


def check_arguments(parameters: Iterable[click.Parameter], words: Sequence[str]) -> None:
    """Check the values of options. Raises UsageError."""
    options = {
        flag: one
        for one in parameters
        if isinstance(one, click.Option) and not one.is_flag and not one.count
        for flag in one.opts
    }
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
