"""Files that a verb writes at its end, and of which it is checked at its beginning that they can be written.

The file of `--report` has evidence of what a verb did, as one JSON document.

Evidence is never lost: the new document keeps the reports that the file holds when it is written, under `earlier`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kmirror.bounded_files import MOST_DOCUMENT_BYTES, expanded, read_file
from kmirror.cli.terminal.screen import Screen
from kmirror.columns import OBJECT, Column, Only, document, list_of
from kmirror.errors import KmirrorError, UsageError
from kmirror.files import alone_in, replace_file
from kmirror.words import json_text


@dataclass(frozen=True, slots=True)
class AtomicFile:
    """Write one file; `what` names it in messages."""

    path: Path
    what: str

    @classmethod
    def at(cls, path: str, flag: str, what: str) -> AtomicFile:
        """Return the file at a path that was given with `flag`, after checking that it can be written.

        Raises:
            UsageError: it cannot.
        """
        file = cls(expanded(path, flag), what)
        try:
            is_directory = file.path.is_dir()
            is_other = file.path.exists() and not file.path.is_file()
            # as long a name as `replace_file` gives it before it is complete
            tempfile.NamedTemporaryFile(dir=file.path.parent, prefix=f".{file.path.name}.", suffix="." * 8).close()
        except OSError as error:
            raise UsageError(
                f"{flag}: cannot write {file.path}: {error.strerror}", "give a file in a writable directory"
            ) from None
        if is_directory:
            raise UsageError(f"{flag}: {file.path} is a directory", "name a file in it")
        if is_other:
            raise UsageError(f"{flag}: {file.path} is not a regular file", "name another file")
        return file

    def require_own(self, flag: str, what: str, head_bytes: int, is_own: Callable[[bytes], bool]) -> None:
        """Raise UsageError if the file exists, and by its first bytes is neither empty nor `what` it is to become."""
        try:
            with self.path.open("rb") as found:
                head = found.read(head_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{flag}: cannot read {self.path}: {error.strerror}", "name another file") from None
        if head and not is_own(head):
            raise UsageError(f"{flag}: {self.path} is not {what}", "name another file")

    def write(self, text: str) -> None:
        """Replace the file's content. Raises KmirrorError if it can no longer be written."""
        try:
            replace_file(self.path, text)
        except OSError as error:
            raise KmirrorError(f"{self.what} {self.path} cannot be written: {error.strerror}") from error


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

    def write_or_warn(self, found: Mapping[str, Any], screen: Screen) -> None:
        """Write the report, or warn that it cannot be written: the exit code says how the verb itself ended."""
        try:
            self.write(found)
        except KmirrorError as error:
            screen.note(f"kmirror: warning: {error}")


#: What the file holds besides the report itself.
FILE: tuple[Column[Report], ...] = (
    Column(
        "earlier",
        list_of(OBJECT),
        "the reports that the file held before, oldest first",
        lambda report: report.earlier,
        only=Only("files that held reports", lambda report: report.earlier),
    ),
)


def _reports_in(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the reports in a file, oldest first; none if the file is missing or empty."""
    try:
        text = read_file(path, MOST_DOCUMENT_BYTES).decode() if path.exists() else ""
        last = json.loads(text) if text.strip() else None
        if last is None:
            return ()
        earlier = last.pop("earlier", [])
        if "verb" in last and all("verb" in one for one in earlier):
            return (*earlier, last)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        pass
    raise UsageError(f"--report: {path} is not a kmirror report", "name another file")
