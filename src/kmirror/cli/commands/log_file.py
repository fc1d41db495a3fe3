"""The file of `--log-file`, appended to and rotated by size."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from kmirror.bounded_files import expanded
from kmirror.errors import UsageError

#: A quiet mirror writes a third of a megabyte a day.
LARGEST_BYTES, KEPT_FILES = 10_000_000, 5


class LogFile(RotatingFileHandler):
    """Append lines; if that fails, call `warn` once until it works again, and let the run continue."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        super().__init__(path, maxBytes=LARGEST_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
        self._path = path
        self._warn = warn
        self._failed = self._is_failing = False

    @classmethod
    def at(cls, path: str, warn: Callable[[str], None]) -> LogFile:
        """Open the file at that path.

        Raises:
            UsageError: it cannot be written or rotated.
        """
        file = expanded(path, "--log-file")
        hint = "give a file in a directory that kmirror may write to"
        try:
            if file.is_dir():
                raise UsageError(f"--log-file: {file} is a directory", "give the name of a file in it")
            if (file.is_file() or not file.exists()) and file.parent.is_dir() and not os.access(file.parent, os.W_OK):
                raise UsageError(f"--log-file: cannot rotate {file}: its directory is not writable", hint)
            return cls(file, warn)
        except OSError as error:
            raise UsageError(f"--log-file: cannot write {file}: {error.strerror}", hint) from None

    def write(self, line: str) -> None:
        """Append one line."""
        self._failed = False
        self.handle(logging.makeLogRecord({"msg": line}))
        self._is_failing = self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Warn, once, that a line could not be written."""
        self._failed = True
        if not self._is_failing:
            self._is_failing = True
            self._warn(f"kmirror: warning: the log file {self._path} cannot be written")
        # buffered lines are lost; the next line opens the file again
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()
