"""When consumers have read all that a source holds: decided from offsets, without a cluster."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.show.drained import Ends, GroupOffsets, judge_drained, unread_topics
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord

TOPIC = TopicRecord("m", "p.t", "t", None, None, DesiredState.ACTIVE, 2, TopicOrigin.CREATED)
COUNTS = {"t": 2}
ENDS = Ends({TopicPartition("t", 0): (0, 10), TopicPartition("t", 1): (5, 5)}, COUNTS)


def offsets(*at: int | None) -> Mapping[TopicPartition, int]:
    return {TopicPartition("t", p): offset for p, offset in enumerate(at) if offset is not None}


def judged(*groups: Mapping[TopicPartition, int], ends: Ends = ENDS) -> list[TopicResult]:
    return judge_drained([TOPIC], GroupOffsets({f"g{n}": one for n, one in enumerate(groups)}), ends)


def test_drained_is_what_every_group_has_read_to_the_end() -> None:
    (row,) = judged(offsets(10, 5), offsets(10))  # a partition that holds nothing needs no commit
    assert (row.topic, row.result, row.message) == ("p.t", Outcome.DONE, "p.t is drained")


@pytest.mark.parametrize(
    ("groups", "left", "said"),
    [
        ((offsets(10, 5), offsets(7, 5)), 3, "group g1 has 3 offsets left in t-0: it has committed 7, the source ends"),
        ((offsets(None, 5),), 10, "group g0 has 10 offsets left in t-0: it has committed nothing, the source ends at"),
    ],
)
def test_what_a_group_has_not_read_is_reported_by_partition(
    groups: tuple[Mapping[TopicPartition, int], ...], left: int, said: str
) -> None:
    (row,) = judged(*groups)
    assert (row.topic, row.partition, row.result) == ("p.t", 0, Outcome.TIMED_OUT)
    assert (row.group, row.offsets_left) == (said.split()[1], left)
    assert str(row.message).startswith(said)


def test_markers_at_the_end_are_no_records_that_are_left() -> None:
    ends = Ends(ENDS.bounds, COUNTS, {TopicPartition("t", 0): 9})
    assert [row.result for row in judged(offsets(9, 5), ends=ends)] == [Outcome.DONE]
    assert [row.offsets_left for row in judged(offsets(8, 5), ends=ends)] == [2]


def test_an_offset_above_the_end_is_not_drained() -> None:
    """Once, a source that had lost its tail counted as read to the end."""
    (row,) = judged(offsets(12, 5))
    assert (row.partition, row.result, row.group, row.offsets_left) == (0, Outcome.TIMED_OUT, "g0", None)
    said = "group g0 has committed 12 in t-0, but the source ends at 10: it has lost records, or this end is old"
    assert row.message == said


def test_offsets_that_retention_has_passed_leave_what_is_still_there() -> None:
    assert [
        row.offsets_left
        for row in judged(offsets(2, 0), ends=Ends({**ENDS.bounds, TopicPartition("t", 0): (4, 10)}, COUNTS))
    ] == [6]


def test_what_is_unknown_or_not_read_by_any_group_is_never_drained() -> None:
    (row,) = judged()
    assert (row.topic, row.result) == ("p.t", Outcome.TIMED_OUT)
    assert "no group has committed an offset of t" in str(row.message)
    (row,) = judged(offsets(10, 5), ends=Ends({TopicPartition("t", 0): (0, 10)}, COUNTS))
    assert (row.partition, row.message) == (1, "where t-1 ends at the source is unknown")
    (row,) = judged(offsets(10, 5), ends=Ends(ENDS.bounds, {}))
    assert (row.partition, row.message) == (None, "how many partitions t has at the source is unknown")
    drained, elsewhere = offsets(10, 5), {TopicPartition("x", 0): 1}
    found = GroupOffsets({"g": drained, "h": elsewhere}, {"k": "NOT_COORDINATOR"}, ("gone",), named=True)
    rows = judge_drained([TOPIC], found, ENDS)
    assert [(row.topic, row.result) for row in rows] == [*[(None, Outcome.TIMED_OUT)] * 3, ("p.t", Outcome.DONE)]
    assert [row.message for row in rows[:3]] == [
        "no group gone at the source, or we may not see it",
        "what group k has committed is unknown: NOT_COORDINATOR",
        "group h has committed nothing of these topics",
    ]
    # unless it was named, a group counts for what it reads only
    assert len(judge_drained([TOPIC], GroupOffsets({"g": drained, "h": elsewhere}), ENDS)) == 1


def test_a_partition_that_the_source_has_added_has_to_be_read_too() -> None:
    grown = Ends({**ENDS.bounds, TopicPartition("t", 2): (0, 3)}, {"t": 3})
    (row,) = judged(offsets(10, 5), ends=grown)
    assert (row.partition, row.offsets_left) == (2, 3)


def test_topics_that_no_group_reads_are_named_unless_groups_are_or_something_is_unknown() -> None:
    assert unread_topics([TOPIC], GroupOffsets({"g": {TopicPartition("x", 0): 1}})) == ["p.t"]
    assert unread_topics([TOPIC], GroupOffsets({"g": offsets(0, 0)})) == []
    assert unread_topics([TOPIC], GroupOffsets({}, named=True)) == []
    assert unread_topics([TOPIC], GroupOffsets({}, {"k": "NOT_COORDINATOR"})) == []
