"""What a lane reports of the growth of its source: measured while the source is seen, and kept while it is not."""

from __future__ import annotations

from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.engine.lane.report import Reports
from kmirror.state.assignment import Assignment


def test_the_growth_of_the_source_is_measured_while_it_is_seen() -> None:
    copy = PartitionCopy(
        Assignment(
            topic="orders",
            partition=0,
            source_topic="orders",
            source_topic_id=None,
            destination_topic_id=None,
            producer_id=1 << 62,
        )
    )
    seen: list[float | None] = [None]
    reports = Reports(lambda _: seen[0])

    def rate(at: float | None, offset: int | None) -> float | None:
        seen[0], copy.source.last_stable_offset = at, offset
        (row,) = reports.rows([copy])
        return row.records_per_second

    assert rate(None, None) is None
    assert rate(100.0, 1000) is None
    assert rate(101.0, 1020) is None, "too short to measure"
    assert rate(110.0, 1200) == 20
    assert rate(120.0, 1600) == 30, "half of it is what was measured before"
    # a source that does not answer has not stopped growing
    assert rate(120.0, 1600) == 30
    assert rate(130.0, 1600) == 15
    # another history
    assert rate(140.0, 10) is None
