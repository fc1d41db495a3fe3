"""The copy of one partition as a state machine: events in, what may be done next out. No sockets, no clock."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import BATCH_OVERHEAD, batch_headers, crc_of
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey, FetchPosition
from kmirror.cluster.protocol.producer_state import ProducerState
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.judge import Copy, Facts, Fail, Tail, Trouble, Verdict, Wait
from kmirror.engine.lane.broker_memory import CLOCK_SLACK_MS
from kmirror.engine.lane.intake import Batch, Frame
from kmirror.engine.lane.partition_copy import MAX_IN_FLIGHT, QUEUE_BYTES, PartitionCopy
from kmirror.engine.lane.report import row_of
from kmirror.engine.lane.states import Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment

ID = b"\x01" * 16
KEY = FetchKey(ID, 3)
ASSIGNMENT = Assignment(
    topic="mirrored",
    partition=3,
    source_topic="orders",
    source_topic_id=format_topic_id(ID),
    destination_topic_id=format_topic_id(ID),
    producer_id=(1 << 62) + 5,
)
#: The wall clock when the machine's clock shows 0.
EPOCH_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SOON = 1000.0
SETTLE = 10.0


def stored(base: int, count: int = 1, *, timestamp: int = EPOCH_MS, epoch: int = 2, value: bytes = b"v") -> bytearray:
    """Make a batch as it lies in the source's log."""
    records = [Record(base + i, timestamp, b"k", value) for i in range(count)]
    return make_batch(records, leader_epoch=epoch)


def changed(batch: bytearray, layout: str, position: int, value: int, *, sound: bool = True) -> bytearray:
    """Set one field of a batch; a sound batch has the checksum that belongs to it."""
    struct.pack_into(layout, batch, position, value)
    if sound:
        struct.pack_into(">I", batch, 17, crc_of(memoryview(batch)))
    return batch


def sequence_of(batch: Batch) -> int:
    """Read the sequence number that a batch is sent with."""
    return next(batch_headers(batch.data)).base_sequence


def facts(end: int = 0, **others: object) -> Facts:
    usual = Facts(
        source_topic_id=ID,
        destination_topic_id=ID,
        source_leader=(1, 7),
        destination_leader=(2, 4),
        source_log_end=1 << 40,
        last_stable_offset=1 << 40,
        high_watermark=1 << 40,
        destination_log_end=end,
        producer_id_expiration_ms=DAY_MS,
    )
    return replace(usual, **others)  # type: ignore[arg-type]


def remembered(end: int, timestamp: int) -> ProducerState:
    return ProducerState(ASSIGNMENT.producer_id, 0, end - 1, timestamp, -1, None)


