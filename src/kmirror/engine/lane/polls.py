"""Fetch new records promptly over a long path: overlapping fetches, so that there is always one at the broker.

A session has one request in flight: what is produced while its answer and the next request are on their way waits for a
whole round trip. While partitions get records, further fetches follow each other in short steps, over connections of
their own, and each stays at the broker for one step. They bring some records twice; what was taken in is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey
from kmirror.cluster.protocol.read_ahead import covered, goes_on
from kmirror.engine.lane.brokers.links import AheadLink, Poll
from kmirror.engine.lane.partition.intake import Frame
from kmirror.engine.lane.partition.partition_copy import PartitionCopy

#: One round trip has so many steps, but none is shorter than this, in seconds.
_STEPS = 8
_SHORTEST_STEP = 0.010
#: Over a shorter path, in seconds, the fetch of the session is prompt enough.
_LONG = 0.010
#: With more bytes per second than this, few records wait in vain: two steps are enough; and with more, none are needed.
_FEW_BYTES, _MANY_BYTES = 500_000, 4_000_000
#: A partition takes part for this long after its last record.
_ACTIVE_SECONDS = 1.0
_MOST_PARTITIONS = 50
_POLL_BYTES = 256 << 10
_RATE_SECONDS = 1.0


class Polls:
    """When to fetch which partitions of one broker. `moved` is told of partitions that took in something."""

    def __init__(
        self, round_trip: float, key_of: Callable[[PartitionCopy], FetchKey], moved: Callable[[PartitionCopy], None]
    ) -> None:
        self._round_trip = round_trip
        self._key_of = key_of
        self._moved = moved
        self._active: dict[PartitionCopy, float] = {}
        self._next_at = 0.0
        self._bytes = 0
        self._counted_since = 0.0
        self._bytes_per_second = 0.0

    def note(self, partition: PartitionCopy, size: int, at: float) -> None:
        """Note that a partition got new records."""
        if self._round_trip < _LONG:
            return
        self._active.pop(partition, None)
        self._active[partition] = at
        self._bytes += size
        if at - self._counted_since > _RATE_SECONDS:
            self._bytes_per_second = self._bytes / (at - self._counted_since)
            self._bytes, self._counted_since = 0, at

    @property
    def _step(self) -> float:
        steps = _STEPS if self._bytes_per_second < _FEW_BYTES else 2
        return max(_SHORTEST_STEP, self._round_trip / steps)

    @property
    def connections(self) -> int:
        """How many connections they take: each is busy for a round trip and a step."""
        return int(self._round_trip / self._step) + 2 if self._active else 0

    def seconds_left(self, at: float) -> float | None:
        """Return the time until the next fetch is due; None if there is nothing to fetch."""
        return max(0.0, self._next_at - at) if self._active else None

    def due(self, at: float) -> list[PartitionCopy]:
        """Return the partitions to fetch now."""
        if at < self._next_at or not self._active:
            return []
        self._next_at = at + self._step
        self._active = {one: seen for one, seen in self._active.items() if at - seen < _ACTIVE_SECONDS}
        if self._bytes_per_second > _MANY_BYTES:
            return []
        chosen = [one for one in self._active if one.source.role == "main" and one.wants_records]
        return [one for one in chosen[-_MOST_PARTITIONS:] if not one.source.is_deferred]

    def request(self, link: AheadLink, partitions: list[PartitionCopy], at: float) -> list[bytes]:
        """Encode a fetch of these partitions over a connection, and note that it is in flight."""
        wanted: dict[FetchKey, tuple[PartitionCopy, int, int | None]] = {}
        for partition in partitions:
            key, where = self._key_of(partition), partition.fetch_position(_POLL_BYTES)
            wanted[key] = partition, where.fetch_offset, where.last_fetched_epoch
            link.session.want(key, where)
        link.requests.append(Poll(wanted, at))
        link.used_at = at
        request = link.next_request(max_wait_ms=max(1, int(1000 * self._step)), max_bytes=_POLL_BYTES)
        for key in wanted:
            link.session.forget(key)
        return request

    def answered(self, poll: Poll, parts: list[FetchedPartition], frame: Frame, at: float) -> None:
        """Take in what is new; anything else is left to the session's own fetch."""
        for part in parts:
            if part.key not in poll.wanted or part.error_code or part.diverging_epoch or not len(part.records):
                continue
            partition, offset, epoch = poll.wanted[part.key]
            intake, source = partition.intake, partition.source
            is_outdated = poll.asked_at < source.attached_at or offset > intake.next_offset
            if source.role != "main" or not partition.wants_records or is_outdated:
                continue
            is_exact = (offset, epoch) == (intake.next_offset, intake.leader_epoch)
            if not is_exact and not goes_on(part.records, intake.next_offset, intake.leader_epoch):
                continue
            partition.ends_seen(part, poll.asked_at)
            found = covered(part.records)
            begun_at = intake.next_offset
            if found is None or found.next_offset <= begun_at:
                continue
            partition.fetched_ahead(part.records, part, frame)
            if intake.next_offset > begun_at or partition.blocked_by:
                source.got_records(at)
                self.note(
                    partition, int(found.size * (intake.next_offset - begun_at) / (found.next_offset - offset)), at
                )
                self._moved(partition)
