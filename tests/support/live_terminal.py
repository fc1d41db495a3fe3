"""A kmirror command on a real terminal (a pty): keys in, what a person sees out."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.waiting import PATIENCE_S

#: The session leader opens the terminal first, which makes it theirs: Ctrl-C and changes of size reach them.
_OPEN = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(terminal, stream)
os.execv(sys.argv[2], sys.argv[2:])
"""
#: Polls quickly, and soon shows its data as old.
_QUICK = """
import sys
import kmirror.cli.terminal.observation, kmirror.cli.terminal.poller
kmirror.cli.terminal.poller.PAUSE_SECONDS = 0.2
kmirror.cli.terminal.observation.OLD_SECONDS = 4.0
from kmirror.cli.main import entry_point
entry_point()
"""
_HOME = b"\x1b[H"
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class LiveTerminal:
    """One command, its terminal, and its user."""

    def __init__(self, cluster: SandboxCluster, columns: int, rows: int, *arguments: str) -> None:
        self._user, self._terminal = pty.openpty()
        self.resize(columns, rows)
        self._before = termios.tcgetattr(self._terminal)
        self.written = b""
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        kmirror = [sys.executable, "-c", _QUICK, *arguments, "--bootstrap-server", cluster.bootstrap_servers]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OPEN, os.ttyname(self._terminal), *kmirror],
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._hang_up()
        os.close(self._user)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal; its programs are notified."""
        termios.tcsetwinsize(self._user, (rows, columns))

    def press(self, keys: str) -> None:
        """Press keys, one after the other."""
        os.write(self._user, keys.encode())

    @property
    def frame(self) -> list[str]:
        """All lines on the terminal."""
        frames = self.written.split(_HOME)
        return _CONTROL.sub(b"", frames[-1]).decode(errors="ignore").split("\r\n")

    def until(self, is_shown: Callable[[list[str]], object], seconds: float = PATIENCE_S) -> list[str]:
        """Wait until the screen satisfies a condition, and return it."""
        deadline = time.monotonic() + seconds
        while not is_shown(frame := self.frame):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {frame}"
            assert time.monotonic() < deadline, "\n".join(frame)
            time.sleep(0.02)
        return frame

    def ends(self) -> int:
        """Return its exit code; the terminal is restored, for keys and for the screen."""
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self._terminal) == self._before
        self._hang_up()
        assert self.written.rindex(b"\x1b[?1049l") > self.written.rindex(b"\x1b[?1049h"), (
            "not the whole terminal any more"
        )
        assert self.written.rindex(b"\x1b[?25h") > self.written.rindex(b"\x1b[?25l"), "the cursor is shown"
        return code

    def _read(self) -> None:
        with suppress(OSError):
            while read := os.read(self._user, 65536):
                self.written += read

    def _hang_up(self) -> None:
        """Read its output to the end."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        self._reader.join()
