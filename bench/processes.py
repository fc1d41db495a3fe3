"""Start what is measured, with its output in a file, and end it: only ever processes of our own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import CopyFailedError

REPOSITORY = Path(__file__).parent.parent
_TAIL_LINES = 15
_GRACE_S = 15.0


@dataclass(slots=True)
class Running:
    """Processes that copy. `log` holds their output; `ends_itself` if they end with the last byte."""

    processes: list[subprocess.Popen[bytes]]
    log: Path
    ends_itself: bool

    def check(self) -> None:
        """Raise CopyFailedError if one has ended unexpectedly, or has failed."""
        for process in self.processes:
            code = process.poll()
            if code is not None and (code or not self.ends_itself):
                raise CopyFailedError(f"it ended with {code}; its last output:\n{last_output(self.log)}")

    def end(self) -> None:
        """Wait for processes that end by themselves, terminate the others, and kill what does not end in time."""
        for process in self.processes:
            if not self.ends_itself and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_GRACE_S)
                if self.ends_itself:
                    raise CopyFailedError(
                        f"everything is copied, and it does not end:\n{last_output(self.log)}"
                    ) from None
        if self.ends_itself:
            self.check()

    def kill(self) -> None:
        """Kill them, with everything they have started."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(_GRACE_S)


def start(argv: Sequence[str], log: Path, *, answers: bool = False) -> subprocess.Popen[bytes]:
    """Start a command of this repository in its own process group; with `answers`, with pipes to it."""
    with log.open("ab") as file:
        return subprocess.Popen(
            argv,
            cwd=REPOSITORY,
            stdin=subprocess.PIPE if answers else subprocess.DEVNULL,
            stdout=subprocess.PIPE if answers else file,
            stderr=file,
            start_new_session=True,
        )


def carry_out(argv: Sequence[str]) -> None:
    """Run a command to its end. Raises CopyFailedError with its output when it fails."""
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stdout + done.stderr).strip()
        raise CopyFailedError(f"`{' '.join(argv)}` ended with {done.returncode}: {output}")


def kmirror(*arguments: str) -> list[str]:
    """Return a kmirror command line: the installed command, or the module where it is not installed."""
    installed = Path(sys.executable).with_name("kmirror")
    return [*([str(installed)] if installed.is_file() else [sys.executable, "-m", "kmirror"]), *arguments]


def last_output(log: Path) -> str:
    """Return the end of a log, which may not exist yet."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])
