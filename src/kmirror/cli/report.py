"""The file of `--report`: evidence of what a verb did, as one JSON document.

Evidence is never lost: a report that is in the file already goes along in the new one, under `earlier`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmirror.cli.whole_file import WholeFile
from kmirror.columns import OBJECT, Column, Only, document, list_of
from kmirror.errors import UsageError


@dataclass(frozen=True, slots=True)
class Report:
    """Write a report; what the file held before is there until the new one is whole, and in the new one then."""

    file: WholeFile
    #: The reports that the file held, oldest first.
    earlier: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def at(cls, path: str) -> Report:
        """Return the report of that path.

        Raises:
            UsageError: it cannot be written, or the file holds something else; said before the work it is about.
        """
        file = WholeFile.at(path, "--report", "the report")
        return cls(file, _reports_in(file.path))

    def write(self, found: Mapping[str, Any]) -> None:
        """Write what was found.

        Raises:
            KmirrorError: the file cannot be written any more.
        """
        whole = {**found, **document(FILE, self)}
        self.file.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


#: What the file holds beside the report itself.
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
    """Return the reports that a file holds, oldest first; none where there is no file, or an empty one."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        last = json.loads(text) if text.strip() else None
        if last is None:
            return ()
        earlier = last.pop("earlier", [])
        if "verb" in last and all("verb" in one for one in earlier):
            return (*earlier, last)
    except (OSError, ValueError, AttributeError, TypeError):
        pass
    raise UsageError(f"--report: {path} holds something else than reports of kmirror", "name another file")