class Shell:
    """Do with one partition what the lane does, and check after each event what must always hold."""

    def __init__(self, assignment: Assignment = ASSIGNMENT, **options: float) -> None:
        self.released: list[Frame] = []
        self.frames: list[Frame] = []
        self.copy = PartitionCopy(assignment, settle=SETTLE, released=self.released, **options)
        self.now = SOON

    @property
    def wall(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    @property
    def status(self) -> str:
        return self.copy.status.value

    @property
    def flying(self) -> list[int]:
        """The base offsets in flight."""
        return [batch.base_offset for batch in self.copy.in_flight]

    def inspect(self, seen: Facts, verdict: Verdict | None = None) -> None:
        """Go through an inspection; without a verdict, the copy goes on where the destination ends."""
        self.copy.begin_inspection(self.now)
        self.check()
        usual = Copy(seen.destination_log_end, 0, seen.filled_offsets(0))
        self.copy.inspected(seen, verdict or usual, self.now, self.wall)
        self.check()

    def fetch(self, *batches: bytes | bytearray, **fields: object) -> None:
        """Hand over one Fetch answer."""
        frame = Frame(memoryview(bytearray(b"".join(batches))), self)
        self.frames.append(frame)
        usual = FetchedPartition(KEY, 0, 1 << 40, 1 << 40, 0, (), frame.view, None)
        self.copy.fetched(replace(usual, **fields), frame, self.now)  # type: ignore[arg-type]
        if self.status == "copying" and self.copy.blocked_by:
            self.copy.advance(self.now)
        if frame.release():
            self.released.append(frame)
        self.check()

    def send(self) -> list[Batch]:
        """Send all that may be sent now."""
        sent = []
        while self.copy.may_send(self.wall):
            assert self.status == "copying"
            sent.append(self.copy.take())
            self.check()
        self.check()
        return sent

    def answer(self, code: int = 0, base_offset: int | None = None, detail: str | None = None) -> None:
        """Answer the oldest request in flight; without an offset, with the one that was meant."""
        meant = self.copy.in_flight[0].base_offset
        self.copy.answered(code, meant if base_offset is None and not code else base_offset or -1, detail, self.now)
        self.check()

    def lose_destination(self) -> None:
        self.copy.outcome_unknown("the connection is gone", self.now)
        self.check()

    def check(self) -> None:
        copy = self.copy
        queue, flying = list(copy.queue), list(copy.in_flight)
        assert len(flying) <= MAX_IN_FLIGHT, "too many in flight"
        queued = [item for item in queue if isinstance(item, Batch)]
        assert copy.intake.queued_bytes == sum(len(batch.data) for batch in queued), "the queue's bytes are miscounted"
        line = flying + queue if copy.status is Status.COPYING else flying
        for one, other in itertools.pairwise(line):
            assert one.next_offset == other.base_offset, "batches do not follow each other"
        if copy.status is Status.COPYING:
            assert not line or line[0].base_offset == copy.progress.acknowledged, (
                "the next batch is not the next one to append"
            )
            assert copy.intake.next_offset == (line[-1].next_offset if line else copy.progress.acknowledged), (
                "fetches skip or repeat"
            )
        else:
            assert not queue, "batches are kept that will not be sent"
            assert not copy.may_send(self.wall)
            assert not copy.wants_records
        if copy.status in {Status.WAITING, Status.INSPECTING}:
            assert not flying, "batches are in flight while nobody waits for them"
        held = {id(batch.frame) for batch in (*queued, *flying)}
        for frame in self.frames:
            assert frame.pending >= 0
            assert self.released.count(frame) == (1 if id(frame) not in held else 0), (
                "a frame is lost or returned twice"
            )

    def end(self) -> None:
        """Let go of everything; whatever happened, every frame comes back once."""
        self.copy.outcome_unknown("the end", self.now)
        if self.status == "copying":
            self.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "the end"), self.now)
        assert [frame.pending for frame in self.frames] == [0] * len(self.frames)
        assert len([frame for frame in self.released if frame.owner is self]) == len(self.frames)


@pytest.fixture
def shell() -> Iterator[Shell]:
    made = Shell()
    yield made
    made.end()


@pytest.fixture
def copying(shell: Shell) -> Shell:
    """Return a shell whose copy is past its first success, at offset 10, with a broker that remembers us."""
    shell.inspect(facts(9, producer=remembered(9, EPOCH_MS)))
    shell.fetch(stored(9))
    assert len(shell.send()) == 1
    shell.answer()
    assert (shell.status, shell.copy.progress.acknowledged) == ("copying", 10)
    return shell


# -- one at a time, until it is safe ----------------------------------------------------------------------------------


def test_nothing_is_sent_before_an_inspection(shell: Shell) -> None:
    shell.fetch(stored(0))
    assert shell.send() == []
    assert not shell.copy.wants_records


def test_the_copy_starts_where_the_destination_ends(shell: Shell) -> None:
    shell.inspect(facts(40, tail=Tail.SAME, tail_epoch=6, producer=remembered(40, EPOCH_MS)))
    assert shell.copy.fetch_position(1000) == FetchPosition(40, 6, 7, 1000)
    shell.fetch(stored(40, 5), stored(45, 1))
    (first,) = shell.send()
    assert (first.base_offset, sequence_of(first)) == (40, 40)


def test_one_batch_flies_alone_until_the_first_success(shell: Shell) -> None:
    shell.inspect(facts(0))
    shell.fetch(*[stored(i) for i in range(8)])
    assert len(shell.send()) == 1
    shell.answer()
    assert len(shell.send()) == MAX_IN_FLIGHT
    assert shell.flying == [1, 2, 3, 4, 5]


