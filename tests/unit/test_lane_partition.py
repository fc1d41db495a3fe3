"""The copy of one partition as a state machine: what may be sent when, and what is reported.

Events in, what may be done next out. No sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import set_producer
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchPosition
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.cluster.protocol.produce import AppendLimits
from kmirror.engine.histories.judge import Copy, Fail, SourceMark, TailMatch, Trouble
from kmirror.engine.lane.partition.broker_memory import CLOCK_SLACK_MS
from kmirror.engine.lane.partition.partition_copy import MAX_IN_FLIGHT
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from tests.support.partition_shell import (
    ASSIGNMENT,
    DAY_MS,
    EPOCH_MS,
    SETTLE,
    SOON,
    Shell,
    changed,
    facts,
    producer_state,
    sequence_of,
    stored,
)

# -- one at a time, until it is safe ----------------------------------------------------------------------------------


def test_nothing_is_sent_before_an_inspection(shell: Shell) -> None:
    shell.fetch(stored(0))
    assert shell.send() == []
    assert not shell.copy.wants_records


def test_the_copy_starts_where_the_destination_ends(shell: Shell) -> None:
    shell.inspect(facts(40, tail=TailMatch.SAME, tail_epoch=6, producer=producer_state(40, EPOCH_MS)))
    assert shell.copy.fetch_position(1000) == FetchPosition(40, 6, 7, 1000)
    shell.fetch(stored(40, 5), stored(45, 1))
    (first,) = shell.send()
    assert (first.base_offset, sequence_of(first)) == (40, 40)


def test_what_was_copied_is_marked_by_the_leader_whose_holes_it_has(shell: Shell) -> None:
    """As long as a new leader is found to differ, nothing that it shows counts."""

    def mark() -> SourceMark | None:
        return shell.copy.progress.mark

    assert mark() is None
    shell.inspect(facts(40, high_watermark=50, compared_from=30, tail=TailMatch.SAME))
    assert mark() == SourceMark(7, 50, 30, 40)
    shell.fetch(stored(40, 2), high_watermark=60)
    shell.send()
    shell.answer()
    assert mark() == SourceMark(7, 60, 30, 42)
    shell.copy.interrupt(Trouble(Reason.SOURCE_UNREACHABLE, "the leader has moved"), shell.now)
    newer = facts(42, source_leader=(2, 8), high_watermark=45, compared_from=41)
    shell.inspect(newer, Fail(Reason.SOURCE_DIVERGED, "it differs", 41))
    assert mark() == SourceMark(7, 60, 30, 42)
    shell.inspect(replace(newer, tail=TailMatch.SAME))
    assert mark() == SourceMark(8, 45, 41, 42)


def test_what_was_seen_of_the_source_stays_known_in_its_leader_epoch_and_where_the_next_one_is_proved(
    shell: Shell,
) -> None:
    def mark_after(end: int, epoch: int, watermark: int, compared_from: int, **others: object) -> SourceMark | None:
        seen = {"source_leader": (1, epoch), "high_watermark": watermark, "compared_from": compared_from}
        shell.inspect(facts(end, tail=TailMatch.SAME, **seen, **others))
        return shell.copy.progress.mark

    assert mark_after(40, 7, 60, 30) == SourceMark(7, 60, 30, 40)
    assert mark_after(40, 7, 50, 39) == SourceMark(7, 60, 30, 40)
    assert mark_after(40, 7, 70, 20) == SourceMark(7, 70, 20, 40)
    # records below the old high watermark supersede what the new leader still has
    assert mark_after(40, 8, 65, 39, is_still=True) == SourceMark(8, 70, 20, 40)
    assert mark_after(40, 9, 65, 39) == SourceMark(9, 65, 39, 40)
    assert mark_after(38, 9, 60, 38) == SourceMark(9, 60, 38, 38)


def test_a_history_is_proved_by_the_epoch_of_the_last_record_that_was_seen(shell: Shell) -> None:
    """Of an epoch in which nothing was written, no other broker knows."""

    def last_epoch() -> int | None:
        mark = shell.copy.progress.mark
        return mark and mark.last_epoch

    shell.inspect(facts(40, high_watermark=60))
    assert last_epoch() == 7
    shell.inspect(facts(40, high_watermark=60, epoch_before=(4, 59)))
    assert last_epoch() == 7
    shell.inspect(facts(40, high_watermark=60, epoch_before=(4, 60)))
    assert last_epoch() == 4
    shell.fetch(stored(40), high_watermark=61)
    assert last_epoch() == 7


def test_one_batch_is_in_flight_until_the_first_success(shell: Shell) -> None:
    shell.inspect(facts(0))
    shell.fetch(*[stored(i) for i in range(8)])
    assert len(shell.send()) == 1
    shell.answer()
    assert len(shell.send()) == MAX_IN_FLIGHT
    assert shell.flying == [1, 2, 3, 4, 5]


def test_after_every_trouble_one_batch_is_in_flight_again(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(4)])
    assert len(copying.send()) == 4
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    for _ in range(3):
        copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(*[stored(10 + i) for i in range(4)])
    assert len(copying.send()) == 1


def test_batches_fly_together_only_in_order_and_five_at_most(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(9)])
    assert [batch.base_offset for batch in copying.send()] == [10, 11, 12, 13, 14]
    copying.answer()
    copying.answer()
    assert [batch.base_offset for batch in copying.send()] == [15, 16]
    assert copying.flying == [12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    ("timestamp", "expiration_ms"),
    [
        (EPOCH_MS - 30 * DAY_MS, DAY_MS),
        (-1, DAY_MS),
        (EPOCH_MS, None),
        (EPOCH_MS, 1_000_000 + CLOCK_SLACK_MS),
    ],
    ids=["old", "no timestamp", "expiration unknown", "too near"],
)
def test_a_broker_that_may_forget_us_gets_one_batch_at_a_time(
    shell: Shell, timestamp: int, expiration_ms: int | None
) -> None:
    seen = facts(0, producer=producer_state(0, EPOCH_MS + 1_000_000), destination_limits=AppendLimits(expiration_ms))
    shell.inspect(seen)
    shell.fetch(*[stored(i, timestamp=timestamp) for i in range(4)])
    for i in range(4):
        assert [batch.base_offset for batch in shell.send()] == [i]
        shell.answer()


def test_an_old_batch_may_follow_young_ones_but_nothing_may_follow_it(copying: Shell) -> None:
    young, old = EPOCH_MS, EPOCH_MS - 2 * DAY_MS
    copying.fetch(*[stored(10 + i, timestamp=t) for i, t in enumerate([young, old, young, young])])
    assert [batch.base_offset for batch in copying.send()] == [10, 11]
    copying.answer()
    assert copying.send() == []
    copying.answer()
    assert [batch.base_offset for batch in copying.send()] == [12]
    copying.answer()
    assert [batch.base_offset for batch in copying.send()] == [13]


def test_memory_ages_while_the_copy_rests(copying: Shell) -> None:
    copying.now += DAY_MS / 1000
    copying.fetch(*[stored(10 + i, timestamp=copying.wall) for i in range(3)])
    assert [batch.base_offset for batch in copying.send()] == [10]
    copying.answer()
    assert [batch.base_offset for batch in copying.send()] == [11, 12]


def test_sequences_count_records_and_wrap(shell: Shell) -> None:
    end = (1 << 31) + 41
    shell.inspect(facts(end - 2, producer=producer_state(end - 2 - 41, EPOCH_MS)))
    shell.fetch(stored(end - 2, 2), stored(end))
    (last,) = shell.send()
    assert sequence_of(last) == 0x7FFFFFFE
    shell.answer()
    (first,) = shell.send()
    assert sequence_of(first) == 0


# -- while a predecessor may still write ------------------------------------------------------------------------------


@pytest.fixture
def succeeding() -> Iterator[Shell]:
    """Return a shell whose predecessor may write for 20 s more."""
    made = Shell(quiet_until=SOON + 20)
    yield made
    made.end()


def test_without_the_brokers_memory_the_predecessors_time_is_waited_out(succeeding: Shell) -> None:
    succeeding.inspect(facts(5))
    assert succeeding.status == "waiting"
    succeeding.now += 19.9
    assert not succeeding.copy.due_for_inspection(succeeding.now)
    succeeding.now += 0.1
    assert succeeding.copy.due_for_inspection(succeeding.now)
    succeeding.inspect(facts(8))
    succeeding.fetch(stored(8))
    assert len(succeeding.send()) == 1


def test_not_even_the_brokers_memory_spares_the_predecessors_time(succeeding: Shell) -> None:
    """What the predecessor sends next may be old, and end the memory before our batch arrives."""
    succeeding.inspect(facts(5, producer=producer_state(5, EPOCH_MS)))
    assert succeeding.status == "waiting"


def test_a_predecessors_end_may_become_known_later() -> None:
    made = Shell(quiet_until=float("inf"))
    made.inspect(facts(5))
    assert not made.copy.due_for_inspection(made.now + 1e9)
    made.copy.predecessor_ends(made.now + 6)
    assert not made.copy.due_for_inspection(made.now + 5)
    assert made.copy.due_for_inspection(made.now + 6)
    made.end()


def test_memory_that_has_expired_is_none(succeeding: Shell) -> None:
    succeeding.inspect(facts(5, producer=producer_state(5, EPOCH_MS - DAY_MS)))
    assert succeeding.status == "waiting"


def test_with_the_brokers_memory_own_lost_requests_are_not_waited_for(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(10), stored(11), stored(12))
    assert len(copying.send()) == 1
    copying.answer()
    assert len(copying.send()) == 2


def test_a_lost_request_that_would_end_the_memory_is_waited_for(copying: Shell) -> None:
    copying.fetch(stored(10, timestamp=EPOCH_MS - 9 * DAY_MS))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    assert copying.status == "waiting"
    copying.now += SETTLE
    copying.inspect(facts(11, producer=producer_state(11, EPOCH_MS)))
    assert copying.status == "copying"


def test_a_batch_that_would_end_the_memory_waits_until_lost_requests_cannot_arrive(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(10), stored(11, timestamp=EPOCH_MS - 9 * DAY_MS), stored(12))
    assert [batch.base_offset for batch in copying.send()] == [10]
    assert copying.status == "copying"
    copying.answer()
    assert copying.send() == []
    assert copying.status == "waiting"
    copying.now += SETTLE
    assert copying.copy.due_for_inspection(copying.now)
    copying.inspect(facts(11, producer=producer_state(11, EPOCH_MS)))
    copying.fetch(stored(11, timestamp=EPOCH_MS - 9 * DAY_MS), stored(12))
    assert [batch.base_offset for batch in copying.send()] == [11]


def test_a_lost_request_whose_numbers_would_now_fit_elsewhere_is_waited_for(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    # the broker had forgotten us, and numbers began again: the lost batch could follow ours by its number
    renumbered = facts(10, producer=producer_state(4, EPOCH_MS))
    assert renumbered.filled_offsets(0) == 6
    copying.inspect(renumbered)
    assert copying.status == "waiting"
    copying.now += SETTLE
    assert copying.copy.due_for_inspection(copying.now)
    copying.inspect(renumbered)
    copying.fetch(stored(10))
    assert [sequence_of(batch) for batch in copying.send()] == [4]


def test_the_log_end_counts_only_when_it_was_read_after_the_predecessors_end(succeeding: Shell) -> None:
    succeeding.now += 19
    succeeding.copy.begin_inspection(succeeding.now)
    succeeding.now += 2
    seen = facts(5)  # read before the predecessor's time was over, received after it
    succeeding.copy.inspected(seen, Copy(5), succeeding.now, succeeding.wall)
    succeeding.check()
    assert succeeding.status == "waiting"
    assert succeeding.copy.due_for_inspection(succeeding.now)


# -- what is reported -------------------------------------------------------------------------------------------------


def test_the_report_follows_the_copy(shell: Shell) -> None:
    report = row_of(shell.copy)
    assert (report.state, report.destination_offset, report.source_offset) == ("LOG_ALIGNMENT", None, None)
    shell.inspect(facts(0, last_stable_offset=2, high_watermark=3, source_log_start=0))
    shell.fetch(stored(0, 2, timestamp=EPOCH_MS - 5), high_watermark=4, last_stable_offset=2, log_start_offset=0)
    shell.send()
    shell.answer()
    report = row_of(shell.copy)
    assert (report.topic, report.partition, report.state) == ("mirrored", 3, "MIRRORING")
    assert (report.records_copied, report.bytes_copied) == (2, len(stored(0, 2, timestamp=EPOCH_MS - 5)))
    assert (report.source_offset, report.source_high_watermark, report.source_log_start) == (2, 4, 0)
    assert (report.destination_offset, report.last_timestamp_ms, report.last_epoch) == (2, EPOCH_MS - 5, 2)
    assert (report.reason, report.message, report.retry_attempt) == (None, None, 0)
    assert shell.copy.caught_up


def test_the_size_of_batches_is_taken_from_what_comes_and_never_believed_blindly(shell: Shell) -> None:
    shell.inspect(facts(0))
    shell.fetch(stored(0, 2))
    assert shell.copy.source.batch_bytes == len(stored(0, 2))
    for nonsense in (-5, 0, 1 << 30):
        shell.copy.source.batches_seen(memoryview(changed(stored(2), ">i", 8, nonsense)))
        assert shell.copy.source.batch_bytes is None


def test_a_partition_behind_the_last_stable_offset_has_not_caught_up(shell: Shell) -> None:
    shell.inspect(facts(0, last_stable_offset=2))
    assert not shell.copy.caught_up
    shell.fetch(stored(0, 2), last_stable_offset=3)
    shell.send()
    shell.answer()
    assert not shell.copy.caught_up


def test_what_precedes_a_damaged_batch_is_copied_before_the_partition_fails() -> None:
    shell = Shell(replace(ASSIGNMENT, merges_batches=True))
    answer = [*(stored(base) for base in range(5)), changed(stored(5), ">B", 69, 0xFF, sound=False)]
    shell.inspect(facts())
    shell.fetch(*answer)
    shell.send()
    # batches that were merged are too large together: they are fetched once more, to be sent one by one
    shell.answer(Code.MESSAGE_TOO_LARGE)
    shell.now += 1
    shell.inspect(facts())
    shell.fetch(*answer)
    while shell.send() or shell.flying:
        shell.answer()
    shell.copy.advance(shell.now)
    failure = shell.copy.retry.failure
    assert failure is not None
    assert (shell.status, shell.copy.progress.acknowledged, failure.offset) == ("failed", 5, 5)


def test_a_verdict_of_failure_is_final(shell: Shell) -> None:
    failure = Fail(Reason.DESTINATION_WRITTEN, "another client", 7)
    shell.inspect(facts(9), failure)
    assert (shell.status, shell.copy.retry.failure) == ("failed", failure)
    shell.fetch(stored(9))
    assert shell.send() == []


def test_the_story_is_bounded_and_without_payloads(copying: Shell) -> None:
    for _ in range(100):
        copying.fetch(error_code=6, records=memoryview(b"secret"))
        copying.now += 9
        copying.inspect(facts(10))
    assert len(copying.copy.history) == 50
    assert not any("secret" in line for line in copying.copy.history)


# -- a source that is a mirror itself ----------------------------------------------------------------------------------


def test_filler_of_the_source_s_own_mirror_is_waited_out_and_never_copied(shell: Shell) -> None:
    """A mirror of a mirror showed such records at its beginning: it had read them before they were removed."""
    shell.inspect(facts(0))
    filler = filler_batch(50, EPOCH_MS)
    set_producer(memoryview(filler), (1 << 62) + 9, 0, 0)
    shell.fetch(filler, stored(50))
    assert shell.send() == []
    assert shell.status == "waiting"
    assert "begins with filler" in (row_of(shell.copy).message or "")
    shell.inspect(facts(0))
    shell.fetch(filler[:-1])
    assert shell.status == "copying"
    shell.fetch(stored(0))
    assert len(shell.send()) == 1
