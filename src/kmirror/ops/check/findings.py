"""What `check` finds, line by line, its exit code, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from kmirror.columns import FLAG, REASON, TEXT, Column, Table, columns_of, document, one_of, shown, table_row
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, UsageError
from kmirror.ops.base.results import EXIT_CODE
from kmirror.ops.probe.guarantees import Guarantee, Verdict
from kmirror.words import one_line, visible

SOURCE, DESTINATION = "source", "destination"
_SILENT = {SOURCE: Reason.SOURCE_UNREACHABLE, DESTINATION: Reason.DESTINATION_UNREACHABLE}
_VERDICTS = {
    Verdict.HOLDS: "holds",
    Verdict.WEAKER: "weaker",
    Verdict.UNKNOWN: "unknown",
    Verdict.BROKEN: "does not hold",
}


class Grade(StrEnum):
    """The result of a check, as tables show it."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@table_row
class CheckLine:
    """One line of `check`: what was checked, on which side, and whether it is ok."""

    cluster: str = shown(TEXT, "the side: source or destination", "CLUSTER")
    what: str = shown(TEXT, "what was checked", "CHECK", key="check")
    ok: bool = shown(FLAG, "whether it is well", "RESULT", of_row=lambda line: line.grade)
    message: str = shown(
        TEXT,
        "what was found; may have several lines",
        "MESSAGE",
        of_row=lambda line: one_line(line.message.partition("\n")[0]),
    )
    hint: str | None = shown(TEXT.null_when("there is nothing to advise"), "what to do about it", default=None)
    reason: Reason | None = shown(REASON.null_when("there is no code for it"), "why, as a code", default=None)
    guarantee: Verdict | None = shown(
        one_of("guarantee", Verdict).null_when("it is not what `--probe` tries"),
        "whether a guarantee that the copy relies on holds; WEAKER: kmirror copes, as the message says",
        default=None,
    )

    @property
    def grade(self) -> Grade:
        """How it went: `ok` with a hint, or without a guarantee that holds, is a warning."""
        if not self.ok:
            return Grade.FAIL
        return Grade.WARN if self.hint or self.guarantee in (Verdict.WEAKER, Verdict.UNKNOWN) else Grade.OK


#: Tables show the first line of a message only.
CHECKS: Table[CheckLine] = Table(
    columns_of(CheckLine),
    "RESULT CLUSTER CHECK MESSAGE",
)


@table_row
class CheckReport:
    """All lines of `check`, and its exit code."""

    exit_code: ExitCode = shown(EXIT_CODE, "the exit code")
    lines: tuple[CheckLine, ...] = shown(CHECKS.type, "what was found", key="checks")

    def to_json(self) -> dict[str, Any]:
        """Return the report as `--json` prints it."""
        return document(CHECK, self)


CHECK: tuple[Column[CheckReport], ...] = columns_of(CheckReport)


class Findings:
    """What `check` finds on one cluster; `write` is called with each line, and the exit code that it leads to."""

    def __init__(self, cluster: str, write: Callable[[CheckLine, ExitCode], None]) -> None:
        self._cluster = cluster
        self._write = write

    def ok(self, what: str, message: str, hint: str | None = None) -> None:
        """Add a line on something that is ok; with a hint it is a warning."""
        line = CheckLine(cluster=self._cluster, what=what, ok=True, message=message, hint=hint or None)
        self._write(line, ExitCode.OK)

    def warn(self, what: str, message: str, hint: str) -> None:
        """Add a warning: something works, but the hint would improve it."""
        self.ok(what, message, hint)

    def fail(
        self,
        what: str,
        message: str,
        hint: str | None,
        reason: Reason | None = None,
        code: ExitCode = ExitCode.REFUSED,
    ) -> None:
        """Add a line on something that is not ok."""
        line = CheckLine(cluster=self._cluster, what=what, ok=False, message=message, hint=hint, reason=reason)
        self._write(line, code)

    def add(self, what: str, ok: bool, message: str, hint: str, reason: Reason | None = None) -> None:
        """Add a line; `hint` and `reason` are used only if it is not `ok`."""
        if ok:
            self.ok(what, message)
        else:
            self.fail(what, message, hint, reason)

    @contextmanager
    def catching(self, what: str) -> Iterator[None]:
        """Turn an error of the body into a FAIL line about `what`."""
        try:
            yield
        except UsageError:
            raise
        except KmirrorError as error:
            silent = error.exit_code == ExitCode.UNREACHABLE
            reason = error.reason or (_SILENT[self._cluster] if silent else None)
            code = ExitCode.UNREACHABLE if silent else ExitCode.REFUSED
            self.fail(what, _with_notes(error), error.hint, reason, code)
        except OutcomeUnknown as error:
            self.fail(what, _with_notes(error), "try again", _SILENT[self._cluster], ExitCode.UNREACHABLE)


class AllFindings:
    """All lines of `check` so far, on both clusters; `on_line` is called with each."""

    def __init__(self, on_line: Callable[[CheckLine], None] | None) -> None:
        self.source, self.destination = Findings(SOURCE, self._write), Findings(DESTINATION, self._write)
        self._lines: list[CheckLine] = []
        self._codes: set[ExitCode] = set()
        self._on_line = on_line
        self._has_untried = False

    def tried(self, found: Guarantee) -> None:
        """Add a line on a guarantee of the destination that was tried."""
        is_silent = found.reason is Reason.DESTINATION_UNREACHABLE
        line = CheckLine(
            cluster=DESTINATION,
            what=found.what,
            ok=found.verdict is not Verdict.BROKEN and not is_silent,
            message=visible(f"{_VERDICTS[found.verdict]}: {found.message}"),
            hint=found.hint,
            reason=found.reason,
            guarantee=found.verdict,
        )
        self._has_untried |= is_silent
        self._write(line, ExitCode.REFUSED if found.verdict is Verdict.BROKEN else ExitCode.OK)

    def report(self) -> CheckReport:
        """Return all lines with the exit code: an unreachable cluster outweighs what would be refused.

        A guarantee that could not be tried for lack of an answer does not: one that is broken says more.
        """
        worst = ExitCode.UNREACHABLE if ExitCode.UNREACHABLE in self._codes else max(self._codes, default=ExitCode.OK)
        if worst is ExitCode.OK and self._has_untried:
            worst = ExitCode.UNREACHABLE
        return CheckReport(exit_code=worst, lines=tuple(self._lines))

    def _write(self, line: CheckLine, code: ExitCode) -> None:
        self._lines.append(line)
        self._codes.add(code)
        if self._on_line is not None:
            self._on_line(line)


def _with_notes(error: KmirrorError | OutcomeUnknown) -> str:
    """Return an error as text, with what could not be cleaned up after it."""
    text = error.message if isinstance(error, KmirrorError) else str(error)
    return visible("; ".join((text, *getattr(error, "__notes__", ()))))
