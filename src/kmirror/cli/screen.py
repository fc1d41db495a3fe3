"""Standard output and error of one command: what may be written there, and how.

A reader that goes away (`kmirror describe | head -1`) ends the writing, not the command: what is asked is done, and
the exit code says how it went.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_ERASE_LINE = "\r\x1b[2K"


@dataclass(slots=True)
class Screen:
    """Write lines: to `out` what was asked for, to `err` what a person should know besides."""

    out: TextIO
    err: TextIO
    stdin: TextIO
    _gone: set[int] = field(default_factory=set)
    _told: set[str] = field(default_factory=set)
    _has_status: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of_this_process(cls) -> Screen:
        """Return the screen made of the process's streams as they are now."""
        return cls(sys.stdout, sys.stderr, sys.stdin)

    @property
    def is_terminal(self) -> bool:
        """Tell whether somebody looks at standard output as it comes."""
        return self.out.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def is_unread(self) -> bool:
        """Tell whether the reader of standard output was found to be gone."""
        return id(self.out) in self._gone

    @property
    def can_ask(self) -> bool:
        """Tell whether a question would reach somebody."""
        return self.stdin.isatty() and self.err.isatty()

    def line(self, text: str = "") -> None:
        """Write one line to standard output."""
        self._write(self.out, f"{text}\n")

    def tell(self, text: str) -> None:
        """Write one line to standard error."""
        self._write(self.err, f"{text}\n")

    def tell_once(self, text: str) -> None:
        """Write one line to standard error, unless it was written before."""
        if text not in self._told:
            self._told.add(text)
            self.tell(text)

    def status(self, text: str) -> None:
        """Show a line in place of the last one of these; for a terminal. Other lines are written above it.

        An empty text takes it away.
        """
        with self._lock:
            self._erase_status()
            if text:
                self._put(self.out, text)
                self._has_status = True

    def ask(self, question: str) -> bool:
        """Ask for a yes; anything else, and the end of input, is a no."""
        self._write(self.err, f"{question} [y/N] ")
        answer = self.stdin.readline()
        if not answer.endswith("\n"):
            self._write(self.err, "\n")
        return answer.strip().lower() in {"y", "yes"}

    def console(self) -> Console:
        """Return rich's console on standard output; it minds NO_COLOR."""
        from rich.console import Console

        return Console(file=self.out, highlight=False, markup=False, emoji=False)

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
