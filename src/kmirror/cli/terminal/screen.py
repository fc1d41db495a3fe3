"""Standard output and error of one command. What a terminal would obey rather than show is written as escapes.

If the reader goes away (`kmirror describe | head -1`), or the output cannot be written (a full disk, a terminal that
hung up), only the writing ends: the command is still carried out, and exits with its own code.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from kmirror.words import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console

_ERASE_LINE = "\r\x1b[2K"


@dataclass(slots=True)
class Screen:
    """Write lines: the result to `out`, notes, warnings and questions to `err`."""

    out: TextIO
    err: TextIO
    stdin: TextIO
    #: Why standard output could not be written last, other than that its reader is gone.
    failure: OSError | None = None
    _gone: set[int] = field(default_factory=set)
    _noted: set[str] = field(default_factory=set)
    _has_status: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of_this_process(cls) -> Screen:
        """Return a screen on the process's current streams."""
        return cls(sys.stdout, sys.stderr, sys.stdin)

    @property
    def is_terminal(self) -> bool:
        """Return whether standard output is a terminal that can move its cursor."""
        return self.out.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def is_unread(self) -> bool:
        """Return whether the reader of standard output is known to be gone, or it cannot be written."""
        return id(self.out) in self._gone or self.failure is not None

    @property
    def can_ask(self) -> bool:
        """Return whether there is a terminal to ask a question on."""
        return self.stdin.isatty() and self.err.isatty()

    def line(self, text: str = "") -> None:
        """Write one line to standard output."""
        self._write(self.out, f"{visible_lines(text)}\n")

    def note(self, text: str) -> None:
        """Write one line to standard error."""
        self._write(self.err, f"{visible_lines(text)}\n")

    def note_once(self, text: str) -> None:
        """Write one line to standard error, but the same line only once."""
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def status(self, text: str) -> None:
        """Show a status line on a terminal, replacing the last one; an empty text removes it.

        Other lines are written above it.
        """
        with self._lock:
            self._erase_status()
            if text:
                self._put(self.out, visible(text))
                self._has_status = True

    def ask(self, question: str) -> bool:
        """Return whether the answer is yes; anything else, and the end of input, is a no."""
        self._write(self.err, f"{visible_lines(question)} [y/N] ")
        answer = self.stdin.readline()
        if not answer.endswith("\n"):
            self._write(self.err, "\n")
        return answer.strip().lower() in {"y", "yes"}

    def console(self) -> Console:
        """Return a rich console on standard output; it respects NO_COLOR."""
        from kmirror.cli.terminal.console import VisibleConsole

        stream = cast(TextIO, _Guarded(self.out, lambda text: self._put(self.out, text)))
        return VisibleConsole(file=stream, highlight=False, markup=False, emoji=False)

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            self._erase_status()
            self._put(stream, text)

    def _erase_status(self) -> None:
        if self._has_status:
            self._put(self.out, _ERASE_LINE)
            self._has_status = False

    def _put(self, stream: TextIO, text: str) -> None:
        if id(stream) in self._gone:
            return
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:
            self._gone.add(id(stream))
        except OSError as error:
            # tried again with the next line: the disk may have room then
            if stream is self.out and self.failure is None:
                self.failure = error
                self._put(self.err, f"kmirror: warning: standard output cannot be written: {error.strerror}\n")


@dataclass(frozen=True, slots=True)
class _Guarded:
    """The stream of a console, whose errors end nothing."""

    stream: TextIO
    write: Callable[[str], None]

    def flush(self) -> None:
        """Do nothing: `write` flushes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
