"""The engine's lease: at most one engine at a time is in charge of a mirror, and everyone can see which.

The engine record says who is in charge; the transactional id `kmirror-engine-<mirror>` only keeps two engines from
writing it at once. So a holder that is fenced reads the record: if the lease is still its own, it takes the id back and
continues; if it is another engine's, it ends. It reads before it takes the id, so that an outdated engine never
disturbs its successor.

Lanes outlive their driver for a while. They may write until `ttl_ms` after they sent the fetch that showed them their
engine's record as the newest. So a successor waits that long, counted from the moment its own record could be read,
before it relies on being alone. Only an engine that has recorded the end of its lanes (RELEASED) spares its successor
the wait, except for lanes that its own predecessor left behind: `settle_ms` passes their time on.

Clocks of different hosts are compared only if nothing better is known: an engine whose heartbeat changes is alive.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Self

from kmirror.errors import (
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import StateLostError
from kmirror.state.record_kinds import Record
from kmirror.state.records import EngineRecord, EngineState, Incarnation, Key, Lacking
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.waiting import Deadline, boottime
from kmirror.state.writer import NotConfirmed, StateWriter, decide_and_write, was_written
from kmirror.words import at_time

HEARTBEAT_S = 1.0
#: How long to wait for the next heartbeat before an engine may count as dead, and how often to check.
_WATCH_S = 1.5 * HEARTBEAT_S
_POLL_S = 0.25
#: How long a lease must be missing before its holder treats it as deleted.
_ASSUMED_DELETED_S = 10.0

_ENDED = -1


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
        return cls(socket.gethostname(), _boot_id(), pid, _start_time(pid) or 0, application_id, master)


class FencedByCommandError(RefusedError):
    """A command took the lease, not another engine: the mirror is free again when the command has ended."""


class Lease:
    """The lease of one mirror; made by `acquire` or `standby`, used by one thread at a time.

    `record` is what was last written, `predecessor` the record before it, and `predecessor_may_write_until` the moment
    (on `boottime()`'s clock, 0.0 for "not at all") until which lanes of earlier engines may still write.
    """

    def __init__(
        self,
        store: StateStore,
        writer: StateWriter,
        record: EngineRecord,
        predecessor: EngineRecord | None,
        until: float,
    ) -> None:
        self._store = store
        self._writer = writer
        self.record = record
        self.predecessor = predecessor
        self.predecessor_may_write_until = until
        self._missing_since: float | None = None
        #: An unconfirmed write, and the record it contains; settled before anything else is written.
        self._doubt: tuple[NotConfirmed, EngineRecord] | None = None

    @property
    def lease_id(self) -> str:
        return self.record.lease_id

    @classmethod
    def acquire(
        cls,
        store: StateStore,
        mirror: str,
        identity: EngineIdentity,
        ttl_ms: int = 10_000,
        take_over: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
        *,
        again: bool = False,
    ) -> Self:
        """Take the lease of a mirror without an engine; with `take_over` also of one that has an engine.

        `again`: an earlier attempt of this process, whose outcome is unknown, may have taken it.

        Raises RefusedError naming the engine in charge, or the missing mirror; UnreachableError; OutcomeUnknown.
        """
        if ttl_ms < 2 * HEARTBEAT_S * 1000:
            raise UsageError(f"a lease of {ttl_ms} ms would end between two heartbeats", "give it 2,000 ms or more")
        state = store.read(timeout)
        _require_mirror(state, mirror)
        found = state.engine(mirror)
        is_ours = again and found is not None and _is_of(found, identity)
        if found is not None and not take_over and not is_ours and not _is_over(found, identity):
            _require_no_heartbeat(store, found, timeout)
        return cls._take(store, mirror, identity, ttl_ms, found, take_over, timeout)

    @classmethod
    def standby(
        cls,
        store: StateStore,
        mirror: str,
        identity: EngineIdentity,
        ttl_ms: int = 10_000,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Self | None:
        """Wait until the engine in charge ends or sends no heartbeat for its ttl, then take the lease; None if stopped.

        Raises as `acquire` does, except for the engine in charge.
        """
        state = store.read()
        _require_mirror(state, mirror)
        found, seen_at = state.engine(mirror), boottime()
        while not should_stop():
            if found is None or _is_over(found, identity) or boottime() - seen_at > found.ttl_ms / 1000:
                try:
                    return cls._take(store, mirror, identity, ttl_ms, found, False, DEFAULT_TIMEOUT_S)
                except RefusedError as error:
                    if error.reason is not Reason.FENCED:
                        raise
            time.sleep(_POLL_S)
            state = store.read()
            state.require_readable(mirror)  # before anything is taken from an engine of a newer version
            now_found = state.engine(mirror)
            if now_found != found:
                found, seen_at = now_found, boottime()
        return None

    @classmethod
    def _take(
        cls,
        store: StateStore,
        mirror: str,
        identity: EngineIdentity,
        ttl_ms: int,
        expected: EngineRecord | None,
        take_over: bool,
        timeout: float,
    ) -> Self:
        lease_id = str(uuid.uuid4())
        found: EngineRecord | None = None

        def decide(state: State) -> Changes:
            nonlocal found
            _require_mirror(state, mirror)
            found = state.engine(mirror)
            if found != expected and not take_over and found is not None and found.state is not EngineState.RELEASED:
                raise _in_charge(found)  # another engine was faster, or the one believed dead renewed its lease
            now = _now_ms()
            return Changes(
                (
                    EngineRecord(
                        mirror,
                        lease_id,
                        EngineState.RUNNING,
                        identity.host,
                        identity.boot_id,
                        identity.pid,
                        identity.pid_start_time,
                        identity.application_id,
                        identity.master,
                        since_ms=now,
                        last_seen_ms=now,
                        ttl_ms=ttl_ms,
                        settle_ms=_may_write_ms(found),
                    ),
                )
            )

        writer = StateWriter(store, "engine", mirror)
        deadline = Deadline(timeout)
        try:
            decide_and_write(store, writer, decide, deadline)
            # wait for the commit's marker: only after it does no lane find its old lease any more
            record = writer.read_complete(deadline).engine(mirror)
            if record is None or record.lease_id != lease_id:
                raise _lost(mirror, record)
        except BaseException:
            writer.close()
            raise
        may_write_ms = _may_write_ms(found)
        return cls(store, writer, record, found, boottime() + may_write_ms / 1000 if may_write_ms else 0.0)

    def heartbeat(
        self,
        lanes: Mapping[int, Incarnation],
        records: tuple[Record, ...] = (),
        events: tuple[Event, ...] = (),
        *,
        tombstones: tuple[Key, ...] = (),
        stopping: bool = False,
        revisions: Mapping[int, int] | None = None,
        silent_lanes: Mapping[int, int] | None = None,
        source_trouble: KmirrorError | None = None,
        throttle: Mapping[int, int] | None = None,
        connections: int | None = None,
        buffer_bytes: int | None = None,
        first_topics: tuple[str, ...] = (),
        places: Mapping[int, str] | None = None,
        lacking: Mapping[str, Lacking] | None = None,
        application_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Renew the lease with the incarnations of lanes that may write, and write `records`, `events`, `tombstones`.

        For the other arguments see EngineRecord. All in one transaction. Raises RefusedError (FENCED) when the lease is
        another's. After UnreachableError (default time-out: the lease's ttl) the same content may be given again. After
        OutcomeUnknown call `settle` first: if the content was written, others may have changed it since, and writing it
        again would undo that.
        """
        record = replace(
            self.record,
            state=EngineState.STOPPING if stopping else EngineState.RUNNING,
            lanes=dict(lanes),
            revisions=dict(revisions) if revisions else None,
            silent_lanes=dict(silent_lanes) if silent_lanes else None,
            source_reason=None if source_trouble is None else source_trouble.reason or Reason.SOURCE_UNREACHABLE,
            source_message=None if source_trouble is None else source_trouble.message,
            throttle=None if throttle is None else dict(throttle),
            connections=connections,
            buffer_bytes=buffer_bytes,
            first_topics=first_topics or None,
            places=dict(places) if places else None,
            lacking=dict(lacking) if lacking else None,
            application_id=application_id or self.record.application_id,
        )
        self._write(record, Changes(records, tombstones, events), timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Return whether the heartbeat whose outcome is unknown was written; False if there is none.

        Raises as `heartbeat`.
        """
        if self._doubt is None:
            return False
        doubt, record = self._doubt
        deadline = self._deadline(timeout)
        self._open(deadline)
        is_written = was_written(self._store, self._writer, doubt, deadline)
        self._doubt = None
        if is_written:
            self.record = record
        return is_written

    def release(self, records: tuple[Record, ...] = (), events: tuple[Event, ...] = ()) -> None:
        """End the lease after every lane has ended: the successor may write at once. Raises as `heartbeat`."""
        released = replace(
            self.record, state=EngineState.RELEASED, lanes={}, revisions=None, silent_lanes=None, places=None
        )
        self._write(released, Changes(records, (), events), None)
        self.close()

    def close(self) -> None:
        """Close the connections without ending the lease: it expires by its ttl."""
        self._writer.close()

    def _write(self, record: EngineRecord, beside: Changes, timeout: float | None) -> None:
        deadline = self._deadline(timeout)
        self.settle(deadline.remaining)
        while True:
            try:
                self._open(deadline)
                if self.settle(deadline.remaining):
                    return
            except (UnreachableError, TimedOutError) as error:
                if self._doubt is None:
                    raise
                cause = self._doubt[0].cause
                raise OutcomeUnknown(f"a heartbeat was not confirmed ({cause}), then: {error}") from error
            settle_ms = max(0, ceil(1000 * (self.predecessor_may_write_until - boottime())))
            record = replace(record, last_seen_ms=_now_ms(), settle_ms=settle_ms)
            try:
                self._writer.commit(replace(beside, records=(record, *beside.records)), deadline)
                break
            except NotConfirmed as not_confirmed:
                if not_confirmed.place is not None:
                    self._doubt = not_confirmed, record
        self.record = record

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.record.ttl_ms / 1000 if timeout is None else timeout)

    def _open(self, deadline: Deadline) -> None:
        try:
            if not self._writer.is_open:
                # do not wait for open transactions here: one may be our own
                self._require_mine(self._store.read(deadline.remaining))
                self._writer.open(deadline)
            if not self._writer.has_read:
                self._require_mine(self._writer.read_complete(deadline))
        except StateLostError as error:
            self._writer.close()
            raise RefusedError(
                f"this engine is no longer in charge of mirror {self.record.mirror!r}: {error.message}",
                error.hint,
                Reason.FENCED,
            ) from error

    def _require_mine(self, state: State) -> None:
        found = state.engine(self.record.mirror)
        if found is None:
            self._writer.close()
            if any(record.key == self.record.key for record in state.unreadable(self.record.mirror)):
                raise RefusedError(
                    f"this engine is no longer in charge of mirror {self.record.mirror!r}: "
                    "an engine of a newer kmirror took over",
                    "no action is needed if that was intended; use that version here too",
                    Reason.FENCED,
                )
            # a newly elected leader may hide its last records for a while
            self._missing_since = self._missing_since or boottime()
            if boottime() - self._missing_since < _ASSUMED_DELETED_S:
                raise UnreachableError(
                    f"the lease of mirror {self.record.mirror!r} cannot be read at the moment",
                    "its partition's leader may have moved; kmirror retries",
                    Reason.DESTINATION_UNREACHABLE,
                )
            raise _lost(self.record.mirror, found)
        self._missing_since = None
        if found.lease_id != self.lease_id:
            self._writer.close()
            raise _lost(self.record.mirror, found)


def _require_mirror(state: State, mirror: str) -> None:
    state.require_readable(mirror)
    if state.mirror(mirror) is None:
        raise RefusedError(f"there is no mirror {mirror!r}", "`kmirror list` lists the mirrors of this cluster")


def _may_write_ms(found: EngineRecord | None) -> int:
    # how long lanes of this engine and of earlier ones may still write after it is fenced
    if found is None:
        return 0
    return found.settle_ms if found.state is EngineState.RELEASED else max(found.ttl_ms, found.settle_ms)


def _is_of(found: EngineRecord, process: EngineIdentity) -> bool:
    named = (found.host, found.boot_id, found.pid, found.pid_start_time)
    return named == (process.host, process.boot_id, process.pid, process.pid_start_time)


def _is_over(found: EngineRecord, observer: EngineIdentity) -> bool:
    # certain, without waiting for heartbeats; lanes of a dead driver may still run
    if found.state is EngineState.RELEASED:
        return True
    if (found.host, found.boot_id) != (observer.host, observer.boot_id) or not found.boot_id:
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's process, which /proc may hide
    started = _start_time(found.pid)
    return started is not None and started != found.pid_start_time


def _require_no_heartbeat(store: StateStore, found: EngineRecord, timeout: float) -> None:
    # raise if a new heartbeat arrives, or if the last one is younger than its ttl by our clock
    watch = Deadline(_WATCH_S)
    while not watch.passed:
        time.sleep(_POLL_S)
        seen = store.read(timeout).engine(found.mirror)
        if seen is None or seen.state is EngineState.RELEASED:
            return
        if seen != found:
            raise _in_charge(seen)
    if _now_ms() - found.last_seen_ms < found.ttl_ms:
        raise _in_charge(found)


def has_ended(found: EngineRecord) -> bool | None:
    """Return whether an engine has ended: it recorded that, or its process is gone; None for a process elsewhere."""
    here = EngineIdentity.of_this_process()
    if _is_over(found, here):
        return True
    return False if found.boot_id and (found.host, found.boot_id) == (here.host, here.boot_id) else None


def _process_of(found: EngineRecord) -> str:
    spark = f", Spark application {found.application_id}" if found.application_id else ""
    return f"process {found.pid} on {found.host}{spark}"


def _in_charge(found: EngineRecord) -> RefusedError:
    age = (_now_ms() - found.last_seen_ms) / 1000
    since = f"in charge of mirror {found.mirror!r}: {_process_of(found)}, since {at_time(found.since_ms)}"
    if found.held_by_command:
        return FencedByCommandError(f"a command is {since}", "try again when it has ended", Reason.FENCED)
    return RefusedError(
        f"an engine is {since}, last heartbeat {max(age, 0.0):.1f} s ago",
        "wait for it to end with --standby, or replace it with --take-over",
        Reason.FENCED,
    )


def _lost(mirror: str, found: EngineRecord | None) -> RefusedError:
    lost = f"this engine is no longer in charge of mirror {mirror!r}:"
    if found is None:
        hint = "`kmirror list` shows whether the mirror still exists"
        return RefusedError(f"{lost} its lease is gone", hint, Reason.FENCED)
    when = f"took over at {at_time(found.since_ms)}"
    if found.held_by_command:
        hint = "`kmirror list` shows whether an engine copies it"
        return FencedByCommandError(f"{lost} a command, {_process_of(found)}, {when}", hint, Reason.FENCED)
    hint = "no action is needed if that was intended; `kmirror list` shows the engine in charge"
    return RefusedError(f"{lost} {_process_of(found)} {when}", hint, Reason.FENCED)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_id() -> str:
    # a pid means nothing outside its pid namespace
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    # ticks since boot, field 22 of proc(5); _ENDED for a zombie; None if /proc does not have it
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _ENDED if state in "ZX" else int(rest[18])
