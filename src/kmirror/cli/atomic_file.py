"""A file that is replaced atomically: the old content stays until the new one is complete."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kmirror.errors import KmirrorError, UsageError


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
            file._unfinished.touch()
            file._unfinished.unlink()
        except OSError as error:
            raise UsageError(
                f"{flag}: cannot write {file.path}: {error.strerror}", "give a file in a writable directory"
            ) from None
        if file.path.is_dir():
            raise UsageError(f"{flag}: {file.path} is a directory", "name a file in it")
        return file

    def write(self, text: str) -> None:
        """Replace the file's content. Raises KmirrorError if it can no longer be written."""
        try:
            self._unfinished.write_text(text, encoding="utf-8")
            os.replace(self._unfinished, self.path)
        except OSError as error:
            self._unfinished.unlink(missing_ok=True)
            raise KmirrorError(f"{self.what} {self.path} cannot be written: {error.strerror}") from error

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
