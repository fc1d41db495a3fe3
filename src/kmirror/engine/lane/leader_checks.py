"""Check periodically whether other source brokers know of newer leaders than those that this lane fetches from.

A leader that is cut off from the others answers fetches as if it had no new records: that is no trouble, and looks like
a source that is idle.
"""

from __future__ import annotations

from collections.abc import Collection

from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.histories.source_leaders import successor
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.errors import Reason

#: Another broker is asked each time: the second one at the latest is not the leader that is cut off.
CHECK_SECONDS = 15.0


class LeaderChecks:
    """Check the source leaders of one lane's partitions."""

    def __init__(self, background_requests: BackgroundRequests) -> None:
        self._background_requests = background_requests
        self._is_under_way = False
        self._next_at: float | None = None
        #: What was last compared with the leaders that partitions are fetched from.
        self._compared: ClusterMetadata | None = None

    def on_tick(self, partitions: Collection[PartitionCopy], at: float) -> None:
        """Begin the next check when it is due."""
        if self._next_at is None:
            self._next_at = at + CHECK_SECONDS
        if self._is_under_way or at < self._next_at or not partitions:
            return
        self._next_at = at + CHECK_SECONDS
        self._is_under_way = True

        def seen(known: ClusterMetadata | None, now: float) -> None:
            self._is_under_way = False
            if known is not None and known is not self._compared:
                self._compared = known
                for partition in partitions:
                    _leave_older_leader(partition, known, now)

        self._background_requests.ask_for_leaders({p.assignment.source_topic for p in partitions}, seen)


def _leave_older_leader(partition: PartitionCopy, known: ClusterMetadata, now: float) -> None:
    facts = partition.facts
    if facts is not None and (newer := successor(known, partition.assignment.source, facts.source_leader[1])):
        partition.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, newer), now)
