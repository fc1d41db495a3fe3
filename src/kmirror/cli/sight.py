"""What was seen last of clusters, and the first lines of a terminal that shows it: what it is, and how old. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kmirror.cli.layout import Line
from kmirror.settings.durations import format_duration
from kmirror.words import one_line

#: A look takes three seconds where a source is silent, and the next one begins two seconds after it.
OLD_SECONDS = 10.0
_ALARM = "bold red"

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Sight(Generic[P]):
    """Hold what was seen last, and since when looks fail; moments are those of `kmirror.engine.clock.now`.

    `seen_at` is when the look began that found the picture, `looking_since` when the one under way did.
    """

    picture: P | None = None
    seen_at: float | None = None
    looking_since: float | None = None
    trouble: str | None = None
    failing_since: float | None = None


def is_old(sight: Sight[Any], at: float) -> bool:
    """Tell whether what is shown may be otherwise now."""
    return sight.trouble is not None or sight.seen_at is None or at - sight.seen_at > OLD_SECONDS


def title_lines(title: str, sight: Sight[Any], at: float, width: int) -> list[Line]:
    """Return the title with the age of what is shown and, where that is old, why."""
    lines: list[Line] = [[(title, "bold")]]
    if sight.seen_at is not None:
        age = f"looked {ago(at - sight.seen_at)}"
        lines[0] += [(" " * max(2, width - len(title) - len(age)), ""), (age, _ALARM if is_old(sight, at) else "")]
    return [*lines, *([(text, _ALARM)] for text in _why_old(sight, at, width))]


def _why_old(sight: Sight[Any], at: float, width: int) -> list[str]:
    shown = "" if sight.seen_at is None else f"; what is shown is {_seconds(at - sight.seen_at)} old"
    if sight.trouble is not None and sight.failing_since is not None:
        why = f"no answer for {_seconds(at - sight.failing_since)}: {one_line(sight.trouble)}{shown}"
    elif sight.seen_at is not None and is_old(sight, at) and sight.looking_since is not None:
        why = f"no answer for {_seconds(at - sight.looking_since)}{shown}"
    else:
        return []
    return textwrap.wrap(why, width)


def unread_lines(unread: Sequence[str], width: int) -> list[Line]:
    """Return what to say of records that cannot be read."""
    if not unread:
        return []
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return [[(line, _ALARM)] for line in textwrap.wrap(f"not complete: {unread[0]}{more}", width)]


def faded(lines: Iterable[Line], sight: Sight[Any], at: float) -> list[Line]:
    """Return lines as they look when they are old."""
    if not is_old(sight, at):
        return list(lines)
    return [[(text, f"dim {style}") for text, style in line] for line in lines]


def on_whole_terminal(above: Sequence[Line], foot: Line, height: int) -> list[Line]:
    """Return so many lines, of which the last one is the foot."""
    shown = list(above[: height - 1])
    return [*shown, *([[]] * (height - 1 - len(shown))), foot]


def ago(seconds: float) -> str:
    """Return an age for people, in whole seconds."""
    return f"{_seconds(seconds)} ago"


def _seconds(seconds: float) -> str:
    return "0s" if seconds < 1 else format_duration(int(seconds) * 1000)