def test_after_every_trouble_one_batch_flies_alone_again(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(4)])
    assert len(copying.send()) == 4
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    for _ in range(3):
        copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    copying.inspect(facts(10, producer=remembered(10, EPOCH_MS)))
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
    seen = facts(0, producer=remembered(0, EPOCH_MS + 1_000_000), producer_id_expiration_ms=expiration_ms)
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
    shell.inspect(facts(end - 2, producer=remembered(end - 2 - 41, EPOCH_MS)))
    shell.fetch(stored(end - 2, 2), stored(end))
    (last,) = shell.send()
    assert sequence_of(last) == 0x7FFFFFFE
    shell.answer()
    (first,) = shell.send()
    assert sequence_of(first) == 0


# -- while somebody else may still write ------------------------------------------------------------------------------


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
    succeeding.inspect(facts(5, producer=remembered(5, EPOCH_MS)))
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
    succeeding.inspect(facts(5, producer=remembered(5, EPOCH_MS - DAY_MS)))
    assert succeeding.status == "waiting"


def test_with_the_brokers_memory_own_lost_requests_are_not_waited_for(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=remembered(10, EPOCH_MS)))
    copying.fetch(stored(10), stored(11), stored(12))
    assert len(copying.send()) == 1
    copying.answer()
    assert len(copying.send()) == 2


def test_a_lost_request_that_would_end_the_memory_is_waited_for(copying: Shell) -> None:
    copying.fetch(stored(10, timestamp=EPOCH_MS - 9 * DAY_MS))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=remembered(10, EPOCH_MS)))
    assert copying.status == "waiting"
    copying.now += SETTLE
    copying.inspect(facts(11, producer=remembered(11, EPOCH_MS)))
    assert copying.status == "copying"


def test_a_batch_that_would_end_the_memory_waits_until_lost_requests_cannot_arrive(copying: Shell) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.lose_destination()
    copying.now += 1
    copying.inspect(facts(10, producer=remembered(10, EPOCH_MS)))
    copying.fetch(stored(10), stored(11, timestamp=EPOCH_MS - 9 * DAY_MS), stored(12))
    assert [batch.base_offset for batch in copying.send()] == [10]
    assert copying.status == "copying"
    copying.answer()
    assert copying.send() == []
    assert copying.status == "waiting"
    copying.now += SETTLE
    assert copying.copy.due_for_inspection(copying.now)
    copying.inspect(facts(11, producer=remembered(11, EPOCH_MS)))
    copying.fetch(stored(11, timestamp=EPOCH_MS - 9 * DAY_MS), stored(12))
    assert [batch.base_offset for batch in copying.send()] == [11]


def test_the_log_end_counts_only_when_it_was_read_after_the_predecessors_end(succeeding: Shell) -> None:
    succeeding.now += 19
    succeeding.copy.begin_inspection(succeeding.now)
    succeeding.now += 2
    seen = facts(5)  # read before the predecessor's time was over, told after it
    succeeding.copy.inspected(seen, Copy(5), succeeding.now, succeeding.wall)
    succeeding.check()
    assert succeeding.status == "waiting"
    assert succeeding.copy.due_for_inspection(succeeding.now)


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
    shell.inspect(facts(20), Fail(Reason.SOURCE_DIVERGED, "from offset 11 on it does not hold what was copied", 11))
    assert shell.copy.retry.failure == Fail(Reason.OFFSET_MISMATCH, "a batch for offset 11 was appended at 19", 11)
    assert shell.status == "failed"
    shell.end()


def test_what_a_predecessor_of_ours_wrote_elsewhere_is_no_news_about_the_source(copying: Shell) -> None:
    mismatched(copying)
    copying.inspect(facts(20), Fail(Reason.SOURCE_DIVERGED, "from offset 11 on it does not hold what was copied", 11))
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
def test_a_refusal_that_may_pass_drains_and_looks_again(copying: Shell, code: Code) -> None:
    copying.fetch(*[stored(10 + i) for i in range(4)])
    copying.send()
    copying.answer()
    copying.answer(code)
    assert copying.status == "draining"
    assert copying.copy.retry.trouble is not None
    assert copying.copy.retry.trouble.reason is Reason.DESTINATION_UNREACHABLE
    copying.fetch(stored(14))  # an answer on its way when the trouble came
    assert not copying.copy.due_for_inspection(copying.now + 999)
    copying.answer(code)
    assert copying.status == "draining"
    copying.answer(code)
    assert copying.status == "waiting"
    assert copying.copy.progress.acknowledged == 11
    # nothing can be on its way any more: without the broker's memory the next look decides
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


