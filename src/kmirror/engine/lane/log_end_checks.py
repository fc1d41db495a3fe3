"""Check periodically whether logs without new records still end where this lane left them.

An append that follows a foreign record reveals it, but a partition whose source is idle appends nothing. An inspection
finds out who wrote, or what else happened to the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.errors import Reason

CHECK_SECONDS = 10.0


class LogEndChecks:
    """Check the log ends of one lane's partitions."""

    def __init__(self, background_requests: BackgroundRequests) -> None:
        self._background_requests = background_requests
        self._is_under_way = False
        self._next_at: float | None = None

    def on_tick(self, partitions: Iterable[PartitionCopy], at: float) -> None:
        """Begin the next check when it is due."""
        if self._next_at is None:
            self._next_at = at + CHECK_SECONDS
        if self._is_under_way or at < self._next_at:
            return
        self._next_at = at + CHECK_SECONDS
        idle = {p.assignment.destination: (p, p.progress.acknowledged) for p in partitions if p.is_idle}
        if not idle:
            return
        self._is_under_way = True

        def seen(ends: Mapping[TopicPartition, int | None], now: float) -> None:
            self._is_under_way = False
            for topic_partition, (partition, expected) in idle.items():
                if (
                    topic_partition in ends
                    and ends[topic_partition] != expected
                    and partition.progress.acknowledged == expected
                ):
                    _report_moved(partition, expected, ends[topic_partition], now)

        self._background_requests.read_log_ends(list(idle), seen)


def _report_moved(partition: PartitionCopy, expected: int | None, end: int | None, now: float) -> None:
    destination = partition.assignment.destination
    if end is None:
        message = f"{destination} does not exist ({code_name(Code.UNKNOWN_TOPIC_OR_PARTITION)})"
        trouble = Trouble(Reason.DESTINATION_UNREACHABLE, message)
    else:
        message = f"{destination} ends at offset {end}, but was left at {expected}: inspecting it"
        trouble = Trouble(Reason.DESTINATION_WRITTEN, message)
    partition.end_moved(trouble, now)
