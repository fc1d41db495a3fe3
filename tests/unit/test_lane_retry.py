"""A FAILED partition is inspected again, with growing pauses, and resumes only where that can do no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, TailMatch, Trouble, Verdict, Wait
from kmirror.engine.lane.partition.retry import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from kmirror.state.records import ProgressRow
from tests.support.partition_shell import ASSIGNMENT, EPOCH_MS, Shell, changed, facts, producer_state, stored

WRITTEN = Fail(Reason.DESTINATION_WRITTEN, "another client", 10)
RECREATED = Fail(Reason.SOURCE_TOPIC_RECREATED, "another id", 10)
TRUNCATED = Fail(Reason.SOURCE_TRUNCATED, "20 records were deleted", 10)
GONE = Trouble(Reason.SOURCE_TOPIC_DELETED, "no such topic", permanent_after_retries=True)
SILENT = Trouble(Reason.SOURCE_UNREACHABLE, "no one answers")


@pytest.fixture
def shell() -> Shell:
    """Return a partition that is copied and whose destination ends at 10."""
    made = Shell(ASSIGNMENT)
    made.inspect(facts(10, tail=TailMatch.SAME))
    return made


def look_again(shell: Shell, seen: Facts, verdict: Verdict | None = None) -> None:
    """Let the pause pass, and inspect as the lane does."""
    assert not shell.copy.due_for_inspection(shell.copy.retry.wake_at - 0.01)
    shell.now = shell.copy.retry.wake_at
    assert shell.copy.due_for_inspection(shell.now)
    shell.inspect(seen, verdict)


def report(shell: Shell) -> ProgressRow:
    return row_of(shell.copy)


def reject(shell: Shell) -> None:
    """Have the destination refuse the batch at offset 10."""
    shell.fetch(stored(10))
    shell.send()
    shell.answer(Code.MESSAGE_TOO_LARGE)


def test_pauses_double_up_to_five_minutes_and_the_attempts_are_counted(shell: Shell) -> None:
    shell.inspect(facts(10), WRITTEN)
    pauses = []
    for attempt in range(9):
        assert (report(shell).state, report(shell).retry_attempt) == ("FAILED", attempt)
        pauses.append(shell.copy.retry.wake_at - shell.now)
        look_again(shell, facts(10), WRITTEN)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert (FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS) == (5, 300)


def test_a_rejected_batch_is_tried_again_alone_and_the_partition_stays_failed_until_it_is_taken(shell: Shell) -> None:
    reject(shell)
    look_again(shell, facts(10, tail=TailMatch.SAME))
    assert (report(shell).state, report(shell).reason) == ("FAILED", Reason.RECORD_REJECTED)
    shell.fetch(stored(10), stored(11))
    assert len(shell.send()) == 1
    shell.answer(Code.MESSAGE_TOO_LARGE)
    assert (shell.status, report(shell).retry_attempt) == ("failed", 1)
    look_again(shell, facts(10, tail=TailMatch.SAME))
    shell.fetch(stored(10), stored(11))
    shell.send()
    assert report(shell).state == "FAILED"
    shell.answer()
    assert (report(shell).state, report(shell).reason, report(shell).retry_attempt) == ("MIRRORING", None, 0)
    assert len(shell.send()) == 1


def test_a_batch_that_was_damaged_is_fetched_again(shell: Shell) -> None:
    shell.fetch(changed(stored(10), ">b", 16, 3, sound=False))
    assert report(shell).state == "FAILED"
    look_again(shell, facts(10, tail=TailMatch.SAME))
    shell.fetch(stored(10))
    shell.send()
    shell.answer()
    assert report(shell).state == "MIRRORING"


def test_a_topic_that_is_back_resumes_when_nothing_is_left_to_copy(shell: Shell) -> None:
    while report(shell).state != "FAILED":
        shell.now = max(shell.now, shell.copy.retry.wake_at)
        shell.inspect(Facts(trouble=GONE), Wait(GONE))
    look_again(shell, Facts(trouble=SILENT), Wait(SILENT))
    assert (report(shell).state, report(shell).reason) == ("FAILED", Reason.SOURCE_TOPIC_DELETED)
    look_again(shell, facts(10, tail=TailMatch.SAME, last_stable_offset=10))
    assert report(shell).state == "FAILED"
    shell.fetch(last_stable_offset=10)
    assert report(shell).state == "MIRRORING"


def test_a_topic_that_was_created_again_fails_with_the_reason_that_its_policy_goes_by(shell: Shell) -> None:
    shell.inspect(facts(10), Fail(Reason.SOURCE_TOPIC_DELETED, "no such topic", 10))
    look_again(shell, facts(10), RECREATED)
    assert (report(shell).reason, report(shell).retry_attempt) == (Reason.SOURCE_TOPIC_RECREATED, 1)


def test_another_answer_replaces_the_reason_and_a_right_found_missing_in_use_is_found_again(shell: Shell) -> None:
    reject(shell)
    look_again(shell, Facts(trouble=GONE), Wait(GONE))
    assert report(shell).reason is Reason.SOURCE_TOPIC_DELETED
    look_again(shell, facts(10, tail=TailMatch.SAME))
    shell.fetch(error_code=Code.TOPIC_AUTHORIZATION_FAILED)
    assert (shell.status, report(shell).reason) == ("failed", Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize("failure", [WRITTEN, RECREATED], ids=lambda failure: failure.reason.value)
@pytest.mark.parametrize("verdict", [Copy(10), AdvanceStart(20)], ids=["copy", "raise"])
def test_a_history_that_differed_resumes_only_with_a_proof(shell: Shell, failure: Fail, verdict: Verdict) -> None:
    """Where nothing is left to be compared, a fresh engine would begin to copy: this one knows better."""
    shell.inspect(facts(10), failure)
    look_again(shell, Facts(trouble=GONE), Wait(GONE))
    look_again(shell, facts(10, tail=TailMatch.NOTHING), verdict)
    assert (shell.status, shell.copy.retry.failure) == ("failed", failure)
    look_again(shell, facts(10, tail=TailMatch.SAME))
    assert shell.status == "copying"


def test_records_that_the_source_shows_again_are_no_loss(shell: Shell) -> None:
    shell.inspect(facts(10), TRUNCATED)
    look_again(shell, facts(10, tail=TailMatch.NOTHING))
    assert shell.status == "copying"


def test_a_batch_that_landed_elsewhere_is_never_forgotten(shell: Shell) -> None:
    shell.fetch(stored(10))
    shell.send()
    shell.answer(base_offset=19)
    shell.inspect(facts(20, tail=TailMatch.SAME))
    look_again(shell, facts(20, tail=TailMatch.SAME))
    assert report(shell).reason is Reason.OFFSET_MISMATCH


def test_a_partition_that_was_fenced_is_left_alone(shell: Shell) -> None:
    """Brokers forget a fence in time; it means to stay."""
    shell.inspect(facts(10), Fail(Reason.FENCED, "another engine", 10))
    assert not shell.copy.due_for_inspection(1e12)


def test_unanswered_requests_are_waited_for_before_the_next_inspection(shell: Shell) -> None:
    shell.fetch(stored(10), stored(11))
    shell.send()
    shell.answer()
    shell.fetch(stored(12), stored(13))
    shell.send()
    shell.answer(Code.MESSAGE_TOO_LARGE)
    assert (shell.status, bool(shell.flying)) == ("failed", True)
    assert not shell.copy.due_for_inspection(shell.now + 1000)
    while shell.flying:
        shell.answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert shell.copy.due_for_inspection(shell.now + 1000)


def test_a_follower_that_lags_does_not_make_the_source_end_earlier(shell: Shell) -> None:
    shell.inspect(facts(10, tail=TailMatch.SAME, last_stable_offset=30, high_watermark=40))
    shell.copy.source.follower_until = shell.now + 10
    shell.fetch(last_stable_offset=10, high_watermark=12)
    assert (report(shell).source_offset, report(shell).source_high_watermark) == (30, 40)
    assert not shell.copy.caught_up


def test_what_was_put_together_and_is_refused_goes_piece_by_piece_without_a_pause() -> None:
    shell = Shell(replace(ASSIGNMENT, merges_batches=True))
    shell.inspect(facts(9, producer=producer_state(9, EPOCH_MS)))
    shell.fetch(stored(9))
    shell.send()
    shell.answer()
    shell.fetch(stored(10), stored(11))
    shell.fetch(stored(12, 30))
    assert [(batch.base_offset, batch.next_offset) for batch in shell.send()] == [(10, 12), (12, 42)]
    shell.answer(Code.MESSAGE_TOO_LARGE)
    shell.answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert (report(shell).state, report(shell).reason) == ("MIRRORING", None)
    assert shell.copy.due_for_inspection(shell.now)
    shell.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))
    shell.fetch(stored(10), stored(11))
    assert [(batch.base_offset, batch.next_offset) for batch in shell.send()] == [(10, 11)]
    shell.answer(Code.MESSAGE_TOO_LARGE)
    assert (report(shell).state, report(shell).reason) == ("FAILED", Reason.RECORD_REJECTED)


def test_a_mirror_topic_that_is_proved_to_be_gone_fails_its_partitions_at_once(shell: Shell) -> None:
    gone = Trouble(Reason.DESTINATION_TOPIC_DELETED, "gone", permanent_after_retries=True, is_proved=True)
    shell.inspect(Facts(trouble=gone), Wait(gone))
    assert (report(shell).state, report(shell).reason) == ("FAILED", Reason.DESTINATION_TOPIC_DELETED)
