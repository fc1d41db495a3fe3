"""An engine's heartbeats: each stores what has changed, and renews the lease.

What a heartbeat stores is put together, and taken as stored, by the driver's thread; a pool sends it (`job_pool`), so
that a coordinator that does not answer holds up the heartbeats of its own mirrors alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

from kmirror.engine.clock import now
from kmirror.engine.driver.link_status import SourceStatus
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.status.history import History
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.state.event_records import Event
from kmirror.state.history_records import HistoryRecord
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.lease import Lease
from kmirror.state.record_kinds import Record
from kmirror.state.records import Incarnation, Key, PartitionRecord

HEARTBEAT_SECONDS = 1.0
_TIMEOUT, _LEAST_TIMEOUT = 3.0, 0.5
#: How many partition records and events one heartbeat stores, to be done in time; if there are more records, the next
#: one comes sooner.
_MOST_RECORDS = 1000
_MOST_EVENTS = 200
_SOON_SECONDS = 0.2


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
        #: True once a newer kmirror has written records that this one cannot read: then none is overwritten.
        self.keeps_lease_only = False
        #: When the last heartbeat was accepted; 0.0 before the first.
        self.last_at = 0.0
        #: How many were sent, whatever became of them.
        self.attempts = 0
        #: What the last heartbeat stores if its outcome is unknown.
        self._unconfirmed: _Content | None = None
        #: What waits for the pool or is being sent: its content, and the call that sends it within some seconds.
        self._next: tuple[_Content, Callable[[float], None]] | None = None
        self._answer: _Answer | None = None
        #: Held while one is sent.
        self._sending = threading.Lock()

    def is_wanted(self, at: float) -> bool:
        """Return whether it is time to put the next one together."""
        pause = HEARTBEAT_SECONDS if len(self._partitions.changed) < _MOST_RECORDS else _SOON_SECONDS
        return self._next is None and (self._lanes.heartbeat_now or at - self.last_at >= pause)

    def put_together(
        self,
        silent_lanes: Mapping[int, int],
        source: SourceStatus,
        throttle: Mapping[int, int] | None,
        connections: int,
        buffer_bytes: int,
        first_topics: tuple[str, ...],
        *,
        stopping: bool,
    ) -> None:
        """Put the next one together, to be sent soon.

        `silent_lanes` have not reported since those times, in epoch milliseconds; `throttle` is what each lane may
        fetch, in bytes a second, `connections` how many each may open to a broker, `buffer_bytes` what each may hold;
        `first_topics` are fetched before all others.
        """
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
        send = partial(
            self._lease.heartbeat,
            content.lanes,
            (*content.changes, *content.records, *content.history),
            content.events,
            tombstones=content.expired,
            stopping=stopping,
            revisions=self._lanes.revisions(),
            silent_lanes=dict(silent_lanes),
            source_trouble=source.trouble,
            lacking=source.lacking,
            throttle=throttle,
            connections=connections,
            buffer_bytes=buffer_bytes,
            first_topics=first_topics,
            places={lane: str(place) for lane, place in self._lanes.places.items()},
        )
        self._next = content, lambda seconds: send(timeout=seconds)

    @property
    def next_attempt(self) -> int:
        """The number of the next one that is put together, as `attempts` counts it once it was sent."""
        return self.attempts + (1 if self._next is None else 2)

    @property
    def is_answered(self) -> bool:
        """True when it is known what became of the last one."""
        return self._answer is not None

    def is_due(self, at: float) -> bool:
        """Return whether one waits to be sent."""
        return self._next is not None and self._answer is None

    def run(self) -> None:
        """Send what was put together; in a thread of the pool."""
        with self._sending:
            if self._next is not None:
                self._answer = self._send(*self._next)

    def close(self) -> None:
        """Keep the lease's connections: the engine ends the lease itself."""

    def _send(self, content: _Content, send: Callable[[float], None]) -> _Answer:
        began = now()
        try:
            if (stored := self._settled()) is not None:
                # a command may have acted on it since, and this one says the same again
                return _Answer(stored, was_tried=False)
            self._unconfirmed = content
            # the whole must take less time than a lease lasts
            send(max(_LEAST_TIMEOUT, _TIMEOUT - (now() - began)))
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
        self._next = self._answer = None
        self.attempts += answer.was_tried
        if answer.stored is not None:
            self._note_stored(answer.stored)
        if answer.is_accepted:
            self.last_at = now()
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
