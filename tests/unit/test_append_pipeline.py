"""What may go out to a partition, what is put together, and what is made of answers: without a broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import pytest

from kmirror.cluster.append import LeaderState, OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import SETTLE_S
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.pipeline_queue import AppendStoppedError, PartitionQueue, PendingAppend
from kmirror.cluster.protocol.batch import CorruptBatchError, batch_headers
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.pieces import Run
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID, AppendAnswer
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import HistoriesDifferError

PLACE = TopicPartition("t", 0)
HOUR_MS = 3_600_000


class Seeing(OffsetAppender):
    """An appender that reads a given log end, and appends everything."""

    def __init__(self, log_end: int = 0) -> None:
        super().__init__(cast(ClusterClient, None), PLACE, producer_id=FIRST_OWN_PRODUCER_ID)
        self.sees = log_end
        self.later: list[int] = []

    def read_state(self, *, in_doubt: bool = False) -> LeaderState:
        return LeaderState(None, self.sees, self.sees)

    def append_run(self, run: Run, *, in_doubt: bool = False) -> None:
        self.later.append(run.base_offset)
        self.appended(run)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def small(offset: int, *, age_ms: int = 0) -> PendingAppend:
    return PendingAppend([Record(offset, now_ms() - age_ms, b"k", b"v")])


@pytest.fixture
def found() -> PartitionQueue:
    """Return a partition whose leader remembers us, and whose memory lasts two hours."""
    made = PartitionQueue(PLACE, Seeing())
    made.leader, made.expiration_ms = LeaderAddress(1, "localhost", 9092, bytes(16), 0), 2 * HOUR_MS
    made.appender.last_timestamp = now_ms()
    return made


@pytest.fixture
def pipeline() -> Iterator[AppendPipeline]:
    """Return one whose thread is not started."""
    made = AppendPipeline(client_config({"bootstrap.servers": "localhost:1"}), producer_id=FIRST_OWN_PRODUCER_ID)
    yield made
    made._end(None)


def sent(found: PartitionQueue, *items: PendingAppend) -> None:
    """Put these on their way, each by itself."""
    for item in items:
        found.queue.append(item)
        found.in_flight.append(found.next_batch())


def answer(code: int, base_offset: int) -> AppendAnswer:
    return AppendAnswer("t", 0, code, base_offset, None)


@pytest.mark.parametrize(
    ("kept_by_ms_ago", "in_flight_ms_ago", "expiration_ms", "may_send"),
    [
        (0, None, 2 * HOUR_MS, True),
        (0, 0, 2 * HOUR_MS, True),
        (2 * HOUR_MS, 0, 2 * HOUR_MS, False),  # may be forgotten before the one in flight arrives
        (None, 0, 2 * HOUR_MS, False),  # never heard of us
        (0, 3 * HOUR_MS, 2 * HOUR_MS, False),  # the one in flight wipes out the memory
        (0, 0, None, False),  # it is not known how long the memory lasts
        (None, None, None, True),  # alone it may always go
    ],
)
def test_a_batch_follows_another_only_while_the_leader_is_certain_to_remember_us(
    found: PartitionQueue,
    kept_by_ms_ago: int | None,
    in_flight_ms_ago: int | None,
    expiration_ms: int | None,
    may_send: bool,
) -> None:
    found.appender.last_timestamp = None if kept_by_ms_ago is None else now_ms() - kept_by_ms_ago
    found.expiration_ms = expiration_ms
    if in_flight_ms_ago is not None:
        sent(found, small(0, age_ms=in_flight_ms_ago))
    found.queue.append(small(found.end))
    assert found.may_send is may_send


def test_what_follows_is_put_together_and_a_whole_batch_is_not(found: PartitionQueue) -> None:
    whole = PendingAppend(bytes(make_batch([Record(2, now_ms(), b"k", b"v")], compression_type="gzip")))
    large = [PendingAppend([Record(offset, now_ms(), b"k", bytes(200 << 10))]) for offset in (6, 7)]
    found.queue += [small(0), small(1), whole, small(3), small(5), *large]
    batches = []
    while found.queue:
        batches.append(found.next_batch())
    assert [[item.base_offset for item in batch.items] for batch in batches] == [[0, 1], [2], [3], [5, 6], [7]]
    assert [batch.run.next_offset for batch in batches] == [2, 3, 4, 7, 8]


def test_what_cannot_be_written_is_kept_for_a_closer_look(found: PartitionQueue) -> None:
    found.queue += [small(0), PendingAppend([Record(1, 0, "no bytes", None)])]  # type: ignore[arg-type]
    with pytest.raises(CorruptBatchError):
        found.next_batch()
    assert found.is_troubled
    assert [item.base_offset for item in found.unsettled[0].items] == [0, 1]


def test_what_was_lost_and_is_there_is_done_and_the_rest_sent_again(
    pipeline: AppendPipeline, found: PartitionQueue
) -> None:
    items = [small(offset) for offset in range(3)]
    sent(found, *items)
    for batch in list(found.in_flight):
        pipeline._settle(found, batch, None)
    cast(Seeing, found.appender).sees = 2
    pipeline._recover(found)
    assert [item.result(0) for item in items] == [1, 2, 3]
    assert cast(Seeing, found.appender).later == [2]
    assert not found.is_troubled


def test_a_leader_that_was_demoted_may_have_appended(pipeline: AppendPipeline, found: PartitionQueue) -> None:
    """Not even old records, which leaders forget us for, are waited for: all requests are answered."""
    items = [small(offset, age_ms=3 * HOUR_MS) for offset in range(3)]
    sent(found, *items)
    began = time.monotonic()
    for batch in list(found.in_flight):
        pipeline._settle(found, batch, answer(Code.NOT_LEADER_OR_FOLLOWER, -1))
    cast(Seeing, found.appender).sees = 1
    pipeline._recover(found)
    assert [item.result(0) for item in items] == [1, 2, 3]
    assert cast(Seeing, found.appender).later == [1, 2]
    assert time.monotonic() - began < SETTLE_S


class Demoted(OffsetAppender):
    """An appender whose leader answers with these codes, after which the log ends there."""

    def __init__(self, *answers: tuple[Code, int]) -> None:
        client = ClusterClient(client_config({"bootstrap.servers": "localhost:1"}))
        super().__init__(client, PLACE, producer_id=FIRST_OWN_PRODUCER_ID)
        self._answers = list(answers)
        self.sequences: list[int] = []
        self.end = 0

    def send(self, run: Run) -> AppendAnswer | None:
        code, self.end = self._answers.pop(0)
        self.sequences.append(next(batch_headers(run.data)).base_sequence)
        return answer(code, run.base_offset)

    def read_state(self, *, in_doubt: bool = False) -> LeaderState:
        return LeaderState(None, self.end, self.end)


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_batch_whose_leader_was_demoted_is_looked_for_in_the_log(code: Code) -> None:
    began = time.monotonic()
    there, gone = Demoted((code, 2)), Demoted((code, 0), (Code.NONE, 2))
    for out in (there, gone):
        assert out.append([Record(0, 1, b"k", b"v"), Record(1, 1, b"k", b"v")]) == 2
    assert (there.sequences, gone.sequences) == ([0], [0, 0])
    with pytest.raises(HistoriesDifferError):
        Demoted((code, 1)).append([Record(0, 1, b"k", b"v"), Record(1, 1, b"k", b"v")])
    assert time.monotonic() - began < SETTLE_S


@pytest.mark.parametrize("code", [Code.NOT_ENOUGH_REPLICAS, Code.LEADER_NOT_AVAILABLE])
def test_what_was_certainly_not_written_is_another_writer_s_where_it_is_there(code: Code) -> None:
    with pytest.raises(HistoriesDifferError):
        Demoted((code, 1)).append([Record(0, 1, b"k", b"v")])


def test_a_log_that_ends_where_nothing_of_ours_does_is_another_writer_s(
    pipeline: AppendPipeline, found: PartitionQueue
) -> None:
    items = [PendingAppend([Record(0, now_ms(), b"k", b"v"), Record(1, now_ms(), b"k", b"v")]), small(2)]
    sent(found, *items)
    for batch in list(found.in_flight):
        pipeline._settle(found, batch, None)
    cast(Seeing, found.appender).sees = 1
    pipeline._recover(found)
    assert {type(item.exception(0)) for item in items} == {HistoriesDifferError}
    assert isinstance(found.stopped, AppendStoppedError)


def test_a_batch_that_landed_elsewhere_is_never_taken_for_done(pipeline: AppendPipeline, found: PartitionQueue) -> None:
    """Not even where the log ends as if all were well: the one behind it was lost."""
    items = [small(0), small(1)]
    sent(found, *items)
    first, second = found.in_flight
    pipeline._settle(found, first, answer(0, 1))
    pipeline._settle(found, second, None)
    cast(Seeing, found.appender).sees = 2
    pipeline._recover(found)
    assert {type(item.exception(0)) for item in items} == {HistoriesDifferError}
