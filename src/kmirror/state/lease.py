"""The engine's lease: at most one engine at a time is in charge of a mirror, and everyone can see which.

The engine record says who is in charge; the transactional id `kmirror-engine-<mirror>` only keeps two engines from
writing it at once. So a holder that is fenced reads the record: if the lease is still its own, it takes the id back and
continues; if it is another engine's, it ends. It reads before it takes the id, so that an outdated engine never
disturbs its successor.

A heartbeat with nothing new in it may be appended without a transaction, together with those of other leases: a
`Renewal`. The leader refuses it once a successor has written with the id, so it never follows the successor's record;
unless the coordinator has forgotten the id: hence a transaction follows before the successor has waited for lanes.

Lanes outlive their driver for a while. They may write until `ttl_ms` after they sent the fetch that showed them their
engine's record as the newest. So a successor waits that long, counted from the moment its own record could be read,
before it relies on being alone. Only an engine that has recorded the end of its lanes (RELEASED) spares its successor
the wait, except for lanes that its own predecessor left behind: `settle_ms` passes their time on.

Clocks of different hosts are compared only if nothing better is known: an engine whose heartbeat changes is alive.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Self

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import (
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    TimedOutError,
    UnreachableError,
    UsageError,
)
from kmirror.state.engine_identity import (
    HEARTBEAT_S,
    EngineIdentity,
    EngineSilence,
    FencedByCommandError,
    in_charge_error,
    is_of,
    is_over,
    process_of,
    require_no_heartbeat,
)
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import StateLostError
from kmirror.state.record_kinds import Record
from kmirror.state.records import EngineRecord, EngineState, Incarnation, Key
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import DEFAULT_TIMEOUT_S, StateStore
from kmirror.state.waiting import Deadline, boottime, now_ms
from kmirror.state.writer import NotConfirmed, StateWriter, decide_and_write, was_written
from kmirror.words import at_time

#: How often a standby looks for the next heartbeat.
_POLL_S, _LONGEST_PAUSE_S = 0.25, 5.0
#: How long brokers may take to abort the transaction of an engine.
_END_S = 5.0
#: How long a lease must be missing before its holder treats it as deleted.
_ASSUMED_DELETED_S = 10.0

#: How long after a transaction heartbeats do without one; and how long they do not after that went wrong once.
_RENEWED_S, _NOT_RENEWED_S = 3.0, 600.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Renewal:
    """A record that renews a lease, and the batch with it that `lone_batches` appends; `Lease.renewed` must follow."""

    record: EngineRecord
    batch: memoryview


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
        #: From when on, and until when, the lease is renewed without a transaction, on `boottime()`'s clock.
        self._renewable_from = self._renewable_until = 0.0

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
        silent: EngineRecord | None = None,
    ) -> Self:
        """Take the lease of a mirror without an engine; with `take_over` also of one that has an engine.

        `again`: an earlier attempt of this process, whose outcome is unknown, may have taken it. `silent`: a record
        that has not changed while it was watched for its ttl.

        Raises RefusedError naming the engine in charge, or the missing mirror; UnreachableError; OutcomeUnknown.
        """
        if ttl_ms < 2 * HEARTBEAT_S * 1000:
            raise UsageError(f"a lease of {ttl_ms} ms would end between two heartbeats", "give it 2,000 ms or more")
        state = store.read(timeout)
        _require_mirror(state, mirror)
        found = state.engine(mirror)
        is_ours = again and found is not None and is_of(found, identity)
        if found is not None and not take_over and not is_ours and not is_over(found, identity):
            require_no_heartbeat(store, found, timeout, was_watched=found == silent)
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

        Raises as `acquire` does, except for the engine in charge; for refused rights or a refused login only at first:
        later it waits until they are accepted again, as an engine does.
        """
        state = store.read()
        _require_mirror(state, mirror)
        silence, pause = EngineSilence(), _POLL_S
        while not should_stop():
            silence.take(found := state.engine(mirror))
            if found is None or is_over(found, identity) or silence.outlasts_lease:
                try:
                    return cls._take(store, mirror, identity, ttl_ms, found, False, DEFAULT_TIMEOUT_S)
                except RefusedError as error:
                    if error.reason is not Reason.FENCED:
                        raise
            time.sleep(pause)
            try:
                state, pause = store.read(), _POLL_S
            except UnreachableError as error:
                if error.reason not in (Reason.NOT_AUTHORIZED, Reason.AUTHENTICATION_FAILED):
                    raise
                if pause == _POLL_S:
                    _logger.warning("standing by for mirror %s: %s", mirror, error)
                silence, pause = EngineSilence(), min(2 * pause, _LONGEST_PAUSE_S)
                continue
            state.require_readable(mirror)  # before anything is taken from an engine of a newer version
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
        def require_free(found: EngineRecord | None) -> None:
            if found != expected and not take_over and found is not None and found.state is not EngineState.RELEASED:
                raise in_charge_error(found)  # another engine was faster, or the one believed dead renewed its lease

        writer, record, found = _write_taken(store, mirror, identity, ttl_ms, require_free, timeout)
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
        application_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Store the `next_record` with these lanes, and write `records`, `events`, `tombstones`; see `store`."""
        now = self.next_record(lanes, stopping=stopping, application_id=application_id)
        self.store(now, Changes(records, tombstones, events), timeout)

    def next_record(
        self, lanes: Mapping[int, Incarnation], *, stopping: bool = False, application_id: str | None = None
    ) -> EngineRecord:
        """Return what the next heartbeat stores: which runs of lanes may write, and what the last one stored."""
        return replace(
            self.record,
            state=EngineState.STOPPING if stopping else EngineState.RUNNING,
            lanes=dict(lanes),
            application_id=application_id or self.record.application_id,
        )

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
            self.record,
            state=EngineState.RELEASED,
            lanes={},
            revisions=None,
            silent_lanes=None,
            places=None,
            failing_jobs=None,
        )
        self.store(released, Changes(records, (), events))
        self.close()

    def close(self) -> None:
        """Close the connections without ending the lease: it expires by its ttl."""
        self._writer.close()

    def store(self, record: EngineRecord, beside: Changes, timeout: float | None = None) -> None:
        """Renew the lease with a `next_record`, and write what is `beside`, all in one transaction.

        Raises RefusedError (FENCED) when the lease is another's. After UnreachableError (default time-out: the lease's
        ttl) the same content may be given again. After OutcomeUnknown call `settle` first: if the content was written,
        others may have changed it since, and writing it again would undo that.
        """
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
            record, began = self._as_of_now(record), boottime()
            try:
                self._writer.commit(replace(beside, records=(record, *beside.records)), deadline)
                break
            except NotConfirmed as not_confirmed:
                if not_confirmed.place is not None:
                    self._doubt = not_confirmed, record
                elif deadline.passed:
                    raise UnreachableError(f"a heartbeat could not be stored: {not_confirmed.cause}") from not_confirmed
        self.record, self._renewable_until = record, began + _RENEWED_S

    def renewal(self, record: EngineRecord) -> Renewal | None:
        """Return how to store a `next_record` outside of a transaction; None if it must be in one."""
        is_settled = self._doubt is None and self._writer.has_read
        if record != self.record or not is_settled or not self._renewable_from <= boottime() <= self._renewable_until:
            return None
        now = self._as_of_now(record)
        return None if (batch := self._writer.renewal(now)) is None else Renewal(now, batch)

    def renewed(self, renewal: Renewal, trouble: KmirrorError | OutcomeUnknown | None) -> None:
        """Note what became of a renewal; after trouble, the next record must be stored in a transaction."""
        if trouble is None:
            self.record = renewal.record
        else:
            self._writer.not_renewed(trouble)
            self._renewable_from = boottime() + _NOT_RENEWED_S

    @property
    def login(self) -> ClientConfig:
        """How to connect to the destination now."""
        return self._store.login

    def _as_of_now(self, record: EngineRecord) -> EngineRecord:
        settle_ms = max(0, ceil(1000 * (self.predecessor_may_write_until - boottime())))
        return replace(record, last_seen_ms=now_ms(), settle_ms=settle_ms)

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


def end_lease(store: StateStore, mirror: str, silent: EngineRecord | None = None) -> None:
    """Take the lease from whatever engine has it, and release it in the same transaction. Raises as `Lease.acquire`.

    `silent`: take it only if the record is still this one. For how long lanes may still write is stored for the engine
    that takes the lease next (`settle_ms`).
    """

    def require_free(found: EngineRecord | None) -> None:
        if silent is not None and found is not None and found != silent:
            raise in_charge_error(found)

    identity = EngineIdentity.of_this_process()
    writer, *_ = _write_taken(store, mirror, identity, 0, require_free, DEFAULT_TIMEOUT_S, EngineState.RELEASED)
    writer.close()


def end_transaction(store: StateStore, mirror: str) -> None:
    """Abort the transaction that an engine has left open: brokers wait up to 20 s for a dead one, and it hides state.

    One that is alive keeps its lease, and writes again. Raises UnreachableError: the brokers do not grant that in time.
    """
    writer = StateWriter(store, "engine", mirror)
    try:
        writer.open(Deadline(_END_S))
    finally:
        writer.close()


def _write_taken(
    store: StateStore,
    mirror: str,
    identity: EngineIdentity,
    ttl_ms: int,
    require_free: Callable[[EngineRecord | None], None],
    timeout: float,
    as_state: EngineState = EngineState.RUNNING,
) -> tuple[StateWriter, EngineRecord, EngineRecord | None]:
    """Write a new lease unless `require_free` raises for the record before it; return both, and the open writer."""
    lease_id = str(uuid.uuid4())
    before: EngineRecord | None = None

    def decide(state: State) -> Changes:
        nonlocal before
        _require_mirror(state, mirror)
        before = state.engine(mirror)
        require_free(before)
        now = now_ms()
        record = EngineRecord(
            mirror,
            lease_id,
            as_state,
            identity.host,
            identity.boot_id,
            identity.pid,
            identity.pid_start_time,
            identity.application_id,
            identity.master,
            since_ms=now,
            last_seen_ms=now,
            ttl_ms=ttl_ms,
            settle_ms=_may_write_ms(before),
        )
        return Changes((record,))

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
    return writer, record, before


def _require_mirror(state: State, mirror: str) -> None:
    state.require_readable(mirror)
    if state.mirror(mirror) is None:
        raise RefusedError(f"there is no mirror {mirror!r}", "`kmirror list` lists the mirrors of this cluster")


def _may_write_ms(found: EngineRecord | None) -> int:
    # how long lanes of this engine and of earlier ones may still write after it is fenced
    if found is None:
        return 0
    return found.settle_ms if found.state is EngineState.RELEASED else max(found.ttl_ms, found.settle_ms)


def _lost(mirror: str, found: EngineRecord | None) -> RefusedError:
    lost = f"this engine is no longer in charge of mirror {mirror!r}:"
    if found is None:
        hint = "`kmirror list` shows whether the mirror still exists"
        return RefusedError(f"{lost} its lease is gone", hint, Reason.FENCED)
    when = f"took over at {at_time(found.since_ms)}"
    if found.held_by_command:
        hint = "`kmirror list` shows whether an engine copies it"
        return FencedByCommandError(f"{lost} a command, {process_of(found)}, {when}", hint, Reason.FENCED)
    hint = "no action is needed if that was intended; `kmirror list` shows the engine in charge"
    return RefusedError(f"{lost} {process_of(found)} {when}", hint, Reason.FENCED)
