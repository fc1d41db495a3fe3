"""An engine's heartbeats: each stores what there is to be stored, and keeps the lease."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from kmirror.engine.clock import now
from kmirror.engine.control.history import History
from kmirror.engine.control.journal import Journal
from kmirror.engine.control.lanes import Lanes
from kmirror.engine.control.partitions import MirrorPartitions
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.state.events import Event
from kmirror.state.history_records import HistoryRecord
from kmirror.state.lease import Lease
from kmirror.state.records import Incarnation, Key, LaneChangeRecord, PartitionRecord, Record

HEARTBEAT_SECONDS = 1.0
_TIMEOUT, _LEAST_TIMEOUT = 3.0, 0.5
#: Records of partitions that one heartbeat stores, so that it is done in time; the next one comes sooner then.
_MOST_RECORDS = 1000
_SOON_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Beat:
    """What one heartbeat stores."""

    lanes: dict[int, Incarnation]
    changes: tuple[LaneChangeRecord, ...]
    records: tuple[PartitionRecord, ...]
    events: tuple[Event, ...]
    history: tuple[HistoryRecord, ...]
    expired: tuple[Key, ...]


class Heartbeats:
    """Write one mirror's heartbeats."""

    def __init__(
        self, lease: Lease, lanes: Lanes, partitions: MirrorPartitions, journal: Journal, history: History
    ) -> None:
        self._lease = lease
        self._lanes = lanes
        self._partitions = partitions
        self._journal = journal
        self._history = history
        #: True once a newer kmirror has written records that this one cannot read: none is overwritten any more.
        self.keeps_lease_only = False
        #: When the last one was accepted; 0.0 before the first.
        self.last_at = 0.0
        #: What a heartbeat stores whose outcome is not known.
        self._unconfirmed: _Beat | None = None

    def is_due(self, at: float) -> bool:
        """Tell whether it is time for the next one."""
        pause = HEARTBEAT_SECONDS if len(self._partitions.changed) < _MOST_RECORDS else _SOON_SECONDS
        return self._lanes.beat_now or at - self.last_at >= pause

    def beat(
        self,
        silent_lanes: Mapping[int, int],
        source_trouble: KmirrorError | None,
        throttle: Mapping[int, int] | None,
        first_topics: tuple[str, ...],
        *,
        stopping: bool,
    ) -> KmirrorError | None:
        """Write one; return why the engine must stop the mirror, None in the normal case.

        `silent_lanes` have not reported since those times, in epoch milliseconds; `throttle` is what lanes may fetch,
        in bytes a second, and `first_topics` are fetched before all others.
        """
        began = now()
        try:
            self._settle()
            self._lanes.before_beat()
            beat = self._unconfirmed = _Beat(
                self._lanes.claims(),
                tuple(self._lanes.unsaid),
                self._records(_MOST_RECORDS),
                tuple(self._journal.events),
                tuple(self._history.unsaid.values()),
                self._history.expired,
            )
            self._lease.heartbeat(
                beat.lanes,
                (*beat.changes, *beat.records, *beat.history),
                beat.events,
                tombstones=beat.expired,
                stopping=stopping,
                revisions=self._lanes.revisions(),
                silent_lanes=silent_lanes,
                source_trouble=source_trouble,
                throttle=throttle,
                first_topics=first_topics,
                places={lane: str(place) for lane, place in self._lanes.places.items()},
                # engines of one process wait for each other: all in all it must not take a lease's time
                timeout=max(_LEAST_TIMEOUT, _TIMEOUT - (now() - began)),
            )
        except OutcomeUnknown:
            return None
        except KmirrorError as error:
            return error if error.reason is Reason.FENCED else None
        self._unconfirmed = None
        self.last_at, self._lanes.beat_now = now(), False
        self._stored(beat)
        return None

    def release(self) -> None:
        """Give the lease back, with what is still to be stored."""
        with contextlib.suppress(KmirrorError, OutcomeUnknown):
            self._settle()
            records: tuple[Record, ...] = (*self._records(None), *self._history.unsaid.values())
            self._lease.release(records, tuple(self._journal.events))

    def _records(self, most: int | None) -> tuple[PartitionRecord, ...]:
        return () if self.keeps_lease_only else tuple(islice(self._partitions.changed.values(), most))

    def _settle(self) -> None:
        """Find out what became of a heartbeat without an answer: a command may have acted on what it stored."""
        if self._unconfirmed is not None:
            if self._lease.settle(_TIMEOUT):
                self._stored(self._unconfirmed)
            self._unconfirmed = None

    def _stored(self, beat: _Beat) -> None:
        self._lanes.said(beat.lanes, beat.changes)
        self._partitions.stored(beat.records)
        del self._journal.events[: len(beat.events)]
        self._history.stored(beat.history, beat.expired)
