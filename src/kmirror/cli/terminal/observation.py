"""The last observation of clusters, and the lines of a live view that show its age and errors. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kmirror.cli.terminal.layout import Line
from kmirror.settings.durations import format_duration
from kmirror.words import one_line

#: A poll takes three seconds if a source does not answer, and the next one begins two seconds after it.
OLD_SECONDS = 10.0
_ALARM = "bold red"

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Observation(Generic[P]):
    """The last snapshot, and since when polls fail; times are of `kmirror.engine.clock.now`.

    `observed_at` is when the poll that returned the snapshot began, `polling_since` when the one in progress began.
    """

    snapshot: P | None = None
    observed_at: float | None = None
    polling_since: float | None = None
    error: str | None = None
    failing_since: float | None = None


def is_old(observed: Observation[Any], at: float) -> bool:
    """Return whether the snapshot may be out of date."""
    return observed.error is not None or observed.observed_at is None or at - observed.observed_at > OLD_SECONDS


def title_lines(title: str, observed: Observation[Any], at: float, width: int) -> list[Line]:
    """Return the title with the age of the snapshot, and why it is old if it is."""
    lines: list[Line] = [[(title, "bold")]]
    if observed.observed_at is not None:
        age = f"updated {ago(at - observed.observed_at)}"
        lines[0] += [(" " * max(2, width - len(title) - len(age)), ""), (age, _ALARM if is_old(observed, at) else "")]
    return [*lines, *([(text, _ALARM)] for text in _why_old(observed, at, width))]


def _why_old(observed: Observation[Any], at: float, width: int) -> list[str]:
    age = "" if observed.observed_at is None else f"; what is shown is {_seconds(at - observed.observed_at)} old"
    if observed.error is not None and observed.failing_since is not None:
        why = f"no answer for {_seconds(at - observed.failing_since)}: {one_line(observed.error)}{age}"
    elif observed.observed_at is not None and is_old(observed, at) and observed.polling_since is not None:
        why = f"no answer for {_seconds(at - observed.polling_since)}{age}"
    else:
        return []
    return textwrap.wrap(why, width)


def unread_lines(unread: Sequence[str], width: int) -> list[Line]:
    """Return the lines about stored records that cannot be read."""
    if not unread:
        return []
    more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
    return [[(line, _ALARM)] for line in textwrap.wrap(f"not complete: {unread[0]}{more}", width)]


def faded(lines: Iterable[Line], observed: Observation[Any], at: float) -> list[Line]:
    """Return the lines, dimmed if the snapshot is old."""
    if not is_old(observed, at):
        return list(lines)
    return [[(text, f"dim {style}") for text, style in line] for line in lines]


def on_whole_terminal(above: Sequence[Line], foot: Line, height: int) -> list[Line]:
    """Return exactly `height` lines, the last of them `foot`."""
    shown = list(above[: height - 1])
    return [*shown, *([[]] * (height - 1 - len(shown))), foot]


def ago(seconds: float) -> str:
    """Return an age in whole seconds, such as `5s ago`."""
    return f"{_seconds(seconds)} ago"


def _seconds(seconds: float) -> str:
    return "0s" if seconds < 1 else format_duration(int(seconds) * 1000)
