"""Watch one copy: when its bytes arrive, and what the processes that bring them use.

Bytes are counted at the destination, as the log ends its leaders name: often where the first and the last are about to
come, less often between, since who watches takes from the cores that are measured. CPU and memory are those of the
whole process tree as /proc tells them: JVMs, daemons and workers included, and those that have ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02
_LONGEST_POLL_S = 0.2
_TREE_S = 0.5
_MEMORY_S = 1.0
#: A copy that brings nothing for so long will not bring the rest.
_STALLED_S = 90.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CopyFailedError(Exception):
    """A copy that did not come to its end."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: str
    ticks: int


class ProcessTree:
    """Follow some processes and all that descend from them."""

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = set(roots)
        self._known: dict[tuple[int, str], int] = {}
        #: Proportional set size of the whole tree, in bytes; the most that was seen.
        self.peak_memory = 0

    def cpu_seconds(self) -> float:
        """Look again, and return what the tree has used until now, by processes that have ended too."""
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
        return sum(self._known.values()) / _TICKS_PER_SECOND

    def look_at_memory(self) -> None:
        """Sum up the memory of the processes known; pages that several share count once."""
        self.peak_memory = max(self.peak_memory, sum(_memory_of(pid) for pid, _ in self._known))


@dataclass(frozen=True, slots=True)
class Copy:
    """One measured copy. Throughput is over the time from the first bytes seen to the last one.

    `second_half` is the throughput of the last half of the bytes: what is left when a contender's own warm-up is over.
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


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of a copy: times and counts of records, and the CPU used between the first bytes and the last."""

    times: list[float]
    records: list[int]
    cpu_seconds: float
    first_byte_seconds: float
    peak_memory: int

    def copy(self, contender: str, data_set: str, number: int, stored_bytes: int) -> Copy:
        """Return the numbers that count."""
        bytes_a_record = stored_bytes / self.records[-1]
        seen = [count * bytes_a_record for count in self.records]
        half = next(i for i, count in enumerate(seen) if count >= stored_bytes / 2 or i == len(seen) - 2)
        copied = stored_bytes - seen[0]
        return Copy(
            contender,
            data_set,
            number,
            stored_bytes,
            self.times[-1] - self.times[0],
            copied / (self.times[-1] - self.times[0]) / 1e6,
            (stored_bytes - seen[half]) / (self.times[-1] - self.times[half]) / 1e6,
            self.cpu_seconds / (copied / 1e9),
            self.first_byte_seconds,
            self.peak_memory,
        )


def watch(
    log_end: Callable[[], int], total: int, tree: ProcessTree, started_at: float, check: Callable[[], None]
) -> Watched:
    """Wait until the destination holds `total` records. `check` raises when the copy has died.

    Raises:
        CopyFailedError: nothing comes any more, or more records than there are.
    """
    times: list[float] = []
    records: list[int] = []
    cpu_before = 0.0
    moved_at = started_at
    next_tree = next_memory = started_at
    while True:
        count = log_end()
        at = time.monotonic()
        if count and not times:
            cpu_before = tree.cpu_seconds()
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
            tree.look_at_memory()
            next_memory = at + _MEMORY_S
        if at - moved_at > _STALLED_S:
            raise CopyFailedError(f"{count:,} of {total:,} records are there, and no more came for {_STALLED_S:.0f} s")
        time.sleep(_until_next_look(times, records, total))
    cpu_after = tree.cpu_seconds()
    tree.look_at_memory()
    if count > total:
        raise CopyFailedError(f"{count:,} records are there, and only {total:,} were to be copied")
    if len(times) < 2:
        raise CopyFailedError("all records came at once: too few to measure")
    return Watched(times, records, cpu_after - cpu_before, times[0] - started_at, tree.peak_memory)


def _until_next_look(times: Sequence[float], records: Sequence[int], total: int) -> float:
    """Return half of the time that the rest will take, in seconds; the least there is while nothing has come."""
    if len(times) < 2:
        return _POLL_S
    rest = (total - records[-1]) * (times[-1] - times[0]) / (records[-1] - records[0])
    return min(max(rest / 2, _POLL_S), _LONGEST_POLL_S)


def _running() -> dict[int, _Process]:
    """Return every process of this machine: proc_pid_stat(5), fields 1, 4, 22, and 14 + 15."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = stat.rpartition(")")[2].split()
        found[int(name)] = _Process(int(name), int(fields[1]), fields[19], int(fields[11]) + int(fields[12]))
    return found


def _memory_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
