"""What `run` shows while it copies."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kmirror.cli import progress
from kmirror.cli.copying import headline
from kmirror.cli.screen import Screen
from kmirror.engine.control.driver import RunView, TopicView
from kmirror.engine.control.engines import Apart
from kmirror.engine.control.journal import Level, Note
from kmirror.errors import Reason
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.verify.verify import TopicProgress, VerifyView

ORDERS = TopicView("m", "orders", 8, 1_234_567, 42_500_000.0, "ACTIVE", None, None)
PAYMENTS = TopicView("m", "payments", 1, 3_000_000, 900.0, "ACTIVE", None, None)
USERS = TopicView("m", "users", 2, None, 0.0, "FAILED", Reason.OFFSET_MISMATCH, "expected 7,\ngot 9")
VIEW = RunView(0, 12.34, "copying", ("m",), (ORDERS, PAYMENTS, USERS), 42_500_900.0, ())


def drawn(view: RunView, most: int = 10) -> list[str]:
    console = Console(file=io.StringIO(), width=100, color_system=None, highlight=False)
    console.print(progress.run_table(view, most))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_shows_what_needs_attention_first() -> None:
    assert drawn(VIEW) == [
        "TOPIC     PARTITIONS          LAG       RATE  STATE",
        "users              2            -      0 B/s  FAILED OFFSET_MISMATCH: expected 7, got 9",
        "payments           1    3,000,000    900 B/s  ACTIVE",
        "orders             8    1,234,567  42.5 MB/s  ACTIVE",
        "3 topics          11  ≥ 4,234,567  42.5 MB/s  copying  12.3s",
    ]


def test_a_failed_topic_comes_first_whatever_its_lag() -> None:
    lines = drawn(replace(VIEW, topics=(ORDERS, replace(USERS, lag=0))))
    assert [line.split()[0] for line in lines[1:-1]] == ["users", "orders"]


def test_the_table_is_bounded() -> None:
    many = tuple(replace(ORDERS, topic=f"t{number:03}", lag=number) for number in range(500))
    lines = drawn(replace(VIEW, topics=many), most=3)
    assert [line.split()[0] for line in lines[1:-1]] == ["t499", "t498", "t497"]
    assert lines[-1].startswith("3 of 500 topics")


def test_several_mirrors_have_a_column() -> None:
    lines = drawn(replace(VIEW, mirrors=("m", "n"), topics=(ORDERS, replace(ORDERS, mirror="n"))))
    assert lines[0].startswith("MIRROR  TOPIC")
    assert [line.split()[0] for line in lines[1:3]] == ["m", "n"]


def test_a_mirror_that_has_no_engine_here_has_a_line_that_says_why() -> None:
    lines = drawn(replace(VIEW, mirrors=("m", "n"), topics=(ORDERS,), apart={"n": Apart("process 7 took over")}))
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


SOME = TopicProgress("orders", 8, 1000, 250, 240, 100_000, 0)
BAD = TopicProgress("users", 2, 1000, 1000, 1000, 100_000, 1)


@pytest.mark.parametrize(
    ("view", "line"),
    [
        (VerifyView(0.1, "looking", "m"), " 100ms  looking m"),
        (VerifyView(6.2, "comparing", "m", (SOME,), 1_500_000), "  6.2s  comparing  25 %  240 records  1.5 MB/s"),
        (
            VerifyView(70, "comparing", "m", (SOME, BAD), 0),
            " 1m10s  comparing  62 %  1,240 records  0 B/s  1 partition DIFFERENT",
        ),
    ],
)
def test_how_a_comparison_stands(view: VerifyView, line: str) -> None:
    screen = Screen(io.StringIO(), io.StringIO(), io.StringIO())
    with progress.comparing(screen) as watch:
        watch(view)
        watch(view)
    assert isinstance(screen.out, io.StringIO)
    assert screen.out.getvalue() == f"{line}\n"


def _result(*lags: int | None, failed: bool = False) -> VerbResult:
    rows = [TopicResult("orders", index, Outcome.DONE, lag=lag) for index, lag in enumerate(lags)]
    if failed:
        rows[0] = replace(rows[0], result=Outcome.FAILED)
    return VerbResult.of("run", "m", rows)


@pytest.mark.parametrize(
    ("result", "until_caught_up", "told"),
    [
        (_result(0, 0), True, "caught up after 12.3s: 2 partitions, lag 0"),
        (_result(0), False, "stopped after 12.3s: 1 partition, lag 0"),
        (_result(0, 1500), True, "stopped after 12.3s: 2 partitions, lag 1,500"),
        (_result(0, None), True, "stopped after 12.3s: 2 partitions, lag not known"),
        (_result(0, 0, failed=True), True, "stopped after 12.3s: 2 partitions, lag 0"),
    ],
)
def test_the_last_line_says_what_happened(result: VerbResult, until_caught_up: bool, told: str) -> None:
    assert headline(result, until_caught_up, 12.34) == told
