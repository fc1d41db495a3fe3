"""Commands of kmirror as processes, forked from one that has everything imported: that saves starting Python.

What the start itself is about, and what has Spark in it, is started as people start it, by `subprocess`.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.support import fork_client

_ROOT = Path(__file__).parent.parent.parent


class Forked:
    """What `subprocess.Popen` would be for `[sys.executable, "-m", MODULE, ARGUMENT…]`, as far as tests use it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        cwd: Path = _ROOT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        assert list(command[:2]) == [sys.executable, "-m"], command
        self._command = command
        self.returncode: int | None = None
        with Path(os.devnull).open("rb") as nothing:
            out = stdout if isinstance(stdout, int) else stdout.fileno()
            err = stderr if isinstance(stderr, int) else stderr.fileno()
            streams = (nothing.fileno(), out, out if err == subprocess.STDOUT else err)
            environ = os.environ if env is None else env
            self._connection, self.pid = fork_client.ask(_server(), command[2:], environ, str(cwd), streams)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired."""
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self._command), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            reported = select.poll()  # select() knows the first 1,024 descriptors of a process only
            reported.register(self._connection, select.POLLIN)
            if reported.poll(None if timeout is None else timeout * 1000):
                self.returncode = fork_client.exit_code(self._connection)
                self._connection.close()
        return self.returncode


def run(
    command: Sequence[str],
    *,
    cwd: Path = _ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float = 180,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Forked(command, stdout=out, stderr=err, cwd=cwd, env=env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode())
    return subprocess.CompletedProcess(list(command), code, *printed)


def shell_command(module: str) -> str:
    """Return what a script runs in place of `python -m MODULE`."""
    return f"{sys.executable} -I -S {fork_client.__file__} {_server()} {module}"


@cache
def _server() -> str:
    """Start the fork server of this process, and return its address."""
    address = f"kmirror-forks-{uuid.uuid4()}"
    command = [sys.executable, "-m", "tests.support.fork_server", address]
    # in a session of its own: Ctrl-C is for the tests
    server = subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", "the fork server did not start"
    atexit.register(server.communicate, "")
    return address