def test_successes_behind_a_refusal_are_still_told_by_the_log_end(copying: Shell) -> None:
    copying.fetch(*[stored(10 + i) for i in range(3)])
    copying.send()
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    copying.answer(base_offset=11)
    copying.answer(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert copying.status == "waiting"
    copying.now += 1
    copying.inspect(facts(12, producer=remembered(12, EPOCH_MS)))
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
    copying.inspect(facts(12, producer=remembered(12, EPOCH_MS) if memory else None))
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
        copying.inspect(facts(10, producer=remembered(10, EPOCH_MS)))


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


def test_trouble_before_a_failure_is_due_forgets_it_and_looks_again(copying: Shell) -> None:
    copying.fetch(stored(10), changed(stored(11), ">h", 21, 5))
    copying.send()
    copying.answer(Code.NOT_LEADER_OR_FOLLOWER)
    assert (copying.status, copying.copy.retry.failure) == ("waiting", None)


def test_a_diverging_epoch_is_looked_into(copying: Shell) -> None:
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
def test_a_refused_fetch_drains_and_looks_again(copying: Shell, code: Code, reason: Reason) -> None:
    copying.fetch(stored(10))
    copying.send()
    copying.fetch(error_code=code)
    assert copying.status == "draining"
    copying.answer()
    assert (copying.status, copying.copy.progress.acknowledged) == ("waiting", 11)
    assert copying.copy.retry.trouble is not None
    assert copying.copy.retry.trouble.reason is reason


def test_the_epoch_of_our_own_last_append_goes_with_the_next_fetch(copying: Shell) -> None:
    """A source whose history was rewritten while its leader moved tells by this epoch, and by nothing else."""
    copying.fetch(stored(10, epoch=5))
    copying.send()
    copying.answer()
    copying.fetch(error_code=Code.NOT_LEADER_OR_FOLLOWER)
    copying.now += 1
    copying.inspect(facts(11, tail=Tail.SAME, tail_epoch=5, producer=remembered(11, EPOCH_MS)))
    assert copying.copy.fetch_position(1).last_fetched_epoch == 5


def test_without_a_comparison_no_epoch_is_claimed(copying: Shell) -> None:
    copying.fetch(error_code=Code.NOT_LEADER_OR_FOLLOWER)
    copying.now += 1
    copying.inspect(facts(8, tail=Tail.NOTHING))
    assert copying.copy.fetch_position(1).last_fetched_epoch is None


# -- patience ---------------------------------------------------------------------------------------------------------

AWAY = Trouble(Reason.SOURCE_UNREACHABLE, "nobody answers")
GONE = Trouble(Reason.SOURCE_TOPIC_DELETED, "no such topic", permanent_after_retries=True)


def pauses(shell: Shell, trouble: Trouble, times: int) -> list[float]:
    """Inspect again and again, in vain; return how long each pause was."""
    found = []
    for _ in range(times):
        shell.inspect(Facts(trouble=trouble), Wait(trouble))
        found.append(round(shell.copy.retry.wake_at - shell.now, 3))
        shell.now = shell.copy.retry.wake_at
    return found


def test_pauses_grow_to_five_seconds(shell: Shell) -> None:
    assert pauses(shell, AWAY, 9) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert shell.copy.retry.attempt == 9


def test_a_success_makes_pauses_short_again(copying: Shell) -> None:
    pauses(copying, AWAY, 5)
    copying.inspect(facts(10))
    copying.fetch(stored(10))
    copying.send()
    copying.answer()
    assert copying.copy.retry.attempt == 0
    assert pauses(copying, AWAY, 2) == [0.1, 0.2]


def test_silence_is_waited_for_without_end(shell: Shell) -> None:
    pauses(shell, AWAY, 500)
    assert shell.status == "waiting"
    assert row_of(shell.copy).reason is Reason.SOURCE_UNREACHABLE


def test_an_answer_that_stays_a_refusal_fails_after_the_retry_time(shell: Shell) -> None:
    began = shell.now
    while shell.status != "failed":
        assert shell.now - began <= 306
        pauses(shell, GONE, 1)
    assert shell.copy.retry.failure == Fail(Reason.SOURCE_TOPIC_DELETED, "no such topic", 0)


def test_the_retry_time_begins_with_the_refusal_not_with_the_silence_before_it(shell: Shell) -> None:
    pauses(shell, AWAY, 500)
    began = shell.now
    pauses(shell, GONE, 1)
    assert shell.status == "waiting"
    while shell.status != "failed":
        pauses(shell, GONE, 1)
    assert 300 <= shell.now - began <= 306


def test_the_retry_time_begins_anew_after_a_success(copying: Shell) -> None:
    pauses(copying, GONE, 50)
    copying.inspect(facts(10))
    copying.fetch(stored(10))
    copying.send()
    copying.answer()
    pauses(copying, GONE, 50)
    assert copying.status == "waiting"


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_missing_right_found_only_in_use_fails_after_the_retry_time(copying: Shell, side: str) -> None:
    """Looking is allowed, reading or writing is not: every inspection succeeds, and nothing is ever copied."""
    began = copying.now
    while copying.status != "failed":
        assert copying.now - began <= 320
        if side == "source":
            copying.fetch(error_code=Code.TOPIC_AUTHORIZATION_FAILED)
        else:
            copying.fetch(stored(10))
            copying.send()
            copying.answer(Code.TOPIC_AUTHORIZATION_FAILED)
        if copying.status == "waiting":
            copying.now = copying.copy.retry.wake_at
            copying.inspect(facts(10))
    assert copying.now - began > 290
    assert copying.copy.retry.failure is not None
    assert copying.copy.retry.failure.reason is Reason.NOT_AUTHORIZED


def test_an_idle_partition_forgets_old_troubles(copying: Shell) -> None:
    pauses(copying, GONE, 3)
    copying.inspect(facts(10, last_stable_offset=10, high_watermark=10))
    copying.fetch(high_watermark=10, last_stable_offset=10)
    copying.now += 10 * DAY_MS / 1000
    pauses(copying, GONE, 3)
    assert copying.status == "waiting"


# -- what is reported -------------------------------------------------------------------------------------------------


def test_the_report_follows_the_copy(shell: Shell) -> None:
    report = row_of(shell.copy)
    assert (report.state, report.destination_offset, report.source_offset) == ("LOG_ALIGNMENT", None, None)
    shell.inspect(facts(0, last_stable_offset=2, high_watermark=3, source_log_start=0))
    shell.fetch(stored(0, 2, timestamp=EPOCH_MS - 5), high_watermark=4, last_stable_offset=2, log_start_offset=0)
    shell.send()
    shell.answer()
    report = row_of(shell.copy, 77.0)
    assert (report.topic, report.partition, report.state, report.bytes_per_second) == ("mirrored", 3, "MIRRORING", 77)
    assert (report.source_offset, report.source_high_watermark, report.source_log_start) == (2, 4, 0)
    assert (report.destination_offset, report.last_timestamp_ms, report.last_epoch) == (2, EPOCH_MS - 5, 2)
    assert (report.reason, report.message, report.retry_attempt) == (None, None, 0)
    assert shell.copy.caught_up


def test_a_partition_behind_the_last_stable_offset_has_not_caught_up(shell: Shell) -> None:
    shell.inspect(facts(0, last_stable_offset=2))
    assert not shell.copy.caught_up
    shell.fetch(stored(0, 2), last_stable_offset=3)
    shell.send()
    shell.answer()
    assert not shell.copy.caught_up


def test_a_verdict_of_failure_is_final(shell: Shell) -> None:
    failure = Fail(Reason.DESTINATION_WRITTEN, "somebody else", 7)
    shell.inspect(facts(9), failure)
    assert (shell.status, shell.copy.retry.failure) == ("failed", failure)
    shell.fetch(stored(9))
    assert shell.send() == []


def test_the_story_is_bounded_and_without_payloads(copying: Shell) -> None:
    for _ in range(100):
        copying.fetch(error_code=6, records=memoryview(b"secret"))
        copying.now += 9
        copying.inspect(facts(10))
    assert len(copying.copy.story) == 50
    assert not any("secret" in line for line in copying.copy.story)
