"""The file of `--report`: evidence of what a verb did, as one JSON document.

Evidence is never lost: a report that is in the file already goes along in the new one, under `earlier`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmirror.columns import OBJECT, Column, Only, document, list_of
from kmirror.errors import KmirrorError, UsageError


@dataclass(frozen=True, slots=True)
class Report:
    """Write a report; what the file held before is there until the new one is whole, and in the new one then."""

    path: Path
    #: The reports that the file held, oldest first.
    earlier: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def at(cls, path: str) -> Report:
        """Return the report of that path.

        Raises:
            UsageError: it cannot be written, or the file holds something else; said before the work it is about.
        """
        report = cls(Path(path).expanduser())
        try:
            report._unfinished.touch()
            report._unfinished.unlink()
        except OSError as error:
            raise UsageError(
                f"--report: cannot write {report.path}: {error.strerror}", "give a file in a writable directory"
            ) from None
        if report.path.is_dir():
            raise UsageError(f"--report: {report.path} is a folder", "name a file in it")
        return cls(report.path, _reports_in(report.path))

    def write(self, found: Mapping[str, Any]) -> None:
        """Write what was found.

        Raises:
            KmirrorError: the file cannot be written any more.
        """
        try:
            whole = {**found, **document(FILE, self)}
            self._unfinished.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(self._unfinished, self.path)
        except OSError as error:
            raise KmirrorError(f"the report {self.path} cannot be written: {error.strerror}") from error

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")


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
