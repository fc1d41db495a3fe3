"""Look now and then whether logs to which nothing is to be appended still end where this lane left them.

An append that meets a foreign record tells of it, but a partition whose source stands still appends nothing. Who wrote,
or what else became of the log, an inspection finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.lane.background_requests import BackgroundRequests
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.errors import Reason

ROUND_SECONDS = 10.0


class Rounds:
    """Look at the ends of one lane's partitions."""

    def __init__(self, errands: BackgroundRequests, post: Callable[[Callable[[float], None]], None]) -> None:
        self._background_requests = errands
        self._post = post
        self._is_under_way = False
        self._next_at: float | None = None

    def look_around(self, partitions: Iterable[PartitionCopy], at: float) -> None:
        """Begin the next round when it is due."""
        if self._next_at is None:
            self._next_at = at + ROUND_SECONDS
        if self._is_under_way or at < self._next_at:
            return
        self._next_at = at + ROUND_SECONDS
        idle = {p.assignment.destination: (p, p.progress.acknowledged) for p in partitions if p.is_idle}
        if not idle:
            return
        self._is_under_way = True

        def seen(ends: Mapping[TopicPartition, int | None], now: float) -> None:
            self._is_under_way = False
            for place, (partition, expected) in idle.items():
                if place in ends and ends[place] != expected and partition.progress.acknowledged == expected:
                    _tell(partition, expected, ends[place], now)

        self._background_requests.look_at_ends(list(idle), lambda ends: self._post(lambda now: seen(ends, now)))


def _tell(partition: PartitionCopy, expected: int | None, end: int | None, now: float) -> None:
    destination = partition.assignment.destination
    if end is None:
        what = Trouble(
            Reason.DESTINATION_UNREACHABLE, f"{destination} is not there ({Code.UNKNOWN_TOPIC_OR_PARTITION})"
        )
    else:
        what = Trouble(
            Reason.DESTINATION_WRITTEN,
            f"{destination} ends at offset {end}, and was left at {expected}: looking closer",
        )
    partition.end_moved(what, now)
