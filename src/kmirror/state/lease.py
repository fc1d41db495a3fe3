"""The engine's lease: at most one engine at a time is in charge of a mirror, and anyone can see which.

Who is in charge is what the engine record says; the transactional id `kmirror-engine-<mirror>` only keeps two engines
from writing it at once. A holder that finds itself fenced therefore looks at the record: is the lease still its own, it
takes the id back and continues; is it another's, it ends. Looking comes before taking, so that an engine that
is out of date never disturbs its successor.

Lanes outlive their driver for a while. They may write until `ttl_ms` after they sent the fetch that showed them their
engine's record as the newest, so a successor waits that long, counted from the moment its own record could be
read, before it relies on being alone. Only an engine that says its lanes have ended (RELEASED) spares its successor the
wait, and not even it can speak for lanes that its own predecessor left behind: for them `settle_ms` is handed on.

Clocks of different hosts are compared only where nothing better is at hand: a heartbeat that moves is alive.
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
from kmirror.state.client import Deadline, boottime
from kmirror.state.events import Event
from kmirror.state.records import EngineRecord, EngineState, Incarnation, Key, Record
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.writer import NotConfirmed, Writer, settled, write_decided

HEARTBEAT_S = 1.0
#: How long a heartbeat is watched before it may be called still.
_LOOK_S = 1.5 * HEARTBEAT_S
_LOOK_STEP_S = 0.25
#: How long a lease must be missing before its holder takes it for deleted.
_BELIEVED_GONE_S = 10.0

_ENDED = -1


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Name the driver process so that others can tell whether it still lives; `pid_start_time` in ticks since boot."""

    host: str
    boot_id: str
    pid: int
    pid_start_time: int
    application_id: str | None = None
    master: str | None = None

    @classmethod
    def of_this_process(cls, application_id: str | None = None, master: str | None = None) -> EngineIdentity:
        """Describe the calling process, as far as the system has /proc."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, _start_time(pid) or 0, application_id, master)


class FencedByCommandError(RefusedError):
    """A command has taken the lease, not another engine: the mirror is free again when that has ended."""


class Lease:
    """Being in charge of one mirror; made by `acquire` or `standby`, used by one thread at a time.

    `record` is what was last written, `predecessor` what was found, and `predecessor_may_write_until` the moment (on
    `boottime()`'s clock, 0.0 for "not at all") until which lanes of former engines may still write.
    """

    def __init__(
        self, store: StateStore, writer: Writer, record: EngineRecord, predecessor: EngineRecord | None, until: float
    ) -> None:
        self._store = store
        self._writer = writer
        self.record = record
        self.predecessor = predecessor
        self.predecessor_may_write_until = until
        self._missing_since: float | None = None
        #: What was written and not confirmed, with what the record would be; settled before anything else is written.
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
        """Take charge of a mirror that no engine is in charge of; with `take_over` also of one that has an engine.

        `again`: an earlier try of this process, whose outcome is unknown, may have taken it.

        Raises RefusedError naming the engine in charge, or the missing mirror; UnreachableError; OutcomeUnknown.
        """
        if ttl_ms < 2 * HEARTBEAT_S * 1000:
            raise UsageError(f"a lease of {ttl_ms} ms would end between two heartbeats", "give it 2,000 ms or more")
        state = store.read(timeout)
        _require_mirror(state, mirror)
        found = state.engine(mirror)
        is_ours = again and found is not None and _is_of(found, identity)
        if found is not None and not take_over and not is_ours and not _is_over(found, identity):
            _require_still(store, found, timeout)
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
        """Wait until the engine in charge ends or is silent for its whole ttl, then take charge; None if stopped.

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
            time.sleep(_LOOK_STEP_S)
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
                raise _in_charge(found)  # another engine was quicker, or the one thought dead renewed its lease
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
                        settle_ms=_outlives_ms(found),
                    ),
                )
            )

        writer = Writer(store, "engine", mirror)
        deadline = Deadline(timeout)
        try:
            write_decided(store, writer, decide, deadline)
            # from here on no lane that looks can find its old lease; before, the commit's marker may still be missing
            record = store.read_complete(deadline).engine(mirror)
            if record is None or record.lease_id != lease_id:
                raise _lost(mirror, record)
        except BaseException:
            writer.close()
            raise
        outlives_ms = _outlives_ms(found)
        return cls(store, writer, record, found, boottime() + outlives_ms / 1000 if outlives_ms else 0.0)

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
        first_topics: tuple[str, ...] = (),
        places: Mapping[int, str] | None = None,
        application_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Renew the lease, say which incarnation of each lane may write, and write what else is to be stored.

        `revisions` are the changes that lanes have to go by, `silent_lanes` those that no worker reports on, `throttle`
        what each may fetch, `first_topics` what they are to fetch first, `places` where they run, see EngineRecord.

        All in one transaction. Raises RefusedError (FENCED) when the lease is another's; after UnreachableError
        (default time-out: the lease's ttl) the same content may be given again. After OutcomeUnknown `settle` comes
        first: content that was written may have been changed by others since, and would undo that.
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
            first_topics=first_topics or None,
            places=dict(places) if places else None,
            application_id=application_id or self.record.application_id,
        )
        self._write(record, Changes(records, tombstones, events), timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Find out what became of the heartbeat whose outcome is unknown; True when all of it was written.

        Raises as `heartbeat`; False, too, when there is no such heartbeat.
        """
        if self._doubt is None:
            return False
        doubt, record = self._doubt
        deadline = self._deadline(timeout)
        self._open(deadline)
        was_written = settled(self._store, self._writer, doubt, deadline)
        self._doubt = None
        if was_written:
            self.record = record
        return was_written

    def release(self, records: tuple[Record, ...] = (), events: tuple[Event, ...] = ()) -> None:
        """End the lease, when every lane has ended: the successor may write at once. Raises as `heartbeat`."""
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
        if not self._writer.is_open:
            # a look without waiting for open transactions, of which one may be our own
            self._require_mine(self._store.read(deadline.remaining))
            self._writer.open(deadline)
            self._require_mine(self._store.read_complete(deadline))

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
            # A leader just elected may hide its last records for a while; absence is believed when it lasts.
            self._missing_since = self._missing_since or boottime()
            if boottime() - self._missing_since < _BELIEVED_GONE_S:
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


def _outlives_ms(found: EngineRecord | None) -> int:
    # how long lanes of this engine, and of those before it, may still write after it is fenced
    if found is None:
        return 0
    return found.settle_ms if found.state is EngineState.RELEASED else max(found.ttl_ms, found.settle_ms)


def _is_of(found: EngineRecord, looker: EngineIdentity) -> bool:
    named = (found.host, found.boot_id, found.pid, found.pid_start_time)
    return named == (looker.host, looker.boot_id, looker.pid, looker.pid_start_time)


def _is_over(found: EngineRecord, looker: EngineIdentity) -> bool:
    # known for certain, without watching; lanes of a dead driver may live on
    if found.state is EngineState.RELEASED:
        return True
    if (found.host, found.boot_id) != (looker.host, looker.boot_id) or not found.boot_id:
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's, which /proc may not show us
    started = _start_time(found.pid)
    return started is not None and started != found.pid_start_time


def _require_still(store: StateStore, found: EngineRecord, timeout: float) -> None:
    # raise when the heartbeat moves, or when it is younger than its ttl by our clock
    look = Deadline(_LOOK_S)
    while not look.passed:
        time.sleep(_LOOK_STEP_S)
        seen = store.read(timeout).engine(found.mirror)
        if seen is None or seen.state is EngineState.RELEASED:
            return
        if seen != found:
            raise _in_charge(seen)
    if _now_ms() - found.last_seen_ms < found.ttl_ms:
        raise _in_charge(found)


def has_ended(found: EngineRecord) -> bool | None:
    """Tell whether an engine has ended: it said so, or its process is gone; None for a process elsewhere."""
    here = EngineIdentity.of_this_process()
    if _is_over(found, here):
        return True
    return False if found.boot_id and (found.host, found.boot_id) == (here.host, here.boot_id) else None


def _in_charge(found: EngineRecord) -> RefusedError:
    spark = f", Spark application {found.application_id}" if found.application_id else ""
    age = (_now_ms() - found.last_seen_ms) / 1000
    if found.is_of_command:
        return FencedByCommandError(
            f"a command is in charge of mirror {found.mirror!r}: process {found.pid} on {found.host}, "
            f"since {_clock(found.since_ms)}",
            "try again when it has ended",
            Reason.FENCED,
        )
    return RefusedError(
        f"an engine is in charge of mirror {found.mirror!r}: process {found.pid} on {found.host}{spark}, "
        f"since {_clock(found.since_ms)}, last heartbeat {max(age, 0.0):.1f} s ago",
        "wait for it to end with --standby, or replace it with --take-over",
        Reason.FENCED,
    )


def _lost(mirror: str, found: EngineRecord | None) -> RefusedError:
    if found is None:
        return RefusedError(
            f"this engine is no longer in charge of mirror {mirror!r}: its lease is gone",
            "`kmirror list` shows whether the mirror still exists",
            Reason.FENCED,
        )
    if found.is_of_command:
        return FencedByCommandError(
            f"this engine is no longer in charge of mirror {mirror!r}: a command, process {found.pid} on {found.host}, "
            f"took over at {_clock(found.since_ms)}",
            "`kmirror list` shows whether an engine copies it",
            Reason.FENCED,
        )
    spark = f", Spark application {found.application_id}" if found.application_id else ""
    return RefusedError(
        f"this engine is no longer in charge of mirror {mirror!r}: process {found.pid} on {found.host}{spark} "
        f"took over at {_clock(found.since_ms)}",
        "no action is needed if that was intended; `kmirror list` shows the engine in charge",
        Reason.FENCED,
    )


def _clock(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms / 1000))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_id() -> str:
    # a process number means nothing outside its own pid namespace
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    # ticks since boot, field 22 of proc(5); _ENDED for one that only waits to be reaped; None when /proc does not tell
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return _ENDED if state in "ZX" else int(rest[18])
