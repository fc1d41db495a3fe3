"""The port through which commands speak: tables and sentences for people, JSON documents for scripts.

`--json` prints exactly one document to standard output, at the end. Whatever a person should know besides (hints,
warnings, questions, errors) goes to standard error in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kmirror.cli import tables
from kmirror.cli.screen import Screen
from kmirror.columns import Cell, R, Table
from kmirror.words import counted, one_line

if TYPE_CHECKING:
    from kmirror.engine.control.driver import RunView
    from kmirror.ops.check.findings import CheckLine, CheckReport
    from kmirror.ops.results import ErrorInfo, StopTotals, TopicResult, VerbResult
    from kmirror.ops.stop.promote import PromoteView
    from kmirror.ops.verify.results import VerifyOutcome
    from kmirror.sandbox.registry import SandboxStatus
    from kmirror.work import Watch

Watcher = Callable[["RunView"], None]
OnLook = Callable[[str], None]

#: How the cells share a line of `check`, which is shown before the next ones are known.
_CHECK_WIDTHS = (4, 11, 17, 0)


class Output(Protocol):
    """Show what verbs found and did."""

    @property
    def screen(self) -> Screen:
        """Return where it is shown."""

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        """Show what a verb did, or would do; with a `headline`, people get only the rows that went wrong, and it.

        Where there are totals, people are shown them first, and then only the rows that need a look; all with `-v`.
        """

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        """Show the rows of a table."""

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        """Return what shows rows of a table as they come."""

    def check_line(self, line: CheckLine) -> None:
        """Show one finding of `check` as soon as it is known."""

    def check(self, report: CheckReport) -> None:
        """End what `check_line` began."""

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        """Show what `verify` found; `headline` sums it up in a sentence for people."""

    def sandbox(self, status: SandboxStatus, done: VerbResult | None = None) -> None:
        """Show how the sandbox is, after what was `done`."""

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        """Show how `run` goes, view by view: as a table on a terminal, else as a log in that format."""

    def ran(self, result: VerbResult, headline: str, log_format: str) -> None:
        """Show how `run` ended, after `running`."""

    def working(self) -> AbstractContextManager[Watch]:
        """Show how work goes that takes long, view by view."""

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        """Show how `promote` goes, view by view."""

    def waiting(self, what: str) -> AbstractContextManager[OnLook]:
        """Show that a command waits, and how what it waits for stands."""

    def failure(self, error: ErrorInfo, document: Any) -> None:
        """Show why a command failed: the document to scripts, the sentence and the hint to people."""


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Speak to people: tables, sentences, live progress on a terminal."""

    screen: Screen
    verbosity: int = 0

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        from kmirror.ops.converted_keys import KEYS
        from kmirror.ops.results import PARTITION_RESULTS, RESULTS, Outcome

        if result.keys:
            self._table(KEYS, result.keys)
        about_topics = [row for row in result.results if row.topic is not None]
        if result.totals is not None:
            about_topics = self._stopped(result.totals, about_topics)
        if headline:
            about_topics = [row for row in about_topics if row.result not in (Outcome.DONE, Outcome.NOOP)]
        if about_topics:
            with_partitions = any(row.partition is not None for row in about_topics)
            self._table(PARTITION_RESULTS if with_partitions else RESULTS, about_topics)
        for row in result.results:
            if row.topic is None:
                self.screen.line(row.message or row.result.value)
        if headline:
            self.screen.line(headline)
        if result.dry_run:
            self.screen.tell("dry run: nothing was changed")
        _tell_trouble(self.screen, result)

    def _stopped(self, totals: StopTotals, rows: list[TopicResult]) -> list[TopicResult]:
        """Show the totals; return the rows to show."""
        from kmirror.ops.stop.report import needs_attention, totals_sentences

        for line in totals_sentences(totals) if totals.partitions else ():
            self.screen.line(line)
        if self.verbosity:
            return rows
        shown = [row for row in rows if needs_attention(row)]
        if hidden := len(rows) - len(shown):
            self.screen.tell(f"{counted(hidden, 'row')} without trouble or loss not shown; -v shows all")
        return shown

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        self._table(table, rows)
        if not rows and table.none:
            self.screen.tell(table.none)
        for note in table.notes(rows) if table.notes else ():
            self.screen.tell(note)

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        writer = tables.RowWriter(table)

        def show(rows: Sequence[R]) -> None:
            for line in writer.lines(rows):
                self.screen.line(line)

        return show

    def check_line(self, line: CheckLine) -> None:
        from kmirror.ops.check.findings import CHECKS

        cells = [column.shown(line) for column in CHECKS.shown]
        text = "  ".join(cell.text.ljust(width) for cell, width in zip(cells, _CHECK_WIDTHS, strict=True))
        self._styled(text, cells[0])
        # commands to be copied: each on a line of its own, which only the terminal may fold
        for said in (*line.message.splitlines()[1:], *(line.hint or "").splitlines()):
            self.screen.line(f"      {said}")

    def check(self, report: CheckReport) -> None:
        bad = sum(not line.ok for line in report.lines)
        self.screen.line(f"{bad} of {counted(len(report.lines), 'check')} failed" if bad else "all is well")

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        from kmirror.ops.verify.results import VERIFIED

        if outcome.rows:
            self._table(VERIFIED, outcome.rows)
        self.screen.line(headline)
        _tell_trouble(self.screen, outcome)

    def sandbox(self, status: SandboxStatus, done: VerbResult | None = None) -> None:
        from kmirror.sandbox.registry import BROKERS

        if done is not None and done.dry_run:
            self.result(done)
        elif status.brokers:
            self._table(BROKERS, status.brokers)
        else:
            self.screen.tell(f"there is no sandbox in {status.directory}; `kmirror sandbox up` makes one")

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        from kmirror.cli import progress
        from kmirror.cli.run_log import RunLog

        if self.screen.is_terminal:
            return progress.running(self.screen)
        return nullcontext(RunLog(self.screen.line, log_format).take)

    def ran(self, result: VerbResult, headline: str, log_format: str) -> None:
        from kmirror.cli.run_log import JSON, RunLog
        from kmirror.engine.clock import now_ms

        if self.screen.is_terminal or log_format != JSON:
            self.result(result, headline)
            return
        RunLog(self.screen.line, log_format).end(now_ms(), result, headline)
        _tell_trouble(self.screen, result)

    def working(self) -> AbstractContextManager[Watch]:
        from kmirror.cli import progress

        return progress.working(self.screen, on_terminal=self.screen.is_terminal)

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        from kmirror.cli import progress

        return progress.promoting(self.screen)

    @contextmanager
    def waiting(self, what: str) -> Iterator[OnLook]:
        if not self.screen.is_terminal:
            yield _ignore
            return
        with self.screen.console().status(what, refresh_per_second=4) as status:
            yield lambda found: status.update(f"{what}: {found}")

    def failure(self, error: ErrorInfo, document: Any) -> None:
        tell_error(self.screen, error)

    def _table(self, table: Table[R], rows: Sequence[R]) -> None:
        if not self.screen.is_terminal:
            for line in tables.lines(table, rows):
                self.screen.line(line)
            return
        from rich.text import Text

        from kmirror.cli.layout import laid_out

        console = self.screen.console()
        lines = (Text.assemble(*line) for part in laid_out(table, rows, console.width) for line in part)
        console.print(Text("\n").join(lines), soft_wrap=True)

    def _styled(self, line: str, first: Cell) -> None:
        """Write a line that begins with a cell."""
        style = tables.style_of(first.code)
        if not self.screen.is_terminal or not style:
            self.screen.line(line)
            return
        from rich.text import Text

        text = Text(line)
        text.stylize(style, 0, len(first.text))
        self.screen.console().print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """Speak to scripts: one JSON document a command."""

    screen: Screen

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        self._print(result.to_json())
        _tell_trouble(self.screen, result)

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        self._print([table.document(row) for row in rows])

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        def show(rows: Sequence[R]) -> None:
            for row in rows:
                self.screen.line(json.dumps(table.document(row), ensure_ascii=False))

        return show

    def check_line(self, line: CheckLine) -> None:
        """Keep quiet: `check` prints the lines in its one document."""

    def check(self, report: CheckReport) -> None:
        self._print(report.to_json())

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        self._print(outcome.to_json())
        _tell_trouble(self.screen, outcome)

    def sandbox(self, status: SandboxStatus, done: VerbResult | None = None) -> None:
        self._print({**(done.to_json() if done else {}), **status.to_json()})

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        from kmirror.cli.run_log import RunLog

        return nullcontext(RunLog(self.screen.tell, log_format).take)

    def ran(self, result: VerbResult, headline: str, log_format: str) -> None:
        self.result(result)

    def working(self) -> AbstractContextManager[Watch]:
        from kmirror.cli import progress

        return progress.working(self.screen, on_terminal=False)

    @contextmanager
    def promoting(self) -> Iterator[Callable[[PromoteView], None]]:
        with self.working() as watch:
            yield lambda view: watch(view.work) if view.work is not None else None

    def waiting(self, what: str) -> AbstractContextManager[OnLook]:
        return nullcontext(_ignore)

    def failure(self, error: ErrorInfo, document: Any) -> None:
        self._print(document)
        tell_error(self.screen, error)

    def _print(self, document: Any) -> None:
        self.screen.line(json.dumps(document, indent=2, ensure_ascii=False))


def output_for(kind: str, screen: Screen, verbosity: int = 0) -> Output:
    """Return the output of a kind, `table` or `json`; with a verbosity tables leave nothing out."""
    return JsonOutput(screen) if kind == "json" else TableOutput(screen, verbosity)


def _tell_trouble(screen: Screen, outcome: VerbResult | VerifyOutcome) -> None:
    for warning in outcome.warnings:
        screen.tell(f"kmirror: warning: {warning}")
    if outcome.error:
        tell_error(screen, outcome.error)


def tell_error(screen: Screen, error: ErrorInfo) -> None:
    """Write what is wrong in a line, and what to do, to standard error; each command of a hint keeps its line."""
    screen.tell(f"kmirror: {one_line(error.message)}")
    for said in (error.hint or "").splitlines():
        screen.tell(f"  {one_line(said)}")


def _ignore(_: object) -> None:
    """Show nothing."""
