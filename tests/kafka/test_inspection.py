"""What an inspection finds out about real pairs of logs, what the judge makes of it, and how many requests it takes."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import EARLIEST, ClusterClient, OffsetAnswer
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import fetch, markers
from kmirror.cluster.protocol.batch import SEQUENCE_MASK, batch_headers
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.cluster.protocol.records import Record
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.clock import now_ms
from kmirror.engine.histories.inspection import Inspector
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, Tail, Verdict, Wait, judge
from kmirror.engine.histories.tail_reader import Obstacle, TailReader
from kmirror.engine.histories.tails import Ends
from kmirror.errors import Reason
from kmirror.sandbox.cluster import SandboxCluster
from kmirror.state.assignment import Assignment
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic
from tests.support.logs import BuiltLog
from tests.support.mirrors import create_anew
from tests.support.oracle import librdkafka_records, segment_files
from tests.support.producers import whole_batches
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.waiting import wait_until

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
_RECORDS_A_BATCH = 7


class Pair:
    """Topics on a source and their copies on a destination, made by hand, and an inspector of both."""

    def __init__(self, source: SandboxCluster, destination: SandboxCluster, client_id: str = "kmirror") -> None:
        self.source, self.destination = source, destination
        self.at_source = ClusterClient(client_config({**source.client_properties(), "client.id": client_id}))
        self.at_destination = ClusterClient(client_config(destination.client_properties()))
        self.inspector = Inspector(self.at_source, self.at_destination, source.cluster_id)

    def close(self) -> None:
        self.at_source.close()
        self.at_destination.close()

    def topic(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """Create a topic on both sides; on one cluster the copy has another name."""
        topic = create_topic(self.source, partitions=partitions, settings=settings)
        create_topic(self.destination, partitions=partitions, name=self.copy_of(topic), settings=settings)
        return topic

    def copy_of(self, topic: str) -> str:
        return topic if self.source is not self.destination else f"copy-of-{topic}"

    def assignment(self, topic: str, partition: int = 0) -> Assignment:
        return Assignment(
            topic=self.copy_of(topic),
            partition=partition,
            source_topic=topic,
            source_topic_id=None,
            destination_topic_id=None,
            producer_id=OWN_ID,
        )

    def look(self, topic: str) -> tuple[Facts, Verdict]:
        """Inspect partition 0, and judge it."""
        assignment = self.assignment(topic)
        (facts,) = self.inspector.inspect([assignment])
        return facts, judge(assignment, None, facts)

    def at(self, topic: str, partition: int = 0) -> Leader:
        return Leader(self.source, topic, partition)

    def at_copy(self, topic: str, partition: int = 0) -> Leader:
        return Leader(self.destination, self.copy_of(topic), partition)

    def copy(self, topic: str, end: int | None = None) -> int:
        """Append what consumers see, and markers where they see nothing, up to `end`; return how many markers."""
        shown = [
            Record(r.offset, r.timestamp, r.key, r.value, r.headers)
            for r in librdkafka_records(self.source.bootstrap_servers, topic, 0, "read_committed")
            if end is None or r.offset < end
        ]
        with (
            self.at_copy(topic) as leader,
            OffsetAppender(self.at_destination, leader.partition, producer_id=OWN_ID) as out,
        ):
            begin = out.log_end_offset
            missing = [record for record in shown if record.offset >= begin]
            while missing:
                first = missing[0].offset
                run = [r for i, r in enumerate(missing[:_RECORDS_A_BATCH]) if r.offset == first + i]
                out.append(run)
                del missing[: len(run)]
            if end is not None:
                mark(leader, end - leader.log_end)
            return leader.log_end - begin - sum(record.offset >= begin for record in shown)


def mark(leader: Leader, number: int) -> None:
    """Append so many markers of ours."""
    if not number:
        return
    known = leader.producer()
    epoch = known.coordinator_epoch + 1 if known else 0
    fill = markers.Fill(*leader.partition, OWN_ID, 0, number, epoch)
    connection = leader.connection
    version = connection.version_for(markers.API_KEY, markers.LOWEST_VERSION, markers.HIGHEST_VERSION, "Markers")
    correlation_id = connection.next_correlation_id()
    request = markers.request(correlation_id, version, "kmirror", [fill])
    answer = markers.answer(connection.exchange_frame([request], correlation_id, 30), version)
    assert answer == {tuple(leader.partition): 0}


def fill(leader: Leader, end: int) -> None:
    """Append filler up to `end`."""
    while (at := leader.log_end) < end:
        batch = filler_batch(min(end - at, FILLER_RECORDS), now_ms(), base_offset=at)
        assert leader.append(batch, at & SEQUENCE_MASK) == (0, at)


def produce(
    cluster: SandboxCluster, topic: str, number: int, name: str = "v", partition: int = 0, **config: str
) -> None:
    """Write records with librdkafka, forty in a batch."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, **settings})
    for index in range(number):
        producer.produce(topic, f"{name}-{index}".encode() * 9, b"%d" % index, partition, headers=[("h", None)])
        if index % 40 == 39:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0


