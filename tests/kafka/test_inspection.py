"""What an inspection finds out about real pairs of logs, what the judge makes of it, and how many requests it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cluster.client import EARLIEST, ClusterClient, Lookup, OffsetAnswer
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import fetch
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.histories.inspection import _TAIL_READ_LIMITS
from kmirror.engine.histories.judge import Copy, Fail, SourceMark, TailMatch, Wait, judge
from kmirror.engine.histories.section_reader import SectionReader, Unreadable
from kmirror.engine.histories.stretches import LogEnds
from kmirror.errors import Reason
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.inspected import Pair, delete_records, failure, produce, transact
from tests.support.leader import OWN_ID, batch_of
from tests.support.oracle import segment_files
from tests.support.real_logs import delete_records as delete_first
from tests.support.waiting import wait_until


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count requests by their API."""
    counted: Counter[int] = Counter()
    exchange = Connection.exchange_frame

    def counting(self: Connection, buffers: list[bytes], correlation_id: int, timeout: float) -> memoryview:
        counted[int.from_bytes(bytes(buffers[0])[4:6])] += 1
        return exchange(self, buffers, correlation_id, timeout)

    monkeypatch.setattr(Connection, "exchange_frame", counting)
    return counted


# -- one history -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dense_logs_take_one_fetch_of_each_side_for_dozens_of_partitions(pair: Pair, fetches: Counter[int]) -> None:
    partitions = 32
    topic = pair.topic(partitions)
    for partition in range(partitions):
        codec = ["none", "gzip", "snappy", "lz4", "zstd"][partition % 5]
        produce(pair.source, topic, 30 + partition, partition=partition, compression_type=codec)
        with pair.at(topic, partition) as source, pair.at_copy(topic, partition) as copy:
            records = source.fetch(0).records
            for header in list(batch_headers(records)):
                batch = bytearray(records[header.position : header.position + header.size_in_bytes])
                assert copy.append(batch, header.base_offset) == (0, header.base_offset)
            epoch = source.leader_epoch
    produce(pair.source, topic, 2000, partition=7)  # of one it has much more than was copied
    assignments = [pair.assignment(topic, partition) for partition in range(partitions)]
    pair.inspector.inspect(assignments)
    fetches.clear()
    found = pair.inspector.inspect(assignments)
    assert fetches[fetch.API_KEY] == 2
    assert sum(fetches.values()) < 25
    for partition, facts in enumerate(found):
        assert (facts.tail, facts.tail_epoch, facts.tail_producer_id) == (TailMatch.SAME, epoch, OWN_ID)
        assert judge(assignments[partition], None, facts) == Copy(30 + partition)
    # that logs which begin below their sources' begin with no filler takes one more fetch
    for partition in range(partitions):
        delete_first(pair.source, topic, 10, partition)
    fetches.clear()
    found = pair.inspector.inspect(assignments)
    assert fetches[fetch.API_KEY] == 3
    assert {(facts.tail, facts.source_log_start, facts.filler_end) for facts in found} == {(TailMatch.SAME, 10, None)}


