"""The live view of `top`, and its keys. Pure: an observation, the time and the size in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from kmirror.cli.terminal.keyboard import BACKSPACE, ENTER, ESCAPE
from kmirror.cli.terminal.layout import Line, fitting_parts
from kmirror.cli.terminal.observation import Observation, ago, faded, on_whole_terminal, title_lines, unread_lines
from kmirror.cli.terminal.plain_tables import style_of
from kmirror.errors import NOT_COPYING
from kmirror.ops.show.listing import Overview
from kmirror.status.mirror_status import MirrorRow
from kmirror.status.partition_row import shown_duration, shown_rate
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS, TOPICS_OF_MIRRORS, TopicStatus, shown_lag, shown_state
from kmirror.words import UNKNOWN, counted

#: Mirrors take at most one line of four.
_MIRRORS_SHARE = 4


def _by_lag(topic: TopicStatus) -> tuple[bool, bool, int, str, str]:
    """Sort FAILED topics first, then unknown lags, then the largest lag."""
    return (topic.state is not TopicState.FAILED, not topic.lag_unknown, -(topic.lag or 0), *_by_name(topic))


def _by_rate(topic: TopicStatus) -> tuple[int, str, str]:
    return (-(topic.bytes_per_second or 0), *_by_name(topic))


def _by_name(topic: TopicStatus) -> tuple[str, str]:
    return topic.mirror, topic.topic


_ORDERS: Sequence[tuple[str, Callable[[TopicStatus], tuple[object, ...]]]] = (
    ("lag", _by_lag),
    ("rate", _by_rate),
    ("name", _by_name),
)


class TopView:
    """The user's sort order and filter, and the lines they produce."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._order = 0
        self._filter = ""
        self._is_typing = False

    def press(self, key: str) -> bool:
        """Handle a key; return False to quit."""
        if key == ESCAPE:
            self._filter, self._is_typing = "", False
        elif self._is_typing:
            self._type(key)
        elif key == "q":
            return False
        elif key == "s":
            self._order = (self._order + 1) % len(_ORDERS)
        elif key == "/":
            self._is_typing = True
        return True

    def _type(self, key: str) -> None:
        if key == ENTER:
            self._is_typing = False
        elif key == BACKSPACE:
            self._filter = self._filter[:-1]
        else:
            self._filter += key

    def lines(self, observed: Observation[Overview], at: float, width: int, height: int) -> list[Line]:
        """Return the lines for a terminal of this size."""
        title = title_lines(f"kmirror top  {self._cluster}", observed, at, width)
        overview = observed.snapshot
        if overview is None:
            return on_whole_terminal([*title, [("loading …", "")]], [("q quit", "dim")], height)
        title += unread_lines(overview.unreadable, width)
        sums = [
            *_sums(overview),
            *_mirrors(overview.mirrors, at - (observed.observed_at or at), max(1, height // _MIRRORS_SHARE)),
            [],
        ]
        topics = [row for row in overview.topics if self._filter.casefold() in row.topic.casefold()]
        topics.sort(key=_ORDERS[self._order][1])
        table = (TOPICS_OF_MIRRORS if len(overview.mirrors) > 1 else TOPICS).used_by(topics)
        parts = fitting_parts(table, topics, width, height - len(title) - len(sums) - 1)
        body = faded([*sums, *(line for part in parts for line in part)], observed, at)
        foot = self._foot(max(0, len(parts) - 1), len(topics), len(overview.topics))
        return on_whole_terminal([*title, *body], foot, height)

    def _foot(self, shown: int, found: int, topics: int) -> Line:
        if self._is_typing:
            return [("/", "bold"), (self._filter, ""), ("_", "bold"), (f"   {_of(shown, found, topics)}", "dim")]
        filtered = f"  /{self._filter} (Esc: all)" if self._filter else "  / filter"
        return [(f"q quit  s sort: {_ORDERS[self._order][0]}{filtered}   {_of(shown, found, topics)}", "dim")]


def _sums(overview: Overview) -> Iterator[Line]:
    sums = overview.totals
    states = Counter(str(topic.code) for topic in overview.topics)
    partitions = counted(sum(topic.partition_count for topic in overview.topics), "partition")
    line: Line = [(f"{counted(len(overview.topics), 'topic')}, {partitions}", "")]
    for state in sorted(states, key=lambda one: (one != TopicState.FAILED, one)):
        line += [("  ", ""), (f"{states[state]:,} {state}", style_of(state))]
    yield line
    lag = shown_lag(sums.lag, sums.unknown_lags)
    yield [
        (
            f"rate {shown_rate(sums.bytes_per_second) or UNKNOWN}  total lag {lag or UNKNOWN}"
            f"  time lag {shown_duration(sums.time_lag_ms) or UNKNOWN}  ETA {shown_duration(sums.eta_ms) or UNKNOWN}",
            "",
        )
    ]


def _mirrors(mirrors: Sequence[MirrorRow], age: float, most: int) -> Iterator[Line]:
    """Yield one line per mirror, at most `most`, those that are not copied first; `age` is of the rows, in seconds."""
    shown = sorted(mirrors, key=lambda one: (one.reason not in NOT_COPYING, one.reason is None, one.mirror))
    if len(shown) > most:
        shown = shown[: most - 1]
    for row in shown:
        code = row.reason if row.reason in NOT_COPYING else row.state
        state = shown_state(row.state, row.reason) or UNKNOWN
        yield [(row.mirror, "bold"), ("  ", ""), (state, style_of(code)), (f"  {_engine(row, age)}", "")]
    if len(shown) < len(mirrors):
        yield [(f"and {counted(len(mirrors) - len(shown), 'other mirror')}", "dim")]


def _engine(row: MirrorRow, age: float) -> str:
    seen = "" if row.engine_age_ms is None else f"last heartbeat {ago(row.engine_age_ms / 1000 + age)}"
    if row.engine is None:
        return f"no engine, {seen}" if seen else "no engine yet"
    return f"engine {row.engine}, {seen}"


def _of(shown: int, found: int, topics: int) -> str:
    of = f"{found:,} of {counted(topics, 'topic')}" if found < topics else counted(topics, "topic")
    return of if shown == found else f"{shown:,} shown of {of}"
