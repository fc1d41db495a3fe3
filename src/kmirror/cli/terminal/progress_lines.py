"""The progress of long verbs: live on a terminal, otherwise a line every few seconds on standard error.

`run` and `promote` have tables; all other work has one status line.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kmirror.cli.terminal import plain_tables as tables
from kmirror.cli.terminal.screen import Screen
from kmirror.engine.status.journal import Level
from kmirror.words import UNKNOWN, byte_count, byte_rate, counted, one_line
from kmirror.work import Speed, Watch, WorkView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kmirror.engine.driver.driver import RunView
    from kmirror.ops.stop.promote_request import PromoteView
    from kmirror.status.topic_status import TopicStatus

#: Between two plain lines.
LINE_SECONDS = 5.0

#: Before the first of them.
QUIET_SECONDS = 2.0
_SHOW_SECONDS = 0.25
#: The width of the time at the start of a line, and the least width of the work's name.
_AT_WIDTH = 8
_LEAST_NAME = 12
#: Columns left free, so that the status stays on one line also with a ^C echoed after it.
_FREE_COLUMNS = 3

_MOST_TOPICS = 20
_OTHER_LINES = 6


@contextmanager
def running(screen: Screen) -> Iterator[Callable[[RunView], None]]:
    """Show the views of `run` during a `with` block: a table on the terminal, with the notes above it."""
    from rich.live import Live

    console = screen.console()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(view: RunView) -> None:
            for note in view.notes:
                console.print(note.text)
            live.update(run_table(view, most_topics(console.height)), refresh=True)

        yield draw


class ProgressDisplay:
    """Show the current work: nothing for two seconds, then a status line, or a new line every few seconds.

    `take` may be called from any thread. The elapsed time advances also while no view arrives.
    """

    def __init__(self, screen: Screen, draw: Callable[[str], None] | None, clock: Callable[[], float]) -> None:
        self._screen = screen
        #: Replaces the status line; None if lines are written instead.
        self._draw = draw
        self._clock = clock
        self._lock = threading.Lock()
        self._works: dict[tuple[str, float], tuple[WorkView, Speed]] = {}
        self._began: float | None = None
        self._written_at: float | None = None

    def take(self, view: WorkView) -> None:
        """Take note of a view."""
        with self._lock:
            key = (view.what, view.since)
            if view.is_over:
                self._works.pop(key, None)
                if self._draw is not None and not self._works:
                    self._draw("")
                return
            _, speed = self._works.get(key, (view, Speed(view.since)))
            speed.take(view)
            self._works[key] = view, speed
            self._began = view.since if self._began is None else self._began

    def show(self) -> None:
        """Show the work as of now, if that is due."""
        with self._lock:
            at = self._clock()
            if not self._works or self._began is None or at - self._began < QUIET_SECONDS:
                return
            # of several, the first that is not done
            view, speed = next(
                (one for one in self._works.values() if one[0].total is None or one[0].done < one[0].total),
                next(reversed(self._works.values())),
            )
            if self._draw is not None:
                self._draw(work_line(view, speed, at, shutil.get_terminal_size().columns - _FREE_COLUMNS))
            elif self._written_at is None or at - self._written_at >= LINE_SECONDS:
                self._written_at = at
                self._screen.note(work_line(view, speed, at))

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Show it repeatedly during a `with` block."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(_SHOW_SECONDS):
                self.show()

        thread = threading.Thread(target=run, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if self._draw is not None:
                self._draw("")


@contextmanager
def working(screen: Screen, *, on_terminal: bool) -> Iterator[Watch]:
    """Show the work of a verb during a `with` block: in a status line, or a new line every few seconds."""
    progress = ProgressDisplay(screen, screen.status if on_terminal else None, time.monotonic)
    with progress.refreshing():
        yield progress.take


def work_line(view: WorkView, speed: Speed, at: float, width: int | None = None) -> str:
    """Return the progress of work in one line of at most `width` characters."""
    what, amount = view.what, _amount(view)
    rest = "".join(f"  {text}" for text in (*_pace(view, speed, at), view.note) if text)
    if view.unit and view.total:
        rest = f"  {100 * view.done // view.total} %{amount}{rest}"
        if width is not None and _AT_WIDTH + min(len(what), _LEAST_NAME) + len(rest) > width:
            rest = rest.replace(amount, "", 1)
    else:
        rest = amount + rest
    room = len(what) if width is None else max(_LEAST_NAME, width - _AT_WIDTH - len(rest))
    if len(what) > room:
        what = f"{what[: room - 1]}…"
    seconds = math.floor(at - view.since)
    return f"{tables.elapsed(seconds) if seconds else '0s':>6}  {what}{rest}"[:width]


def _amount(view: WorkView) -> str:
    """Return how much is done, and of how much."""
    if not view.unit:
        return ""
    known = [view.done] if view.total is None else [view.done, view.total]
    if view.unit == "byte":
        return f"  {' of '.join(map(byte_count, known))}"
    return f"  {' of '.join(f'{number:,}' for number in known)} {view.unit}{'' if known[-1] == 1 else 's'}"


def _pace(view: WorkView, speed: Speed, at: float) -> Iterator[str]:
    """Yield the rate and the time left, as far as they are known."""
    if not view.unit or (view.total is not None and view.done >= view.total):
        return
    rate, left, silence = speed.rate(at), speed.seconds_left(view, at), speed.silence(at)
    if rate:
        yield byte_rate(rate) if view.unit == "byte" else f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"
    if left is not None:
        yield f"~{tables.elapsed(math.ceil(left))} left"
    if silence is not None:
        yield f"nothing new for {tables.elapsed(math.floor(silence))}"


@contextmanager
def promoting(screen: Screen, *, on_terminal: bool) -> Iterator[Callable[[PromoteView], None]]:
    """Show what topics wait for, the smallest lag first: a table on a terminal, else a line when it changes."""
    if not on_terminal:
        last_line, written_at = "", -LINE_SECONDS
        progress = ProgressDisplay(screen, None, time.monotonic)

        def write(view: PromoteView) -> None:
            nonlocal last_line, written_at
            for line in view.lines:
                screen.note(f"{_at(view.elapsed_seconds)}  {line}")
            lacking = [f"{one.topic}: {one.what}" for one in view.missing if one.what is not None]
            line = f"waiting for {counted(len(lacking), 'topic')}; {lacking[0]}" if lacking else ""
            if line and line != last_line and view.elapsed_seconds - written_at >= LINE_SECONDS:
                last_line, written_at = line, view.elapsed_seconds
                screen.note(f"{_at(view.elapsed_seconds)}  {line}")
            if view.work is not None:
                progress.take(view.work)

        with progress.refreshing():
            yield write
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = screen.console()
    table: RenderableType = Text("")
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(view: PromoteView) -> None:
            nonlocal table
            for line in view.lines:
                console.print(line)
            if view.missing:
                table = promote_table(view, most_topics(console.height))
                live.update(table, refresh=True)
            if view.work is not None:
                progress.take(view.work)

        def draw_work(line: str) -> None:
            live.update(Group(table, Text(line)) if line else table, refresh=True)

        progress = ProgressDisplay(screen, draw_work, time.monotonic)
        with progress.refreshing():
            yield draw


def promote_table(view: PromoteView, most: int) -> Table:
    """Return a table of what topics wait for: at most `most` of them, the smallest lag first."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_footer=True)
    count = len(view.missing)
    total = counted(count, "topic") if count <= most else f"{most} of {count:,} topics"
    found.add_column("TOPIC", total, overflow="fold", footer_style="dim")
    found.add_column("LAG", justify="right", no_wrap=True)
    found.add_column("STILL MISSING", f"waiting {_at(view.elapsed_seconds)}", footer_style="dim", overflow="fold")
    for one in view.missing[:most]:
        lag = UNKNOWN if one.lag is None else f"{one.lag:,}"
        found.add_row(one.topic, lag, one.what or "nothing")
    return found