def test_batches_too_large_for_one_answer_are_compared_too(pair: Pair, fetches: Counter[int]) -> None:
    topic = pair.topic(6, {"max.message.bytes": "9000000"})
    sizes = [3_000_000, 7_000_000, 10, 1_500_000, 4_000_000, 900_000]
    for partition, size in enumerate(sizes):
        batch = batch_of(value=size.to_bytes(4) * (size // 4))
        with pair.at(topic, partition) as source, pair.at_copy(topic, partition) as copy:
            assert source.append_as_is(batch).error_code == 0
            assert copy.append(batch, 0) == (0, 0)
    found = pair.inspector.inspect([pair.assignment(topic, partition) for partition in range(6)])
    assert [facts.tail for facts in found] == [TailMatch.SAME] * 6
    assert 2 < fetches[fetch.API_KEY] <= 14


@pytest.fixture
def throttled(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Pair, list[int]]]:
    """Return a pair whose source lets us read 300 KB a second, and the pauses that brokers ask for."""
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    pauses: list[int] = []
    note = Connection.note_throttle

    def noting(self: Connection, throttle_time_ms: int) -> None:
        pauses.extend([throttle_time_ms] if throttle_time_ms else [])
        note(self, throttle_time_ms)

    with closing(Pair(source_cluster, destination_cluster, "slow-reader")) as made:

        def set_quota(*, remove: bool) -> None:
            quota = entry.OpData(key="consumer_byte_rate", value=300_000.0, remove=remove)
            client = entry.EntityData(entity_type="client-id", entity_name="slow-reader")
            request = AlterClientQuotasRequest(entries=[entry(entity=[client], ops=[quota])], validate_only=False)
            assert [one.error_code for one in made.at_source.ask_any(request).entries] == [0]

        set_quota(remove=False)
        monkeypatch.setattr(Connection, "note_throttle", noting)
        try:
            yield made, pauses
        finally:
            set_quota(remove=True)


def test_a_throttled_reader_reads_all_the_same(throttled: tuple[Pair, list[int]]) -> None:
    pair, pauses = throttled
    topic = pair.topic(3)
    for partition in range(3):
        batch = batch_of(value=b"x" * 300_000)
        with pair.at(topic, partition) as source, pair.at_copy(topic, partition) as copy:
            assert source.append_as_is(batch).error_code == 0
            assert copy.append(batch, 0) == (0, 0)
    assignments = [pair.assignment(topic, partition) for partition in range(3)]

    def is_throttled() -> bool:
        assert [facts.tail for facts in pair.inspector.inspect(assignments)] == [TailMatch.SAME] * 3
        return bool(pauses)

    wait_until(is_throttled)


def test_a_tail_of_markers_is_seen_through_and_the_sequence_number_is_known(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 50)
    transact(pair.source, topic, 9)
    transact(pair.source, topic, 30, commit=False)
    end = 50 + 10 + 31
    assert pair.copy(topic, end) == 1 + 31
    facts, verdict = pair.inspect(topic)
    assert (facts.tail, facts.tail_producer_id, facts.destination_log_end) == (TailMatch.SAME, OWN_ID, end)
    assert verdict == Copy(end, filled_offsets=32)
    with pair.at_copy(topic) as copy:
        assert facts.unused_coordinator_epoch == copy.producer().coordinator_epoch + 1 > 0  # type: ignore[union-attr]
        refused, _ = copy.append(batch_of(), end)
        assert refused == 45
        assert copy.append(batch_of(), end - verdict.filled_offsets) == (0, end)


def test_markers_alone_leave_nothing_to_compare(pair: Pair) -> None:
    topic = pair.topic()
    transact(pair.source, topic, 30, commit=False)
    assert pair.copy(topic, 31) == 31
    facts, verdict = pair.inspect(topic)
    assert (facts.tail, verdict) == (TailMatch.NOTHING, Copy(31, filled_offsets=31))
    with pair.at_copy(topic) as copy:
        assert copy.append(batch_of(), 0) == (0, 31)


def test_the_position_may_lie_inside_a_batch_of_the_source(pair: Pair) -> None:
    topic = pair.topic()
    with pair.at(topic) as source:
        assert source.append_as_is(batch_of(40)).error_code == 0
    pair.copy(topic, 23)
    facts, verdict = pair.inspect(topic)
    assert (facts.tail, facts.tail_epoch, verdict) == (TailMatch.SAME, 0, Copy(23))


def test_a_source_that_was_emptied_is_no_alarm_and_one_that_moved_on_is(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 60)
    pair.copy(topic, 60)
    delete_records(pair.source, topic, 60)
    assert pair.inspect(topic)[1] == Copy(60)
    delete_records(pair.destination, topic, 60)
    assert pair.inspect(topic)[1] == Copy(60)
    produce(pair.source, topic, 30)
    assert pair.inspect(topic)[1] == Copy(60)
    pair.copy(topic, 70)
    delete_records(pair.source, topic, 75)
    assert failure(pair.inspect(topic)[1]) == (Reason.SOURCE_TRUNCATED, 70)


def test_a_failed_lookup_of_the_log_start_decides_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has deleted what was not copied; as long as it does not say so, it may as well have been reset."""
    topic = pair.topic()
    produce(pair.source, topic, 100)
    pair.copy(topic, 40)
    delete_records(pair.source, topic, 70)
    real = ClusterClient.look_up_offsets
    asked = []

    def without_starts(self: ClusterClient, wanted: Any, lookups: Sequence[Lookup], **options: Any) -> Any:
        answers = real(self, wanted, lookups, **options)
        for lookup, found in zip(lookups, answers, strict=True):
            if self is pair.at_source and lookup.timestamp == EARLIEST:
                asked.append(wanted)
                found.update(dict.fromkeys(found, OffsetAnswer(Code.UNKNOWN_SERVER_ERROR, None, -1)))
        return answers

    monkeypatch.setattr(ClusterClient, "look_up_offsets", without_starts)
    _, verdict = pair.inspect(topic)
    assert asked
    assert isinstance(verdict, Wait)
    assert verdict.trouble.reason is Reason.SOURCE_UNREACHABLE
    monkeypatch.undo()
    _, verdict = pair.inspect(topic)
    assert isinstance(verdict, Fail)
    assert verdict.reason is Reason.SOURCE_TRUNCATED


def test_what_the_source_does_not_show_yet_is_waited_for(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 20)
    producer = Producer({"bootstrap.servers": pair.source.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, b"undecided", b"k", 0)
    assert producer.flush(30) == 0
    pair.copy(topic, 20)
    with pair.at_copy(topic) as copy:
        assert copy.append(batch_of(3), 20) == (0, 20)
    _, verdict = pair.inspect(topic)
    assert isinstance(verdict, Wait)
    assert "does not show its records below offset 23 yet" in verdict.trouble.message
    producer.commit_transaction(30)
    wait_until(lambda: isinstance(pair.inspect(topic)[1], Fail))
    assert failure(pair.inspect(topic)[1]) == (Reason.SOURCE_DIVERGED, 20)


def test_logs_that_show_less_than_they_did_are_not_compared(pair: Pair) -> None:
    """As after a change of leaders between the look-ups and the reads."""
    topic = pair.topic()
    produce(pair.source, topic, 20)
    pair.copy(topic, 20)
    pair.inspect(topic)
    source, destination = pair.inspector.source_metadata, pair.inspector.destination_metadata
    assert source is not None
    assert destination is not None
    with pair.at_copy(topic) as copy:
        assert copy.append(batch_of(3), 20) == (0, 20)
    for ends, side, words in (
        (LogEnds(0, 23, 0, 23), "source", "OFFSET_OUT_OF_RANGE"),
        (LogEnds(0, 21, 0, 21), "source", "does not show its records below 21 yet"),
        (LogEnds(0, 20, 0, 24), "destination", "does not show its records below 24 yet"),
        (LogEnds(0, 20, 0, 25), "destination", "OFFSET_OUT_OF_RANGE"),
    ):
        (found,) = pair.inspector.compare_tails({pair.assignment(topic): ends}, source, destination).values()
        assert isinstance(found, Unreadable)
        assert (found.side, words in str(found.error)) == (side, True), found


# -- differences -------------------------------------------------------------------------------------------------------


def plain(pair: Pair, topic: str) -> None:
    produce(pair.destination, topic, 5, "foreign")


def idempotent(pair: Pair, topic: str) -> None:
    produce(pair.destination, topic, 5, "foreign", enable_idempotence="true")


def transactional(pair: Pair, topic: str) -> None:
    transact(pair.destination, topic, 5)


@pytest.mark.parametrize("source_grows", [False, True])
@pytest.mark.parametrize("write", [plain, idempotent, transactional])
def test_foreign_records_are_noticed(pair: Pair, write: Callable[[Pair, str], None], source_grows: bool) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 50)
    pair.copy(topic, 50)
    write(pair, topic)
    if source_grows:
        produce(pair.source, topic, 60)
    facts, verdict = pair.inspect(topic)
    assert failure(verdict) == (Reason.DESTINATION_WRITTEN, 50)
    assert facts.differs_at is not None
    assert 50 <= facts.differs_at < facts.destination_log_end
    assert facts.tail_producer_id != OWN_ID
    assert (facts.tail_producer_id == -1) == (write is plain)


def test_a_foreign_open_transaction_is_noticed(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 50)
    pair.copy(topic, 50)
    producer = Producer({"bootstrap.servers": pair.destination.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"foreign", b"k", 0)
    assert producer.flush(30) == 0
    assert failure(pair.inspect(topic)[1]) == (Reason.DESTINATION_WRITTEN, 50)
    producer.abort_transaction(30)


def test_a_record_of_an_aborted_transaction_is_not_the_sources(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 10)
    transact(pair.source, topic, 4, commit=False)
    pair.copy(topic, 10)
    with pair.at(topic) as source, pair.at_copy(topic) as copy:
        records = source.fetch(10).records
        header = next(batch_headers(records))
        assert (header.base_offset, header.record_count) == (10, 4)
        batch = bytearray(records[header.position : header.position + header.size_in_bytes])
        batch[22] &= ~0x10  # not transactional any more
        assert copy.append(batch, 10) == (0, 10)
    facts, verdict = pair.inspect(topic)
    assert failure(verdict) == (Reason.SOURCE_DIVERGED, 10)
    assert facts.differs_at == 10


def test_an_old_source_that_is_adopted_keeps_its_aborted_transactions(pair: Pair) -> None:
    """Consumers see nothing of them there, and nothing of the markers that the new primary has in their place."""
    topic = pair.topic()
    produce(pair.destination, topic, 50)
    transact(pair.destination, topic, 30, commit=False)
    with closing(Pair(pair.destination, pair.source)) as forth:
        forth.copy(topic, 50 + 31)
    facts, verdict = pair.inspect(topic)
    assert facts.tail is TailMatch.SAME
    assert isinstance(verdict, Copy)


def test_a_damaged_batch_of_the_source_proves_nothing(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 3)
    pair.copy(topic, 3)
    (segment,) = segment_files(pair.source, topic)
    with segment.open("r+b") as file:
        file.seek(80)
        byte = file.read(1)[0]
        file.seek(80)
        file.write(bytes([byte ^ 4]))
    _, verdict = pair.inspect(topic)
    assert isinstance(verdict, Wait)
    assert (verdict.trouble.reason, verdict.trouble.permanent_after_retries) == (Reason.CORRUPT_BATCH, True)
    assert "the source's batch at offset 0 is corrupt" in verdict.trouble.message


def test_a_leader_that_ignores_what_was_fetched_last_proves_no_history(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 3)
    reader = SectionReader(pair.at_source, pair.at_destination, _TAIL_READ_LIMITS)
    with pair.at(topic) as leader:
        epoch = leader.leader_epoch

    def is_still(high_watermark: int) -> bool:
        mark = SourceMark(epoch, high_watermark, 0, 2)
        return reader.is_still(mark, TopicPartition(topic, 0), pair.at_source.metadata({topic}))

    assert is_still(3)
    assert not is_still(4)
    exchange = fetch.exchange
    monkeypatch.setattr(
        fetch,
        "exchange",
        lambda positions, **others: exchange(
            {key: position._replace(last_fetched_epoch=None) for key, position in positions.items()}, **others
        ),
    )
    assert not is_still(3)
