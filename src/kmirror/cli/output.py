"""The port through which commands speak: tables and sentences for people, JSON documents for scripts.

`--json` prints exactly one document to standard output, at the end. Whatever a person should know besides (hints,
warnings, questions, errors) goes to standard error in both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kmirror.cli import tables
from kmirror.cli.screen import Screen

if TYPE_CHECKING:
    from kmirror.engine.control.driver import RunView
    from kmirror.ops.results import (
        CheckLine,
        CheckReport,
        ErrorInfo,
        MirrorRow,
        PartitionRow,
        SettingRow,
        StopTotals,
        TopicResult,
        VerbResult,
    )
    from kmirror.ops.show.describe_groups import GroupRow
    from kmirror.ops.show.describe_settings import TopicSettingRow
    from kmirror.ops.stop.promote import PromoteView
    from kmirror.ops.verify.results import VerifyOutcome
    from kmirror.ops.verify.verify import VerifyView
    from kmirror.sandbox.registry import SandboxStatus
    from kmirror.state.events import Event

Watcher = Callable[["RunView"], None]
OnLook = Callable[[str], None]


class Output(Protocol):
    """Show what verbs found and did."""

    @property
    def screen(self) -> Screen:
        """Return where it is shown."""

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        """Show what a verb did, or would do; with a `headline`, people get only the rows that went wrong, and it.

        Where there are totals, people are shown them first, and then only the rows that need a look; all with `-v`.
        """

    def mirrors(self, rows: Sequence[MirrorRow]) -> None:
        """Show the rows of `list`."""

    def partitions(self, rows: Sequence[PartitionRow], *, failed: bool = False, stopped: bool = False) -> None:
        """Show the rows of `describe`."""

    def groups(self, rows: Sequence[GroupRow]) -> None:
        """Show the rows of `describe --groups`."""

    def topic_settings(self, rows: Sequence[TopicSettingRow]) -> None:
        """Show the rows of `describe --settings`."""

    def settings(self, rows: Sequence[SettingRow]) -> None:
        """Show a mirror's settings."""

    def events(self, found: Sequence[Event]) -> None:
        """Show events, oldest first."""

    def check_line(self, line: CheckLine) -> None:
        """Show one finding of `check` as soon as it is known."""

    def check(self, report: CheckReport) -> None:
        """End what `check_line` began."""

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        """Show what `verify` found; `headline` sums it up in a sentence for people."""

    def sandbox(self, status: SandboxStatus, document: Mapping[str, Any], done: VerbResult | None = None) -> None:
        """Show how the sandbox is, which is also `document`, after what was `done`."""

    def running(self) -> AbstractContextManager[Watcher]:
        """Show how `run` goes, view by view."""

    def comparing(self) -> AbstractContextManager[Callable[[VerifyView], None]]:
        """Show how `verify` goes, view by view."""

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
        about_topics = [row for row in result.results if row.topic is not None]
        if result.totals is not None:
            about_topics = self._stopped(result.totals, about_topics)
        if headline:
            about_topics = [row for row in about_topics if row.result not in {"DONE", "NOOP"}]
        if about_topics:
            self._table(tables.results(about_topics))
        for row in result.results:
            if row.topic is None:
                self.screen.line(row.message or row.result.value)
        if headline:
            self.screen.line(headline)
        if result.dry_run:
            self.screen.tell("dry run: nothing was changed")
        for warning in result.warnings:
            self.screen.tell(f"kmirror: warning: {warning}")
        if result.error:
            tell_error(self.screen, result.error)

    def _stopped(self, totals: StopTotals, rows: list[TopicResult]) -> list[TopicResult]:
        """Show the totals; return the rows to show."""
        from kmirror.ops.stop.report import needs_a_look, totals_told

        for line in totals_told(totals) if totals.partitions else ():
            self.screen.line(line)
        if self.verbosity:
            return rows
        shown = [row for row in rows if needs_a_look(row)]
        if hidden := len(rows) - len(shown):
            self.screen.tell(f"{tables.counted(hidden, 'row')} without trouble or loss not shown; -v shows all")
        return shown

    def mirrors(self, rows: Sequence[MirrorRow]) -> None:
        self._table(tables.mirrors(rows))
        if not rows:
            self.screen.tell("no mirrors on this destination; `kmirror create` makes one")

    def partitions(self, rows: Sequence[PartitionRow], *, failed: bool = False, stopped: bool = False) -> None:
        table = tables.failed_partitions if failed else tables.stopped_partitions if stopped else tables.partitions
        self._table(table(rows))
        if not rows:
            which = "FAILED" if failed else "STOPPED" if stopped else None
            none_yet = "no topic is mirrored yet; `kmirror add` makes one a mirror topic"
            self.screen.tell(f"no partition is {which}" if which else none_yet)
        for note in [] if failed or stopped else tables.notes(rows):
            self.screen.tell(note)

    def groups(self, rows: Sequence[GroupRow]) -> None:
        self._table(tables.groups(rows))
        if not rows:
            self.screen.tell("no group has committed offsets of these topics at the source")
        for note in tables.group_notes(rows):
            self.screen.tell(note)

    def topic_settings(self, rows: Sequence[TopicSettingRow]) -> None:
        self._table(tables.topic_settings(rows))
        if not rows:
            self.screen.tell("no topic is mirrored: there are no settings to compare")

    def settings(self, rows: Sequence[SettingRow]) -> None:
        self._table(tables.settings(rows))

    def events(self, found: Sequence[Event]) -> None:
        self._table(tables.events(found))
        if not found:
            self.screen.tell("no events")

    def check_line(self, line: CheckLine) -> None:
        self._styled(tables.check_line(line))
        # commands to be copied: each on a line of its own, which only the terminal may fold
        for said in (*line.message.splitlines()[1:], *(line.hint or "").splitlines()):
            self.screen.line(f"      {said}")

    def check(self, report: CheckReport) -> None:
        bad = sum(not line.ok for line in report.lines)
        self.screen.line(f"{bad} of {tables.counted(len(report.lines), 'check')} failed" if bad else "all is well")

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        if outcome.rows:
            self._table(tables.compared(outcome.rows))
        self.screen.line(headline)
        for warning in outcome.warnings:
            self.screen.tell(f"kmirror: warning: {warning}")
        if outcome.error:
            tell_error(self.screen, outcome.error)

    def sandbox(self, status: SandboxStatus, document: Mapping[str, Any], done: VerbResult | None = None) -> None:
        if done is not None and done.dry_run:
            self.result(done)
        elif status.brokers:
            self._table(tables.brokers(status.brokers))
        else:
            self.screen.tell(f"there is no sandbox in {status.directory}; `kmirror sandbox up` makes one")

    def running(self) -> AbstractContextManager[Watcher]:
        from kmirror.cli import progress

        return progress.running(self.screen)

    def comparing(self) -> AbstractContextManager[Callable[[VerifyView], None]]:
        from kmirror.cli import progress

        return progress.comparing(self.screen)

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

    def _table(self, table: tables.Table) -> None:
        if not self.screen.is_terminal:
            for line in table.lines():
                self.screen.line(line)
            return
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in table.columns:
            shown.add_column(column, justify="right" if column in table.numbers else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(Text(cell, style=tables.STYLES.get(cell.split(" ", 1)[0], "")) for cell in row))
        self.screen.console().print(shown)

    def _styled(self, line: str) -> None:
        word = line.split(" ", 1)[0]
        if not self.screen.is_terminal or word not in tables.STYLES:
            self.screen.line(line)
            return
        from rich.text import Text

        text = Text(line)
        text.stylize(tables.STYLES[word], 0, len(word))
        self.screen.console().print(text, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """Speak to scripts: one JSON document a command."""

    screen: Screen

    def result(self, result: VerbResult, headline: str | None = None) -> None:
        self._print(_document(result))
        for warning in result.warnings:
            self.screen.tell(f"kmirror: warning: {warning}")
        if result.error:
            tell_error(self.screen, result.error)

    def mirrors(self, rows: Sequence[MirrorRow]) -> None:
        self._print([row.to_json() for row in rows])

    def partitions(self, rows: Sequence[PartitionRow], *, failed: bool = False, stopped: bool = False) -> None:
        self._print([row.to_json() for row in rows])

    def groups(self, rows: Sequence[GroupRow]) -> None:
        self._print([row.to_json() for row in rows])

    def topic_settings(self, rows: Sequence[TopicSettingRow]) -> None:
        self._print([row.to_json() for row in rows])

    def settings(self, rows: Sequence[SettingRow]) -> None:
        self._print([row.to_json() for row in rows])

    def events(self, found: Sequence[Event]) -> None:
        self._print([document_of(event) for event in found])

    def check_line(self, line: CheckLine) -> None:
        """Keep quiet: `check` prints the lines in its one document."""

    def check(self, report: CheckReport) -> None:
        self._print(report.to_json())

    def verified(self, outcome: VerifyOutcome, headline: str) -> None:
        self._print(outcome.to_json())
        for warning in outcome.warnings:
            self.screen.tell(f"kmirror: warning: {warning}")
        if outcome.error:
            tell_error(self.screen, outcome.error)

    def sandbox(self, status: SandboxStatus, document: Mapping[str, Any], done: VerbResult | None = None) -> None:
        self._print(document if done is None else {**_document(done), **document})

    def running(self) -> AbstractContextManager[Watcher]:
        return nullcontext(_ignore)

    def comparing(self) -> AbstractContextManager[Callable[[VerifyView], None]]:
        return nullcontext(_ignore)

    def promoting(self) -> AbstractContextManager[Callable[[PromoteView], None]]:
        return nullcontext(_ignore)

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


def document_of(event: Event) -> dict[str, Any]:
    """Return an event as `--json` prints it."""
    return {
        "timeMs": event.time_ms,
        "mirror": event.mirror,
        "what": event.what,
        "actor": event.actor,
        "result": event.result,
        "details": dict(event.details),
    }


def _document(result: VerbResult) -> dict[str, Any]:
    return {**result.to_json(), "mirror": result.mirror or None}


def tell_error(screen: Screen, error: ErrorInfo) -> None:
    """Write what is wrong in a line, and what to do, to standard error; each command of a hint keeps its line."""
    screen.tell(f"kmirror: {tables.one_line(error.message)}")
    for said in (error.hint or "").splitlines():
        screen.tell(f"  {tables.one_line(said)}")


def _ignore(_: object) -> None:
    """Show nothing."""
