"""What a leader remembers of a partition's producer, and which of our requests may still arrive there.

A leader forgets a producer id once its last record is older than `producer.id.expiration.ms`. One that is forgotten may
begin with any sequence number: then nothing holds up a batch that arrives late or twice. So what may be sent depends on
how old records are, and on requests that were never answered:

* After each (re)start one batch is in flight until the first success; with an unknown producer id *any* first sequence
  is accepted, so a second batch behind a refused first one would land in its place.
* A batch goes out behind another one only while the records before it are young enough to keep the broker's memory;
  else one step at a time.
* While a predecessor may still write, nothing is sent at all: how old the records are that it sends next, and whether
  they wipe out the memory, is unknown. Of requests of our own that were never answered we do know: until they cannot
  be on their way any more, batches go out only if the memory outlives whatever becomes of them. After a pause the log
  end is read afresh.
"""

from __future__ import annotations

from collections.abc import Collection

from kmirror.engine.lane.intake import Batch, filled_offsets_of

#: Clocks of brokers and workers may differ by this much before the memory's age is misjudged.
CLOCK_SLACK_MS = 30_000


class BrokerMemory:
    """Judge one partition's memory. `*_ms` are wall-clock times, others seconds of one monotonic clock.

    A request that is not answered within `settle` seconds cannot arrive any more.
    """

    def __init__(self, settle: float, quiet_until: float) -> None:
        self._settle = settle
        #: Until then a predecessor may still write.
        self.quiet_until = quiet_until
        #: When the log was looked at last; True once something was appended since.
        self.looked_at = 0.0
        self.is_proven = False
        #: Until then a request of ours that was never answered may still arrive.
        self.settle_until = 0.0
        #: None while it is not known.
        self.expiration_ms: int | None = None
        #: Timestamp of the records that keep the memory; None while there is none.
        self._kept_by_ms: int | None = None
        #: No record sent since nothing was in flight is older than this.
        self._oldest_in_flight_ms = 0
        #: The oldest record in any request that was never answered; whether one of them was for markers.
        self._lost_ms: int | None = None
        self._lost_markers = False
        #: What offsets and sequence numbers of such batches differ by.
        self._lost_numbering: set[int] = set()

    @property
    def may_still_arrive(self) -> bool:
        """True while a request of ours may have changed the log since it was looked at, or may yet."""
        return self.looked_at < self.settle_until

    def nothing_can_arrive(self, now: float) -> bool:
        """Tell whether nothing that was not answered can be on its way, of ours or of a predecessor's."""
        return now >= max(self.settle_until, self.quiet_until)

    def inspected(self, last_timestamp_ms: int | None) -> None:
        """Take what an inspection, begun at `looked_at`, saw: the last timestamp that is remembered, None for none."""
        self._kept_by_ms = last_timestamp_ms
        self.is_proven = False
        if not self.may_still_arrive:
            self._lost_ms, self._lost_markers = None, False
            self._lost_numbering.clear()

    def sent(self, timestamp_ms: int, *, is_first: bool) -> None:
        """Note that a batch is on its way; `is_first`: nothing else is."""
        if is_first or timestamp_ms < self._oldest_in_flight_ms:
            self._oldest_in_flight_ms = timestamp_ms

    def kept_by(self, timestamp_ms: int) -> None:
        """Note that records with this timestamp were appended."""
        self._kept_by_ms = timestamp_ms
        self.is_proven = True

    def unanswered(self, batches: Collection[Batch], now: float) -> None:
        """Note that these may still be appended."""
        self.settle_until = max(self.settle_until, now + self._settle)
        self._lost_numbering.update(filled_offsets_of(batch) for batch in batches)
        oldest = min(batch.max_timestamp for batch in batches)
        self._lost_ms = oldest if self._lost_ms is None else min(oldest, self._lost_ms)

    def markers_unanswered(self, now: float) -> None:
        """Note that markers may still be written."""
        self._lost_markers = True
        self.settle_until = max(self.settle_until, now + self._settle)

    def outlives(self, timestamp_ms: int, now_ms: int) -> bool:
        """Tell whether records with this timestamp keep the memory."""
        expiration = self.expiration_ms
        return expiration is not None and timestamp_ms + expiration - CLOCK_SLACK_MS > now_ms

    def is_sure(self, now_ms: int, in_flight: bool) -> bool:
        """Tell whether our producer id is surely remembered, whatever comes of the batches in flight."""
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
        """Tell whether it is safe to append, numbered like this, while requests of ours may still be on their way.

        Not where one of them is for markers, which no sequence number holds up. And not where the memory was lost and
        numbers begin again: a batch that was numbered before could then follow ours by its number, at a wrong offset.
        """
        is_numbered_alike = self._lost_numbering <= {filled_offsets}
        return not self._lost_markers and is_numbered_alike and self.is_sure(now_ms, False)
