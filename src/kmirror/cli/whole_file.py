"""A file that a verb writes whole or not at all: what was there before stays until the new content is complete."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kmirror.errors import KmirrorError, UsageError


@dataclass(frozen=True, slots=True)
class WholeFile:
    """Write one file; `what` is it for people."""

    path: Path
    what: str

    @classmethod
    def at(cls, path: str, flag: str, what: str) -> WholeFile:
        """Return the file of that path, given for `flag`.

        Raises:
            UsageError: it cannot be written; said before the work it is about.
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
            raise UsageError(f"{flag}: {file.path} is a folder", "name a file in it")
        return file

    def write(self, text: str) -> None:
        """Write it.

        Raises:
            KmirrorError: it cannot be written any more.
        """
        try:
            self._unfinished.write_text(text, encoding="utf-8")
            os.replace(self._unfinished, self.path)
        except OSError as error:
            self._unfinished.unlink(missing_ok=True)
            raise KmirrorError(f"{self.what} {self.path} cannot be written: {error.strerror}") from error

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
