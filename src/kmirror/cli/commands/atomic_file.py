"""A file that a verb writes at its end, and of which it is checked at its beginning that it can be written."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from kmirror.errors import KmirrorError, UsageError
from kmirror.files import replace_file


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
        file = cls(Path(path).expanduser(), what)
        try:
            tempfile.TemporaryFile(dir=file.path.parent).close()
        except OSError as error:
            raise UsageError(
                f"{flag}: cannot write {file.path}: {error.strerror}", "give a file in a writable directory"
            ) from None
        if file.path.is_dir():
            raise UsageError(f"{flag}: {file.path} is a directory", "name a file in it")
        if file.path.exists() and not file.path.is_file():
            raise UsageError(f"{flag}: {file.path} is not a regular file", "name another file")
        return file

    def write(self, text: str) -> None:
        """Replace the file's content. Raises KmirrorError if it can no longer be written."""
        try:
            replace_file(self.path, text)
        except OSError as error:
            raise KmirrorError(f"{self.what} {self.path} cannot be written: {error.strerror}") from error
