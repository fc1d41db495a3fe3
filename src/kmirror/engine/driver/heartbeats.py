"""An engine's heartbeats: each stores what has changed, and renews the lease.

What a heartbeat stores is put together, and taken as stored, by the driver's thread; a pool sends it (`job_pool`), so
that a coordinator that does not answer holds up the heartbeats of its own mirrors alone. One with nothing new to store
is sent together with those of other mirrors (`renewals`): so heartbeats are put together at common times.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from itertools import count, islice
from math import inf

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.clock import now
from kmirror.engine.driver.renewals import LeaseRenewals
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.status.history import History
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.state.event_records import Event
from kmirror.state.history_records import HistoryRecord
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.lease import Lease, Renewal
from kmirror.state.record_kinds import Record
from kmirror.state.records import EngineRecord, Incarnation, Key, PartitionRecord
from kmirror.state.snapshot import Changes

HEARTBEAT_SECONDS = 1.0
_TIMEOUT, _LEAST_TIMEOUT = 3.0, 0.5
#: How many partition records and events one heartbeat stores, to be done in time; if there are more records, the next
#: one comes sooner.
_MOST_RECORDS = 1000
_MOST_EVENTS = 200
_SOON_SECONDS = 0.2
#: The mirrors of a process send heartbeats at so many times of a second: fewer would be bursts for the brokers.
_TIMES = 5
_numbers = count()
#: The pool sends what nothing became of as a renewal: long before the lease ends.
_LATE_SECONDS = 2.5
#: A heartbeat that is stored within this time is prompt.
_PROMPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Content:
    """What one heartbeat stores; `fences`: how many runs of lanes were fenced when it was put together."""

    lanes: dict[int, Incarnation]
    changes: tuple[LaneChangeRecord, ...]
    records: tuple[PartitionRecord, ...]
    events: tuple[Event, ...]
    history: tuple[HistoryRecord, ...]
    expired: tuple[Key, ...]
    fences: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What became of a heartbeat: what is known to be stored; why the mirror must be stopped."""

    stored: _Content | None = None
    is_accepted: bool = False
    error: KmirrorError | None = None
    #: False if it must be put together again.
    was_tried: bool = True
    is_renewal: bool = False


