"""What an engine sums up of what its lanes count: over restarts, moves, late and repeated reports, nothing twice."""

from __future__ import annotations

from kmirror.engine.status.counters import Copied, Counters
from kmirror.state.records import Latencies, PartitionState, ProgressRecord, ProgressRow


def report(
    at: int, *rows: tuple[str, int, int], lane: int = 0, generation: int = 1, fetched: int = 0, appends: int = 0
) -> ProgressRecord:
    """Return a lane's report with rows of topic, records and bytes."""
    reported = tuple(
        ProgressRow(topic, 0, 9, 9, 0, 9, None, PartitionState.MIRRORING, records_copied=records, bytes_copied=size)
        for topic, records, size in rows
    )
    latencies = Latencies((appends,) + (0,) * 13, appends / 4)
    return ProgressRecord(
        "m", lane, "L", generation, 0, "h", 1, at, reported, fetched_bytes=fetched, produce_latencies=latencies
    )


def test_what_lanes_count_is_summed_up_over_their_restarts() -> None:
    counters = Counters()
    counters.take(report(1, ("orders", 10, 100), fetched=500, appends=4))
    counters.take(report(2, ("orders", 15, 150), fetched=700, appends=6))
    counters.take(report(3, ("orders", 2, 20), fetched=100, appends=1, generation=2))
    assert counters.copied["orders"] == Copied(17, 170)
    assert counters.fetched_bytes == 800
    assert counters.produce_latencies == Latencies((7,) + (0,) * 13, 7 / 4)


def test_a_report_that_comes_late_or_again_counts_nothing_twice() -> None:
    counters = Counters()
    first = report(1, ("orders", 10, 100), fetched=500)
    later = report(2, ("orders", 15, 150), fetched=700)
    successor = report(3, ("orders", 2, 20), fetched=100, generation=2)
    for reported in (first, later, first, later, successor, later, first):
        counters.take(reported)
    assert counters.copied["orders"] == Copied(17, 170)
    assert counters.fetched_bytes == 800


def test_what_is_copied_after_a_clock_was_set_back_counts_at_once() -> None:
    counters = Counters()
    first, later = report(3_600_000, ("orders", 10, 100), fetched=500), report(1, ("orders", 15, 150), fetched=700)
    for reported in (first, later, later):
        counters.take(reported)
    assert counters.copied["orders"] == Copied(15, 150)
    assert counters.fetched_bytes == 700


def test_a_partition_that_moves_between_lanes_and_back_counts_once() -> None:
    counters = Counters()
    counters.take(report(1, ("orders", 10, 100)))
    counters.take(report(2, ("orders", 5, 50), lane=1))
    # the lane that released it may say it once more
    counters.take(report(3, ("orders", 10, 100)))
    # it has it again, and counts from 0
    counters.take(report(4, ("orders", 1, 10)))
    assert counters.copied["orders"] == Copied(16, 160)
    assert "payments" not in counters.copied
