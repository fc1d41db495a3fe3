"""Start processes that outlive this one, and find them again later.

A pid alone is not an identity, because the kernel reuses it. A process is identified by its pid and its start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process: its pid, and its start time as the operating system prints it."""

    pid: int
    started: str


def spawn(argv: Sequence[str], environ: Mapping[str, str], output: Path) -> ProcessIdentity:
    """Start a program in a session of its own, with its output appended to a file; return its identity."""
    to_file = (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(environ),
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), to_file, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
    )
    return identify(pid) or ProcessIdentity(pid, "ended immediately")


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has this pid now, None if there is none or it is a zombie."""
    with contextlib.suppress(ChildProcessError):  # not our child, so not ours to reap
        os.waitpid(pid, os.WNOHANG)
    started = _started_by_proc(pid) if os.path.isdir("/proc/self") else _started_by_ps(pid)
    return ProcessIdentity(pid, started) if started is not None else None


def find_process(argument: str) -> ProcessIdentity | None:
    """Return the process with this argument, which contains a path, on its command line; None if there is none."""
    if os.path.isdir("/proc/self"):
        found = (int(entry.parent.name) for entry in Path("/proc").glob("[0-9]*/cmdline") if argument in _words(entry))
    else:
        command = ["ps", "-ax", "-o", "pid=", "-o", "command="]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        found = (int(line.split()[0]) for line in lines if f" {argument} " in f"{line} ")
    return next((process for pid in found if (process := identify(pid)) is not None), None)


def is_alive(process: ProcessIdentity) -> bool:
    """Return whether this very process still runs (a stopped one does, a zombie does not)."""
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, signum: int) -> bool:
    """Signal this very process; return False if it is gone."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, signum)
    except ProcessLookupError:
        return False
    return True


def wait_gone(processes: Collection[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    """Wait until the processes have ended, and return those that have not in time."""
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def terminate(processes: Collection[ProcessIdentity], grace_s: float) -> list[ProcessIdentity]:
    """Send SIGTERM to processes, then SIGKILL to those still running after the grace time; return the latter."""
    for process in processes:
        send_signal(process, signal.SIGTERM)
    stubborn = wait_gone(processes, grace_s)
    for process in stubborn:
        send_signal(process, signal.SIGKILL)
    wait_gone(stubborn, 10.0)
    return stubborn


def started_from_proc_stat(stat: str) -> str | None:
    """Return the start time, in clock ticks since boot, from a line of /proc/PID/stat; None for a process that ended.

    The line is `pid (name) state …`, where the name may contain blanks and brackets. Field 20 is the number of threads,
    field 22 the start time (proc_pid_stat(5)). A zombie with several threads still runs: only its first thread has
    ended, and the others hold its files and ports.
    """
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1) else fields[19]


def started_from_ps(line: str) -> str | None:
    """Return the start time from a line of `ps -o stat=,lstart=`; None for a zombie or an empty line."""
    state, _, started = line.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def _words(command_line: Path) -> list[str]:
    """Return a process's arguments from /proc/PID/cmdline; none if it has ended, or is of another user."""
    try:
        return os.fsdecode(command_line.read_bytes()).split("\0")
    except OSError:
        return []


def _started_by_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    ticks = started_from_proc_stat(stat)
    return None if ticks is None else f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"


def _started_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    return started_from_ps(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
