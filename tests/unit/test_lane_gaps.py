"""Gaps in the source's log, and a log that begins above 0: what one partition's copy asks for, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.filler import FILLER_RECORDS
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches, Silence
from kmirror.engine.histories.judge import AdvanceStart, Copy, Trouble
from kmirror.engine.lane.partition.intake import LITTLE_BYTES, Gap, GuardedBatch
from kmirror.engine.lane.partition.partition_fills import (
    fill_answered,
    fill_uncertain,
    filled_by_transactions,
    gap_to_fill,
    log_end_probed,
    log_end_seen,
    next_fill_step,
    seems_to_end,
    trim_due,
    trimmed,
)
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from tests.support.partition_shell import EPOCH_MS, SETTLE, Shell, changed, facts, producer_state, sequence_of, stored

TRANSACTIONAL = 0x10


def transactional(base: int, count: int = 1, producer_id: int = 77) -> bytearray:
    """Make a batch that was written in a transaction."""
    batch = changed(stored(base, count), ">q", 43, producer_id)
    return changed(batch, ">h", 21, TRANSACTIONAL)


def queued(shell: Shell) -> list[tuple[str, int, int]]:
    """Return what is in the queue: b for batches, g for gaps."""
    return [("bg"[isinstance(item, Gap)], item.base_offset, item.next_offset) for item in shell.copy.queue]


def fill(shell: Shell, code: int = 0) -> WriteMarkers | ReadLeader:
    """Do the next step of filling the gap at the head, and return what it was."""
    step = next_fill_step(shell.copy)
    assert step is not None
    shell.copy.fill.sent()
    assert next_fill_step(shell.copy) is None, "two requests at once"
    if isinstance(step, WriteMarkers):
        fill_answered(shell.copy, code, shell.now, shell.wall)
    else:
        gap = shell.copy.queue[0]
        log_end_seen(shell.copy, code, None if code else gap.next_offset, shell.now)
    shell.check()
    return step


def trim_is_due(shell: Shell) -> bool:
    return trim_due(shell.copy) is not None


def test_offsets_before_within_and_behind_a_batch_become_gaps(copying: Shell) -> None:
    emptied = changed(stored(20, 2)[:61], ">i", 8, 49)
    emptied = changed(emptied, ">i", 57, 0)
    copying.fetch(stored(12, 3), emptied)
    assert queued(copying) == [("g", 10, 12), ("b", 12, 15), ("g", 15, 22)]
    assert copying.copy.intake.next_offset == 22


def test_gaps_of_two_answers_that_meet_are_one(copying: Shell) -> None:
    emptied = [changed(changed(stored(base, 2)[:61], ">i", 8, 49), ">i", 57, 0) for base in (10, 12)]
    copying.fetch(emptied[0])
    copying.fetch(emptied[1], stored(14))
    assert queued(copying) == [("g", 10, 14), ("b", 14, 15)]


def test_a_gap_waits_for_all_that_is_in_flight_and_holds_up_what_follows(copying: Shell) -> None:
    before = copying.counts.batches_copied
    copying.fetch(stored(10), stored(11), stored(15))
    assert [batch.base_offset for batch in copying.send()] == [10, 11]
    copying.answer()
    assert next_fill_step(copying.copy) is None
    copying.answer()
    assert fill(copying) == WriteMarkers(2, 0, 0)
    assert copying.send() == []
    assert fill(copying) == WriteMarkers(1, 0, 1)
    assert copying.send() == []
    assert fill(copying) == ReadLeader()
    (batch,) = copying.send()
    assert (batch.base_offset, sequence_of(batch)) == (15, 12)
    assert copying.copy.progress.acknowledged == 15
    counts = copying.counts
    assert (counts.batches_copied - before, counts.batches_taken_apart, counts.offsets_filled) == (2, 1, 3)


def test_a_gap_of_one_offset_takes_one_request(copying: Shell) -> None:
    copying.fetch(stored(11), stored(12))
    assert fill(copying) == WriteMarkers(1, 0, 1)
    assert [sequence_of(batch) for batch in copying.send()] == [10, 11]
    assert copying.copy.progress.acknowledged == 11


def test_little_is_kept_after_a_gap_while_others_need_the_room(copying: Shell) -> None:
    copying.fetch(stored(11), stored(14), stored(16, value=b"x" * LITTLE_BYTES), stored(19, epoch=3))
    assert next_fill_step(copying.copy) is not None
    assert copying.copy.keep_little()
    copying.check()
    assert queued(copying) == [("g", 10, 11), ("b", 11, 12), ("g", 12, 14), ("b", 14, 15), ("g", 15, 16)]
    assert copying.frames[0].pending == 0, "its frame is held"
    assert not copying.copy.keep_little(), "nothing is left to give back"
    wanted_before = copying.copy.wants_records
    where = copying.copy.fetch_position(0)
    assert (where.fetch_offset, where.last_fetched_epoch) == (16, 2)
    copied = []
    for _ in range(3):
        while gap_to_fill(copying.copy):
            fill(copying)
        copied += copying.send()
        for _ in list(copying.copy.in_flight):
            copying.answer()
    assert (wanted_before, copying.copy.wants_records) == (False, True)
    copying.fetch(stored(16), stored(19), stored(20))
    assert not copying.copy.intake.holds_little
    assert copying.copy.wants_records
    copied += copying.send()
    copying.answer()
    while gap_to_fill(copying.copy):
        fill(copying)
    copied += copying.send()
    assert [(one.base_offset, sequence_of(one)) for one in copied] == [(11, 10), (14, 11), (16, 12), (19, 13), (20, 14)]


def test_coordinator_epochs_are_above_those_the_leader_has_seen(shell: Shell) -> None:
    shell.inspect(facts(10, producer=replace(producer_state(10, EPOCH_MS), coordinator_epoch=7)))
    shell.fetch(stored(13))
    assert [fill(shell) for _ in range(3)] == [WriteMarkers(2, 0, 8), WriteMarkers(1, 0, 9), ReadLeader()]


def test_where_a_marker_is_the_first_of_us_numbers_begin_at_0_behind_it(shell: Shell) -> None:
    shell.inspect(facts(100))
    shell.fetch(stored(103), stored(107))
    for _ in range(3):
        fill(shell)
    (first,) = shell.send()
    shell.answer()
    for _ in range(3):
        fill(shell)
    (second,) = shell.send()
    assert [sequence_of(first), sequence_of(second)] == [0, 1]


def test_where_a_batch_is_our_first_numbers_continue_across_the_gap(shell: Shell) -> None:
    shell.inspect(facts(100))
    shell.fetch(stored(100), stored(107))
    (first,) = shell.send()
    shell.answer()
    for _ in range(3):
        fill(shell)
    (second,) = shell.send()
    assert sequence_of(second) == sequence_of(first) + 1


def test_committed_records_are_copied_and_aborted_ones_leave_a_gap(copying: Shell) -> None:
    aborted = (AbortedTransaction(78, 11),)
    copying.fetch(transactional(10), transactional(11, 2, 78), transactional(13), aborted_transactions=aborted)
    assert queued(copying) == [("b", 10, 11), ("g", 11, 13), ("b", 13, 14)]
    for batch in list(copying.copy.queue):
        assert isinstance(batch, Gap) or not batch.data[22] & TRANSACTIONAL


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS, Code.REQUEST_TIMED_OUT])
def test_refused_markers_are_followed_by_an_inspection_and_higher_epochs(copying: Shell, code: Code) -> None:
    copying.fetch(stored(15))
    assert fill(copying, code) == WriteMarkers(4, 0, 0)
    assert copying.status == "waiting"
    copying.inspect(facts(12, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(15))
    step = fill(copying)
    assert isinstance(step, WriteMarkers)
    assert (step.count, step.coordinator_epoch > 1) == (2, True)


def test_markers_without_an_answer_are_waited_for(copying: Shell) -> None:
    copying.fetch(stored(15))
    assert next_fill_step(copying.copy) == WriteMarkers(4, 0, 0)
    copying.copy.fill.sent()
    copying.lose_destination()
    lost_at = copying.now
    copying.inspect(facts(12, producer=producer_state(10, EPOCH_MS)))
    assert copying.status == "waiting"
    assert not copying.copy.due_for_inspection(lost_at + SETTLE - 0.1)
    copying.now = lost_at + SETTLE
    copying.inspect(facts(13, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(15))
    assert next_fill_step(copying.copy) == WriteMarkers(1, 0, 2)


def test_no_gap_is_filled_while_a_batch_may_still_arrive(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(12))  # what was at 10 is compacted meanwhile
    copying.now += SETTLE + 1
    assert next_fill_step(copying.copy) is None
    assert copying.copy.due_for_inspection(copying.now)


def test_numbers_do_not_restart_while_a_batch_with_others_may_still_arrive(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    forgotten = producer_state(0, EPOCH_MS)  # the leader knows only markers of ours
    copying.inspect(facts(10, producer=forgotten))
    assert copying.status == "waiting"


def test_a_log_end_after_the_gap_stops_the_partition(copying: Shell) -> None:
    copying.fetch(stored(13))
    fill(copying)
    fill(copying)
    assert next_fill_step(copying.copy) == ReadLeader()
    copying.copy.fill.sent()
    log_end_seen(copying.copy, 0, 14, copying.now)
    assert copying.copy.retry.failure is not None
    assert copying.copy.retry.failure.reason is Reason.DESTINATION_WRITTEN


def test_a_fenced_marker_stops_the_partition(copying: Shell) -> None:
    copying.fetch(stored(11))
    fill(copying, Code.TRANSACTION_COORDINATOR_FENCED)
    assert copying.copy.retry.failure is not None
    assert copying.copy.retry.failure.reason is Reason.FENCED


def test_forbidden_markers_leave_the_gap_to_transactions(copying: Shell) -> None:
    copying.fetch(stored(13), stored(14))
    fill(copying, Code.CLUSTER_AUTHORIZATION_FAILED)
    assert (copying.copy.fill.is_forbidden, copying.status) == (True, "copying")
    assert gap_to_fill(copying.copy) == Gap(10, 13, 2)
    copying.copy.fill.sent(by_transactions=True)
    assert gap_to_fill(copying.copy) is None
    filled_by_transactions(copying.copy, 2, 12, copying.now)
    assert copying.copy.filling == (12, 13)
    assert gap_to_fill(copying.copy) == Gap(12, 13, 2)
    copying.copy.fill.sent(by_transactions=True)
    filled_by_transactions(copying.copy, 1, 13, copying.now)
    assert not copying.copy.fill.reached
    copying.check()
    assert copying.counts.offsets_filled == 3
    assert [sequence_of(batch) for batch in copying.send()] == [10, 11]


def test_transactions_are_waited_for_when_the_connection_for_batches_is_lost(copying: Shell) -> None:
    """Their markers would be counted twice: by an inspection meanwhile, and by the answer.

    Other partitions of the same transactions may keep the answer waiting for long.
    """
    copying.fetch(stored(20))
    copying.copy.fill.sent(by_transactions=True)
    copying.lose_destination()
    copying.now += SETTLE + 1
    assert (copying.status, copying.copy.is_busy) == ("draining", True)
    assert not copying.copy.nothing_can_arrive(copying.now), "another lane may have it"
    filled_by_transactions(copying.copy, 4, 14, copying.now)
    assert copying.status == "waiting"
    copying.inspect(facts(14, producer=producer_state(10, EPOCH_MS)))
    copying.fetch(stored(20))
    assert queued(copying) == [("g", 14, 20), ("b", 20, 21)]
    assert gap_to_fill(copying.copy) == Gap(14, 20, 2)


@pytest.mark.parametrize("log_end", [13, 15, 20, 21, None])
def test_nothing_follows_transactions_that_leave_another_log_end(copying: Shell, log_end: int | None) -> None:
    copying.fetch(stored(14))
    copying.copy.fill.sent(by_transactions=True)
    filled_by_transactions(copying.copy, 4, log_end, copying.now)
    assert (copying.status, copying.send(), copying.counts.offsets_filled) == ("waiting", [], 0)
    end = "could not be looked up" if log_end is None else f"is {log_end}"
    assert row_of(copying.copy).message == (
        f"filling mirrored-3: 4 offsets from 10 on were filled, then the log end {end}"
    )


def test_a_troubled_transaction_is_waited_for_before_the_next_inspection(copying: Shell) -> None:
    copying.fetch(stored(13))
    trouble = Trouble(Reason.DESTINATION_UNREACHABLE, "the coordinator is away")
    copying.copy.fill.sent(by_transactions=True)
    copying.copy.interrupted(trouble, copying.now)
    assert copying.status == "draining"
    assert row_of(copying.copy).message == "the coordinator is away"
    fill_uncertain(copying.copy, trouble, copying.now)
    assert copying.status == "waiting"


def test_a_failure_waits_for_the_gap_before_it(copying: Shell) -> None:
    copying.fetch(stored(11), changed(stored(12), ">h", 21, 5))
    assert copying.status == "copying"
    fill(copying)
    copying.send()
    copying.answer()
    assert (copying.status, copying.copy.progress.acknowledged) == ("failed", 12)


# -- a log that begins above 0 -----------------------------------------------------------------------------------------


def test_filler_leads_to_the_first_offset_and_is_trimmed(shell: Shell) -> None:
    to = 7 * FILLER_RECORDS + 5
    shell.inspect(facts(0, source_log_start=to), AdvanceStart(to))
    assert not shell.copy.wants_records
    report = row_of(shell.copy)
    assert (report.state, report.destination_offset, report.begun) == ("LOG_ALIGNMENT", None, False)
    sent: list[GuardedBatch] = []
    for _ in range(8):
        assert not trim_is_due(shell)
        sent += shell.send()
        shell.answer()
    assert [batch.base_offset for batch in sent] == [FILLER_RECORDS * i for i in range(8)]
    assert [sequence_of(batch) for batch in sent] == [FILLER_RECORDS * i for i in range(8)]
    assert {batch.max_timestamp for batch in sent} == {shell.wall}, "brokers forget producers by records' time"
    assert trim_is_due(shell)
    shell.copy.log_start.begin_trim()
    assert not trim_is_due(shell)
    trimmed(shell.copy, None, shell.now)
    assert shell.copy.due_for_inspection(shell.now)
    assert shell.copy.log_start.aligned_to == to
    shell.inspect(facts(to, source_log_start=to, destination_log_start=to, producer=producer_state(to, shell.wall)))
    report = row_of(shell.copy)
    assert (report.state, report.destination_offset, report.begun) == ("MIRRORING", to, False)
    shell.fetch(stored(to))
    shell.send()
    shell.answer()
    assert row_of(shell.copy).begun


def test_a_trim_that_fails_is_tried_again(shell: Shell) -> None:
    shell.inspect(facts(5, only_filler=True), AdvanceStart(5))
    assert trim_is_due(shell)
    shell.copy.log_start.begin_trim()
    trimmed(shell.copy, Trouble(Reason.NOT_AUTHORIZED, "no right to DELETE", True), shell.now)
    assert (shell.status, row_of(shell.copy).reason) == ("waiting", Reason.NOT_AUTHORIZED)
    shell.inspect(facts(5, only_filler=True), AdvanceStart(5))
    assert trim_is_due(shell)
    assert shell.copy.log_start.aligned_to is None


# -- what the source has lost --


def test_what_the_source_has_lost_is_filled_and_reported(shell: Shell) -> None:
    shell.inspect(facts(5, source_log_start=20, producer=producer_state(5, shell.wall)), Copy(5, skip_to=20))
    assert queued(shell) == [("g", 5, 20)]
    # epochs of before the loss say nothing of what comes behind it
    assert shell.copy.fetch_position(1000)[:2] == (20, None)
    while gap_to_fill(shell.copy):
        fill(shell)
    shell.fetch(stored(20))
    assert [sequence_of(batch) for batch in shell.send()] == [5]
    shell.answer()
    report = row_of(shell.copy)
    assert (report.lost_from, report.lost_until, report.destination_offset) == (5, 20, 21)


def test_each_loss_is_reported_and_one_that_grows_is_one(shell: Shell) -> None:
    def lose(end: int, source_log_start: int) -> tuple[int | None, int | None]:
        seen = facts(end, source_log_start=source_log_start, producer=producer_state(5, shell.wall))
        shell.inspect(seen, Copy(end, skip_to=source_log_start))
        report = row_of(shell.copy)
        shell.copy.reinspect(shell.now)
        return report.lost_from, report.lost_until

    assert lose(5, 20) == (5, 20)
    # interrupted while it is skipped, and the source's log begins later meanwhile
    assert lose(12, 20) == (5, 20)
    assert lose(12, 30) == (5, 30)
    # after more was copied
    assert lose(40, 60) == (40, 60)


def test_a_log_that_is_to_begin_behind_the_loss_is_trimmed_before_more_is_copied(shell: Shell) -> None:
    shell.inspect(
        facts(5, source_log_start=20, producer=producer_state(5, shell.wall)), Copy(5, skip_to=20, trim_to=20)
    )
    assert [shell.copy.wants_records] == [False]
    while gap_to_fill(shell.copy):
        assert not trim_is_due(shell)
        fill(shell)
    assert trim_due(shell.copy) == 20
    shell.copy.log_start.begin_trim()
    trimmed(shell.copy, None, shell.now)
    assert (shell.status, shell.copy.log_start.aligned_to) == ("waiting", 20)
    shell.inspect(facts(20, source_log_start=20, destination_log_start=20, producer=producer_state(5, shell.wall)))
    assert shell.copy.wants_records
    assert row_of(shell.copy).lost_until == 20


def test_nothing_is_taken_from_the_source_before_a_log_is_trimmed(shell: Shell) -> None:
    # filler that is back after a kill of its broker: what is fetched too early would be in flight during the inspection
    seen = facts(50, source_log_start=20, filler_end=20, producer=producer_state(50, shell.wall))
    shell.inspect(seen, Copy(50, 0, 0, trim_to=20))
    assert row_of(shell.copy).state == "LOG_ALIGNMENT"
    shell.fetch(stored(50), transactional(51))
    assert queued(shell) == []
    assert shell.copy.intake.next_offset == 50
    assert [shell.copy.caught_up, shell.copy.is_idle, seems_to_end(shell.copy, shell.now + 100)] == [False] * 3
    assert trim_due(shell.copy) == 20
    shell.copy.log_start.begin_trim()
    trimmed(shell.copy, None, shell.now)
    assert shell.copy.due_for_inspection(shell.now)
    shell.inspect(facts(50, source_log_start=20, destination_log_start=20, producer=producer_state(50, shell.wall)))
    assert row_of(shell.copy).state == "MIRRORING"
    shell.fetch(stored(50))
    assert [batch.base_offset for batch in shell.send()] == [50]


# -- a log that ends with nothing --------------------------------------------------------------------------------------


def test_a_source_that_returns_nothing_below_its_end_is_probed(copying: Shell) -> None:
    copying.copy.source.last_stable_offset = 15
    assert not seems_to_end(copying.copy, copying.now)
    assert not seems_to_end(copying.copy, copying.now + 2)
    assert seems_to_end(copying.copy, copying.now + 4)
    log_end_probed(copying.copy, 10, NoBatches(10, 15), copying.now, copying.wall)
    assert queued(copying) == [("g", 10, 15)]


def test_a_source_that_gives_something_after_all_is_believed(copying: Shell) -> None:
    copying.copy.source.last_stable_offset = 15
    seems_to_end(copying.copy, copying.now)
    copying.fetch(stored(12), last_stable_offset=15)
    assert not seems_to_end(copying.copy, copying.now + 4)
    log_end_probed(copying.copy, 10, NoBatches(10, 15), copying.now, copying.wall)
    assert queued(copying) == [("g", 10, 12), ("b", 12, 13)]


def test_a_source_that_only_sends_the_start_of_a_batch_fails_once_probed(
    copying: Shell,
) -> None:
    for _ in range(5):
        copying.fetch(stored(10, 3)[:-1], last_stable_offset=15)
        is_due = seems_to_end(copying.copy, copying.now)
        copying.now += 1
    assert is_due
    cut_off = Silence(10, 15, "never the rest", "never the rest")
    log_end_probed(copying.copy, 10, cut_off, copying.now, copying.wall)
    assert copying.status == "failed"
    assert row_of(copying.copy).reason == "CORRUPT_BATCH"
    assert "cannot be mirrored past offset 10: never the rest" in (row_of(copying.copy).message or "")


def test_a_source_that_has_gone_on_meanwhile_does_not_fail(copying: Shell) -> None:
    copying.fetch(stored(10, 3)[:-1], last_stable_offset=15)
    seems_to_end(copying.copy, copying.now)
    copying.fetch(stored(10, 3), last_stable_offset=15)
    cut_off = Silence(10, 15, "never the rest", "never the rest")
    log_end_probed(copying.copy, 10, cut_off, copying.now, copying.wall)
    assert copying.status == "copying"


def test_a_silent_source_is_neither_filled_nor_failed(copying: Shell) -> None:
    copying.copy.source.last_stable_offset = 15
    seems_to_end(copying.copy, copying.now)
    for _ in range(100):
        copying.now += 10
        assert seems_to_end(copying.copy, copying.now)
        silence = Silence(10, 15, "offsets below 14 are in remote storage")
        log_end_probed(copying.copy, 10, silence, copying.now, copying.wall)
        assert not seems_to_end(copying.copy, copying.now + 1), "it is asked again at once"
    row = row_of(copying.copy)
    assert (copying.status, queued(copying), row.state, row.reason) == ("copying", [], "MIRRORING", "SOURCE_SILENT")
    assert row.source_offset == 15
    assert row.destination_offset == 10
    assert row.message is not None
    assert "orders-3 returns no records from offset 10 on since 2023-11-14T" in row.message
    assert "although its log ends at 15: offsets below 14 are in remote storage" in row.message


@pytest.mark.parametrize("found", [None, "batches"])
def test_a_probe_that_proves_nothing_fills_nothing(copying: Shell, found: str | None) -> None:
    copying.copy.source.last_stable_offset = 15
    seems_to_end(copying.copy, copying.now)
    read = Batches(10, 12, memoryview(b""), (), (), 15, 15) if found else None
    log_end_probed(copying.copy, 10, read, copying.now + 4, copying.wall)
    assert (queued(copying), row_of(copying.copy).reason) == ([], None)


def test_a_silent_source_that_returns_records_again_is_copied(copying: Shell) -> None:
    copying.copy.source.last_stable_offset = 15
    seems_to_end(copying.copy, copying.now)
    silence = Silence(10, 15, "the broker throttles this client")
    log_end_probed(copying.copy, 10, silence, copying.now + 4, copying.wall)
    assert row_of(copying.copy).reason == "SOURCE_SILENT"
    copying.fetch(stored(10, 2), last_stable_offset=15)
    assert (queued(copying), row_of(copying.copy).reason) == ([("b", 10, 12)], None)


@pytest.mark.parametrize("high_watermark", [None, 9, 19])
def test_offsets_above_the_high_watermark_are_not_omitted(copying: Shell, high_watermark: int | None) -> None:
    copying.fetch(stored(20), high_watermark=high_watermark)
    assert (queued(copying), copying.copy.intake.next_offset) == ([], 10)
    copying.fetch(stored(20), high_watermark=20)
    assert queued(copying) == [("g", 10, 20), ("b", 20, 21)]
