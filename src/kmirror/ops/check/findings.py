"""What `check` finds, line by line, and how it is shown. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kmirror.columns import FLAG, TEXT, Column, Table, document
from kmirror.errors import ExitCode, Reason
from kmirror.ops.results import EXIT_CODE, REASON
from kmirror.words import one_line


class Grade(StrEnum):
    """Name how a look of `check` went, for people."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One line of `check`: what was looked at, on which side, and whether it is well."""

    cluster: str
    what: str
    ok: bool
    message: str
    hint: str | None = None
    reason: Reason | None = None

    @property
    def grade(self) -> Grade:
        """How it went; what is well and has a hint warns."""
        return (Grade.WARN if self.hint else Grade.OK) if self.ok else Grade.FAIL


#: A line holds the first line of its message only.
CHECKS: Table[CheckLine] = Table(
    (
        Column("cluster", TEXT, "the side: source or destination", lambda line: line.cluster, "CLUSTER"),
        Column("check", TEXT, "what was checked", lambda line: line.what, "CHECK"),
        Column("ok", FLAG, "whether it is well", lambda line: line.ok, "RESULT", cell=lambda line: line.grade),
        Column(
            "message",
            TEXT,
            "what was found; may have several lines",
            lambda line: line.message,
            "MESSAGE",
            cell=lambda line: one_line(line.message.partition("\n")[0]),
        ),
        Column("hint", TEXT.null_when("there is nothing to advise"), "what to do about it", lambda line: line.hint),
        Column("reason", REASON.null_when("there is no code for it"), "why, as a code", lambda line: line.reason),
    ),
    "RESULT CLUSTER CHECK MESSAGE",
)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Hold all lines of `check` and the exit code they amount to."""

    lines: tuple[CheckLine, ...]
    exit_code: ExitCode

    def to_json(self) -> dict[str, Any]:
        """Return the report as `--json` prints it."""
        return document(CHECK, self)


CHECK: tuple[Column[CheckReport], ...] = (
    Column("exitCode", EXIT_CODE, "the exit code", lambda report: int(report.exit_code)),
    Column("checks", CHECKS.type, "what was found", lambda report: [CHECKS.document(line) for line in report.lines]),
)
