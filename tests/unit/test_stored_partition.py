"""What an engine remembers of partitions from the reports of lanes, and what it hears of topics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import FeedTopic, StateFeed
from kmirror.engine.status.stored_partition import alignment_note, record_after, released_record
from kmirror.errors import Reason
from kmirror.state.record_kinds import Removed
from kmirror.state.records import (
    DesiredState,
    Guard,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
)

#: A record in which everything is set that a lane's report says nothing of.
BEFORE = PartitionRecord(
    "m",
    "orders",
    3,
    PartitionState.LOG_ALIGNMENT,
    100,
    retry_attempt=2,
    last_mirrored_offset=40,
    last_mirrored_epoch=7,
    guard=Guard(2**62, 1, 4, 12),
    first_offset=30,
    extra={"archive": "orders.kmirror-archive.1"},
)


def row(state: PartitionState = PartitionState.MIRRORING, end: int = 45, **more: Any) -> ProgressRow:
    return ProgressRow("orders", 3, 50, 55, 0, end, None, state, **more)


def remembered(before: PartitionRecord | None, report: ProgressRow, *, reached: bool = False) -> PartitionRecord:
    return record_after(before, "m", report, reached=reached, now_ms=200)


def test_what_a_report_says_nothing_of_stays() -> None:
    assert remembered(BEFORE, row()) == replace(BEFORE, state=PartitionState.MIRRORING, state_time_ms=200, aligned=True)


def test_the_first_report_makes_a_record() -> None:
    found = remembered(None, row(PartitionState.LOG_ALIGNMENT))
    assert found == PartitionRecord("m", "orders", 3, PartitionState.LOG_ALIGNMENT, 200)


def test_a_report_that_says_nothing_new_leaves_the_record_as_it_is() -> None:
    before = remembered(BEFORE, row(begun=True), reached=True)
    assert record_after(before, "m", row(begun=True), reached=True, now_ms=900) == before
    assert record_after(before, "m", row(), reached=False, now_ms=900) == before


@pytest.mark.parametrize(
    ("report", "reached", "fact"),
    [
        (row(PartitionState.LOG_ALIGNMENT, begun=True), False, "begun"),
        (row(PartitionState.MIRRORING), False, "aligned"),
        (row(PartitionState.FAILED), True, "initial_copy_complete"),
    ],
)
def test_a_fact_that_was_true_once_stays_true(report: ProgressRow, reached: bool, fact: str) -> None:
    found = remembered(BEFORE, report, reached=reached)
    assert getattr(found, fact)
    assert not getattr(BEFORE, fact)
    assert getattr(remembered(found, row(PartitionState.LOG_ALIGNMENT)), fact)


def test_the_time_is_that_of_the_state() -> None:
    mirroring = replace(BEFORE, state=PartitionState.MIRRORING, aligned=True)
    assert remembered(mirroring, row(begun=True)) == replace(mirroring, begun=True)
    failed = remembered(mirroring, row(PartitionState.FAILED, reason=Reason.LOOP, message="round"))
    assert (failed.state_time_ms, failed.reason, failed.message, failed.failed_offset) == (200, "LOOP", "round", 45)
    again = record_after(failed, "m", row(end=46), reached=False, now_ms=300)
    assert (again.state_time_ms, again.reason, again.message, again.failed_offset) == (300, None, None, None)


@pytest.mark.parametrize(
    ("state", "end", "source_end", "expected"),
    [
        (PartitionState.LOG_ALIGNMENT, 60, 50, PartitionState.FAILED),
        (PartitionState.MIRRORING, 45, 50, PartitionState.FAILED),
        (PartitionState.MIRRORING, 45, None, PartitionState.FAILED),
        (PartitionState.MIRRORING, 46, 50, PartitionState.MIRRORING),
        (PartitionState.MIRRORING, 45, 45, PartitionState.MIRRORING),
    ],
)
def test_a_partition_stays_failed_until_it_is_seen_to_be_copied_again(
    state: PartitionState, end: int, source_end: int | None, expected: PartitionState
) -> None:
    """A lane that has just taken it, in this engine or in the next, does not know yet whether it can be copied."""
    failed = remembered(BEFORE, row(PartitionState.FAILED, reason=Reason.RECORD_REJECTED, message="too large"))
    after = record_after(failed, "m", row(state, end)._replace(source_offset=source_end), reached=False, now_ms=300)
    assert after.state is expected
    if expected is PartitionState.FAILED:
        assert replace(after, aligned=failed.aligned) == failed


def test_reasons_of_partitions_that_are_not_failed_are_not_remembered() -> None:
    waiting = remembered(BEFORE, row(PartitionState.LOG_ALIGNMENT, reason=Reason.SOURCE_UNREACHABLE, message="wait"))
    assert waiting == BEFORE


PAUSED_TOPIC = TopicRecord(
    "m", "orders", "orders", "s", "d", DesiredState.PAUSED, 4, TopicOrigin.CREATED, pause_id="second pause"
)
COPIED = replace(BEFORE, state=PartitionState.MIRRORING, last_mirrored_offset=None)


def test_what_is_released_says_for_which_pause() -> None:
    report = row(last_epoch=8)
    assert released_record(COPIED, PAUSED_TOPIC, 3, report, 300) == replace(
        COPIED, state=PartitionState.PAUSED, state_time_ms=300, last_mirrored_epoch=8, pause_id="second pause"
    )
    failed = replace(COPIED, state=PartitionState.FAILED, reason=Reason.LOOP, pause_id="first pause")
    assert released_record(failed, PAUSED_TOPIC, 3, None, 300) == replace(failed, pause_id="second pause")
    stopped = released_record(
        replace(COPIED, pause_id="first pause"), replace(PAUSED_TOPIC, desired=DesiredState.STOPPED), 3, None, 300
    )
    assert (stopped.state, stopped.pause_id) == (PartitionState.STOPPING, None)


def test_a_stopped_partition_stays_stopped_also_where_its_log_end_is_unknown() -> None:
    # it was deleted before it was stopped
    gone = replace(COPIED, state=PartitionState.STOPPED, reason=Reason.REMOVED)
    stopped = replace(PAUSED_TOPIC, desired=DesiredState.STOPPED)
    assert released_record(gone, stopped, 3, None, 300) == gone


def test_what_is_copied_again_answers_no_pause() -> None:
    paused = released_record(COPIED, PAUSED_TOPIC, 3, None, 300)
    assert remembered(paused, row()).pause_id is None


def test_a_log_that_starts_later_is_reported_with_the_cause() -> None:
    assert alignment_note(row(), None) is None
    assert alignment_note(row(aligned_to=7), None) == "orders-3 starts at offset 7, where its source's log starts"
    assert alignment_note(row(aligned_to=7), 5) == "orders-3 starts at offset 7, where its source's log starts"
    assert alignment_note(row(aligned_to=7), 7) == ("orders-3 starts at offset 7, as decided when the topic was added")


def test_each_loss_that_is_skipped_is_announced_and_counted_once() -> None:
    journal, partition = MirrorJournal("m", "eve", lambda: 0), TopicPartition("orders", 3)
    known = MirrorPartitions("m", [BEFORE], (), MirrorHealth(0.0), journal)
    record = ProgressRecord("m", 0, "L", 1, 0, "h", 1, 5_000, ())
    # one loss, interrupted as it is skipped; more of it; less of it, as another leader still has it; and the next loss
    for lost in ((5, 20), (12, 20), (12, 30), (12, 25), (40, 60), None):
        first, until = lost or (None, None)
        assert known.take_row(partition, record, row(lost_from=first, lost_until=until), 5.0)
    announced = [(event.result, event.details["from"], event.details["until"]) for event in journal.unstored()]
    assert announced == [("LOSS_ACCEPTED", 5, 20), ("LOSS_ACCEPTED", 20, 30), ("LOSS_ACCEPTED", 40, 60)]
    assert (known.lost_records, known.records[partition].lost_until) == (45, 60)


# -- what is heard -----------------------------------------------------------------------------------------------------


CLAIM = TopicRecord("m", "orders", "orders", None, None, DesiredState.ACTIVE, 4, TopicOrigin.CREATED, "add")
ADDED = replace(CLAIM, destination_topic_id="d", pending_operation=None)
PROGRESS = ProgressRecord("m", 0, "L", 1, 0, "h", 7, 1, (row(),))


def test_only_the_end_of_history_is_reported() -> None:
    replica = StateFeed("m")
    for met in (CLAIM, BEFORE, ADDED, replace(BEFORE, begun=True)):
        assert replica.take(met) == []
    assert replica.catch_up() == [FeedTopic(ADDED, (replace(BEFORE, begun=True),))]
    assert replica.catch_up() == []


def test_a_topic_comes_with_what_was_written_of_its_partitions() -> None:
    replica = StateFeed("m")
    replica.take(replace(BEFORE, partition=1))
    replica.catch_up()
    assert replica.take(CLAIM) == [FeedTopic(CLAIM, (replace(BEFORE, partition=1),))]
    replica.take(Removed(("partition", "m", "orders", 1)))
    replica.take(BEFORE)
    assert replica.take(ADDED) == [FeedTopic(ADDED, (BEFORE,))]
    assert replica.take(PROGRESS) == [PROGRESS]


def test_other_mirrors_are_ignored() -> None:
    replica = StateFeed("m")
    replica.catch_up()
    for met in (replace(CLAIM, mirror="n"), replace(PROGRESS, mirror="n"), replace(BEFORE, mirror="n")):
        assert replica.take(met) == []
    assert replica.take(ADDED) == [FeedTopic(ADDED, ())]


def test_an_engine_knows_when_nothing_is_left_to_copy_and_forgets_a_topic_as_a_whole() -> None:
    health, partition, other = MirrorHealth(0.0), TopicPartition("orders", 3), TopicPartition("pay", 0)
    known = MirrorPartitions("m", [BEFORE], (), health, MirrorJournal("m", "eve", lambda: 0))
    record = ProgressRecord("m", 0, "L", 1, 0, "h", 1, 5_000, ())
    health.take_lane(record, 5.0, is_complete=True)
    assert known.are_quiet
    for report, is_quiet in (
        (row(end=45), False),
        (row(end=50, bytes_per_second=3.0), False),
        (row(end=50), True),
        (row(end=50)._replace(source_offset=None), False),
    ):
        assert known.take_row(partition, record, report, 5.0)
        assert known.are_quiet is is_quiet, report
    assert known.take_row(partition, record, row(end=50)._replace(reason=Reason.AUTHENTICATION_FAILED), 5.0)
    assert known.are_refused
    assert known.take_row(other, record, ProgressRow("pay", 0, 1, 1, 0, 1, None, PartitionState.MIRRORING), 5.0)
    known.take_source_ends({partition: 50, other: 1}, 5.0)
    assert (known.take_changed_topics(), known.take_changed_topics()) == ({"orders", "pay"}, set())
    assert health.reported == 2
    known.forget_targets("orders")
    known.replace("orders", [BEFORE])
    assert (set(known.rows), set(known.records), known.targets) == ({other}, {partition, other}, {other: 1})
    assert (known.are_quiet, known.are_refused) == (True, False)
    assert (known.take_changed_topics(), health.reported) == ({"orders"}, 1)