def run_table(view: RunView, most: int) -> Table:
    """Return a run as a table: at most `most` topics, those that need attention first, and a line of totals."""
    from rich.table import Table
    from rich.text import Text

    several = len(view.mirrors) > 1
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_footer=True)
    rows = sorted((topic for topic in view.topics if topic.is_wanted), key=_by_need)
    total = counted(len(rows), "topic") if len(rows) <= most else f"{most} of {len(rows):,} topics"
    if several:
        found.add_column("MIRROR", overflow="fold")
    found.add_column("TOPIC", total if rows else ", ".join(view.mirrors), overflow="fold", footer_style="dim")
    partitions = sum(topic.partition_count for topic in rows)
    for name, footer in (
        ("PARTITIONS", f"{partitions:,}"),
        ("LAG", _lag(rows)),
        ("RATE", byte_rate(view.total_bytes_per_second)),
    ):
        found.add_column(name, footer if rows else "", justify="right", footer_style="dim", no_wrap=True)
    found.add_column("STATE", f"{view.phase} {_at(view.elapsed_seconds)}", footer_style="dim", overflow="fold")
    for mirror, not_copied in sorted(view.not_copied.items())[:most]:
        style = tables.style_of("FAILED") if not_copied.level is Level.ERROR else ""
        why = Text(f"not copied by this engine: {one_line(not_copied.why)}", style=style)
        found.add_row(*([mirror, UNKNOWN] if several else [mirror]), "", UNKNOWN, "", why)
    for topic in rows[:most]:
        state = Text(topic.state, style=tables.style_of(topic.state))
        if topic.reason:
            state.append(f" {topic.reason}: {one_line(topic.error_message)}", style="default not bold")
        found.add_row(
            *([topic.mirror] if several else []),
            topic.topic,
            f"{topic.partition_count:,}",
            _lag([topic]),
            byte_rate(topic.bytes_per_second or 0),
            state,
        )
    return found


def most_topics(height: int) -> int:
    """Return how many topics fit on a terminal of `height` lines."""
    return max(1, min(_MOST_TOPICS, height - _OTHER_LINES))


def _by_need(topic: TopicStatus) -> tuple[bool, float, str, str]:
    """Sort FAILED topics first, then the largest lag; an unknown lag counts as the largest."""
    lag = float("inf") if topic.lag_unknown else topic.lag or 0
    return (topic.state != "FAILED", -lag, topic.mirror, topic.topic)


def _lag(topics: Sequence[TopicStatus]) -> str:
    known = [topic.lag for topic in topics if topic.lag is not None]
    if not known:
        return UNKNOWN
    return f"≥ {sum(known):,}" if any(topic.lag_unknown for topic in topics) else f"{sum(known):,}"


def _at(seconds: float) -> str:
    return f"{tables.elapsed(seconds):>6}"
