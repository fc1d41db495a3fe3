"""What `demo` prints: numbered headings, sentences, the commands a user would type, and their output.

The output of a command is shown as it arrives, line by line, also while other commands run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kmirror.cli.terminal.screen import Screen
from kmirror.commands import command_line

_INDENT = "   "


class DemoOutput:
    """Write the demo's text; headings and commands are styled on a terminal."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._console = screen.console() if screen.is_terminal else None
        self._lock = threading.Lock()
        self._chapter = 0

    def heading(self, title: str) -> None:
        """Write the heading of the next chapter."""
        self._chapter += 1
        self._write("")
        self._write(f"{self._chapter}  {title}", "bold cyan")

    def say(self, *sentences: str) -> None:
        """Write sentences, one per line."""
        for sentence in sentences:
            self._write(f"{_INDENT}{sentence}")

    def command(self, arguments: Sequence[str]) -> None:
        """Write a command as a user would type it."""
        self._write(f"{_INDENT}$ {command_line(*arguments)}", "bold")

    def printed(self, line: str) -> None:
        """Write a line of a command's output."""
        self._write(f"{_INDENT}  {line}", "dim")

    def aside(self, sentence: str, style: str = "") -> None:
        """Write a sentence outside of the chapters."""
        self._write("")
        self._write(sentence, style)

    def _write(self, line: str, style: str = "") -> None:
        with self._lock:
            if self._console is None:
                self._screen.line(line.rstrip())
                return
            from rich.text import Text

            self._console.print(Text(line, style=style), soft_wrap=True)


class CommandRunner:
    """Run `kmirror` commands as a user would, in a directory of their own, and show their output."""

    def __init__(self, output: DemoOutput, folder: Path, environ: Mapping[str, str]) -> None:
        self._output = output
        self._folder = folder
        self._environ = {**os.environ, **environ, "PYTHONUNBUFFERED": "1"}

    def run(self, *arguments: str) -> int:
        """Run a command to its end and return its exit code."""
        running = self.start(*arguments)
        try:
            return running.wait()
        finally:
            running.kill()

    def document(self, *arguments: str) -> Any:
        """Run a command with `--json`, without showing it; return its document."""
        command = [sys.executable, "-m", "kmirror", *arguments, "--json"]
        done = subprocess.run(command, cwd=self._folder, env=self._environ, capture_output=True, text=True, check=False)
        return json.loads(done.stdout)

    def start(self, *arguments: str) -> RunningCommand:
        """Start a command and leave it running."""
        self._output.command(["kmirror", *arguments])
        # in a session of its own Ctrl-C does not reach it: only its starter ends it
        process = subprocess.Popen(
            [sys.executable, "-m", "kmirror", *arguments],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        return RunningCommand(process, self._output)


class RunningCommand:
    """A running command; its output is shown until it is muted."""

    def __init__(self, process: subprocess.Popen[str], output: DemoOutput) -> None:
        self._process = process
        self._output = output
        self._muted = False
        self._reader = threading.Thread(target=self._read, name="kmirror-demo-output", daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def mute(self) -> None:
        """Stop showing its output."""
        self._muted = True

    def wait(self) -> int:
        """Wait until it has ended and its output is shown, and return its exit code."""
        code = self._process.wait()
        self._reader.join()
        return code

    def kill(self) -> list[int]:
        """Kill it and all its descendants with SIGKILL; return their process ids."""
        tree = [self._process.pid, *_descendants(self._process.pid)] if self.exit_code is None else []
        for pid in tree:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        return tree

    def _read(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("the process was started without a pipe")
        with self._process.stdout as lines:
            for line in lines:
                if not self._muted:
                    self._output.printed(line.rstrip())


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process, parents first."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in table.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found
