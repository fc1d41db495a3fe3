"""End what a test process has started, however that process ends; itself a program, run by `reaped`.

Brokers, engines and Spark have their own sessions, and outlive their starter. A reaper holds one end of a pipe whose
other end only the test process has: when that is killed, the pipe ends, and the reaper kills every process with the
run's name in its environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

#: The run to which a process belongs; children inherit it.
MARK = "KMIRROR_TEST_RUN"
#: A process that is starting may start another one: this many times in a row none may be found.
_QUIET_LOOKS = 3
_PAUSE_S = 0.1


@contextmanager
def reaped() -> Iterator[str]:
    """Mark what is started in the block, and end it all with the block, or with this process; yield the mark."""
    before = os.environ.get(MARK)
    clean = {key: value for key, value in os.environ.items() if key != MARK}
    run = uuid4().hex
    # in its own session: a signal to this process's group does not reach it
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, run], stdin=subprocess.PIPE, env=clean, start_new_session=True
    )
    os.environ[MARK] = run
    try:
        yield run
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before
        reaper.communicate()


def marked(run: str) -> list[int]:
    """Return the pids of the processes of a run."""
    mark, found = f"{MARK}={run}".encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is not ours
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def _reap(run: str) -> None:
    quiet = 0
    while quiet < _QUIET_LOOKS:
        found = marked(run)
        quiet = 0 if found else quiet + 1
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.stdin.read()
    _reap(sys.argv[1])
