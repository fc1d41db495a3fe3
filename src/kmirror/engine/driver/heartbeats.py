"""An engine's heartbeats: each stores what has changed, and renews the lease."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
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
    """What one heartbeat stores."""

    lanes: dict[int, Incarnation]
    changes: tuple[LaneChangeRecord, ...]
    records: tuple[PartitionRecord, ...]
    events: tuple[Event, ...]
    history: tuple[HistoryRecord, ...]
    expired: tuple[Key, ...]


class Heartbeats:
    """Send one mirror's heartbeats."""

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
        #: What the last heartbeat stores if its outcome is unknown.
        self._unconfirmed: _Content | None = None

    def is_due(self, at: float) -> bool:
        """Return whether it is time for the next one."""
        pause = HEARTBEAT_SECONDS if len(self._partitions.changed) < _MOST_RECORDS else _SOON_SECONDS
        return self._lanes.heartbeat_now or at - self.last_at >= pause

    def send(
        self,
        silent_lanes: Mapping[int, int],
        source: SourceStatus,
        throttle: Mapping[int, int] | None,
        connections: int,
        buffer_bytes: int,
        first_topics: tuple[str, ...],
        *,
        stopping: bool,
    ) -> KmirrorError | None:
        """Send one; return why the engine must stop the mirror, None in the normal case.

        `silent_lanes` have not reported since those times, in epoch milliseconds; `throttle` is what each lane may
        fetch, in bytes a second, `connections` how many each may open to a broker, `buffer_bytes` what each may hold;
        `first_topics` are fetched before all others.
        """
        began = now()
        try:
            self._settle()
            self._lanes.before_heartbeat()
            content = self._unconfirmed = _Content(
                self._lanes.claims(),
                tuple(self._lanes.unsent),
                self._records(_MOST_RECORDS),
                self._journal.unstored(_MOST_EVENTS),
                tuple(self._history.unsent.values()),
                self._history.expired,
            )
            self._lease.heartbeat(
                content.lanes,
                (*content.changes, *content.records, *content.history),
                content.events,
                tombstones=content.expired,
                stopping=stopping,
                revisions=self._lanes.revisions(),
                silent_lanes=silent_lanes,
                source_trouble=source.trouble,
                lacking=source.lacking,
                throttle=throttle,
                connections=connections,
                buffer_bytes=buffer_bytes,
                first_topics=first_topics,
                places={lane: str(place) for lane, place in self._lanes.places.items()},
                # engines of one process wait for each other: the whole must take less time than a lease lasts
                timeout=max(_LEAST_TIMEOUT, _TIMEOUT - (now() - began)),
            )
        except OutcomeUnknown:
            return None
        except KmirrorError as error:
            return error if error.reason is Reason.FENCED else None
        self._unconfirmed = None
        self.last_at, self._lanes.heartbeat_now = now(), False
        self._note_stored(content)
        return None

    def release(self) -> None:
        """Release the lease, and store what has changed."""
        with contextlib.suppress(KmirrorError, OutcomeUnknown):
            self._settle()
            records: tuple[Record, ...] = (*self._records(None), *self._history.unsent.values())
            self._lease.release(records, self._journal.unstored())

    def _records(self, most: int | None) -> tuple[PartitionRecord, ...]:
        return () if self.keeps_lease_only else tuple(islice(self._partitions.changed.values(), most))

    def _settle(self) -> None:
        """Find out whether a heartbeat without an answer was stored: a command may have acted on it."""
        if self._unconfirmed is not None:
            if self._lease.settle(_TIMEOUT):
                self._note_stored(self._unconfirmed)
            self._unconfirmed = None

    def _note_stored(self, content: _Content) -> None:
        self._lanes.sent(content.lanes, content.changes)
        self._partitions.stored(content.records)
        self._journal.stored(len(content.events))
        self._history.stored(content.history, content.expired)
