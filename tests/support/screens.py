"""Screens that a test reads: of a pipe, and of a terminal."""

from __future__ import annotations

import io

from kmirror.cli.terminal.screen import Screen


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def piped() -> Screen:
    return Screen(io.StringIO(), io.StringIO(), io.StringIO())


def terminal(answers: str = "") -> Screen:
    return Screen(Terminal(), Terminal(), Terminal(answers))


def written(screen: Screen) -> tuple[str, str]:
    """Return what went to standard output and to standard error."""
    assert isinstance(screen.out, io.StringIO)
    assert isinstance(screen.err, io.StringIO)
    return screen.out.getvalue(), screen.err.getvalue()
