"""The process tree of a running engine, as the operating system sees it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `start_time` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    start_time: int
    command: str

    @property
    def alive(self) -> bool:
        """True while this very process runs (a zombie does not)."""
        found = _read(self.pid)
        return found is not None and found.start_time == self.start_time

    def send(self, number: int) -> None:
        """Send a signal; a process that is gone is fine."""
        if self.alive:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send(signal.SIGKILL)


def _read(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else Process(pid, int(fields[1]), int(fields[19]), command)


def tree(root: int) -> list[Process]:
    """Return a process and all its descendants, parents before children."""
    processes = [p for pid in os.listdir("/proc") if pid.isdigit() and (p := _read(int(pid)))]
    found = [p for p in processes if p.pid == root]
    for parent in found:
        found += [p for p in processes if p.parent == parent.pid and p not in found]
    return found


@dataclass(frozen=True, slots=True)
class EngineTree:
    """A running engine's processes by kind."""

    driver: Process | None
    jvm: list[Process]
    daemon: list[Process]
    workers: list[Process]

    @property
    def all(self) -> list[Process]:
        """Every process, workers first, so that none is left to replace what was killed."""
        return [*self.workers, *self.daemon, *self.jvm, *([self.driver] if self.driver else [])]


def engine_tree(pid: int) -> EngineTree:
    """Sort the processes below an engine's driver; all are missing if it has ended."""
    processes = tree(pid)
    jvm = [p for p in processes if "org.apache.spark" in p.command]
    python = [p for p in processes if "kmirror.engine.spark.daemon" in p.command or "pyspark.daemon" in p.command]
    daemons = [p for p in python if p.parent in {j.pid for j in jvm}]
    workers = [p for p in python if p.parent in {d.pid for d in daemons}]
    return EngineTree(processes[0] if processes else None, jvm, daemons, workers)


def wait_gone(processes: list[Process], seconds: float) -> list[Process]:
    """Wait until none of these runs any more; return those that still do when the time is over."""
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if p.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
