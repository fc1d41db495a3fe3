"""Watch one copy: when its bytes arrive, and what its processes use.

Bytes are counted at the destination, by the log ends that its leaders report: often around the first and the last, less
often in between, since polling takes from the cores that are measured. CPU and memory are those of the whole process
tree from /proc: JVMs, daemons and workers included, also those that have ended. What the brokers use is recorded
separately.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
_LONGEST_POLL_S = 0.2
_TREE_S = 0.5
_MEMORY_S = 1.0
#: A copy that makes no progress for this long has stalled.
_STALLED_S = 90.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_JVM = "java"
#: Names of a tree's processes; those that only send belong to the driver.
DRIVER, JVM, LANES = "driver", "JVM", "lanes"
SOURCE, DESTINATION = "source", "destination"


class CopyFailedError(Exception):
    """A copy that did not complete."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    name: str
    started: str
    ticks: int


class ProcessTree:
    """Follow some processes and all their descendants, and what other processes, `beside` them, use."""

    def __init__(self, roots: Sequence[int], beside: Mapping[str, int] | None = None) -> None:
        self._roots = set(roots)
        self._beside = dict(beside or {})
        self._known: dict[tuple[int, str], int] = {}
        self._kinds: dict[tuple[int, str], str] = {}
        #: Proportional set size of the whole tree, in bytes: the peak.
        self.peak_memory = 0

    def cpu_seconds(self) -> float:
        """Read again, and return what the tree has used so far, ended processes included."""
        self._look()
        return sum(self._known.values()) / _TICKS_PER_SECOND

    def cpu_by_process(self) -> dict[str, float]:
        """Read again, and return the same by kind of process, with those beside the tree."""
        running = self._look()
        found: Counter[str] = Counter()
        for name, pid in self._beside.items():
            found[name] += running[pid].ticks if pid in running else 0
        for process, ticks in self._known.items():
            found[self._kinds[process]] += ticks
        return {name: ticks / _TICKS_PER_SECOND for name, ticks in found.items()}

    def _look(self) -> dict[int, _Process]:
        running = _running()
        members = set(self._roots)
        for process in running.values():
            if (process.pid, process.started) in self._known:
                members.add(process.pid)
        grown = True
        while grown:
            found = {p.pid for p in running.values() if p.parent in members and p.pid not in members}
            members |= found
            grown = bool(found)
        for pid in members & running.keys():
            process = running[pid]
            self._known[process.pid, process.started] = process.ticks
            self._kinds[process.pid, process.started] = self._kind(process, running)
        return running

    def _kind(self, process: _Process, running: Mapping[int, _Process]) -> str:
        """Return the kind of a process: the JVM, a lane that Spark started below it, or the driver, the root of all."""
        if process.name == _JVM:
            return JVM
        parent: _Process | None = process
        while parent and parent.pid not in self._roots:
            parent = running.get(parent.parent)
            if parent and parent.name == _JVM:
                return LANES
        return DRIVER

    def kinds(self) -> dict[int, str]:
        """Read again, and return the kind of each running process of the tree."""
        running = self._look()
        return {
            pid: kind
            for (pid, started), kind in self._kinds.items()
            if pid in running and running[pid].started == started
        }

    def sample_memory(self) -> None:
        """Sum up the memory of the known processes; shared pages count once."""
        self.peak_memory = max(self.peak_memory, sum(_memory_of(pid) for pid, _ in self._known))


@dataclass(frozen=True, slots=True)
class Copy:
    """One measured copy. Throughput is over the time from the first bytes seen to the last.

    `second_half` is the throughput of the last half of the bytes, after a contender's own warm-up.
    """

    contender: str
    data_set: str
    round: int
    stored_bytes: int
    seconds: float
    megabytes_per_second: float
    second_half_megabytes_per_second: float
    cpu_seconds_per_gigabyte: float
    first_byte_seconds: float
    peak_memory_bytes: int
    #: By process, brokers included; those of the tree make up `cpu_seconds_per_gigabyte`.
    cpu_by_process: dict[str, float]


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a copy: times and counts of records, and the CPU used between the first bytes and the last."""

    times: list[float]
    records: list[int]
    cpu_by_process: dict[str, float]
    first_byte_seconds: float
    peak_memory: int

    def copy(self, contender: str, data_set: str, number: int, stored_bytes: int) -> Copy:
        """Return the measured numbers."""
        bytes_a_record = stored_bytes / self.records[-1]
        seen = [count * bytes_a_record for count in self.records]
        half = next(i for i, count in enumerate(seen) if count >= stored_bytes / 2 or i == len(seen) - 2)
        copied = stored_bytes - seen[0]
        used = {process: seconds / (copied / 1e9) for process, seconds in self.cpu_by_process.items()}
        return Copy(
            contender,
            data_set,
            number,
            stored_bytes,
            self.times[-1] - self.times[0],
            copied / (self.times[-1] - self.times[0]) / 1e6,
            (stored_bytes - seen[half]) / (self.times[-1] - self.times[half]) / 1e6,
            sum(seconds for process, seconds in used.items() if process not in (SOURCE, DESTINATION)),
            self.first_byte_seconds,
            self.peak_memory,
            used,
        )


def watch(
    log_end: Callable[[], int], total: int, tree: ProcessTree, started_at: float, check: Callable[[], None]
) -> Watched:
    """Wait until the destination holds `total` records. `check` raises when the copy has died.

    Raises:
        CopyFailedError: the copy has stalled, or there are too many records.
    """
    times: list[float] = []
    records: list[int] = []
    before: dict[str, float] = {}
    moved_at = started_at
    next_tree = next_memory = started_at
    while True:
        count = log_end()
        at = time.monotonic()
        if count and not times:
            before = tree.cpu_by_process()
        if count > (records[-1] if records else 0):
            times.append(at)
            records.append(count)
            moved_at = at
        if count >= total:
            break
        if at >= next_tree:
            tree.cpu_seconds()
            next_tree = at + _TREE_S
            check()
        if at >= next_memory:
            tree.sample_memory()
            next_memory = at + _MEMORY_S
        if at - moved_at > _STALLED_S:
            raise CopyFailedError(f"{count:,} of {total:,} records arrived, and no more for {_STALLED_S:.0f} s")
        time.sleep(_until_next_poll(times, records, total))
    after = tree.cpu_by_process()
    tree.sample_memory()
    if count > total:
        raise CopyFailedError(f"{count:,} records arrived, but the source has {total:,}")
    if len(times) < 2:
        raise CopyFailedError("all records arrived at once: too few to measure")
    used = {process: seconds - before.get(process, 0.0) for process, seconds in after.items()}
    return Watched(times, records, used, times[0] - started_at, tree.peak_memory)


def _until_next_poll(times: Sequence[float], records: Sequence[int], total: int) -> float:
    """Return half of the time that the rest will take, in seconds; the minimum before anything has arrived."""
    if len(times) < 2:
        return _POLL_S
    rest = (total - records[-1]) * (times[-1] - times[0]) / (records[-1] - records[0])
    return min(max(rest / 2, _POLL_S), _LONGEST_POLL_S)


def _running() -> dict[int, _Process]:
    """Return every process of this machine: proc_pid_stat(5), fields 1, 4, 2, 22, and 14 + 15."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        named, _, rest = stat.rpartition(")")
        fields, command = rest.split(), named.partition("(")[2]
        ticks = int(fields[11]) + int(fields[12])
        found[int(name)] = _Process(int(name), int(fields[1]), command, fields[19], ticks)
    return found


def _memory_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
