"""The file of `--report`: evidence of what a verb did, as one JSON document.

Evidence is never lost: the new document keeps the reports that the file holds when it is written, under `earlier`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kmirror.cli.commands.atomic_file import AtomicFile
from kmirror.columns import OBJECT, Column, Only, document, list_of
from kmirror.errors import KmirrorError, UsageError
from kmirror.files import alone_in
from kmirror.words import json_text


@dataclass(frozen=True, slots=True)
class Report:
    """Write a report; `earlier` are the reports that the file held before, oldest first."""

    file: AtomicFile
    earlier: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def at(cls, path: str) -> Report:
        """Return the report at that path, after checking that it can be written.

        Raises:
            UsageError: it cannot, or the file holds something else.
        """
        file = AtomicFile.at(path, "--report", "the report")
        _reports_in(file.path)
        return cls(file)

    def write(self, found: Mapping[str, Any]) -> None:
        """Write the report. Raises KmirrorError if the file can no longer be written."""
        try:
            with alone_in(self.file.path.parent):
                whole = {**found, **document(FILE, replace(self, earlier=_reports_in(self.file.path)))}
                self.file.write(json_text(whole, indent=2) + "\n")
        except OSError as error:
            raise KmirrorError(f"{self.file.what} {self.file.path} cannot be written: {error.strerror}") from error


#: What the file holds besides the report itself.
FILE: tuple[Column[Report], ...] = (
    Column(
        "earlier",
        list_of(OBJECT),
        "the reports that the file held before, oldest first",
        lambda report: list(report.earlier),
        only=Only("files that held reports", lambda report: report.earlier),
    ),
)


def _reports_in(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the reports in a file, oldest first; none if the file is missing or empty."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        last = json.loads(text) if text.strip() else None
        if last is None:
            return ()
        earlier = last.pop("earlier", [])
        if "verb" in last and all("verb" in one for one in earlier):
            return (*earlier, last)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        pass
    raise UsageError(f"--report: {path} is not a kmirror report", "name another file")