class Heartbeats:
    """Send one mirror's heartbeats. The pool calls `run` in its threads, the driver's thread everything else."""

    name = "heartbeat"

    def __init__(
        self, lease: Lease, lanes: Lanes, partitions: MirrorPartitions, journal: MirrorJournal, history: History
    ) -> None:
        self._lease = lease
        self._lanes = lanes
        self._partitions = partitions
        self._journal = journal
        self._history = history
        #: Sends those that only renew the lease; None: they are sent as all others are.
        self.renewals: LeaseRenewals | None = None
        #: When it has those of a second, and until when the pool has nothing to send.
        self._phase, self.asleep_until = next(_numbers) % _TIMES * HEARTBEAT_SECONDS / _TIMES, inf
        #: What only renews the lease, while it is being sent; and when that began.
        self._renewal: Renewal | None = None
        self._began: float | None = None
        #: True once a newer kmirror has written records that this one cannot read: then none is overwritten.
        self.keeps_lease_only = False
        #: When the last heartbeat was accepted, and when the next one is wanted; 0.0 before the first.
        self.last_at = self._due_at = 0.0
        #: Since when one waits to be accepted, and for how long those before it waited in all, beyond what is prompt.
        self._waits_since: float | None = None
        self._waited_seconds = 0.0
        #: How many were sent, whatever became of them.
        self.attempts = 0
        #: What the last heartbeat stores if its outcome is unknown.
        self._unconfirmed: _Content | None = None
        #: What waits to be sent or is being sent: its content, the engine's record, and what is written beside that.
        self._next: tuple[_Content, EngineRecord, Changes] | None = None
        self._answer: _Answer | None = None
        #: Held while one is sent.
        self._sending = threading.Lock()

    def is_wanted(self, at: float) -> bool:
        """Return whether it is time to put the next one together."""
        if self._next is not None:
            return False
        if self._lanes.heartbeat_now or len(self._partitions.changed) >= _MOST_RECORDS:
            return self._lanes.heartbeat_now or at - self.last_at >= _SOON_SECONDS
        return at >= self._due_at

    def put_together(self, found: EngineRecord) -> None:
        """Put the next one together, to be sent soon: what the engine has `found`, and what lanes may do now."""
        self._waits_since = now() if self._waits_since is None else self._waits_since
        self._lanes.before_heartbeat()
        self._lanes.heartbeat_now = False
        content = _Content(
            self._lanes.claims(),
            tuple(self._lanes.unsent),
            self._records(_MOST_RECORDS),
            self._journal.unstored(_MOST_EVENTS),
            tuple(self._history.unsent.values()),
            self._history.expired,
            self._lanes.fences,
        )
        record = replace(
            found,
            lanes=content.lanes,
            revisions=self._lanes.revisions() or None,
            places={lane: str(place) for lane, place in self._lanes.places.items()} or None,
        )
        beside = Changes((*content.changes, *content.records, *content.history), content.expired, content.events)
        self._next = content, record, beside
        self.asleep_until = 0.0
        if self.renewals is not None and not beside and record == self._lease.record:
            self.asleep_until = now() + _LATE_SECONDS
            self.renewals.add(self)

    def waited_seconds(self, at: float) -> float:
        """Return for how long the destination has kept heartbeats waiting since the first, beyond what is prompt."""
        since = at if self._waits_since is None else self._waits_since
        return self._waited_seconds + max(0.0, at - since - _PROMPT_SECONDS)

    @property
    def next_attempt(self) -> int:
        """The number of the next one that is put together, as `attempts` counts it once it was sent."""
        return self.attempts + (1 if self._next is None else 2)

    @property
    def is_answered(self) -> bool:
        """True when it is known what became of the last one."""
        return self._answer is not None

    @property
    def is_renewed(self) -> bool:
        """True when the last one has renewed the lease, and stored nothing else: nothing follows from that."""
        return self._answer is not None and self._answer.is_renewal

    def is_due(self, at: float) -> bool:
        """Return whether one waits to be sent."""
        return self._next is not None and self._answer is None

    def run(self) -> None:
        """Send what was put together; in a thread of the pool."""
        with self._sending:
            self.asleep_until = inf
            if self._next is not None and self._answer is None:  # a renewal may have been waited for
                self._answer = self._send(*self._next)

    @property
    def login(self) -> ClientConfig:
        """How to connect to the destination now."""
        return self._lease.login

    def begin_renewal(self) -> memoryview | None:
        """Return the batch that renews the lease now; None: the pool sends what was put together, if it still may."""
        if not self._sending.acquire(blocking=False):
            self.asleep_until = 0.0
            return None
        try:
            if self._next is not None and self._unconfirmed is None:
                self._renewal = self._lease.renewal(self._next[1])
                # what waits for a thread of the pool because it must be a transaction has the time of one
                self._began = None if self._renewal is None else now()
        finally:
            if self._renewal is None:
                self._end_sending(is_done=False)
        return None if self._renewal is None else self._renewal.batch

    def end_renewal(self, trouble: KmirrorError | OutcomeUnknown | None) -> None:
        """Take what went wrong with the renewal, None if it is stored; otherwise the pool sends it in a transaction."""
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            self._lease.renewed(renewal, trouble)
        if trouble is None and self._next is not None:
            self._answer = _Answer(self._next[0], is_accepted=True, is_renewal=True)
        self._end_sending(is_done=trouble is None)

    def _end_sending(self, *, is_done: bool) -> None:
        if not is_done:
            self.asleep_until = 0.0
        self._sending.release()

    def close(self) -> None:
        """Keep the lease's connections: the engine ends the lease itself."""

    def _send(self, content: _Content, record: EngineRecord, beside: Changes) -> _Answer:
        # the whole must take less time than a lease lasts
        began = now() if self._began is None else self._began
        try:
            if (stored := self._settled()) is not None:
                # a command may have acted on it since, and this one says the same again
                return _Answer(stored, was_tried=False)
            self._unconfirmed = content
            self._lease.store(record, beside, max(_LEAST_TIMEOUT, _TIMEOUT - (now() - began)))
        except OutcomeUnknown:
            return _Answer()
        except KmirrorError as error:
            return _Answer(error=error if error.reason is Reason.FENCED else None)
        self._unconfirmed = None
        return _Answer(content, is_accepted=True)

    def take_answer(self) -> KmirrorError | None:
        """Take what became of the last one, if that is known; return why the engine must stop the mirror, or None."""
        answer = self._answer
        if answer is None:
            return None
        self._next = self._answer = self._began = None
        self.attempts += answer.was_tried
        if answer.stored is not None:
            self._note_stored(answer.stored)
        if answer.is_accepted:
            self.last_at = now()
            since_phase = (self.last_at - self._phase) % HEARTBEAT_SECONDS
            self._due_at = self.last_at - since_phase + HEARTBEAT_SECONDS
            self._waited_seconds, self._waits_since = self.waited_seconds(self.last_at), None
        else:
            self._lanes.heartbeat_now = True
        return answer.error

    def end(self, *, releases: bool) -> None:
        """Send no more, and close the lease; if it `releases` it, store what has changed. It may wait for brokers.

        In any thread, once no other one uses the mirror's state.
        """
        with self._sending:
            self.take_answer()
            self._next = None
            if releases:
                with contextlib.suppress(KmirrorError, OutcomeUnknown):
                    if (content := self._settled()) is not None:
                        self._note_stored(content)
                    records: tuple[Record, ...] = (*self._records(None), *self._history.unsent.values())
                    self._lease.release(records, self._journal.unstored())
            self._lease.close()

    def _records(self, most: int | None) -> tuple[PartitionRecord, ...]:
        return () if self.keeps_lease_only else tuple(islice(self._partitions.changed.values(), most))

    def _settled(self) -> _Content | None:
        """Find out whether a heartbeat without an answer was stored; return it if it was."""
        content = self._unconfirmed
        is_stored = content is not None and self._lease.settle(_TIMEOUT)
        self._unconfirmed = None
        return content if is_stored else None

    def _note_stored(self, content: _Content) -> None:
        self._lanes.sent(content.lanes, content.changes, content.fences)
        self._partitions.stored(content.records)
        self._journal.stored(len(content.events))
        self._history.stored(content.history, content.expired)
