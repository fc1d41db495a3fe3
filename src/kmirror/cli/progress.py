"""How `run`, `verify` and `promote` go: alive on a terminal; the last two have a line every few seconds elsewhere.

What to show is decided without a clock: views carry the time they were taken at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kmirror.cli import tables
from kmirror.cli.screen import Screen
from kmirror.engine.control.journal import Level
from kmirror.words import UNKNOWN, byte_rate, counted, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from kmirror.engine.control.driver import RunView, TopicView
    from kmirror.ops.stop.promote import PromoteView
    from kmirror.ops.verify.verify import VerifyView

#: Between two plain lines while nothing else happens.
LINE_SECONDS = 5.0

_MOST_TOPICS = 20
_LINES_BESIDES_TOPICS = 6


@contextmanager
def running(screen: Screen) -> Iterator[Callable[[RunView], None]]:
    """Show the views of `run` for the time of a `with` block: a table on the terminal, with the notes above it."""
    from rich.live import Live

    console = screen.console()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(view: RunView) -> None:
            for note in view.notes:
                console.print(note.text)
            live.update(run_table(view, most_topics(console.height)), refresh=True)

        yield draw


@contextmanager
def comparing(screen: Screen) -> Iterator[Callable[[VerifyView], None]]:
    """Show the views of `verify` for the time of a `with` block: one line that changes, or one every few seconds."""
    if not screen.is_terminal:
        pace = _Pace()

        def write(view: VerifyView) -> None:
            if pace.is_due(view.phase, view.elapsed_seconds):
                screen.line(verify_line(view))

        yield write
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=screen.console(), auto_refresh=False, transient=True) as live:
        yield lambda view: live.update(Text(verify_line(view)), refresh=True)


@contextmanager
def promoting(screen: Screen) -> Iterator[Callable[[PromoteView], None]]:
    """Show what topics still lack, the smallest lag first: a table on a terminal, else lines when it changes."""
    if not screen.is_terminal:
        pace, said = _Pace(), ""

        def write(view: PromoteView) -> None:
            nonlocal said
            for line in view.lines:
                screen.tell(f"{_at(view.elapsed_seconds)}  {line}")
            lacking = [f"{one.topic}: {one.what}" for one in view.missing if one.what is not None]
            line = f"waiting for {counted(len(lacking), 'topic')}; {lacking[0]}" if lacking else ""
            if line and line != said and pace.is_due("waiting", view.elapsed_seconds):
                said = line
                screen.tell(f"{_at(view.elapsed_seconds)}  {line}")

        yield write
        return
    from rich.live import Live

    console = screen.console()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(view: PromoteView) -> None:
            for line in view.lines:
                console.print(line)
            if view.missing:
                live.update(promote_table(view, most_topics(console.height)), refresh=True)

        yield draw


def promote_table(view: PromoteView, most: int) -> Table:
    """Return what topics lack as a table: at most so many, the smallest lag first."""
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


class _Pace:
    """Tell when the next line is due: when the phase changes, and every `LINE_SECONDS`."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._written_at = 0.0

    def is_due(self, phase: str, seconds: float) -> bool:
        """Tell it, and take it that the line is written."""
        due = phase != self._phase or seconds - self._written_at >= LINE_SECONDS
        if due:
            self._phase, self._written_at = phase, seconds
        return due


def run_table(view: RunView, most: int) -> Table:
    """Return a run as a table: at most so many topics, those that need attention first, and a line for the whole."""
    from rich.table import Table
    from rich.text import Text

    several = len(view.mirrors) > 1
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_footer=True)
    rows = sorted(view.topics, key=_by_need)
    total = counted(len(rows), "topic") if len(rows) <= most else f"{most} of {len(rows):,} topics"
    if several:
        found.add_column("MIRROR", overflow="fold")
    found.add_column("TOPIC", total if rows else ", ".join(view.mirrors), overflow="fold", footer_style="dim")
    partitions = sum(topic.partitions for topic in rows)
    for name, footer in (
        ("PARTITIONS", f"{partitions:,}"),
        ("LAG", _lag(rows)),
        ("RATE", byte_rate(view.total_bytes_per_second)),
    ):
        found.add_column(name, footer if rows else "", justify="right", footer_style="dim", no_wrap=True)
    found.add_column("STATE", f"{view.phase} {_at(view.elapsed_seconds)}", footer_style="dim", overflow="fold")
    for mirror, apart in sorted(view.apart.items())[:most]:
        style = tables.style_of("FAILED") if apart.level is Level.ERROR else ""
        why = Text(f"not copied by this engine: {one_line(apart.why)}", style=style)
        found.add_row(*([mirror, UNKNOWN] if several else [mirror]), "", UNKNOWN, "", why)
    for topic in rows[:most]:
        state = Text(topic.state, style=tables.style_of(topic.state))
        if topic.reason:
            state.append(f" {topic.reason}: {one_line(topic.message)}", style="default not bold")
        found.add_row(
            *([topic.mirror] if several else []),
            topic.topic,
            f"{topic.partitions:,}",
            _lag([topic]),
            byte_rate(topic.bytes_per_second),
            state,
        )
    return found


def verify_line(view: VerifyView) -> str:
    """Return how a comparison stands, in one line."""
    at = _at(view.elapsed_seconds)
    wanted = sum(topic.offsets for topic in view.topics)
    if view.phase != "comparing" or not wanted:
        return f"{at}  {view.phase} {view.mirror}"
    done = sum(topic.offsets_done for topic in view.topics)
    records = counted(sum(topic.records for topic in view.topics), "record")
    differing = sum(topic.differing_partitions for topic in view.topics)
    told = f"  {counted(differing, 'partition')} DIFFERENT" if differing else ""
    return f"{at}  {view.phase}  {100 * done // wanted} %  {records}  {byte_rate(view.bytes_per_second)}{told}"


def most_topics(height: int) -> int:
    """Return how many topics fit a terminal of so many lines."""
    return max(1, min(_MOST_TOPICS, height - _LINES_BESIDES_TOPICS))


def _by_need(topic: TopicView) -> tuple[bool, float, str, str]:
    """Sort FAILED topics first, then the largest lag; an unknown lag may be any."""
    lag = float("inf") if topic.lag is None else topic.lag
    return (topic.state != "FAILED", -lag, topic.mirror, topic.topic)


def _lag(topics: Sequence[TopicView]) -> str:
    known = sum(topic.lag for topic in topics if topic.lag is not None)
    unknown = sum(topic.lag is None for topic in topics)
    if unknown == len(topics):
        return UNKNOWN
    return f"{known:,}" if not unknown else f"≥ {known:,}"


def _at(seconds: float) -> str:
    return f"{tables.elapsed(seconds):>6}"
