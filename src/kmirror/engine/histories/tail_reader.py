"""Compare the ends of logs (`tails`) on two clusters, for many partitions side by side. Blocking; decides nothing.

Usually it takes one request per side and leader for dozens of partitions, each with the one batch that holds the last
offset.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.engine.histories.section_reader import Obstacle, Reading, ReadLimits, SectionReader
from kmirror.engine.histories.stretches import Ends
from kmirror.engine.histories.tails import Finding, compare_tails
from kmirror.state.assignment import Assignment

__all__ = ["Obstacle", "TailReader"]

#: First the destination's last batch, after which nothing comes; then stretches further back.
_READ_LIMITS = ReadLimits(
    at_once=32,
    first_bytes=1 << 20,
    stretch_bytes=256 << 10,
    most_bytes=256 << 10,
    reads_until_more=1,
    is_source_alike=True,
    is_destination_committed=False,
)


class TailReader:
    """Compare the ends of logs on two clusters."""

    def __init__(self, source: ClusterClient, destination: ClusterClient) -> None:
        self._reader = SectionReader(source, destination, _READ_LIMITS)

    def compare(
        self, wanted: Mapping[Assignment, Ends], source: ClusterMetadata, destination: ClusterMetadata
    ) -> dict[Assignment, Finding | Obstacle]:
        """Return how the ends of each partition's logs compare, or what is in the way.

        The metadata says who leads; a leader that has changed since then is an obstacle like any other.
        """
        readings = {
            assignment: Reading(
                assignment.source, assignment.destination, ends, compare_tails(ends, assignment.producer_id)
            )
            for assignment, ends in wanted.items()
        }
        self._reader.serve(list(readings.values()), source, destination)
        return {assignment: reading.result for assignment, reading in readings.items() if reading.result is not None}
