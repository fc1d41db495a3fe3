"""The sheet of `check`: lines are added, trouble becomes one, and in the end there is an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, UsageError
from kmirror.ops.check.findings import CheckLine, CheckReport

SOURCE, DESTINATION = "source", "destination"
_SILENT = {SOURCE: Reason.SOURCE_UNREACHABLE, DESTINATION: Reason.DESTINATION_UNREACHABLE}


class Sheet:
    """Collect lines."""

    def __init__(self, on_line: Callable[[CheckLine], None] | None) -> None:
        self._lines: list[CheckLine] = []
        self._codes: set[ExitCode] = set()
        self._on_line = on_line

    def add(self, cluster: str, what: str, ok: bool, message: str, hint: str, reason: Reason | None = None) -> None:
        """Write a line; `hint` and `reason` count only when it is not `ok`."""
        refused = reason in (Reason.NOT_AUTHORIZED, Reason.AUTHENTICATION_FAILED)
        line = CheckLine(cluster=cluster, what=what, ok=ok, message=message)
        if ok:
            self._write(line, ExitCode.OK)
        else:
            code = ExitCode.UNREACHABLE if refused else ExitCode.REFUSED
            self._write(replace(line, hint=hint, reason=reason), code)

    def warn(self, cluster: str, what: str, message: str, hint: str) -> None:
        """Write a line about what works, but has a hint."""
        self._write(CheckLine(cluster=cluster, what=what, ok=True, message=message, hint=hint), ExitCode.OK)

    @contextmanager
    def catching(self, cluster: str, what: str) -> Iterator[None]:
        """Turn an error of the body into a line about `what`."""
        try:
            yield
        except UsageError:
            raise
        except KmirrorError as error:
            silent = error.exit_code == ExitCode.UNREACHABLE
            reason = error.reason or (_SILENT[cluster] if silent else None)
            line = CheckLine(
                cluster=cluster, what=what, ok=False, message=error.message, hint=error.hint, reason=reason
            )
            self._write(line, ExitCode.UNREACHABLE if silent else ExitCode.REFUSED)
        except OutcomeUnknown as error:
            line = CheckLine(
                cluster=cluster, what=what, ok=False, message=str(error), hint="try again", reason=_SILENT[cluster]
            )
            self._write(line, ExitCode.UNREACHABLE)

    def report(self) -> CheckReport:
        """Sum up: a cluster that cannot be worked with weighs more than what would be refused."""
        worst = ExitCode.UNREACHABLE if ExitCode.UNREACHABLE in self._codes else max(self._codes, default=ExitCode.OK)
        return CheckReport(tuple(self._lines), worst)

    def _write(self, line: CheckLine, code: ExitCode) -> None:
        self._lines.append(line)
        self._codes.add(code)
        if self._on_line is not None:
            self._on_line(line)
