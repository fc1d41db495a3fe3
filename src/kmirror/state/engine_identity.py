"""Which process an engine is, and whether it has ended or still sends heartbeats.

Clocks of different hosts are compared only if nothing better is known: an engine whose heartbeat changes is alive, and
one without a new heartbeat for as long as its lease lasts is not, however far ahead its clock was.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kmirror.errors import Reason, RefusedError
from kmirror.state.records import EngineRecord, EngineState
from kmirror.state.store import StateStore
from kmirror.state.waiting import boottime, now_ms
from kmirror.words import at_time

HEARTBEAT_S = 1.0
#: How long to wait for the next heartbeat of an engine that is alive by its clock, and how often to check.
_WATCH_S = 1.5 * HEARTBEAT_S
_POLL_S = 0.25
#: An engine without a heartbeat for this long has no lanes left, whatever its record says of its lease.
_LONGEST_WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """The driver process, so that others can find out whether it is alive; `pid_start_time` in ticks since boot."""

    host: str
    boot_id: str
    pid: int
    pid_start_time: int
    application_id: str | None = None
    master: str | None = None

    @classmethod
    def of_this_process(cls, application_id: str | None = None, master: str | None = None) -> EngineIdentity:
        """Return the identity of this process, incomplete where the system has no /proc."""
        pid = os.getpid()
        return cls(socket.gethostname(), *_lasting(pid), application_id, master)


@lru_cache(maxsize=1)
def _lasting(pid: int) -> tuple[str, int, int]:
    """Return the boot, the number and the start time of this process, whose number is `pid`; read once."""
    return _boot_id(), pid, _start_time(pid) or 0


def _boot_id() -> str:
    # a pid means nothing outside its pid namespace
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot (field 22 of proc(5)); −1 for a zombie; None if unknown."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if state in "ZX" else int(rest[18])


class EngineSilence:
    """For how long an engine has sent no heartbeat, counted over reads of the state that are answered promptly.

    Waiting for the state counts `_WATCH_S` at most: the engine cannot store a heartbeat meanwhile. The wait begins with
    the read before, unless `ask` says when.
    """

    def __init__(self) -> None:
        self.record: EngineRecord | None = None
        self._before, self._since, self._is_asked = 0.0, boottime(), False

    def ask(self) -> None:
        """Note that the state is read from now on; repeated while it does not answer, the first time counts."""
        if not self._is_asked:
            self._before += boottime() - self._since
            self._since, self._is_asked = boottime(), True

    def take(self, record: EngineRecord | None) -> None:
        """Take the record that was read now."""
        self._before = self.seconds if record == self.record else 0.0
        self.record, self._since, self._is_asked = record, boottime(), False

    @property
    def seconds(self) -> float:
        """For how long the record has not changed."""
        return self._before + min(boottime() - self._since, _WATCH_S)

    @property
    def outlasts_lease(self) -> bool:
        """True if the engine of the record is not in charge any more."""
        return self.record is not None and self.seconds > self.record.ttl_ms / 1000


class FencedByCommandError(RefusedError):
    """A command took the lease, not another engine: the mirror is free again when the command has ended."""


def is_of(found: EngineRecord, process: EngineIdentity) -> bool:
    named = (found.host, found.boot_id, found.pid, found.pid_start_time)
    return named == (process.host, process.boot_id, process.pid, process.pid_start_time)


def is_over(found: EngineRecord, observer: EngineIdentity) -> bool:
    # certain, without waiting for heartbeats; lanes of a dead driver may still run
    if found.state is EngineState.RELEASED:
        return True
    if (found.host, found.boot_id) != (observer.host, observer.boot_id) or not found.boot_id:
        return False
    try:
        os.kill(found.pid, 0)
    except (ProcessLookupError, OverflowError):
        return True  # no system has a process of a larger number, which a record may carry
    except PermissionError:
        pass  # another user's process, which /proc may hide
    started = _start_time(found.pid)
    return started is not None and started != found.pid_start_time


def require_no_heartbeat(store: StateStore, found: EngineRecord, timeout: float, *, was_watched: bool = False) -> None:
    # raise if a new heartbeat arrives, or if the last one is younger than its ttl by our clock, unless that is behind
    ttl_s = found.ttl_ms / 1000
    is_fresh = 0 <= (now_ms() - found.last_seen_ms) / 1000 < ttl_s - _WATCH_S
    # also if its last heartbeat is old: the destination may have been out of its reach until now
    watch_s = _WATCH_S if is_fresh or was_watched else max(min(ttl_s, _LONGEST_WATCH_S), _WATCH_S)
    silence = EngineSilence()
    silence.take(found)
    while silence.seconds < watch_s:
        time.sleep(_POLL_S)
        seen = store.read(timeout).engine(found.mirror)
        if seen is None or seen.state is EngineState.RELEASED:
            return
        if seen != found:
            raise in_charge_error(seen)
        silence.take(seen)
    if is_fresh:
        raise in_charge_error(found)


def living_engine(store: StateStore, found: EngineRecord | None, timeout: float) -> EngineRecord | None:
    """Return the engine of a record if it is in charge, judged by its heartbeats as for `run`; None if it is not.

    It takes the time between two heartbeats, or that of a lease if the last one is not recent.

    Raises UnreachableError: the destination does not answer within `timeout` seconds.
    """
    if found is None or is_over(found, EngineIdentity.of_this_process()):
        return None
    try:
        require_no_heartbeat(store, found, timeout)
    except RefusedError:
        return found
    return None


def has_ended(found: EngineRecord) -> bool | None:
    """Return whether an engine has ended: it recorded that, or its process is gone; None for a process elsewhere."""
    here = EngineIdentity.of_this_process()
    if is_over(found, here):
        return True
    return False if found.boot_id and (found.host, found.boot_id) == (here.host, here.boot_id) else None


def process_of(found: EngineRecord) -> str:
    spark = f", Spark application {found.application_id}" if found.application_id else ""
    return f"process {found.pid} on {found.host}{spark}"


def in_charge_error(found: EngineRecord) -> RefusedError:
    since = f"in charge of mirror {found.mirror!r}: {process_of(found)}, since {at_time(found.since_ms)}"
    if found.held_by_command:
        return FencedByCommandError(f"a command is {since}", "try again when it has ended", Reason.FENCED)
    return RefusedError(
        f"an engine is {since}, last heartbeat {max(0, now_ms() - found.last_seen_ms) / 1000:.1f} s ago",
        "wait for it to end with --standby, or replace it with --take-over",
        Reason.FENCED,
    )
