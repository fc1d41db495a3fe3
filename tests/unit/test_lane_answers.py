"""What becomes of one partition's copy when the destination answers an append, or the source a fetch.

Events in, what may be done next out. No sockets, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import BATCH_OVERHEAD
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchPosition
from kmirror.engine.histories.judge import Fail, TailMatch, Trouble, Wait
from kmirror.engine.lane.partition.intake import QUEUE_BYTES
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from tests.support.partition_shell import ASSIGNMENT, EPOCH_MS, SETTLE, Shell, changed, facts, producer_state, stored

# -- answers of the destination ---------------------------------------------------------------------------------------


def test_an_append_moves_the_copy_on(copying: Shell) -> None:
    batch = stored(10, 4, timestamp=EPOCH_MS + 5, epoch=9)
    copying.fetch(batch)
    copying.send()
    copying.answer()
    copy = copying.copy
    assert (copy.progress.acknowledged, copy.progress.epoch, copy.progress.timestamp) == (14, 9, EPOCH_MS + 5)
    assert copy.progress.bytes_copied == len(stored(9)) + len(batch)


def test_a_repeat_answered_with_its_first_offset_is_a_success(copying: Shell) -> None:
    # a predecessor appended the same batch: brokers answer with the offset it got then
    copying.fetch(stored(10), stored(11))
    copying.send()
    copying.answer(base_offset=10)
    copying.answer(base_offset=11)
    assert (copying.status, copying.copy.progress.acknowledged) == ("copying", 12)


def mismatched(copying: Shell) -> None:
    """Let the second of five batches land at another offset than meant."""
    copying.fetch(*[stored(10 + i) for i in range(7)])
    copying.send()
    copying.answer()
    copying.answer(base_offset=19)
    assert copying.status == "draining"
    for _ in range(3):
        copying.answer(base_offset=30)  # what was in flight behind it changes nothing
    assert (copying.status, copying.copy.progress.acknowledged) == ("waiting", 11)


def test_an_append_at_another_offset_stops_the_copy_for_good(copying: Shell) -> None:
    mismatched(copying)
    copying.inspect(facts(20))  # an inspection that sees nothing wrong changes nothing about that
    assert copying.status == "failed"
    assert copying.copy.retry.failure is not None
    assert (copying.copy.retry.failure.reason, copying.copy.retry.failure.offset) == (Reason.OFFSET_MISMATCH, 11)


def test_an_inspection_finds_out_who_wrote(copying: Shell) -> None:
    mismatched(copying)
    copying.inspect(facts(20), Wait(Trouble(Reason.SOURCE_UNREACHABLE, "silent")))
    assert copying.status == "waiting"
    copying.inspect(facts(20), Fail(Reason.DESTINATION_WRITTEN, "1 record", 11))
    assert copying.status == "failed"
    assert copying.copy.retry.failure is not None
    assert copying.copy.retry.failure.reason is Reason.DESTINATION_WRITTEN


def test_what_landed_elsewhere_under_a_lane_before_still_does() -> None:
    shell = Shell(replace(ASSIGNMENT, mismatch_offset=11, mismatch="a batch for offset 11 was appended at 19"))
    shell.inspect(facts(20), Fail(Reason.SOURCE_DIVERGED, "from offset 11 on it differs from what was copied", 11))
    assert shell.copy.retry.failure == Fail(Reason.OFFSET_MISMATCH, "a batch for offset 11 was appended at 19", 11)
    assert shell.status == "failed"
    shell.end()


def test_what_a_predecessor_of_ours_wrote_elsewhere_is_no_news_about_the_source(copying: Shell) -> None:
    mismatched(copying)
    copying.inspect(facts(20), Fail(Reason.SOURCE_DIVERGED, "from offset 11 on it differs from what was copied", 11))
    assert copying.status == "failed"
    assert copying.copy.retry.failure is not None
    assert (copying.copy.retry.failure.reason, copying.copy.retry.failure.offset) == (Reason.OFFSET_MISMATCH, 11)


REFUSED_FOR_GOOD = [
    (Code.MESSAGE_TOO_LARGE, Reason.RECORD_REJECTED),
    (Code.RECORD_LIST_TOO_LARGE, Reason.RECORD_REJECTED),
    (Code.INVALID_RECORD, Reason.RECORD_REJECTED),
    (Code.INVALID_TIMESTAMP, Reason.RECORD_REJECTED),
    (Code.CORRUPT_MESSAGE, Reason.RECORD_REJECTED),
    (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, Reason.RECORD_REJECTED),
    (Code.INVALID_PRODUCER_EPOCH, Reason.FENCED),
]


@pytest.mark.parametrize(("code", "reason"), REFUSED_FOR_GOOD)
def test_a_batch_the_destination_never_takes_fails_the_partition(copying: Shell, code: Code, reason: Reason) -> None:
    copying.fetch(*[stored(10 + i) for i in range(7)])
    copying.send()
    copying.answer()
    copying.answer(code, detail="because")
    assert copying.status == "failed"
    failure = copying.copy.retry.failure
    assert failure is not None
    assert (failure.reason, failure.offset) == (reason, 11)
    assert f"{code.name} ({code.value}): because" in failure.message
    is_too_large = code in (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
    assert failure.message.endswith(f"; the batch has {len(stored(11))} bytes") == is_too_large
    for _ in range(3):
        copying.answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert copying.copy.retry.failure == failure


@pytest.mark.parametrize(
    "code",
    [
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.FENCED_LEADER_EPOCH,
        Code.KAFKA_STORAGE_ERROR,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
        Code.NOT_ENOUGH_REPLICAS,
        Code.THROTTLING_QUOTA_EXCEEDED,
        Code.UNKNOWN_PRODUCER_ID,
    ],
)
def test_a_transient_refusal_drains_and_inspects_again(copying: Shell, code: Code) -> None:
    copying.fetch(*[stored(10 + i) for i in range(4)])
    copying.send()
    copying.answer()
    copying.answer(code)
    assert copying.status == "draining"
    assert copying.copy.retry.trouble is not None
    assert copying.copy.retry.trouble.reason is Reason.DESTINATION_UNREACHABLE
    copying.fetch(stored(14))  # a response that was in flight when the trouble came
    assert not copying.copy.due_for_inspection(copying.now + 999)
    copying.answer(code)
    assert copying.status == "draining"
    copying.answer(code)
    assert copying.status == "waiting"
    assert copying.copy.progress.acknowledged == 11
    # nothing can be in flight any more: without the broker's memory the next inspection decides
    copying.now += 10
    copying.inspect(facts(11))
    assert copying.status == "copying"


@pytest.mark.parametrize(
    "code",
    [
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.NETWORK_EXCEPTION,
        Code.UNKNOWN_SERVER_ERROR,
        4711,
    ],
)
def test_an_answer_that_leaves_the_outcome_open_is_an_unknown_outcome(copying: Shell, code: int) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.answer(code)
    assert copying.status == "waiting"
    copying.now += 1
    copying.inspect(facts(10))
    assert copying.status == "waiting"
    copying.now += SETTLE
    copying.inspect(facts(11))
    assert copying.status == "copying"
    assert copying.copy.intake.next_offset == 11


def test_successes_behind_a_refusal_show_in_the_log_end(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(3)])
    copying.send()
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    copying.answer(base_offset=11)
    copying.answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert copying.status == "waiting"
    copying.now += 1
    copying.inspect(facts(12, producer=producer_state(12, EPOCH_MS)))
    assert copying.copy.intake.next_offset == 12


@pytest.mark.parametrize("memory", [True, False])
def test_a_lost_connection_leaves_what_was_in_flight_unknown(copying: Shell, memory: bool) -> None:
    copying.fetch(*[stored(10 + i) for i in range(4)])
    copying.send()
    copying.answer()
    copying.lose_destination()
    assert copying.flying == []
    assert copying.status == "waiting"
    copying.now += 1
    assert copying.copy.due_for_inspection(copying.now)
    copying.inspect(facts(12, producer=producer_state(12, EPOCH_MS) if memory else None))
    assert copying.status == ("copying" if memory else "waiting")
    copying.now += SETTLE
    if not memory:
        copying.inspect(facts(14))
    copying.fetch(stored(14) if not memory else stored(12))
    assert len(copying.send()) == 1


def test_a_lost_connection_with_nothing_in_flight_leaves_nothing_unknown(copying: Shell) -> None:
    copying.lose_destination()
    assert copying.status == "waiting"
    copying.now += 1
    copying.inspect(facts(10))
    assert copying.status == "copying"


def test_losing_the_source_leaves_appends_in_flight_to_be_answered(copying: Shell) -> None:
    copying.fetch(stored(10), stored(11), stored(12))
    copying.send()
    copying.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "gone"), copying.now)
    copying.check()
    assert copying.status == "draining"
    for _ in range(3):
        copying.answer()
    assert (copying.status, copying.copy.progress.acknowledged) == ("waiting", 13)


@pytest.mark.parametrize("lost", ["source", "destination"])
def test_losses_while_waiting_or_inspecting_change_nothing(copying: Shell, lost: str) -> None:
    def lose() -> None:
        if lost == "source":
            copying.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "gone"), copying.now)
            copying.check()
        else:
            copying.lose_destination()

    copying.lose_destination()
    wake_at = copying.copy.retry.wake_at
    lose()
    assert (copying.status, copying.copy.retry.wake_at) == ("waiting", wake_at)
    copying.copy.begin_inspection(copying.now)
    lose()
    assert copying.status == "inspecting"


# -- what the source sends --------------------------------------------------------------------------------------------


def test_a_batch_cut_off_at_the_end_is_fetched_again(copying: Shell) -> None:
    whole, cut = stored(10, 3), stored(13, 5)
    for size in (1, 16, 17, BATCH_OVERHEAD - 1, BATCH_OVERHEAD, len(cut) - 1):
        copying.fetch(whole, cut[:size])
        assert copying.copy.fetch_position(1000) == FetchPosition(13, 2, 7, 1000)
        copying.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "gone"), copying.now)
        copying.inspect(facts(10, producer=producer_state(10, EPOCH_MS)))


def test_only_a_batch_cut_off_changes_nothing(copying: Shell) -> None:
    copying.fetch(stored(10, 3)[:-1])
    assert (copying.copy.intake.next_offset, copying.copy.wants_records) == (10, True)
    assert copying.copy.retry.failure is None


def test_a_full_queue_is_emptied_before_more_is_fetched(copying: Shell) -> None:
    copying.fetch(stored(10, value=b"x" * QUEUE_BYTES), stored(11))
    assert not copying.copy.wants_records
    copying.send()
    assert copying.copy.wants_records


CANNOT_BE_CARRIED: dict[str, tuple[Callable[[], bytes | bytearray], Reason, str]] = {
    "empty": (lambda: changed(stored(12)[:61], ">i", 57, 0), Reason.CORRUPT_BATCH, "checksum"),
    "torn marker": (lambda: changed(stored(12), ">h", 21, 0x30), Reason.CORRUPT_BATCH, "key is too short"),
    "log append time": (
        lambda: changed(changed(stored(12), ">h", 21, 0x08), ">i", 57, 0x7FFF),
        Reason.CORRUPT_BATCH,
        "32,767 records",
    ),
    "codec": (lambda: changed(stored(12), ">h", 21, 5), Reason.UNSUPPORTED_MESSAGE_FORMAT, "compression type 5"),
    "checksum": (lambda: changed(stored(12), ">q", 35, 99, sound=False), Reason.CORRUPT_BATCH, "checksum"),
    "torn value": (lambda: stored(12, value=b"good")[:-5] + b"evil\0", Reason.CORRUPT_BATCH, "checksum"),
    "magic 3": (lambda: changed(stored(12), ">b", 16, 3, sound=False), Reason.UNSUPPORTED_MESSAGE_FORMAT, "format 3"),
    "magic 0, short": (lambda: struct.pack(">qiIbbii", 12, 14, 0, 0, 0, -1, -1), Reason.CORRUPT_BATCH, "checksum"),
    "negative length": (lambda: changed(stored(12), ">i", 8, -12, sound=False), Reason.CORRUPT_BATCH, "length field"),
    "no length": (lambda: changed(stored(12), ">i", 8, 0, sound=False), Reason.CORRUPT_BATCH, "length field"),
    "short length": (
        lambda: changed(stored(12), ">i", 8, 20, sound=False),
        Reason.CORRUPT_BATCH,
        "middle of its header",
    ),
}


@pytest.mark.parametrize("kind", CANNOT_BE_CARRIED)
@pytest.mark.parametrize("alone", [True, False], ids=["first", "behind others"])
def test_what_cannot_be_carried_fails_the_partition_exactly_there(copying: Shell, kind: str, alone: bool) -> None:
    make, reason, words = CANNOT_BE_CARRIED[kind]
    copying.fetch(stored(10), stored(11))
    copying.send()
    if alone:
        copying.answer()
        copying.answer()
        copying.fetch(make(), stored(50))
        assert copying.status == "failed"
    else:
        copying.fetch(make(), stored(50))
        assert not copying.copy.wants_records
        copying.answer()
        assert copying.status == "copying"
        copying.answer()
        assert copying.status == "failed"  # only when everything before it is appended
    failure = copying.copy.retry.failure
    assert failure is not None
    assert (failure.reason, failure.offset, copying.copy.progress.acknowledged) == (reason, 12, 12)
    assert words in failure.message
    report = row_of(copying.copy)
    assert (report.state, report.reason, report.failed_offset) == ("FAILED", reason, 12)


def test_batches_before_one_that_cannot_be_carried_are_still_sent(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(7)], changed(stored(17), ">h", 21, 5))
    assert len(copying.send()) == 5
    for _ in range(7):
        copying.answer()
        copying.send()
    assert (copying.status, copying.copy.progress.acknowledged) == ("failed", 17)


def test_trouble_before_a_due_failure_drops_it_and_inspects_again(copying: Shell) -> None:
    copying.fetch(stored(10), changed(stored(11), ">h", 21, 5))
    copying.send()
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    assert (copying.status, copying.copy.retry.failure) == ("waiting", None)


def test_a_diverging_epoch_is_inspected(copying: Shell) -> None:
    copying.fetch(stored(10), stored(11))
    copying.send()
    copying.fetch(diverging_epoch=(1, 8))
    assert copying.status == "draining"
    copying.answer()
    copying.answer()
    assert (copying.status, row_of(copying.copy).reason) == ("waiting", Reason.SOURCE_DIVERGED)
    copying.inspect(facts(12), Fail(Reason.SOURCE_DIVERGED, "from offset 8 on", 8))
    assert copying.status == "failed"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.OFFSET_OUT_OF_RANGE, Reason.SOURCE_UNREACHABLE),
        (Code.NOT_LEADER_OR_FOLLOWER, Reason.SOURCE_UNREACHABLE),
        (Code.UNKNOWN_TOPIC_ID, Reason.SOURCE_UNREACHABLE),
        (Code.TOPIC_AUTHORIZATION_FAILED, Reason.NOT_AUTHORIZED),
    ],
)
def test_a_refused_fetch_drains_and_inspects_again(copying: Shell, code: Code, reason: Reason) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.fetch(error_code=code)
    assert copying.status == "draining"
    copying.answer()
    assert (copying.status, copying.copy.progress.acknowledged) == ("waiting", 11)
    assert copying.copy.retry.trouble is not None
    assert copying.copy.retry.trouble.reason is reason


def test_the_epoch_of_our_own_last_append_goes_with_the_next_fetch(copying: Shell) -> None:
    """Only this epoch reveals that a source's history was rewritten while its leader moved."""
    copying.fetch(stored(10, epoch=5))
    copying.send()
    copying.answer()
    copying.fetch(error_code=Code.NOT_LEADER_OR_FOLLOWER)
    copying.now += 1
    copying.inspect(facts(11, tail=TailMatch.SAME, tail_epoch=5, producer=producer_state(11, EPOCH_MS)))
    assert copying.copy.fetch_position(1).last_fetched_epoch == 5


def test_without_a_comparison_no_epoch_is_claimed(copying: Shell) -> None:
    copying.fetch(error_code=Code.NOT_LEADER_OR_FOLLOWER)
    copying.now += 1
    copying.inspect(facts(8, tail=TailMatch.NOTHING))
    assert copying.copy.fetch_position(1).last_fetched_epoch is None
