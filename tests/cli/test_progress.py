"""What `run` shows while it copies."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kmirror.cli.commands.copying import headline
from kmirror.cli.terminal import progress_lines as progress
from kmirror.cli.terminal.screen import Screen
from kmirror.engine.driver.driver import RunView
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import Reason
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.status.topic_state import TopicState
from kmirror.work import Speed, WorkView
from tests.support.screens import piped, terminal, written
from tests.support.statuses import topic_of
from tests.support.waiting import wait_until

ORDERS = topic_of("orders", 8, 1_234_567, 42_500_000)
PAYMENTS = topic_of("payments", 1, 3_000_000, 900)
MISMATCH = (TopicState.FAILED, Reason.OFFSET_MISMATCH, "expected 7,\ngot 9")
USERS = topic_of("users", 1, None, 0, *MISMATCH)
STOPPED = topic_of("old", state=TopicState.STOPPED)
VIEW = RunView(0, 12.34, "copying", ("m",), (ORDERS, PAYMENTS, STOPPED, USERS), 42_500_900.0, ())


def drawn(view: RunView, most: int = 10) -> list[str]:
    console = Console(file=io.StringIO(), width=100, color_system=None, highlight=False)
    console.print(progress.run_table(view, most))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_shows_what_needs_attention_first() -> None:
    assert drawn(VIEW) == [
        "TOPIC     PARTITIONS          LAG       RATE  STATE",
        "users              1            -      0 B/s  FAILED OFFSET_MISMATCH: expected 7, got 9",
        "payments           1    3,000,000    900 B/s  ACTIVE",
        "orders             8    1,234,567  42.5 MB/s  ACTIVE",
        "3 topics          10  ≥ 4,234,567  42.5 MB/s  copying  12.3s",
    ]


def test_a_failed_topic_comes_first_whatever_its_lag() -> None:
    lines = drawn(replace(VIEW, topics=(ORDERS, topic_of("users", 1, 0, 0, *MISMATCH))))
    assert [line.split()[0] for line in lines[1:-1]] == ["users", "orders"]


def test_the_table_is_bounded() -> None:
    many = tuple(topic_of(f"t{number:03}", 8, number) for number in range(500))
    lines = drawn(replace(VIEW, topics=many), most=3)
    assert [line.split()[0] for line in lines[1:-1]] == ["t499", "t498", "t497"]
    assert lines[-1].startswith("3 of 500 topics")


def test_several_mirrors_have_a_column() -> None:
    lines = drawn(replace(VIEW, mirrors=("m", "n"), topics=(ORDERS, topic_of("orders", 8, mirror="n"))))
    assert lines[0].startswith("MIRROR  TOPIC")
    assert [line.split()[0] for line in lines[1:3]] == ["m", "n"]


def test_a_mirror_that_has_no_engine_here_has_a_line_that_says_why() -> None:
    lines = drawn(
        replace(VIEW, mirrors=("m", "n"), topics=(ORDERS,), not_copied={"n": NotCopied("process 7 took over")})
    )
    assert lines[1].split()[:2] == ["n", "-"]
    assert lines[1].endswith("not copied by this engine: process 7 took over")


def test_before_the_first_topic_the_table_says_what_it_does() -> None:
    assert drawn(RunView(0, 0.0, "starting", ("m",), (), 0.0, ()))[-1].split() == ["m", "starting", "0ms"]


@pytest.mark.parametrize(("height", "topics"), [(0, 1), (10, 4), (24, 18), (200, 20)])
def test_the_table_fits_the_terminal(height: int, topics: int) -> None:
    assert progress.most_topics(height) == topics


def test_on_a_terminal_notes_stay_above_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(Terminal(), io.StringIO(), io.StringIO())
    with progress.running(screen) as watch:
        watch(VIEW)
        watch(replace(VIEW, notes=(Note(0, Level.INFO, "m", "m: new partition orders-8"),)))
    assert isinstance(screen.out, Terminal)
    shown = screen.out.getvalue()
    assert "m: new partition orders-8\n" in shown
    assert shown.index("42.5 MB/s") < shown.index("new partition") < shown.rindex("42.5 MB/s")


def _speed(*steps: tuple[float, int]) -> Speed:
    speed = Speed(0.0)
    for at, done in steps:
        speed.take(WorkView("", 0.0, at, "offset", done))
    return speed


STEADY = _speed(*((second, second * 50_000) for second in range(1, 21)))
HALF = WorkView("archiving orders", 0.0, 20.0, "offset", 1_000_000, 4_000_000)


@pytest.mark.parametrize(
    ("view", "speed", "at", "line"),
    [
        (WorkView("starting Spark", 0.0, 0.0), Speed(0.0), 75.4, " 1m15s  starting Spark"),
        (HALF, STEADY, 20.4, "   20s  archiving orders  25 %  1,000,000 of 4,000,000 offsets  48,077/s  ~1m3s left"),
        (HALF, STEADY, 31.2, "   31s  archiving orders  25 %  1,000,000 of 4,000,000 offsets  nothing new for 11s"),
        (
            replace(HALF, done=4_000_000, note="1 partition DIFFERENT"),
            STEADY,
            60.0,
            "    1m  archiving orders  100 %  4,000,000 of 4,000,000 offsets  1 partition DIFFERENT",
        ),
        (
            WorkView("fetching Kafka", 0.0, 0.0, "byte", 12_300_000),
            _speed((1.0, 1_000_000), (1.5, 6_000_000), (2.0, 12_300_000)),
            2.0,
            "    2s  fetching Kafka  12.3 MB  11.3 MB/s",
        ),
        (
            WorkView("cutting", 0.0, 0.0, "byte", 500_000_000, 2_000_000_000),
            Speed(0.0),
            2.0,
            "    2s  cutting  25 %  500.0 MB of 2.0 GB",
        ),
        (
            WorkView("starting", 0.0, 0.0, "broker", 3, 6),
            _speed((1.0, 1), (3.0, 2), (5.0, 3)),
            5.0,
            "    5s  starting  50 %  3 of 6 brokers  0.5/s  ~6s left",
        ),
        (WorkView("starting", 0.5, 0.0, "broker", 0, 1), Speed(0.0), 0.9, "    0s  starting  0 %  0 of 1 broker"),
    ],
)
def test_how_far_work_is(view: WorkView, speed: Speed, at: float, line: str) -> None:
    assert progress.work_line(view, speed, at) == line


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (81, "   20s  archiving or…  25 %  1,000,000 of 4,000,000 offsets  48,077/s  ~1m3s left"),
        (75, "   20s  archiving orders  25 %  48,077/s  ~1m3s left"),
        (50, "   20s  archiving ord…  25 %  48,077/s  ~1m3s left"),
        (30, "   20s  archiving o…  25 %  48"),
    ],
)
def test_a_line_fits_the_terminal_and_the_name_goes_first(width: int, line: str) -> None:
    assert progress.work_line(HALF, STEADY, 20.4, width) == line


class Hours:
    """A clock that a test puts on."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def test_work_is_shown_after_two_seconds_and_then_in_a_line_every_five() -> None:
    screen, clock = piped(), Hours()
    shown = progress.ProgressDisplay(screen, None, clock)
    for tenths in range(200):
        clock.at = tenths / 10
        shown.take(WorkView(f"copying {tenths // 50}", float(tenths // 50 * 5), clock.at, "offset", tenths % 50 + 1))
        if tenths % 50 == 49:
            shown.take(WorkView(f"copying {tenths // 50}", float(tenths // 50 * 5), clock.at, is_over=True))
        shown.show()
    out, err = written(screen)
    assert out == ""
    assert [line.split()[:3] for line in err.splitlines()] == [
        ["2s", "copying", "0"],
        ["2s", "copying", "1"],
        ["2s", "copying", "2"],
        ["2s", "copying", "3"],
    ]


def test_of_several_works_the_first_that_is_not_done_is_shown() -> None:
    screen, clock = piped(), Hours()
    shown = progress.ProgressDisplay(screen, None, clock)
    for what, done in (("archiving", 5), ("checking", 2)):
        shown.take(WorkView(what, 0.0, 0.0, "offset", done, 5))
    clock.at = 3.0
    shown.show()
    assert written(screen)[1] == "    3s  checking  40 %  2 of 5 offsets\n"


def test_on_a_terminal_one_line_changes_and_goes_with_the_work_and_before_other_lines() -> None:
    screen, clock = terminal(), Hours()
    shown = progress.ProgressDisplay(screen, screen.status, clock)
    shown.take(WorkView("deleting orders", 0.0, 0.0))
    shown.show()
    assert written(screen) == ("", "")
    for clock.at in (2.0, 3.0):
        shown.show()
    screen.note("a warning")
    clock.at = 4.0
    shown.show()
    shown.take(WorkView("deleting orders", 0.0, 4.0, is_over=True))
    screen.line("done")
    erased = "\r\x1b[2K"
    out, err = written(screen)
    assert out.split(erased) == [*(f"    {second}s  deleting orders" for second in (2, 3, 4)), "done\n"]
    assert err == "a warning\n"


def test_an_interruption_leaves_the_terminal_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_SHOW_SECONDS", 0.001)
    screen = terminal()

    def work() -> None:
        with progress.working(screen, on_terminal=True) as watch:
            watch(WorkView("deleting orders", 0.0, 0.0))
            wait_until(lambda: "deleting" in written(screen)[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert written(screen)[0].endswith("\r\x1b[2K")


def _result(*lags: int | None, failed: bool = False) -> VerbResult:
    rows = [TopicResult("orders", index, Outcome.DONE, lag=lag) for index, lag in enumerate(lags)]
    if failed:
        rows[0] = replace(rows[0], result=Outcome.FAILED)
    return VerbResult.of("run", "m", rows)


@pytest.mark.parametrize(
    ("result", "until_caught_up", "reported"),
    [
        (_result(0, 0), True, "caught up after 12.3s: 2 partitions, lag 0"),
        (_result(0), False, "stopped after 12.3s: 1 partition, lag 0"),
        (_result(0, 1500), True, "stopped after 12.3s: 2 partitions, lag 1,500"),
        (_result(0, None), True, "stopped after 12.3s: 2 partitions, lag unknown"),
        (_result(0, 0, failed=True), True, "stopped after 12.3s: 2 partitions, lag 0"),
    ],
)
def test_the_last_line_says_what_happened(result: VerbResult, until_caught_up: bool, reported: str) -> None:
    assert headline(result, until_caught_up, 12.34) == reported
