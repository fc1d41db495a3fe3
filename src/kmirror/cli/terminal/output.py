"""All output of commands: tables and sentences for people, JSON documents for scripts.

`--json` prints exactly one document to standard output, at the end. Hints, warnings, questions and errors go to
standard error in both formats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kmirror.cli.terminal import plain_tables as tables
from kmirror.cli.terminal.screen import Screen
from kmirror.columns import Cell, R, Table
from kmirror.words import counted, json_text, one_line

if TYPE_CHECKING:
    from kmirror.engine.driver.driver import RunView
    from kmirror.ops.base.results import ErrorInfo, StopTotals, VerbResult
    from kmirror.ops.base.topic_results import TopicResult
    from kmirror.ops.check.findings import CheckLine, CheckReport
    from kmirror.ops.stop.promote_request import PromoteView
    from kmirror.ops.verify.verify_results import VerifyOutcome
    from kmirror.work import Watch

Watcher = Callable[["RunView"], None]
OnProgress = Callable[[str], None]

#: Column widths of `check`, fixed because each line is shown before the next one is known.
_CHECK_WIDTHS = (4, 11, 17, 0)


class Output(Protocol):
    """Show what verbs found and did."""

    @property
    def screen(self) -> Screen:
        """Return the screen it is shown on."""

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        """Show what a verb did, or would do; with a `headline`, a table has only the rows that went wrong.

        If there are totals, people see them first, and then only the rows that need attention; all rows with `-v`.
        """

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        """Show the rows of a table."""

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        """Return a function that shows more rows of a table."""

    def check_line(self, line: CheckLine) -> None:
        """Show one finding of `check` as soon as it is known."""

    def check(self, report: CheckReport) -> None:
        """Show the outcome of `check`, after its lines."""

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        """Show what `verify` found; `headline` is the summary for people."""

    def document(self, document: object, for_people: Callable[[], None]) -> None:
        """Show a document to scripts; `for_people` shows the same to people."""

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        """Show the progress of `run`, view by view: as a table on a terminal, else as a log in that format."""

    def run_ended(self, result: VerbResult, headline: str, log_format: str) -> None:
        """Show how `run` ended, after `running`."""

    def working(self) -> AbstractContextManager[Watch]:
        """Show the progress of long work, view by view."""

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        """Show the progress of `promote`, view by view."""

    def waiting(self, what: str) -> AbstractContextManager[OnProgress]:
        """Show what a command waits for, and the current state of that."""

    def failure(self, error: ErrorInfo, document: Any) -> None:
        """Show why a command failed: the document to scripts, the sentence and the hint to people."""


@contextmanager
def waiting_lines(screen: Screen, what: str) -> Iterator[OnProgress]:
    """Write what a command waits for to standard error, when it changes, every five seconds at most."""
    from kmirror.cli.terminal.progress_lines import LINE_SECONDS, QUIET_SECONDS

    last, next_at = "", time.monotonic() + QUIET_SECONDS

    def show(found: str) -> None:
        nonlocal last, next_at
        if found != last and time.monotonic() >= next_at:
            last, next_at = found, time.monotonic() + LINE_SECONDS
            screen.note(f"{what}: {found}")

    yield show


@dataclass(frozen=True, slots=True)
class TableOutput:
    """Output for people: tables, sentences, live progress on a terminal."""

    screen: Screen
    verbosity: int = 0

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        from kmirror.ops.base.converted_keys import KEYS
        from kmirror.ops.base.topic_results import PARTITION_RESULTS, RESULTS, Outcome, planned

        if result.keys:
            self._table(KEYS, result.keys)
        if result.changes:
            from kmirror.ops.base.change_rows import CHANGES

            self._table(planned(CHANGES) if result.dry_run else CHANGES, result.changes)
            trouble = dict.fromkeys((row.message, row.hint) for row in result.changes if row.message)
            for message, hint in trouble if len(trouble) > 1 else ():
                self.screen.line(one_line(message))
                for text in hint.split("\n") if hint else ():
                    self.screen.line(f"  {one_line(text)}")
        about_topics = [row for row in result.results if row.topic is not None]
        if result.totals is not None:
            about_topics = self._stopped(result.totals, about_topics)
        if headline and result.totals is None:
            about_topics = [row for row in about_topics if row.result not in (Outcome.DONE, Outcome.NOOP)]
        if about_topics:
            with_partitions = any(row.partition is not None for row in about_topics)
            table = PARTITION_RESULTS if with_partitions else RESULTS
            self._table(planned(table) if result.dry_run else table, about_topics)
        for row in result.results:
            if row.topic is None and not result.changes:
                self.screen.line(row.message or row.result.value)
        if headline:
            self.screen.line(headline)
        if result.dry_run:
            self.screen.note("dry run: nothing was changed")
            for number, step in enumerate(result.steps or (), 1):
                self.screen.note(f"step {number}: {step}")
        _show_warnings(self.screen, result)

    def _stopped(self, totals: StopTotals, rows: list[TopicResult]) -> list[TopicResult]:
        """Show the totals; return the rows to show."""
        from kmirror.ops.stop.report import needs_attention, totals_sentences

        for line in totals_sentences(totals) if totals.partitions else ():
            self.screen.line(line)
        if self.verbosity:
            return rows
        shown = [row for row in rows if needs_attention(row)]
        if hidden := len(rows) - len(shown):
            self.screen.note(f"{counted(hidden, 'row')} without errors or loss not shown; -v shows all")
        return shown

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        self._table(table, rows)
        if not rows and table.none:
            self.screen.note(table.none)
        for note in table.notes(rows) if table.notes else ():
            self.screen.note(note)

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        writer = tables.RowWriter(table)

        def show(rows: Sequence[R]) -> None:
            for line in writer.lines(rows):
                self.screen.line(line)

        return show

    def check_line(self, line: CheckLine) -> None:
        from kmirror.ops.check.findings import CHECKS

        (cells,) = CHECKS.cells([line])
        text = "  ".join(cell.text.ljust(width) for cell, width in zip(cells, _CHECK_WIDTHS, strict=True))
        self._styled(text, cells[0])
        # commands to copy: each on a line of its own, which only the terminal may fold
        for text in (*line.message.split("\n")[1:], *(line.hint.split("\n") if line.hint else ())):
            self.screen.line(f"      {text}")

    def check(self, report: CheckReport) -> None:
        bad = sum(not line.ok for line in report.lines)
        self.screen.line(f"{bad} of {counted(len(report.lines), 'check')} failed" if bad else "all checks passed")

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        from kmirror.ops.verify.verify_results import VERIFIED

        if outcome.rows:
            self._table(VERIFIED, outcome.rows)
        self.screen.line(headline)
        _show_warnings(self.screen, outcome)

    def document(self, document: object, for_people: Callable[[], None]) -> None:
        for_people()

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        from kmirror.cli.terminal import progress_lines as progress
        from kmirror.cli.terminal.run_log import RunLog

        if self.screen.is_terminal:
            return progress.running(self.screen)
        return nullcontext(RunLog(self.screen.line, log_format).take)

    def run_ended(self, result: VerbResult, headline: str, log_format: str) -> None:
        from kmirror.cli.terminal.run_log import JSON, RunLog
        from kmirror.engine.clock import now_ms

        if self.screen.is_terminal or log_format != JSON:
            self.result(result, headline)
            return
        RunLog(self.screen.line, log_format).end(now_ms(), result, headline)
        _show_warnings(self.screen, result)

    def working(self) -> AbstractContextManager[Watch]:
        from kmirror.cli.terminal import progress_lines as progress

        return progress.working(self.screen, on_terminal=self.screen.is_terminal)

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        from kmirror.cli.terminal import progress_lines as progress

        return progress.promoting(self.screen, on_terminal=self.screen.is_terminal)

    @contextmanager
    def waiting(self, what: str) -> Iterator[OnProgress]:
        if not self.screen.is_terminal:
            with waiting_lines(self.screen, what) as show:
                yield show
            return
        from rich.text import Text

        with self.screen.console().status(Text(what), refresh_per_second=4) as status:
            yield lambda found: status.update(Text(f"{what}: {found}"))

    def failure(self, error: ErrorInfo, document: Any) -> None:
        show_error(self.screen, error)

    def _table(self, table: Table[R], rows: Sequence[R]) -> None:
        table = table.used_by(rows)
        if not self.screen.is_terminal:
            for line in tables.lines(table, rows):
                self.screen.line(line)
            return
        from rich.text import Text

        from kmirror.cli.terminal.layout import laid_out

        console = self.screen.console()
        lines = (Text.assemble(*line) for part in laid_out(table, rows, console.width) for line in part)
        console.print(Text("\n").join(lines), soft_wrap=True)

    def _styled(self, line: str, first: Cell) -> None:
        """Write a line, its first cell in the style of that cell."""
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
    """Output for scripts: one JSON document per command."""

    screen: Screen

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        self._print(result.to_json())
        _show_warnings(self.screen, result)

    def rows(self, table: Table[R], rows: Sequence[R]) -> None:
        self._print([table.document(row) for row in rows])

    def following(self, table: Table[R]) -> Callable[[Sequence[R]], None]:
        def show(rows: Sequence[R]) -> None:
            for row in rows:
                self.screen.line(json_text(table.document(row)))

        return show

    def check_line(self, line: CheckLine) -> None:
        """Do nothing: `check` prints all lines in its one document."""

    def check(self, report: CheckReport) -> None:
        self._print(report.to_json())

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        self._print(outcome.to_json())
        _show_warnings(self.screen, outcome)

    def document(self, document: object, for_people: Callable[[], None]) -> None:
        self._print(document)

    def running(self, log_format: str) -> AbstractContextManager[Watcher]:
        from kmirror.cli.terminal.run_log import RunLog

        return nullcontext(RunLog(self.screen.note, log_format).take)

    def run_ended(self, result: VerbResult, headline: str, log_format: str) -> None:
        self.result(result)

    def working(self) -> AbstractContextManager[Watch]:
        from kmirror.cli.terminal import progress_lines as progress

        return progress.working(self.screen, on_terminal=False)

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        from kmirror.cli.terminal import progress_lines as progress

        return progress.promoting(self.screen, on_terminal=False)

    def waiting(self, what: str) -> AbstractContextManager[OnProgress]:
        return waiting_lines(self.screen, what)

    def failure(self, error: ErrorInfo, document: Any) -> None:
        self._print(document)
        show_error(self.screen, error)

    def _print(self, document: Any) -> None:
        self.screen.line(json_text(document, indent=2))


def output_for(kind: str, screen: Screen, verbosity: int = 0) -> Output:
    """Return the output of a kind, `table` or `json`; with `-v` tables leave nothing out."""
    return JsonOutput(screen) if kind == "json" else TableOutput(screen, verbosity)


def _show_warnings(screen: Screen, outcome: VerbResult | VerifyOutcome) -> None:
    for warning in outcome.warnings:
        screen.note(f"kmirror: warning: {warning}")
    if outcome.error:
        show_error(screen, outcome.error)


def show_error(screen: Screen, error: ErrorInfo) -> None:
    """Write the message on one line and the hint below it, line by line, to standard error."""
    screen.note(f"kmirror: {one_line(error.message)}")
    for text in error.hint.split("\n") if error.hint else ():
        screen.note(f"  {one_line(text)}")