def transact(cluster: SandboxCluster, topic: str, number: int, *, commit: bool = True) -> None:
    """Write records in a transaction of their own, in one batch."""
    config = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": f"t-{time.time_ns()}"}
    producer = whole_batches(topic, config)
    producer.init_transactions(30)
    producer.begin_transaction()
    for index in range(number):
        producer.produce(topic, b"in-transaction-%d" % index, b"k", 0)
    producer.flush(30)
    with Leader(cluster, topic) as leader:
        before = leader.log_end
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        wait_until(lambda: leader.log_end == before + 1)  # its marker is written a moment later


def delete_records(cluster: SandboxCluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for done in admin.delete_records([Place(topic, 0, offset)]).values():
        done.result(30)


def failure(verdict: Verdict) -> tuple[Reason, int]:
    assert isinstance(verdict, Fail), verdict
    return verdict.reason, verdict.offset


@pytest.fixture
def pair(source_cluster: SandboxCluster, destination_cluster: SandboxCluster) -> Iterator[Pair]:
    with closing(Pair(source_cluster, destination_cluster)) as made:
        yield made


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
        assert (facts.tail, facts.tail_epoch, facts.tail_producer_id) == (Tail.SAME, epoch, OWN_ID)
        assert judge(assignments[partition], None, facts) == Copy(30 + partition)


def test_batches_too_large_for_one_answer_are_compared_too(pair: Pair, fetches: Counter[int]) -> None:
    topic = pair.topic(6, {"max.message.bytes": "9000000"})
    sizes = [3_000_000, 7_000_000, 10, 1_500_000, 4_000_000, 900_000]
    for partition, size in enumerate(sizes):
        batch = batch_of(value=size.to_bytes(4) * (size // 4))
        with pair.at(topic, partition) as source, pair.at_copy(topic, partition) as copy:
            assert source.append_as_is(batch).error_code == 0
            assert copy.append(batch, 0) == (0, 0)
    found = pair.inspector.inspect([pair.assignment(topic, partition) for partition in range(6)])
    assert [facts.tail for facts in found] == [Tail.SAME] * 6
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
        assert [facts.tail for facts in pair.inspector.inspect(assignments)] == [Tail.SAME] * 3
        return bool(pauses)

    wait_until(is_throttled)


def test_a_tail_of_markers_is_seen_through_and_the_sequence_number_is_known(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 50)
    transact(pair.source, topic, 9)
    transact(pair.source, topic, 30, commit=False)
    end = 50 + 10 + 31
    assert pair.copy(topic, end) == 1 + 31
    facts, verdict = pair.look(topic)
    assert (facts.tail, facts.tail_producer_id, facts.destination_log_end) == (Tail.SAME, OWN_ID, end)
    assert verdict == Copy(end, filled_offsets=32)
    with pair.at_copy(topic) as copy:
        assert facts.coordinator_epoch == copy.producer().coordinator_epoch >= 0  # type: ignore[union-attr]
        refused, _ = copy.append(batch_of(), end)
        assert refused == 45
        assert copy.append(batch_of(), end - verdict.filled_offsets) == (0, end)


def test_markers_alone_leave_nothing_to_compare(pair: Pair) -> None:
    topic = pair.topic()
    transact(pair.source, topic, 30, commit=False)
    assert pair.copy(topic, 31) == 31
    facts, verdict = pair.look(topic)
    assert (facts.tail, verdict) == (Tail.NOTHING, Copy(31, filled_offsets=31))
    with pair.at_copy(topic) as copy:
        assert copy.append(batch_of(), 0) == (0, 31)


def test_the_position_may_lie_inside_a_batch_of_the_source(pair: Pair) -> None:
    topic = pair.topic()
    with pair.at(topic) as source:
        assert source.append_as_is(batch_of(40)).error_code == 0
    pair.copy(topic, 23)
    facts, verdict = pair.look(topic)
    assert (facts.tail, facts.tail_epoch, verdict) == (Tail.SAME, 0, Copy(23))


def test_a_source_that_was_emptied_is_no_alarm_and_one_that_moved_on_is(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 60)
    pair.copy(topic, 60)
    delete_records(pair.source, topic, 60)
    assert pair.look(topic)[1] == Copy(60)
    delete_records(pair.destination, topic, 60)
    assert pair.look(topic)[1] == Copy(60)
    produce(pair.source, topic, 30)
    assert pair.look(topic)[1] == Copy(60)
    pair.copy(topic, 70)
    delete_records(pair.source, topic, 75)
    assert failure(pair.look(topic)[1]) == (Reason.SOURCE_TRUNCATED, 70)


def test_a_look_up_of_the_log_start_that_fails_decides_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has deleted what was not copied; as long as it does not say so, it may as well have been reset."""
    topic = pair.topic()
    produce(pair.source, topic, 100)
    pair.copy(topic, 40)
    delete_records(pair.source, topic, 70)
    real = ClusterClient.list_offsets
    asked = []

    def without_starts(self: ClusterClient, wanted: Mapping[Any, int], **options: Any) -> Any:
        answers = real(self, wanted, **options)
        if self is pair.at_source and EARLIEST in wanted.values():
            asked.append(wanted)
            return {partition: OffsetAnswer(Code.UNKNOWN_SERVER_ERROR, None, -1) for partition in answers}
        return answers

    monkeypatch.setattr(ClusterClient, "list_offsets", without_starts)
    _, verdict = pair.look(topic)
    assert asked
    assert isinstance(verdict, Wait)
    assert verdict.trouble.reason is Reason.SOURCE_UNREACHABLE
    monkeypatch.undo()
    _, verdict = pair.look(topic)
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
    _, verdict = pair.look(topic)
    assert isinstance(verdict, Wait)
    assert "does not show its records below offset 23 yet" in verdict.trouble.message
    producer.commit_transaction(30)
    wait_until(lambda: isinstance(pair.look(topic)[1], Fail))
    assert failure(pair.look(topic)[1]) == (Reason.SOURCE_DIVERGED, 20)


def test_logs_that_show_less_than_they_did_are_not_compared(pair: Pair) -> None:
    """As after a change of leaders between the look-ups and the reads."""
    topic = pair.topic()
    produce(pair.source, topic, 20)
    pair.copy(topic, 20)
    pair.look(topic)
    source, destination = pair.inspector.source_metadata, pair.inspector.destination_metadata
    assert source is not None
    assert destination is not None
    with pair.at_copy(topic) as copy:
        assert copy.append(batch_of(3), 20) == (0, 20)
    for ends, side, words in (
        (Ends(0, 23, 0, 23), "source", "OFFSET_OUT_OF_RANGE"),
        (Ends(0, 21, 0, 21), "source", "does not show its records below 21 yet"),
        (Ends(0, 20, 0, 24), "destination", "does not show its records below 24 yet"),
        (Ends(0, 20, 0, 25), "destination", "OFFSET_OUT_OF_RANGE"),
    ):
        (found,) = (
            TailReader(pair.at_source, pair.at_destination)
            .compare({pair.assignment(topic): ends}, source, destination)
            .values()
        )
        assert isinstance(found, Obstacle)
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
def test_somebody_elses_records_are_noticed(pair: Pair, write: Callable[[Pair, str], None], source_grows: bool) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 50)
    pair.copy(topic, 50)
    write(pair, topic)
    if source_grows:
        produce(pair.source, topic, 60)
    facts, verdict = pair.look(topic)
    assert failure(verdict) == (Reason.DESTINATION_WRITTEN, 50)
    assert facts.differs_at is not None
    assert 50 <= facts.differs_at < facts.destination_log_end
    assert facts.tail_producer_id != OWN_ID
    assert (facts.tail_producer_id == -1) == (write is plain)


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
    facts, verdict = pair.look(topic)
    assert failure(verdict) == (Reason.SOURCE_DIVERGED, 10)
    assert facts.differs_at == 10


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
    _, verdict = pair.look(topic)
    assert isinstance(verdict, Wait)
    assert (verdict.trouble.reason, verdict.trouble.permanent_after_retries) == (Reason.CORRUPT_BATCH, True)
    assert "the source's batch at offset 0 is corrupt" in verdict.trouble.message


# -- a log that starts above 0 -----------------------------------------------------------------------------------------


def test_a_log_start_is_built_step_by_step_and_may_move_on_meanwhile(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 900)
    delete_records(pair.source, topic, 500)
    assert pair.look(topic)[1] == AdvanceStart(500)
    with pair.at_copy(topic) as copy:
        fill(copy, 200)
        assert pair.look(topic)[1] == AdvanceStart(500)
        fill(copy, 500)
        assert pair.look(topic)[1] == AdvanceStart(500)
        delete_records(pair.source, topic, 600)
        assert pair.look(topic)[1] == AdvanceStart(600)
        fill(copy, 600)
        delete_records(pair.destination, topic, 600)
        assert pair.look(topic)[1] == Copy(600)
        delete_records(pair.source, topic, 650)
        assert pair.look(topic)[1] == AdvanceStart(650)
        fill(copy, 650)
        delete_records(pair.destination, topic, 650)
    pair.copy(topic, 700)
    facts, verdict = pair.look(topic)
    assert (facts.tail, verdict) == (Tail.SAME, Copy(700))
    delete_records(pair.source, topic, 750)
    assert failure(pair.look(topic)[1]) == (Reason.SOURCE_TRUNCATED, 700)


def test_filler_that_is_back_is_trimmed_again_whatever_stands_behind_it(pair: Pair) -> None:
    records, silent = pair.topic(), pair.topic()
    for topic in (records, silent):
        produce(pair.source, topic, 500)
        delete_records(pair.source, topic, 500)
    produce(pair.source, records, 10)
    transact(pair.source, silent, 10, commit=False)
    for topic in (records, silent):
        with pair.at_copy(topic) as copy:
            fill(copy, 500)
        # as a broker has it that died before it had noted the trim
        pair.copy(topic, 510)
        facts, verdict = pair.look(topic)
        assert (facts.only_filler, facts.filler_end) == (False, 500)
        assert isinstance(verdict, Copy)
        assert verdict.trim_to == 500
        delete_records(pair.destination, pair.copy_of(topic), 500)
        facts, verdict = pair.look(topic)
        assert isinstance(verdict, Copy)
        assert verdict.trim_to is None


def test_filler_is_not_built_upon_where_the_source_has_records(pair: Pair) -> None:
    topic = pair.topic()
    produce(pair.source, topic, 100)
    with pair.at_copy(topic) as copy:
        fill(copy, 40)
    facts, verdict = pair.look(topic)
    assert facts.only_filler
    assert isinstance(verdict, Wait)
    assert verdict.trouble.permanent_after_retries


# -- compaction --------------------------------------------------------------------------------------------------------


@pytest.fixture
def cleaned(forgetful: ForgetfulCluster) -> Iterator[Pair]:
    """Return a pair of topics of one cluster, whose cleaner does not wait."""
    with closing(Pair(forgetful.cluster, forgetful.cluster)) as made:
        yield made


def written(leader: Leader, sequence: Iterator[int] | None, key: bytes, at: int) -> None:
    """Append one record, in a segment of its own sooner or later."""
    batch = batch_of(1, key=key, value=b"at %d" % at, timestamp=at)
    if sequence is None:
        assert leader.append_as_is(batch).error_code == 0
    else:
        assert leader.append(batch, next(sequence))[0] == 0


def stored_batches(leader: Leader) -> int:
    return len(list(batch_headers(leader.fetch(0).records)))


def test_both_cleaners_may_have_been_at_work(cleaned: Pair) -> None:
    """First on records that were copied, then on the copy, which has markers where the source's cleaner was first."""
    topic = cleaned.topic(settings=COMPACTED)
    clock, sequence = count(time.time_ns() // 1_000_000 - 10_000_000, 1000), count()
    with cleaned.at(topic) as source, cleaned.at_copy(topic) as copy:
        for index in range(30):
            at, key = next(clock), b"same" if index % 3 else b"key-%d" % index
            written(source, None, key, at)
            written(copy, sequence, key, at)
        assert cleaned.look(topic)[1] == Copy(30)

        def is_source_cleaned() -> bool:
            written(source, None, b"another", next(clock))
            time.sleep(0.1)
            return stored_batches(source) < source.log_end - 15

        wait_until(is_source_cleaned)
        facts, verdict = cleaned.look(topic)
        assert (facts.tail, verdict) == (Tail.SAME, Copy(30))

        def is_copy_cleaned() -> bool:
            written(source, None, b"another", next(clock))
            cleaned.copy(topic, source.log_end)
            return stored_batches(copy) < copy.log_end - 15

        wait_until(is_copy_cleaned)
        facts, verdict = cleaned.look(topic)
        assert isinstance(verdict, Copy)
        assert (facts.tail, verdict.offset) == (Tail.SAME, source.log_end)


def test_foreign_records_do_not_hide_in_holes(cleaned: Pair) -> None:
    """Where somebody wrote to the copy, the source had records that its cleaner has removed since."""
    topic = cleaned.topic(settings=COMPACTED)
    clock = count(time.time_ns() // 1_000_000 - 10_000_000, 1000)
    with cleaned.at(topic) as source, cleaned.at_copy(topic) as copy:
        sequence = count()
        for index in range(6):
            at = next(clock)
            written(source, None, b"key-%d" % index, at)
            written(copy, sequence, b"key-%d" % index, at)
        foreign = Producer({"bootstrap.servers": cleaned.destination.bootstrap_servers})
        foreign.produce(cleaned.copy_of(topic), b"not copied", b"foreign", 0)
        assert foreign.flush(30) == 0
        written(source, None, b"same", next(clock))  # at the same offset

        def is_gone() -> bool:
            written(source, None, b"same", next(clock))
            time.sleep(0.1)
            return 6 not in [header.base_offset for header in batch_headers(source.fetch(0).records)]

        wait_until(is_gone)
        facts, verdict = cleaned.look(topic)
        assert failure(verdict) == (Reason.DESTINATION_WRITTEN, 6)
        assert facts.tail_producer_id == -1


# -- logs of all kinds -------------------------------------------------------------------------------------------------


def test_a_true_copy_of_any_log_is_found_to_be_one(
    forgetful: ForgetfulCluster, installed_logs: dict[str, BuiltLog], destination_cluster: SandboxCluster
) -> None:
    """Holes, old formats, transactions, LogAppendTime, starts above 0: as a real broker reads them from its disk."""
    with closing(Pair(forgetful.cluster, destination_cluster)) as pair:
        for topic, log in installed_logs.items():
            create_anew(destination_cluster, topic, {"max.message.bytes": "20000000"})
            with pair.at_copy(topic) as copy:
                fill(copy, log.log_start_offset)
                if log.log_start_offset:
                    delete_records(destination_cluster, topic, log.log_start_offset)
                end = random.Random(log.seed).randint(log.log_start_offset, log.last_stable_offset)
                pair.copy(topic, end)
                facts, verdict = pair.look(topic)
                assert isinstance(verdict, Copy), (topic, end, facts, verdict)
                shown = any(record.offset < end for record in log.expected)
                assert facts.tail is (Tail.SAME if shown else Tail.NOTHING), (topic, end, facts)
                known = copy.producer()
                assert known is None or (end - verdict.filled_offsets) & SEQUENCE_MASK == known.last_sequence + 1
