"""The engine of a world as its operators start it, and the verbs they type: processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_VERB_S = 120.0
_GRACE_S = 20.0


class Engine:
    """`kmirror run` for one mirror; started again by whoever killed it."""

    def __init__(self, mirror: str, destination: str, folder: Path) -> None:
        self._mirror = mirror
        self._destination = destination
        self._log = folder / "engine.log"
        self._verbs = folder / "verbs.log"
        self._running: list[subprocess.Popen[bytes]] = []

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return the command line of a verb."""
        here = ("--mirror", self._mirror, "--bootstrap-server", self._destination)
        return [sys.executable, "-m", "kmirror", verb, *here, *arguments]

    def verb(self, verb: str, *arguments: str, timeout: float = _VERB_S) -> tuple[int, str]:
        """Run a verb; return its exit code, −1 where it had to be killed, and what it printed."""
        command = self.command(verb, *arguments)
        began = time.strftime("%H:%M:%S")
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
            code, said, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, said, errors = -1, "", str(error)
        with self._verbs.open("a", encoding="utf-8") as file:
            file.write(f"{began}-{time.strftime('%H:%M:%S')} {verb} {' '.join(arguments)} -> {code}\n{said}{errors}\n")
        return code, said

    def start(self) -> None:
        """Start the engine."""
        self._running.append(self._run())

    def _run(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            log.write(f"--- started at {time.strftime('%H:%M:%S')}\n".encode())
            return subprocess.Popen(self.command("run"), stdout=log, stderr=log, start_new_session=True)

    def start_second(self) -> Callable[[], None]:
        """Start another engine beside it, which is to be refused or to wait; return what ends it."""
        second = self._run()

        def undo() -> None:
            second.terminate()
            try:
                second.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                _kill_group(second)

        return undo

    def ensure(self) -> None:
        """Start the engine again where it has ended."""
        if not any(one.poll() is None for one in self._running):
            self.start()

    def kill(self) -> None:
        """Kill it with all its processes."""
        for one in self._running:
            _kill_group(one)
        self._running.clear()

    def kill_driver(self) -> None:
        """Kill its first process alone."""
        for one in self._running:
            one.kill()
            one.wait(_GRACE_S)
        self._running.clear()

    def end(self) -> None:
        """Ask it to end, and kill it where it does not."""
        for one in self._running:
            one.terminate()
        for one in self._running:
            try:
                one.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                _kill_group(one)
        self.kill()

    def drivers(self) -> list[int]:
        """Return the process of the engine itself."""
        return [one.pid for one in self._running if one.poll() is None]

    def jvms(self) -> list[int]:
        """Return Spark's process."""
        return [pid for driver in self.drivers() for pid, name in _descendants(driver) if name == "java"]

    def lanes(self) -> list[int]:
        """Return the processes that copy: Python's, forked by Spark's daemon."""
        found = []
        for jvm in self.jvms():
            for daemon, name in _children(jvm):
                if name.startswith("python"):
                    found += [pid for pid, _ in _children(daemon)]
        return found


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_GRACE_S)


def _children(pid: int) -> list[tuple[int, str]]:
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    found.append((int(child), os.path.basename(os.readlink(f"/proc/{child}/exe"))))
    return found


def _descendants(pid: int) -> list[tuple[int, str]]:
    found = _children(pid)
    for child, _ in list(found):
        found += _descendants(child)
    return found
