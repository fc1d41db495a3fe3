"""What a leader remembers of a partition's producer, and which of our requests may still arrive there.

A leader forgets a producer id once its last record is older than `producer.id.expiration.ms`. A forgotten producer may
begin with any sequence number, so nothing rejects a batch that arrives late or twice. So what may be sent depends on
the age of records, and on requests that were never answered:

* After each (re)start one batch is in flight until the first success; with an unknown producer id *any* first sequence
  is accepted, so a second batch behind a refused first one would take its place.
* A batch is sent behind another one only while the records before it are young enough to keep the broker's memory;
  else one at a time.
* While a predecessor may still write, nothing is sent at all: how old the records are that it sends next, and whether
  they make the broker forget, is unknown. For our own unanswered requests this is known: until they cannot arrive any
  more, batches are sent only if the memory survives whatever becomes of them. After a pause the log end is read again.
"""

from __future__ import annotations

from collections.abc import Collection

from kmirror.engine.lane.partition.intake import GuardedBatch, filled_offsets_of

#: Broker and worker clocks may differ by this much before the age of the memory is misjudged.
CLOCK_SLACK_MS = 30_000


class BrokerMemory:
    """Track the producer state of one partition. `*_ms` are wall-clock times, others seconds of one monotonic clock.

    A request that is not answered within `settle` seconds cannot arrive any more.
    """

    def __init__(self, settle: float, quiet_until: float) -> None:
        self._settle = settle
        #: Until then a predecessor may still write.
        self.quiet_until = quiet_until
        #: When the last inspection began; True once something was appended since.
        self.inspected_at = 0.0
        self.is_proven = False
        #: Until then a request of ours that was never answered may still arrive.
        self.settle_until = 0.0
        #: None while unknown.
        self.expiration_ms: int | None = None
        #: Timestamp of the records that keep the memory; None without memory.
        self._kept_by_ms: int | None = None
        #: The oldest record sent since nothing was in flight.
        self._oldest_in_flight_ms = 0
        #: The oldest record in any unanswered request; whether one of those was for markers.
        self._lost_ms: int | None = None
        self._lost_markers = False
        #: The differences between offset and sequence number of batches in unanswered requests.
        self._lost_numbering: set[int] = set()

    @property
    def may_still_arrive(self) -> bool:
        """True while a request of ours may have changed the log since the inspection, or may yet."""
        return self.inspected_at < self.settle_until

    def nothing_can_arrive(self, now: float) -> bool:
        """Return True if no unanswered request of ours or of a predecessor can still arrive."""
        return now >= max(self.settle_until, self.quiet_until)

    def inspected(self, last_timestamp_ms: int | None) -> None:
        """Take the last timestamp of our producer in an inspection that began at `inspected_at`; None without one."""
        self._kept_by_ms = last_timestamp_ms
        self.is_proven = False
        if not self.may_still_arrive:
            self._lost_ms, self._lost_markers = None, False
            self._lost_numbering.clear()

    def sent(self, timestamp_ms: int, *, is_first: bool) -> None:
        """Note that a batch is in flight; `is_first`: it is the only one."""
        if is_first or timestamp_ms < self._oldest_in_flight_ms:
            self._oldest_in_flight_ms = timestamp_ms

    def kept_by(self, timestamp_ms: int) -> None:
        """Note that records with this timestamp were appended."""
        self._kept_by_ms = timestamp_ms
        self.is_proven = True

    def unanswered(self, batches: Collection[GuardedBatch], now: float) -> None:
        """Note that these batches may still be appended."""
        self.settle_until = max(self.settle_until, now + self._settle)
        self._lost_numbering.update(filled_offsets_of(batch) for batch in batches)
        oldest = min(batch.max_timestamp for batch in batches)
        self._lost_ms = oldest if self._lost_ms is None else min(oldest, self._lost_ms)

    def markers_unanswered(self, now: float) -> None:
        """Note that markers may still be written."""
        self._lost_markers = True
        self.settle_until = max(self.settle_until, now + self._settle)

    def outlives(self, timestamp_ms: int, now_ms: int) -> bool:
        """Return True if records with this timestamp keep the memory."""
        expiration = self.expiration_ms
        return expiration is not None and timestamp_ms + expiration - CLOCK_SLACK_MS > now_ms

    def is_sure(self, now_ms: int, in_flight: bool) -> bool:
        """Return True if our producer id is certainly remembered, whatever becomes of the batches in flight."""
        oldest = self._kept_by_ms
        if oldest is None:
            return False
        if in_flight and self._oldest_in_flight_ms < oldest:
            oldest = self._oldest_in_flight_ms
        if self._lost_ms is not None and self._lost_ms < oldest:
            oldest = self._lost_ms
        expiration = self.expiration_ms
        return expiration is not None and oldest + expiration - CLOCK_SLACK_MS > now_ms

    def allows(self, filled_offsets: int, now_ms: int) -> bool:
        """Return True if it is safe to append with this numbering while our unanswered requests may still arrive.

        Not if one of them is for markers, which no sequence number rejects. And not if the memory was lost and
        numbers begin again: a batch with an old number could then be accepted behind ours, at a wrong offset.
        """
        is_numbered_alike = self._lost_numbering <= {filled_offsets}
        return not self._lost_markers and is_numbered_alike and self.is_sure(now_ms, False)
