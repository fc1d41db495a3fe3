"""Command lines for people to copy into a shell: built from arguments, quoted here and nowhere else. Pure.

Names in them come from clusters, whose users may choose them to do harm. A line is safe for two reasons: a shell reads
back exactly the arguments, and it holds no control character, which a terminal would obey when it is shown or pasted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from kmirror.words import is_plain

#: The arguments of a command.
Arguments = tuple[str, ...]

_SPECIAL = re.compile(r"['\\]")


def command_line(*arguments: str) -> str:
    """Return a command for a shell."""
    return " ".join(map(_quoted, arguments))


def arguments_in(text: str) -> Arguments:
    """Return the arguments of a command as a shell reads it, without expanding anything.

    Raises:
        ValueError: a quotation does not end.
    """
    return tuple(shlex.split(text))


def option(flag: str, value: str) -> Arguments:
    """Return the arguments of an option; a value that looks like another option stays a value."""
    return (f"{flag}={value}",) if value.startswith("-") else (flag, value)


def options(flag: str, values: Iterable[str]) -> Arguments:
    """Return the arguments of an option that is repeated for each value."""
    return tuple(argument for value in values for argument in option(flag, value))


def on_mirror(verb: str, mirror: str, *more: str) -> str:
    """Return a command of kmirror that is about one mirror."""
    return command_line("kmirror", verb, *option("--mirror", mirror), *more)


def on_topics(verb: str, mirror: str, topics: Iterable[str], *more: str) -> str:
    """Return a command of kmirror that is about topics of a mirror."""
    return on_mirror(verb, mirror, *option("--topics", ",".join(topics)), *more)


def _quoted(argument: str) -> str:
    if is_plain(argument):
        return shlex.quote(argument)
    # bash, ksh, zsh and POSIX 2024 read this; no argument can hold NUL, so it becomes what is in no name
    text = argument.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return "$'" + "".join(one if is_plain(one) else _escaped(one) for one in _SPECIAL.sub(r"\\\g<0>", text)) + "'"


def _escaped(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode(errors="surrogatepass"))
